"""How good the policy is on problems it does not train on, and which step was best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concisecli import artifacts, collectives, groups
from concisecli.config import TrainConfig
from concisecli.grader.grading import GraderPool
from concisecli.records import ConciseError, Problem, StageRun
from concisecli.rollout import RolloutEngine, sample_groups


@dataclass
class Validator:
    """Measures every `validate_every` steps and after the last one, always with the same seeds, so that two steps
    differ by their weights alone. `best` is {"step", "value"} of the best measurement so far."""

    config: TrainConfig
    problems: Sequence[Problem]
    best: dict[str, float] | None

    def due(self, step: int) -> bool:
        done = step + 1
        return done % self.config.validate_every == 0 or done == self.config.steps

    def measure(
        self, engine: RolloutEngine, grader: GraderPool, tokenizer: Any, *, think_open: bool
    ) -> dict[str, float]:
        """Accuracy and mean length (tokens) over `validate_samples` rollouts a problem, at the training's sampling."""
        config = self.config
        sampled = sample_groups(
            engine,
            tokenizer,
            self.problems[collectives.rank() :: collectives.world()],
            config.sampling,
            config.prompt,
            seed=config.seed,
            step=0,
            samples=config.validate_samples,
        )
        graded = groups.grade(grader, sampled, think_open=think_open, policy_step=0)
        mine = [(g.correct.tolist(), g.lengths.tolist()) for g in graded]
        everyone = [pair for rank in collectives.gather(mine) for pair in rank]
        return {
            "validation/accuracy": float(np.mean([c for correct, _ in everyone for c in correct])),
            "validation/length": float(np.mean([n for _, lengths in everyone for n in lengths])),
        }

    def improves(self, metrics: dict[str, float], step: int) -> bool:
        """Whether this step is the best so far by `best_by`; if so it is remembered."""
        value = metrics["validation/accuracy"]
        if self.config.best_by == "accuracy_per_token":
            value /= metrics["validation/length"]
        if self.best is not None and value <= self.best["value"]:
            return False
        self.best = {"step": step, "value": value}
        return True


def make(stage: StageRun, config: TrainConfig, best: dict[str, float] | None) -> Validator | None:
    """A validator where the stage asks for one. Raises ConciseError when only half of it is asked for."""
    given = "validation" in stage.inputs
    if given != bool(config.validate_every):
        missing = "validate_every is 0" if given else "the stage has no input 'validation'"
        raise ConciseError(f"half of a validation is asked for: {missing}; set both or neither")
    if not given:
        return None
    problems = [p for path in stage.inputs["validation"] for p in artifacts.read_problems(path)]
    if not problems:
        raise ConciseError("the input 'validation' holds no problems")
    return Validator(config, problems, best)
