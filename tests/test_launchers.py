"""Who is this process among how many, as each launcher says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concisecli import launchers
from concisecli.launchers import Place
from concisecli.records import ConciseError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "gpu[03-04]",
}


def test_without_a_launcher_there_is_no_place() -> None:
    assert launchers.place({}) is None
    with pytest.raises(ConciseError, match="no launcher started this process"):
        launchers.settle({})


def test_torchrun_and_slurm_say_the_same_in_other_words() -> None:
    assert launchers.place(dict(TORCHRUN)) == launchers.place(dict(SLURM)) == Place(5, 8, 1, 4)


def test_a_slurm_step_of_one_task_may_launch_processes_itself() -> None:
    assert launchers.place(SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None


def test_the_step_counts_where_it_has_fewer_tasks_than_the_job() -> None:
    place = launchers.place(SLURM | {"SLURM_STEP_NUM_TASKS": "6"})
    assert place is not None
    assert place.world == 6


def test_torchrun_comes_before_the_slurm_job_that_it_runs_in() -> None:
    place = launchers.place(SLURM | TORCHRUN | {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"})
    assert place == Place(5, 8, 1, 4)


def test_slurm_ranks_meet_on_the_first_machine_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no scontrol
    env = dict(SLURM)
    launchers.settle(env)
    assert env["MASTER_ADDR"] == "gpu03"
    assert 20000 <= int(env["MASTER_PORT"]) < 40000
    other = SLURM | {"SLURM_PROCID": "0"}
    launchers.settle(other)
    assert other["MASTER_PORT"] == env["MASTER_PORT"]
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("5", "8", "1")


def test_scontrol_is_asked_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text('#!/bin/sh\necho "asked about $3"\necho second\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert launchers.first_host("rack[1-2]") == "asked"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[03-07,12],cpu1", "gpu03"),
        ("gpu[7,9]", "gpu7"),
        ("rack[2-3]node[01-04]", "rack2node01"),
        ("a-b-[1-2].example.org,c", "a-b-1.example.org"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert launchers.first_host(nodes) == first


def test_what_is_not_said_is_named() -> None:
    with pytest.raises(ConciseError, match="RANK is not set"):
        launchers.place({"WORLD_SIZE": "2"})
    with pytest.raises(ConciseError, match="MASTER_PORT is not set"):
        launchers.settle({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "here"})


def test_a_process_forgets_that_it_was_a_rank() -> None:
    env = TORCHRUN | SLURM | {"TORCHELASTIC_USE_AGENT_STORE": "True", "HOME": "/home"}
    taken = launchers.taken_out(env)
    assert taken["RANK"] == "5"
    assert launchers.place(env) is None
    assert env["HOME"] == "/home"
    assert not any(name.startswith("TORCHELASTIC") for name in env)


def test_threads_are_the_pipelines_else_the_environments_else_a_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launchers.threads(2, 4) == 2
    assert launchers.threads(0, 4) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert launchers.threads(0, 4) == 2
    assert launchers.threads(0, 16) == 1
