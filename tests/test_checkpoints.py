"""A kill at any moment leaves a whole checkpoint: the new one or the one before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from concisecli import checkpoints
from concisecli.records import ConciseError, Preempted


class Files:
    """A backend that saves two files: real bytes in real folders, without torch."""

    rank, world = 0, 1

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        (folder / "shard").mkdir()
        (folder / "weights").write_bytes(b"w" * 1000)
        (folder / "shard" / "state").write_text(str(state))

    def load(self, folder: Path) -> dict[str, Any]:
        return {"text": (folder / "shard" / "state").read_text()}


def save(folder: Path, step: int, keep: int = 2) -> Path:
    return checkpoints.save(folder, step, Files(), {"step": step}, keep=keep)  # type: ignore[arg-type]


def test_the_latest_is_found_and_holds_what_was_saved(tmp_path: Path) -> None:
    assert checkpoints.latest(tmp_path / "none") is None
    save(tmp_path, 9)
    save(tmp_path, 10)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert checkpoints.step_of(found) == 10
    assert Files().load(found) == {"text": "{'step': 10, 'world': 1}"}


def test_a_million_steps_are_still_in_order(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert checkpoints.step_of(found) == 1_000_000


def test_older_ones_go_only_beyond_the_number_to_keep(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000004"]


@pytest.mark.parametrize("harm", ["no marker", "marker cut", "file cut", "file gone"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(tmp_path: Path, harm: str) -> None:
    save(tmp_path, 1)
    bad = save(tmp_path, 2)
    if harm == "no marker":
        (bad / checkpoints.MARKER).unlink()
    elif harm == "marker cut":
        (bad / checkpoints.MARKER).write_text("{")
    elif harm == "file cut":
        (bad / "weights").write_bytes(b"w")
    else:
        (bad / "shard" / "state").unlink()
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert checkpoints.step_of(found) == 1


def test_what_is_passed_over_is_told_once_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoints.latest(tmp_path, warn=True) is None
    save(tmp_path, 1)
    (tmp_path / ".step-000001.partial").mkdir()  # older than what is whole: of no interest
    assert checkpoints.latest(tmp_path, warn=True) is not None
    assert capsys.readouterr().err == ""
    (save(tmp_path, 2) / "weights").write_bytes(b"w")
    (tmp_path / ".step-000003.partial").mkdir()
    checkpoints.latest(tmp_path)
    assert capsys.readouterr().err == ""
    checkpoints.latest(tmp_path, warn=True)
    two, three = capsys.readouterr().err.splitlines()
    assert "the checkpoint of step 2 in" in two
    assert "step 3" in three
    assert "going on from step 1" in three


def test_a_step_that_is_done_again_replaces_its_old_checkpoint(tmp_path: Path) -> None:
    (save(tmp_path, 2) / "left over").write_text("x")
    assert not (save(tmp_path, 2) / "left over").exists()


KILL = """
import os, signal, sys
from pathlib import Path
from concisecli import checkpoints
from tests.test_checkpoints import Files

folder, moment = Path(sys.argv[1]), sys.argv[2]
die = lambda *args: os.kill(os.getpid(), signal.SIGKILL)

class Dying(Files):
    def save(self, folder, state):
        super().save(folder, state)
        if moment == "after the files":
            die()

if moment == "before the rename":
    checkpoints.sync_folder = die
elif moment == "before the marker":
    checkpoints.write_json = die
elif moment == "before the old one goes":
    checkpoints.discard = die
checkpoints.save(folder, 2, Dying(), {"step": 2}, keep=1)
"""


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ("after the files", 1),
        ("before the rename", 1),
        ("before the marker", 1),
        ("before the old one goes", 2),
    ],
)
def test_kill_9_during_a_save_leaves_a_whole_checkpoint_and_the_next_save_cleans_up(
    tmp_path: Path, moment: str, step: int
) -> None:
    save(tmp_path, 1)
    words = [sys.executable, "-c", KILL, str(tmp_path), moment]
    done = subprocess.run(words, cwd=Path(__file__).parent.parent, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert checkpoints.step_of(found) == step
    save(tmp_path, 3, keep=1)
    assert not list(tmp_path.glob(".step-*"))
    found = checkpoints.latest(tmp_path)
    assert found is not None
    assert checkpoints.step_of(found) == 3


def test_a_folder_that_cannot_be_written_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConciseError, match="cannot write"):
        save(tmp_path / "f" / "checkpoints", 1)


def test_sigterm_turns_the_answer_and_a_second_one_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with checkpoints.stop_signal() as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        with pytest.raises(Preempted):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_hears_no_signal_and_needs_none() -> None:
    answers = []

    def work() -> None:
        with checkpoints.stop_signal() as asked:
            answers.append(asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert answers == [False]
