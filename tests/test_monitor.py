"""Metrics without a clock, timings with one, and progress on stderr."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from concisecli.monitor import Line, Monitor, clock, progress
from concisecli.records import ConciseError


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_hold_every_bit_and_no_clock(tmp_path: Path) -> None:
    value = 0.1 + 0.2
    for name in ("one", "two"):
        with Monitor(tmp_path / name, stage="rl1", total=2) as monitor:
            monitor.log(0, {"loss": value, "accuracy": np.float64(1 / 3), "kept": 4}, seconds={"generate": 0.5})
    assert (tmp_path / "one/metrics.jsonl").read_bytes() == (tmp_path / "two/metrics.jsonl").read_bytes()
    (row,) = rows(tmp_path / "one/metrics.jsonl")
    assert row == {"step": 0, "accuracy": 1 / 3, "kept": 4, "loss": value}
    assert list(row) == ["step", "accuracy", "kept", "loss"]
    (timing,) = rows(tmp_path / "one/timings.jsonl")
    assert (timing["step"], timing["generate"]) == (0, 0.5)


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    with Monitor(tmp_path, stage="rl1", total=1) as monitor:
        monitor.log(0, {"length": math.nan, "loss": math.inf})
    assert rows(tmp_path / "metrics.jsonl") == [{"step": 0, "length": None, "loss": None}]


def test_a_resume_cuts_the_metrics_back_to_the_checkpoint(tmp_path: Path) -> None:
    with Monitor(tmp_path, stage="rl1", total=4) as monitor:
        monitor.log(0, {"loss": 1.0})
        offsets = monitor.offsets()
        monitor.log(1, {"loss": 2.0})
    with Monitor(tmp_path, stage="rl1", total=4, resume_from=1, offsets=offsets) as monitor:
        monitor.log(1, {"loss": 3.0})
    assert [row["loss"] for row in rows(tmp_path / "metrics.jsonl")] == [1.0, 3.0]


def test_without_a_checkpoint_the_metrics_start_anew(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        with Monitor(tmp_path, stage="rl1", total=1) as monitor:
            monitor.log(0, {"loss": loss})
    assert [row["loss"] for row in rows(tmp_path / "metrics.jsonl")] == [2.0]


def test_a_metrics_file_shorter_than_its_checkpoint_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(ConciseError, match="is shorter"),
        Monitor(tmp_path, stage="s", total=1, offsets={"metrics.jsonl": 9}),
    ):
        pass


def test_a_rank_that_is_not_the_first_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(tmp_path, stage="s", total=1, enabled=False) as monitor:
        monitor.log(0, {"loss": 1.0})
        assert monitor.offsets() == {}
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_progress_goes_to_stderr_with_rate_and_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(tmp_path, stage="rl1", total=3) as monitor:
        for step in range(3):
            monitor.log(step, {"accuracy": 0.5, "length": 70.25, "nobody_asked": 1.0})
    out, err = capsys.readouterr()
    first, last = err.splitlines()[0], err.splitlines()[-1]
    assert out == ""
    assert first.startswith("rl1  step 1/3  ")
    assert "step/s" in first
    assert "accuracy 0.5  length 70.25" in first
    assert first.endswith("left")
    assert "nobody_asked" not in err
    assert last.startswith("rl1  step 3/3")


def test_many_quick_steps_do_not_flood_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Monitor(tmp_path, stage="rl1", total=500) as monitor:
        for step in range(500):
            monitor.log(step, {"accuracy": 0.5})
    assert 2 <= len(capsys.readouterr().err.splitlines()) <= 6
    assert len(rows(tmp_path / "metrics.jsonl")) == 500


def test_the_rate_counts_only_the_steps_of_this_run() -> None:
    line = Line("rl1", 100, "step", done=90)
    line.began -= 10.0
    line.done = 95
    assert "2 s/step" in line.describe({})
    assert "0:10 left" in line.describe({})


def test_progress_hands_every_item_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(5), what="rows")) == [0, 1, 2, 3, 4]
    assert list(progress(iter("ab"), 2)) == ["a", "b"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (750, "12:30"), (11100, "3:05:00")])
def test_seconds_are_shown_as_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_a_terminal_gets_one_line_rewritten_and_the_last_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Monitor(tmp_path, stage="rl1", total=3) as monitor:
            for step in range(3):
                monitor.log(step, {"accuracy": 0.5})
        terminal.flush()
        shown = ""
        while "took" not in shown:
            shown += os.read(leader, 65536).decode()
    os.close(leader)
    assert "rl1  step 3/3" in shown
    assert "\x1b[2K" in shown
    last = shown.rstrip().splitlines()[-1]
    assert last.startswith("\x1b[2Krl1  step 3/3") or "rl1  step 3/3" in last
    assert re.search(r"took 0:0\d$", last)
