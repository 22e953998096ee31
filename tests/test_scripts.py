"""The scripts of the documents, run for real: the chains against `concise run`, the batch scripts with a `srun` and a
`scontrol` that stand in for SLURM's."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from concisecli.artifacts import read_json
from tests.test_curriculum import PIPELINE, outputs, steps_done

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "docs" / "scripts"
CONCISE = f"""#!/bin/sh
exec {sys.executable} -m concisecli "$@"
"""
SCONTROL = """#!/bin/sh
case "$1" in show) echo localhost;; *) echo "$@" >> scontrol.log;; esac
"""
# Two tasks on this machine; a signal goes to both, and the worst exit code is the step's.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys

command = sys.argv[sys.argv.index("concise") :]  # behind the flags of srun
step = {{"SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}}
tasks = [
    subprocess.Popen(command, env=os.environ | step | {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}})
    for rank in range(2)
]
signal.signal(signal.SIGTERM, lambda number, frame: [task.send_signal(number) for task in tasks])
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which `concise` is this checkout and SLURM's commands are at hand."""
    folder = tmp_path_factory.mktemp("bin")
    for name, text in {"concise": CONCISE, "scontrol": SCONTROL, "srun": SRUN}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def environment(path: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
    # The port comes from the job's number: another one for every test process.
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost"}
    return clean | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | job


Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path, environment: dict[str, str]) -> Iterator[Begin]:
    """Starts a command beside a small pipeline; what is left of it when the test ends is killed."""
    (tmp_path / "concise.yaml").write_text(PIPELINE)
    begun: list[subprocess.Popen[str]] = []

    def start(*command: str | Path) -> subprocess.Popen[str]:
        begun.append(
            subprocess.Popen(
                [str(word) for word in command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return begun[-1]

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=500)
    return process.returncode, stdout, stderr


def wait_for_step(folder: Path, stage: str, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while steps_done(folder, stage) < step:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def chain_in(text: str) -> list[str]:
    return [line.split(" -p ")[0] for line in text.splitlines() if line.startswith("concise ")]


def test_the_makefile_runs_what_the_shell_script_runs(tmp_path: Path) -> None:
    done = subprocess.run(["make", "-n", "-f", SCRIPTS / "curriculum.mk"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(chain_in(done.stdout)) == 7
    assert chain_in(done.stdout) == chain_in((SCRIPTS / "chain.sh").read_text())


@pytest.mark.parametrize("name", ["chain.sh", "one-node.sbatch", "many-nodes.sbatch"])
def test_a_script_is_one_that_bash_takes(name: str) -> None:
    subprocess.run(["bash", "-n", SCRIPTS / name], check=True)


def looking_commands() -> list[str]:
    """What the tutorial does with a finished run, said of the one at hand."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    lines = re.findall(r"^concise (?:data show|status|rollouts|report|export|gc) .*", page, re.MULTILINE)
    lines = [line for line in lines if "--dropped" not in line]  # made rows are never dropped
    assert len(lines) == 6
    ours = {"conciser-1b5": "small", "qwen/concise.yaml": "concise.yaml", "all-*": "pool-*"}
    return [re.sub("|".join(map(re.escape, ours)), lambda found: ours[found[0]], line) for line in lines]


@pytest.mark.slow
def test_the_shell_script_leaves_the_files_that_one_run_leaves(tmp_path: Path, begin: Begin) -> None:
    other = tmp_path / "other"
    code, _, said = ended(begin("concise", "run", "concise.yaml", "--runs", other / "runs"))
    assert code == 0, said
    code, _, said = ended(begin("bash", SCRIPTS / "chain.sh", "concise.yaml"))
    assert code == 0, said
    assert outputs(tmp_path) == outputs(other)
    assert any("rl2-" in name and name.endswith("model.safetensors") for name in outputs(other))
    code, told, said = ended(begin("make", "-s", "-f", SCRIPTS / "curriculum.mk", "FLAGS=--dry-run"))
    assert code == 0, said
    decisions = [line.split()[1] for line in told.splitlines()]
    assert len(decisions) == 9
    assert set(decisions) == {"skip:"}
    for command in looking_commands():
        code, _, said = ended(begin("bash", "-c", command))
        assert code == 0, (command, said)


@pytest.mark.slow
def test_a_job_that_is_asked_to_stop_saves_and_goes_back_into_the_queue(tmp_path: Path, begin: Begin) -> None:
    words = ("bash", SCRIPTS / "one-node.sbatch", "concise.yaml", "--until", "rl1")
    process = begin(*words, "rl1.steps=400")
    wait_for_step(tmp_path, "rl1", 2, process)
    process.send_signal(signal.SIGTERM)
    code, _, said = ended(process)
    assert code == 75, said
    assert (tmp_path / "scontrol.log").read_text() == f"requeue {os.getpid()}\n"
    (checkpoints,) = (tmp_path / "runs" / "small").glob("rl1-*/checkpoints")
    assert list(checkpoints.iterdir())
    code, _, said = ended(begin(*words, "--set", "rl1.steps=400", "--max-tokens", "1"))
    assert code == 75, said
    assert "rl1: goes on at step" in said


@pytest.mark.slow
def test_the_tasks_of_srun_train_together(tmp_path: Path, begin: Begin) -> None:
    code, told, said = ended(begin("bash", SCRIPTS / "many-nodes.sbatch", "concise.yaml", "--until", "rl1"))
    assert code == 0, said
    assert not (tmp_path / "scontrol.log").exists()
    assert sum(line.startswith("rl1 ") for line in told.splitlines()) == 1
    (manifest,) = (tmp_path / "runs" / "small").glob("rl1-*/manifest.json")
    assert read_json(manifest)["env"]["processes"] == 2


@pytest.mark.slow
def test_tasks_that_are_asked_to_stop_save_and_requeue_once(tmp_path: Path, begin: Begin) -> None:
    process = begin("bash", SCRIPTS / "many-nodes.sbatch", "concise.yaml", "--until", "rl1", "rl1.steps=400")
    wait_for_step(tmp_path, "rl1", 1, process)
    process.send_signal(signal.SIGTERM)
    code, _, said = ended(process)
    assert code == 75, said
    assert (tmp_path / "scontrol.log").read_text() == f"requeue {os.getpid()}\n"
