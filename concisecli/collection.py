"""From problems to the groups of one step: sampled, graded, scored, and refilled until the batch is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from concisecli import collectives, groups, prompts
from concisecli.config import TrainConfig
from concisecli.custom_rewards import custom_rewards
from concisecli.grader.grading import GraderPool
from concisecli.groups import GroupSummary, ScoredGroup
from concisecli.monitor import Stopwatch, note
from concisecli.ordering import EpochOrder
from concisecli.records import ConciseError, Group, Problem
from concisecli.refilling import Yield, decide, round_size
from concisecli.rollout import EngineLost, RolloutEngine, SampledGroup, sample_groups


@dataclass(frozen=True, slots=True)
class Collected:
    """The groups of one step: this rank's with their rollouts, everyone's as summaries in the order of their places,
    the places of those that train, and how many updates older than the policy at hand the one is that sampled them."""

    mine: list[ScoredGroup]
    everyone: list[GroupSummary]
    chosen: set[int]
    age: int = 0

    def metrics(self) -> dict[str, float]:
        return groups.metrics(self.everyone, self.chosen) | {"rollout_age": float(self.age)}


FirstRound = Callable[[], list[ScoredGroup]]


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

    def collect(self, step: int, *, age: int = 0) -> Collected:
        """The groups of `step`. Rounds of fresh problems follow until the batch is full of groups that may train, at
        most `refill_rounds` of them. Groups beyond a full batch are dropped: after an update they would be stale. `age`
        is the number of updates that the policy will have had before `step` and has not had yet."""
        return self.complete(self.first_round(step, self.clock, age=age), step, age=age)

    def first_round(self, step: int, clock: Stopwatch, *, age: int = 0) -> FirstRound:
        """The work of the first round, for whoever calls it in whatever thread: other ranks have no part in it."""
        self.recent.begin_step()
        rows = self._take(self.config.batch_problems)
        return partial(self._sample, rows, clock, first_place=0, step=step, age=age)

    def complete(self, sample: FirstRound, step: int, *, age: int = 0) -> Collected:
        """`collect` from what `sample` gives on: a collective."""
        mine: list[ScoredGroup] = []
        everyone: list[GroupSummary] = []
        for left in range(self.config.refill_rounds, -1, -1):
            new, found = _round(sample)
            self.recent.add(sum(g.kept for g in found), len(found))
            mine += new
            everyone += found
            missing = self.config.batch_problems - sum(g.kept for g in everyone)
            if not left or missing <= 0:
                break
            rows = self._take(missing)
            sample = partial(self._sample, rows, self.clock, first_place=len(everyone), step=step, age=age)
        return self.collected(mine, everyone, step, age=age)

    def collected(
        self, mine: Iterable[ScoredGroup], everyone: Iterable[GroupSummary], step: int, *, age: int
    ) -> Collected:
        everyone = sorted(everyone, key=lambda g: g.place)
        chosen = decide(self.config, groups.choose(everyone, self.config.batch_problems), step)
        return Collected(list(mine), everyone, chosen, age)

    def _take(self, missing: int) -> list[int]:
        return self.order.take(round_size(missing, self.config, self.recent))

    def _sample(
        self, rows: Sequence[int], clock: Stopwatch, *, first_place: int, step: int, age: int
    ) -> list[ScoredGroup]:
        """This rank's share of the problems in `rows`, sampled, graded and scored."""
        places = range(collectives.rank(), len(rows), collectives.world())
        graded = self._graded([self.problems[rows[i]] for i in places], clock, step=step, age=age)
        with clock.timed("grade"):
            custom = custom_rewards(self.grader, self.config, graded)
        return [
            groups.score(first_place + i, group, self.config, added)
            for i, group, added in zip(places, graded, custom, strict=True)
        ]

    def _graded(self, problems: Sequence[Problem], clock: Stopwatch, *, step: int, age: int) -> list[Group]:
        """The problems' groups, graded while others are still being sampled where `overlap_grading` says so."""

        def judge(sampled: Sequence[SampledGroup]) -> list[Group]:
            return groups.grade(self.grader, sampled, think_open=self.think_open, policy_step=step - age)

        with groups.GradedAlong(judge) as along:
            with clock.timed("generate"):
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
            with clock.timed("grade"):  # with an overlap: what generation did not hide
                return along.groups() if self.config.overlap_grading else judge(sampled)


def _round(sample: FirstRound) -> tuple[list[ScoredGroup], list[GroupSummary]]:
    """(this rank's groups, everyone's summaries). Raises EngineLost on all ranks when one has lost its engine."""
    new: list[ScoredGroup] = []
    lost = ""
    try:
        new = sample()
    except EngineLost as error:
        lost = str(error)
    facts = collectives.gather((lost, [groups.summary(s) for s in new]))
    if said := next((lost for lost, _ in facts if lost), ""):
        raise EngineLost(said)
    return new, [g for _, summaries in facts for g in summaries]


def fitting(problems: list[Problem], tokenizer: Any, config: TrainConfig) -> list[Problem]:
    """Problems whose prompt is within the limit: a longer one is left out whole, never cut."""
    limit = config.sampling.max_prompt_tokens
    kept = [p for p in problems if len(prompts.prompt_ids(tokenizer, p.prompt, config.prompt)) <= limit]
    if len(kept) < len(problems):
        note(f"{len(problems) - len(kept)} of {len(problems)} problems left out: prompt over {limit} tokens")
    if not kept:
        raise ConciseError(
            f"no problem's prompt is within max_prompt_tokens = {limit}" if problems else "there are no problems"
        )
    return kept
