"""`--max-hours` and `--max-tokens`: saved, stopped, gone on with, and the same bits in the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concisecli import limits
from concisecli.artifacts import sha256_path
from concisecli.records import Preempted
from concisecli.stages import evaluate, train
from tests import test_evaluate
from tests.test_held_out import SETTINGS, rows, stage


def test_without_limits_nothing_is_counted_or_reached() -> None:
    limits.spend(10**9)
    assert limits.reached() is None


def test_tokens_add_up_over_processes_and_the_limit_ends_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with limits.limited(None, 1000):
        limits.spend(400)
        if (child := os.fork()) == 0:
            limits.spend(599)
            os._exit(0)
        os.waitpid(child, 0)
        assert limits.reached() is None
        limits.spend(1)
        assert limits.reached() == "--max-tokens 1,000 is reached (1,000 were sampled)"
    assert limits.reached() is None
    assert not any(name.startswith("CONCISE_MAX") for name in os.environ)


def test_hours_are_counted_from_the_start_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    with limits.limited(0.5, None):
        now += 1799
        assert limits.reached() is None
        now += 1
        assert limits.reached() == "--max-hours 0.5 is over"


def test_a_training_stops_at_a_whole_step_and_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    whole, cut = (stage(tmp_path, tiny_model, name, evaluate_every=4) for name in ("whole", "cut"))
    train.run(whole)
    with (
        limits.limited(None, 1),
        pytest.raises(Preempted, match=r"--max-tokens 1 is .* stopped after step 1, with all"),
    ):
        train.run(cut)
    assert rows(cut)[-1]["step"] == 0
    train.run(cut)
    for name in ("model", "metrics.jsonl", "evaluations", "rollouts"):
        assert sha256_path(cut.folder / name) == sha256_path(whole.folder / name)
    assert SETTINGS["steps"] == 4


def test_an_eval_stops_behind_a_part_and_goes_on(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "PART_ROLLOUTS", 20)
    run = test_evaluate.stage(tmp_path, tiny_model, test_evaluate.problems(4), test_evaluate.config())
    with limits.limited(None, 1), pytest.raises(Preempted, match="with 1 parts left to sample") as told:
        evaluate.run(run)
    assert told.value.exit_code == 75
    assert len(evaluate.parts_of(run.folder)) == 1
    evaluate.run(run)
    assert (run.folder / "scores.json").is_file()
