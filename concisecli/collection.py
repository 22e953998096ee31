"""From problems to the groups of one step: sampled, graded, scored, and refilled until the batch is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from concisecli import collectives, groups
from concisecli.config import TrainConfig
from concisecli.custom_rewards import custom_rewards
from concisecli.grader.grading import GraderPool
from concisecli.groups import GroupSummary, ScoredGroup
from concisecli.monitor import Stopwatch
from concisecli.ordering import EpochOrder
from concisecli.records import Group, Problem
from concisecli.refilling import Yield, decide, round_size
from concisecli.rollout import EngineLost, RolloutEngine, SampledGroup, sample_groups


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
    recent: Yield = field(default_factory=Yield)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the collector."""
        return {"cursor": self.order.cursor, "yield": [self.recent.kept, self.recent.sampled]}

    def collect(self, step: int) -> Collected:
        """The groups of `step`. Rounds of fresh problems follow until the batch is full of groups that may train, at
        most `refill_rounds` of them. Groups beyond a full batch are dropped: after an update they would be stale."""
        config = self.config
        mine: list[ScoredGroup] = []
        everyone: list[GroupSummary] = []
        self.recent.begin_step()
        for _ in range(1 + config.refill_rounds):
            missing = config.batch_problems - sum(g.kept for g in everyone)
            rows = self.order.take(round_size(missing, config, self.recent))
            new, found = self._round(rows, first_place=len(everyone), step=step)
            self.recent.add(sum(g.kept for g in found), len(found))
            mine += new
            everyone += found
            if not config.refill_rounds or sum(g.kept for g in everyone) >= config.batch_problems:
                break
        return Collected(mine, everyone, decide(config, groups.choose(everyone, config.batch_problems), step))

    def _round(
        self, rows: Sequence[int], *, first_place: int, step: int
    ) -> tuple[list[ScoredGroup], list[GroupSummary]]:
        """(this rank's groups, everyone's summaries). Raises EngineLost on all ranks when one has lost its engine."""
        new: list[ScoredGroup] = []
        lost = ""
        try:
            new = self._sample(rows, first_place=first_place, step=step)
        except EngineLost as error:
            lost = str(error)
        facts = collectives.gather((lost, [groups.summary(s) for s in new]))
        if said := next((lost for lost, _ in facts if lost), ""):
            raise EngineLost(said)
        return new, [g for _, summaries in facts for g in summaries]

    def _sample(self, rows: Sequence[int], *, first_place: int, step: int) -> list[ScoredGroup]:
        """This rank's share of the problems in `rows`, sampled, graded and scored."""
        places = range(collectives.rank(), len(rows), collectives.world())
        graded = self._graded([self.problems[rows[i]] for i in places], step)
        with self.clock.timed("grade"):
            custom = custom_rewards(self.grader, self.config, graded)
        return [
            groups.score(first_place + i, group, self.config, added)
            for i, group, added in zip(places, graded, custom, strict=True)
        ]

    def _graded(self, problems: Sequence[Problem], step: int) -> list[Group]:
        """The problems' groups, graded while others are still being sampled where `overlap_grading` says so."""

        def judge(sampled: Sequence[SampledGroup]) -> list[Group]:
            return groups.grade(self.grader, sampled, think_open=self.think_open, policy_step=step)

        with groups.GradedAlong(judge) as along:
            with self.clock.timed("generate"):
                sampled = sample_groups(
                    self.engine,
                    self.tokenizer,
                    problems,
                    self.config.sampling,
                    self.config.prompt,
                    seed=self.config.seed,
                    step=step,
                    as_done=along.add if self.config.overlap_grading else None,
                )
            with self.clock.timed("grade"):  # with an overlap: what generation did not hide
                return along.groups() if self.config.overlap_grading else judge(sampled)
