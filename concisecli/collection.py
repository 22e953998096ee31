"""From problems to the groups of one step: sampled, graded, scored, and refilled until the batch is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from concisecli import collectives, groups
from concisecli.config import TrainConfig
from concisecli.custom_rewards import custom_rewards
from concisecli.grader.grading import GraderPool
from concisecli.groups import GroupSummary, ScoredGroup
from concisecli.monitor import Stopwatch
from concisecli.ordering import EpochOrder
from concisecli.records import ConciseError, Problem
from concisecli.rollout import RolloutEngine, sample_groups


@dataclass(frozen=True, slots=True)
class Collected:
    """The groups of one step: this rank's with their rollouts, everyone's as summaries, and the places of those that
    train."""

    mine: list[ScoredGroup]
    everyone: list[GroupSummary]
    chosen: set[int]


@dataclass(frozen=True, slots=True)
class Collector:
    """Takes problems in `order` and turns them into groups with `engine` and `grader`."""

    config: TrainConfig
    tokenizer: Any
    think_open: bool
    engine: RolloutEngine
    grader: GraderPool
    problems: Sequence[Problem]
    order: EpochOrder
    clock: Stopwatch

    def collect(self, step: int) -> Collected:
        """The groups of `step`. Rounds of fresh problems follow until the batch is full of groups that may train, at
        most `refill_rounds` of them."""
        config = self.config
        mine: list[ScoredGroup] = []
        everyone: list[GroupSummary] = []
        for _ in range(1 + config.refill_rounds):
            missing = config.batch_problems - sum(g.kept for g in everyone)
            new = self._sample(self.order.take(missing), first_place=len(everyone), step=step)
            mine += new
            everyone += [g for rank in collectives.gather([groups.summary(s) for s in new]) for g in rank]
            if not config.refill_rounds or sum(g.kept for g in everyone) >= config.batch_problems:
                break
        return Collected(mine, everyone, _decide(config, groups.choose(everyone, config.batch_problems), step))

    def _sample(self, rows: Sequence[int], *, first_place: int, step: int) -> list[ScoredGroup]:
        """This rank's share of the problems in `rows`, sampled, graded and scored."""
        places = range(collectives.rank(), len(rows), collectives.world())
        problems = [self.problems[rows[i]] for i in places]
        with self.clock.timed("generate"):
            sampled = sample_groups(
                self.engine,
                self.tokenizer,
                problems,
                self.config.sampling,
                self.config.prompt,
                seed=self.config.seed,
                step=step,
            )
        with self.clock.timed("grade"):
            graded = groups.grade(self.grader, sampled, think_open=self.think_open, policy_step=step)
            custom = custom_rewards(self.grader, self.config, graded)
        return [
            groups.score(first_place + i, group, self.config, added)
            for i, group, added in zip(places, graded, custom, strict=True)
        ]


def _decide(config: TrainConfig, chosen: set[int], step: int) -> set[int]:
    """What `refill_at_cap` says when the rounds ran out before the batch was full."""
    if not config.refill_rounds or len(chosen) == config.batch_problems or config.refill_at_cap == "partial":
        return chosen
    if config.refill_at_cap == "skip":
        return set()
    raise ConciseError(
        f"step {step}: {1 + config.refill_rounds} rounds gave {len(chosen)} of {config.batch_problems} groups that may "
        "train; raise refill_rounds, set refill_at_cap: partial, or choose harder problems"
    )
