"""Looks at every step of a training for signs that it goes wrong, says so once, and remembers what it has said.

What it knows is what stands in metrics.jsonl and in the evaluations, so a resumed run warns as an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from concisecli.algo import alarms
from concisecli.algo.alarms import Alarms, Evaluated, Kind, Step
from concisecli.artifacts import iter_jsonl
from concisecli.config import AlarmConfig
from concisecli.monitor import METRICS

PREFIX = "alarm/"


class Watch:
    """`steps` [N] and `evaluations` so far. A warning is new when its kind was not on in the `window` steps before."""

    def __init__(self, config: AlarmConfig, folder: Path, start: int, evaluations: Sequence[tuple[int, Evaluated]]):
        self.config = config
        self.steps: list[Step] = []
        self.evaluations = [found for _, found in evaluations]
        self.first_on: dict[Kind, int] = {}
        self.last_on: dict[Kind, int] = {}
        self.of_training: Alarms = {}
        self.of_evaluation = alarms.of_evaluations(self.evaluations, config)  # stands until the next evaluation
        if (folder / METRICS).is_file():
            for row in iter_jsonl(folder / METRICS):
                if row["step"] < start:
                    self._remember(row, row["step"])

    def trained(self, metrics: Mapping[str, Any]) -> None:
        """One more step."""
        self.steps.append(_step(metrics))
        self.of_training = alarms.of_steps(self.steps, self.config)

    def evaluated(self, found: Evaluated) -> None:
        """One more evaluation."""
        self.evaluations.append(found)
        self.of_evaluation = alarms.of_evaluations(self.evaluations, self.config)

    @property
    def on(self) -> Alarms:
        """The alarms that are on; weights that were made under one are not to be kept as the best."""
        return self.of_evaluation | self.of_training

    def look(self, step: int) -> tuple[dict[str, float], Alarms]:
        """(what goes into the row of `step`, the alarms that are new in it)."""
        found = self.on
        new = {
            kind: text
            for kind, text in found.items()
            if kind not in self.last_on or step - self.last_on[kind] > self.config.window
        }
        self._on(found, step)
        return {f"{PREFIX}{kind}": 1.0 for kind in found}, new

    def _remember(self, row: Mapping[str, Any], step: int) -> None:
        if "accuracy" in row:
            self.steps.append(_step(row))
        self._on((kind for kind in alarms.REMEDY if f"{PREFIX}{kind}" in row), step)

    def _on(self, kinds: Iterable[Kind], step: int) -> None:
        for kind in kinds:
            self.first_on.setdefault(kind, step)
            self.last_on[kind] = step


def _step(metrics: Mapping[str, Any]) -> Step:
    return Step(
        accuracy=metrics["accuracy"],
        length=metrics["length"],
        truncated=metrics["truncated"],
        repetition=metrics["repetition"],
        empty_think=max(metrics["empty_think"], metrics.get("answer_only", 0.0)),
        problems=metrics["groups/sampled"],
    )


def sentence(new: Alarms) -> str:
    """Every new alarm with its remedy, on one line."""
    return "; ".join(f"{kind}: {text} ({alarms.REMEDY[kind]})" for kind, text in new.items())
