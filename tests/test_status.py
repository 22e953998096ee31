"""`concise status`: what another shell can read of a run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from concisecli.artifacts import append_jsonl, write_jsonl, write_text
from concisecli.heartbeat import HEARTBEAT, Heartbeat, read_beat
from concisecli.monitor import Monitor, Stopwatch
from concisecli.records import UsageError
from concisecli.upkeep.runs import finished_stage, newest, run_folder, stage_folders
from concisecli.upkeep.status import of_folder, seconds_per_step, status, tail
from tests.toy_run import folder_of, write_run

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "toy"
    write_run(folder)
    return folder


def under_way(run: Path, stage: str, pid: int, steps: int = 12) -> Path:
    folder = run / f"{stage}-0123456789ab"
    folder.mkdir()
    rows = [
        {"step": s, "accuracy": 0.5, "length": 60.0, "entropy": 0.4, "truncated": 0.1, "mismatch": 1e-4}
        | {"groups/all_right": 3.0, "groups/mixed": 6.0, "groups/all_wrong": 3.0}
        for s in range(steps)
    ]
    rows[-1]["alarm/collapse"] = 1.0
    write_jsonl(folder / "metrics.jsonl", rows)
    write_jsonl(folder / "timings.jsonl", [{"event": "begin", "time": 0.0}])
    append_jsonl(folder / "timings.jsonl", ({"step": s, "time": 1000 + 2.0 * s} for s in range(steps)))
    write_text(run / ".locks" / folder.name, f"process {pid} on {socket.gethostname()}")
    Heartbeat(folder, 60, "step", steps).beat("generate")
    return folder


def test_a_running_stage_tells_phase_speed_time_left_and_health(run: Path) -> None:
    under_way(run, "extra", os.getpid())
    found = {stage.stage: stage for stage in status(run, ("sft", "extra", "later"))}
    extra = found["extra"]
    assert (extra.state, extra.phase, extra.done, extra.total) == ("running", "generate", 12, 60)
    assert (extra.seconds_per_step, extra.seconds_left) == (2.0, 96.0)
    assert extra.health == {"truncated": 0.1, "entropy": 0.4, "mismatch": 1e-4, "all_right": 0.25}
    assert extra.alarms == ("collapse",)
    assert extra.heartbeat_age is not None
    assert extra.heartbeat_age < 60
    assert (found["later"].state, found["sft"].state, found["sft"].kind) == ("waiting", "finished", "sft")


def test_a_killed_stage_is_unfinished_and_a_broken_manifest_says_why(run: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    under_way(run, "extra", dead.pid)
    broken = run / "odd-0123456789ab"
    broken.mkdir()
    write_text(broken / "manifest.json", "{")
    found = {stage.stage: stage for stage in status(run)}
    assert (found["extra"].state, found["extra"].seconds_left) == ("unfinished", None)
    assert found["odd"].state == "broken"
    assert "is not valid JSON" in found["odd"].note


def test_the_monitor_beats_while_it_works_and_leaves_nothing(tmp_path: Path) -> None:
    clock = Stopwatch()
    with Monitor(tmp_path, stage="rl1", total=5, clock=clock) as monitor:
        monitor.log(0, {"loss": 1.0})
        with clock.timed("train"):
            beat = read_beat(tmp_path)
            assert beat is not None
            assert (beat.phase, beat.done, beat.total, beat.pid) == ("train", 1, 5, os.getpid())
    assert not (tmp_path / HEARTBEAT).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "timings.jsonl"]


def test_the_rate_is_of_what_was_run_in_one_go() -> None:
    before = [{"step": 0, "time": 0.0}, {"step": 1, "time": 1.0}]
    assert seconds_per_step([*before, {"event": "begin", "time": 500.0}, {"step": 2, "time": 504.0}]) is None
    after = [{"event": "begin", "time": 500.0}, {"step": 2, "time": 504.0}, {"step": 3, "time": 507.0}]
    assert seconds_per_step([*before, *after]) == 3.0
    assert seconds_per_step([]) is None


def test_only_the_end_of_a_log_is_read_and_a_half_written_row_is_left_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a", ({"step": s, "text": "x" * 100} for s in range(5000)))
    with (tmp_path / "a").open("a") as file:
        file.write('{"step": 5000, "te')
    rows = tail(tmp_path / "a")
    assert rows[-1]["step"] == 4999
    assert 100 < len(rows) < 1000


def test_runs_and_stages_are_found_by_name_and_path(run: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert run_folder("toy", runs) == run_folder(str(run), runs) == run_folder(None, runs) == run
    assert run_folder(None, runs, "toy") == run
    assert finished_stage("toy/rl1", runs).path == folder_of(run, "rl1")
    assert finished_stage(str(folder_of(run, "rl1")), runs).stage == "rl1"
    for name, hint in (("tay", "did you mean toy?"), ("zzz", "there are: toy")):
        with pytest.raises(UsageError) as caught:
            run_folder(name, runs)
        assert hint in str(caught.value)
    with pytest.raises(UsageError, match=r"did you mean .*rl1\?"):
        finished_stage("toy/rl2", runs)
    with pytest.raises(UsageError, match="is unfinished"):
        finished_stage(str(under_way(run, "extra", os.getpid())), runs)
    with pytest.raises(UsageError, match="there are no runs below"):
        run_folder(None, tmp_path / "nowhere")


def test_the_command_prints_a_table_or_one_line_of_json(run: Path) -> None:
    folder = under_way(run, "extra", os.getpid())
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in ([], ["--json"]):
        command = [sys.executable, "-m", "concisecli", "status", "toy", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=run.parent.parent, env=env, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        if words:
            (line,) = done.stdout.splitlines()
            stages = {stage["stage"]: stage for stage in json.loads(line)["stages"]}
            assert stages["extra"]["folder"] == str(folder.relative_to(run.parent.parent))
        else:
            assert "running, generate" in done.stdout
            assert "alarm: collapse" in " ".join(done.stdout.split())


def test_a_stage_that_has_been_silent_for_long_says_so(run: Path) -> None:
    from concisecli.status_page import state

    folder = under_way(run, "extra", os.getpid())
    (found,) = [f for f in stage_folders(run) if f.path == folder]
    assert "silent for 10:0" in state(of_folder(found, time.time() + 601))
    assert state(of_folder(found, time.time())) == "running, generate"
    assert newest(stage_folders(run))["extra"].path == folder
