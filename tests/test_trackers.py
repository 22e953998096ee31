"""Trackers show what metrics.jsonl holds, and no failure of theirs is one of the run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from concisecli import trackers
from concisecli.config import SftConfig
from concisecli.loading import load_pipeline
from concisecli.monitor import Monitor
from concisecli.records import UsageError


def drawn(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every curve of the event files of a stage, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_draws_what_the_metrics_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SftConfig(steps=3, trackers=("tensorboard",))
    with Monitor(tmp_path, stage="sft", total=3, trackers=config.trackers, config=config) as monitor:
        for step in range(3):
            monitor.log(step, {"loss": 0.5 * step, "signal_share/tokens": float("nan") if step == 1 else 0.25})
    curves = drawn(tmp_path)
    assert curves == {"loss": [(0, 0.0), (1, 0.5), (2, 1.0)], "signal_share/tokens": [(0, 0.25), (2, 0.25)]}
    assert [(row["step"], row["loss"]) for row in logged(tmp_path)] == curves["loss"]
    assert "warning" not in capsys.readouterr().err


def test_a_resumed_curve_goes_on_without_a_step_twice(tmp_path: Path) -> None:
    with Monitor(tmp_path, stage="rl1", total=6, trackers=["tensorboard"]) as monitor:
        monitor.log(0, {"loss": 1.0})
        monitor.log(1, {"loss": 2.0})
        offsets = monitor.offsets()
        monitor.log(2, {"loss": 3.0})  # after the checkpoint: the killed run's last step
    with Monitor(tmp_path, stage="rl1", total=6, resume_from=2, offsets=offsets, trackers=["tensorboard"]) as monitor:
        for step in range(2, 5):
            monitor.log(step, {"loss": 10.0 + step})
    assert drawn(tmp_path)["loss"] == [(0, 1.0), (1, 2.0), (2, 12.0), (3, 13.0), (4, 14.0)]


def test_a_stage_that_starts_anew_draws_anew(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with Monitor(tmp_path, stage="rl1", total=1, trackers=["tensorboard"]) as monitor:
            monitor.log(0, {"loss": value})
    assert drawn(tmp_path)["loss"] == [(0, 2.0)]


def test_results_of_a_stage_without_steps_are_drawn_once(tmp_path: Path) -> None:
    trackers.log_once(["tensorboard"], trackers.Tracked(tmp_path, {}), {"pass_at_1": 0.5})
    assert drawn(tmp_path) == {"pass_at_1": [(0, 0.5)]}


# --- broken trackers --------------------------------------------------------------------------------------------------


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]


def run_three_steps(folder: Path, name: str) -> float:
    """Seconds that three steps and the end took."""
    began = time.monotonic()
    with Monitor(folder, stage="rl1", total=3, trackers=[name]) as monitor:
        for step in range(3):
            monitor.log(step, {"loss": 1.0})
    assert len(logged(folder)) == 3
    return time.monotonic() - began


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    run_three_steps(tmp_path, "tensorboard")
    (warning,) = warnings_of(capsys)
    assert warning.startswith("warning: tracker tensorboard is given up: ")
    assert warning.endswith("metrics.jsonl has everything")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_package_that_is_not_installed_is_named_once(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed")
    run_three_steps(tmp_path, name)
    (warning,) = warnings_of(capsys)
    assert f"install it with: pip install 'concise[{name}]'" in warning


class Faulty:
    """A tracker that does what it was told to do wrong, where it was told."""

    def __init__(self, where: str, fault: Any) -> None:
        self.where, self.fault = where, fault
        self.at("start")

    def at(self, place: str) -> None:
        if place == self.where:
            self.fault()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.at("log")

    def close(self) -> None:
        self.at("close")


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_tracker_that_fails_anywhere_costs_one_warning(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault() -> None:
        raise SystemExit("the service says no\nand more")

    monkeypatch.setitem(trackers.TRACKERS, "faulty", lambda stage: Faulty(where, fault))
    run_three_steps(tmp_path, "faulty")
    assert warnings_of(capsys) == [
        "warning: tracker faulty is given up: SystemExit: the service says no; metrics.jsonl has everything"
    ]


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_tracker_that_hangs_anywhere_does_not_hold_the_run(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    monkeypatch.setitem(trackers.TRACKERS, "faulty", lambda stage: Faulty(where, lambda: released.wait(60)))
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.2)
    assert run_three_steps(tmp_path, "faulty") < 10
    (warning,) = warnings_of(capsys)
    assert "it does not end within" in warning
    released.set()


def test_a_tracker_too_slow_for_the_steps_is_given_up_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    monkeypatch.setitem(trackers.TRACKERS, "faulty", lambda stage: Faulty("log", lambda: released.wait(60)))
    monkeypatch.setattr(trackers, "WAITING_ROWS", 5)
    with Monitor(tmp_path, stage="rl1", total=20, trackers=["faulty"]) as monitor:
        for step in range(20):
            monitor.log(step, {"loss": 1.0})
    assert len(logged(tmp_path)) == 20
    (warning,) = warnings_of(capsys)
    assert "rows behind" in warning
    released.set()


FULL_DISK = """
import resource, signal, sys, time
from pathlib import Path
from concisecli.monitor import Monitor
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000))  # no file may grow beyond this: the event file is the first
with Monitor(Path(sys.argv[1]), stage="rl1", total=40, trackers=["tensorboard"]) as monitor:
    for step in range(40):
        monitor.log(step, {f"a{i}": step / 2 for i in range(20)})
        time.sleep(0.01)
"""


def test_an_event_file_that_cannot_grow_in_mid_run_costs_one_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(logged(tmp_path)) == 40
    assert done.stderr.count("warning: tracker tensorboard is given up") == 1


# --- the line that switches them on -----------------------------------------------------------------------------------

PIPELINE = """
run: t
trackers: [tensorboard]
stages:
  d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
  rl1: {uses: train, inputs: {model: base/, problems: d.problems}, config: {steps: 1}}
  e: {uses: eval, inputs: {model: rl1.model, problems: d.problems}, config: {trackers: []}}
"""


def test_one_line_at_the_top_switches_a_tracker_on_for_every_stage_that_has_metrics(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(PIPELINE)
    stages = load_pipeline(tmp_path / "p.yaml").stages
    assert stages["rl1"].config.trackers == ("tensorboard",)
    assert stages["e"].config.trackers == ()
    assert load_pipeline(tmp_path / "p.yaml", ["trackers=[wandb, trackio]"]).stages["rl1"].config.trackers == (
        "wandb",
        "trackio",
    )
    with pytest.raises(UsageError, match="tensorboard"):
        load_pipeline(tmp_path / "p.yaml", ["trackers=[tensorbord]"])
