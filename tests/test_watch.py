"""What is said of a training that goes wrong, once an episode, and what `on_alarm` makes of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from concisecli.algo.alarms import Alarms, Evaluated
from concisecli.artifacts import sha256_path
from concisecli.config import AlarmConfig
from concisecli.records import ConciseError
from concisecli.stages import train
from concisecli.watch import Watch, sentence
from tests.test_held_out import rows, stage

WELL = {
    "accuracy": 0.6,
    "length": 50.0,
    "truncated": 0.0,
    "repetition": 0.0,
    "empty_think": 0.0,
    "answer_only": 0.0,
    "groups/sampled": 64.0,
}
GUESSING = WELL | {"accuracy": 0.1, "length": 8.0, "answer_only": 0.9}
CONFIG = AlarmConfig(window=2)


def looked(watch: Watch, run: list[dict[str, float]], start: int = 0) -> list[tuple[dict[str, float], Alarms]]:
    found = []
    for step, row in enumerate(run[start:], start):
        watch.trained(row)
        found.append(watch.look(step))
    return found


def test_an_alarm_is_new_once_an_episode(tmp_path: Path) -> None:
    watch = Watch(CONFIG, tmp_path, 0, ())
    seen = looked(watch, [WELL] * 4 + [GUESSING] * 3 + [WELL] * 6 + [GUESSING] * 3)
    new = {step: sorted(found) for step, (_, found) in enumerate(seen) if found}
    assert new == {4: ["collapse", "empty_think"], 13: ["collapse", "empty_think"]}
    assert {step for step, (on, _) in enumerate(seen) if "alarm/collapse" in on} >= set(new)
    assert all(value == 1.0 for on, _ in seen for value in on.values())


def test_a_resumed_run_knows_what_it_has_said(tmp_path: Path) -> None:
    run = [WELL] * 4 + [GUESSING] * 5
    whole = Watch(CONFIG, tmp_path, 0, ())
    seen = looked(whole, run)
    written = [{"step": step, **row, **on} for step, (row, (on, _)) in enumerate(zip(run, seen, strict=True))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    for start in range(len(run)):
        assert looked(Watch(CONFIG, tmp_path, start, ()), run, start) == seen[start:]


def test_what_an_evaluation_shows_stands_until_the_next(tmp_path: Path) -> None:
    def evaluated(truncated: float) -> Evaluated:
        return Evaluated((0.5,) * 40, (80.0,) * 40, (truncated,) * 40, 0.0, 0.0)

    watch, on = Watch(CONFIG, tmp_path, 0, [(0, evaluated(0.0))]), []
    for step, found in enumerate([None, evaluated(0.5), None, None, evaluated(0.0), None]):
        watch.trained(WELL)
        if found:
            watch.evaluated(found)
        on.append(sorted(watch.look(step)[0]))
    assert on == [[], *[["alarm/truncation"]] * 3, [], []]


def test_the_sentence_names_what_was_seen_and_what_helps() -> None:
    said = sentence({"truncation": "rollouts cut off at the limit rose from 2.0% to 30.0%"})
    assert said == (
        "truncation: rollouts cut off at the limit rose from 2.0% to 30.0% (GRPO-LEAD's late stage is the remedy: "
        "reward.length off and reward.repetition -1.5)"
    )


# --- what becomes of the stage ----------------------------------------------------------------------------------------

# Any rise is one: of the few rollouts of a random model some share always rises within these steps.
NERVOUS: dict[str, Any] = {
    "steps": 6,
    "alarms": {"window": 1, "errors": 0, "empty_think_rise": 0, "repetition_rise": 0, "truncation_rise": 0},
}
OUTPUTS = ("model", "best", "evaluations", "metrics.jsonl", "rollouts")


@pytest.mark.slow
def test_warn_stop_and_rollback(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warned = stage(tmp_path, tiny_model, "warned", **NERVOUS)
    result = train.run(warned)
    fired = [row["step"] for row in rows(warned) if any(name.startswith("alarm/") for name in row)]
    first = fired[0]
    assert first < 5, "the settings must make something fire before the last step"
    assert min(result.metrics["alarms"].values()) == first + 1
    assert capsys.readouterr().err.count(f"warned: step {first + 1}: ") == 1

    stopped = stage(tmp_path, tiny_model, "stopped", on_alarm="stop", **NERVOUS)
    with pytest.raises(ConciseError, match=r"stopped, as on_alarm says; .*run the same command again") as told:
        train.run(stopped)
    assert told.value.exit_code == 1
    assert rows(stopped)[-1]["step"] == first
    assert not (stopped.folder / "model").exists()
    for _ in range(NERVOUS["steps"]):  # an alarm that ends and comes again stops again
        with contextlib.suppress(ConciseError):
            train.run(stopped)
            break
    assert {n: sha256_path(stopped.folder / n) for n in OUTPUTS} == {n: sha256_path(warned.folder / n) for n in OUTPUTS}

    rolled = stage(tmp_path, tiny_model, "rolled", on_alarm="rollback", **NERVOUS)
    result = train.run(rolled)
    assert result.metrics["ended_at"] == first + 1
    assert result.metrics["rolled_back_to"] == result.metrics["best_step"]
    assert sha256_path(rolled.folder / "model") == sha256_path(rolled.folder / "best")
    assert rows(rolled)[-1]["step"] == first
