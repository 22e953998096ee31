"""One-step-off rollouts, `async_steps: 1`: those of step t + 1 are sampled with the weights that step t is to change.

An engine with devices of its own (`placement: split`) samples beside the update, any other before it; what is sampled
is the same. The first step's rollouts are on-policy. The idea, and that a corrected loss learns as well from them:
Noukhovitch et al. 2024, https://arxiv.org/abs/2410.18252.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from concisecli import collectives, groups
from concisecli.artifacts import read_parquet, write_parquet
from concisecli.collection import Collected, Collector, FirstRound
from concisecli.config import VllmConfig
from concisecli.groups import ScoredGroup
from concisecli.monitor import Stopwatch
from concisecli.records import Completion, ConciseError, Group, Problem, Verdict
from concisecli.rollout import EngineLost

AGE = 1  # updates between sampling and use


class Ahead:
    """Holds the groups of the next step, which were sampled with weights that are gone after this step's update: a
    checkpoint keeps them, since they cannot be sampled again."""

    def __init__(self, collector: Collector) -> None:
        config = collector.config
        split = isinstance(config.engine, VllmConfig) and config.engine.placement == "split"
        self.beside = split and config.async_steps > 0
        self._collector = collector
        self._pending: Collected | None = None
        self._under_way: tuple[int, Future[tuple[list[ScoredGroup], float]]] | None = None

    def groups_of(self, step: int) -> Collected:
        """The groups of `step`: those that wait for it, or sampled now."""
        taken, self._pending = self._pending, None
        return taken or self._collector.collect(step)

    def begin(self, step: int) -> None:
        """Before the update of the step before `step`: sample its groups, or start to. Raises EngineLost."""
        if not self._wanted(step):
            return
        if not self.beside:
            with _or_the_last_checkpoint():
                self._pending = self._collector.collect(step, age=AGE)
            return
        work = self._collector.first_round(step, Stopwatch(), age=AGE)
        thread = ThreadPoolExecutor(1, thread_name_prefix="sample")
        self._under_way = step, thread.submit(_timed, work)
        thread.shutdown(wait=False)

    def finish(self) -> None:
        """After the update, before the engine gets the new weights: wait for what is under way, and refill. The seconds
        waited count as `generate`, those that the update hid as `overlapped`. Raises EngineLost on all ranks."""
        if self._under_way is None:
            return
        (step, first), self._under_way = self._under_way, None
        with _or_the_last_checkpoint():
            self._pending = self._collector.complete(lambda: self._waited_for(first), step, age=AGE)

    def _waited_for(self, first: Future[tuple[list[ScoredGroup], float]]) -> list[ScoredGroup]:
        clock, begun = self._collector.clock, time.perf_counter()
        with clock.timed("generate"):
            scored, seconds = first.result()
        clock.add("overlapped", max(0.0, seconds - (time.perf_counter() - begun)))
        return scored

    def _wanted(self, step: int) -> bool:
        config = self._collector.config
        return config.async_steps > 0 and step < config.steps

    # --- in a checkpoint ------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """This rank's groups, a row a rollout, as a file of its own in the checkpoint `folder`."""
        if self._pending is None:
            return
        rows = [row for scored in self._pending.mine for row in _rows(scored)]
        write_parquet(folder / f"ahead-{collectives.rank():05}.parquet", rows, _schema())

    def load(self, checkpoint: Path, step: int) -> None:
        """Take up what all ranks saved, whatever their number was: a collective. `step` is the one to come."""
        if not self._wanted(step):
            return
        files = sorted(checkpoint.glob("ahead-*.parquet"))
        if not files:
            raise ConciseError(
                f"{checkpoint} lacks the rollouts of step {step + 1}; remove it to go on from an older one"
            )
        by_place: dict[int, list[dict[str, Any]]] = {}
        for file in files:
            for row in read_parquet(file):
                by_place.setdefault(row["place"], []).append(row)
        problems = {problem.id: problem for problem in self._collector.problems}
        mine = [
            self._scored(by_place[p], problems) for p in sorted(by_place)[collectives.rank() :: collectives.world()]
        ]
        everyone = [g for part in collectives.gather([groups.summary(s) for s in mine]) for g in part]
        self._pending = self._collector.collected(mine, everyone, step, age=AGE)

    def _scored(self, rows: list[dict[str, Any]], problems: Mapping[str, Problem]) -> ScoredGroup:
        first = rows[0]
        group = Group(
            problems[first["problem_id"]],
            tuple(Completion(tuple(r["token_ids"]), tuple(r["logprobs"]), r["text"], r["finish_reason"]) for r in rows),
            tuple(Verdict(r["outcome"], r["extracted"], r["rule"]) for r in rows),
            first["policy_step"],
            tuple(first["prompt_ids"]),
        )
        custom = None if first["custom"] is None else np.array([r["custom"] for r in rows], dtype=np.float64)
        return groups.score(first["place"], group, self._collector.config, custom)


@contextmanager
def _or_the_last_checkpoint() -> Iterator[None]:
    """What a lost engine leaves: the groups that it was to sample belong to weights that this step changes, so the
    state after this step would be no state to go on from."""
    try:
        yield
    except EngineLost as lost:
        raise EngineLost(f"{lost}; run the same command again to go on from the last checkpoint") from lost


def _timed(work: FirstRound) -> tuple[list[ScoredGroup], float]:
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def _rows(scored: ScoredGroup) -> list[dict[str, Any]]:
    group, custom = scored.group, scored.reward.custom
    return [
        {
            "place": scored.place,
            "problem_id": group.problem.id,
            "policy_step": group.policy_step,
            "prompt_ids": group.prompt_ids,
            "token_ids": completion.token_ids,
            "logprobs": completion.logprobs,
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "outcome": verdict.outcome,
            "extracted": verdict.extracted,
            "rule": verdict.rule,
            "custom": None if custom is None else float(custom[i]),
        }
        for i, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True))
    ]


def _schema() -> Any:
    import pyarrow as pa

    text, ids = pa.string(), pa.list_(pa.int64())
    names = ("problem_id", "text", "finish_reason", "outcome", "extracted", "rule")
    return pa.schema(
        [
            ("place", pa.int64()),
            ("policy_step", pa.int64()),
            ("prompt_ids", ids),
            ("token_ids", ids),
            ("logprobs", pa.list_(pa.float64())),
            ("custom", pa.float64()),
            *((name, text) for name in names),
        ]
    )
