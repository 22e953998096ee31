"""From sampled rollouts to what is trained on and what is told about them: graded, scored, chosen, summed up.

Shapes: [G] the rollouts of one group. A step's groups come from all ranks; a rank trains its own and hears of the
others' through their summaries.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from concisecli.algo import advantages, group_filters, rewards
from concisecli.algo.repetition import is_repetitive
from concisecli.batching import Row
from concisecli.config import AdvantageConfig, TrainConfig
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.records import Bools, Floats, Group, Ints, PassRate, RewardBreakdown
from concisecli.reports.attempts import is_answer_only
from concisecli.rollout import SampledGroup

EMPTY_THINK = re.compile(r"<think>\s*</think>")


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """`place` orders the groups of a step over rounds and ranks; `kept` says that it may train."""

    place: int
    group: Group
    reward: RewardBreakdown
    advantages: Floats
    kept: bool


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What the logs need of a group, without its tokens, so that every rank can hear of it."""

    place: int
    problem_id: str
    kind: group_filters.GroupKind
    kept: bool
    correct: Bools
    finished: Bools
    lengths: Ints
    outcomes: tuple[str, ...]
    extracted: tuple[str | None, ...]
    texts: tuple[str, ...]
    reward: RewardBreakdown
    advantages: Floats

    @property
    def pass_rate(self) -> tuple[int, int]:
        return int(self.correct.sum()), len(self.correct)


def grade(grader: GraderPool, sampled: Sequence[SampledGroup], *, think_open: bool, policy_step: int) -> list[Group]:
    """Every rollout judged, in one call of the pool."""
    items = [
        GradeItem(completion.text, problem.gold, think_open)
        for problem, _, completions in sampled
        for completion in completions
    ]
    verdicts = iter(grader.grade(items))
    return [
        Group(problem, tuple(completions), tuple(next(verdicts) for _ in completions), policy_step, tuple(prompt))
        for problem, prompt, completions in sampled
    ]


class GradedAlong:
    """Groups judged by `judge` while others are still being sampled: a thread hands over what came since it last did.

    The verdicts are those of one call at the end: an item's verdict depends on that item alone.
    """

    def __init__(self, judge: Callable[[Sequence[SampledGroup]], list[Group]]) -> None:
        self._judge = judge
        self._waiting: list[tuple[int, SampledGroup]] = []
        self._judged: dict[int, Group] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grade")
        self._calls: list[Future[None]] = []

    def __enter__(self) -> GradedAlong:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def add(self, place: int, sampled: SampledGroup) -> None:
        with self._lock:
            self._waiting.append((place, sampled))
        self._calls.append(self._thread.submit(self._take))

    def groups(self) -> list[Group]:
        """All groups in the order of their places, once every one is judged. Raises what judging raised."""
        for call in self._calls:
            call.result()
        return [self._judged[place] for place in sorted(self._judged)]

    def _take(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        if taken:
            self._judged.update(zip((place for place, _ in taken), self._judge([s for _, s in taken]), strict=True))


def score(place: int, group: Group, config: TrainConfig, custom: Floats | None = None) -> ScoredGroup:
    """The group's rewards, its advantages, and whether it may train; `custom` as in `rewards.score_group`."""
    reward = rewards.score_group(group, config.reward, config.sampling.max_response_tokens, custom)
    return ScoredGroup(
        place,
        group,
        reward,
        advantages.of_group(reward.total, _rho(group, config.advantage), config.advantage, reward.usable),
        group_filters.keep_group(reward.total, group.correct, config.advantage, reward.usable),
    )


def _rho(group: Group, config: AdvantageConfig) -> float:
    """The pass rate that difficulty is read from: a verdict is a score of 0 or 1."""
    threshold = config.difficulty.score_threshold if config.difficulty else None
    return advantages.pass_rate(group.correct, group.correct.astype(float), score_threshold=threshold)


def rows(scored: ScoredGroup) -> list[Row]:
    """The rollouts of the group that may train, exactly as they were sampled."""
    group = scored.group
    return [
        Row(group.prompt_ids, completion.token_ids, completion.logprobs, float(advantage))
        for completion, advantage, usable in zip(
            group.completions, scored.advantages, scored.reward.usable, strict=True
        )
        if usable
    ]


def summary(scored: ScoredGroup) -> GroupSummary:
    group = scored.group
    return GroupSummary(
        scored.place,
        group.problem.id,
        group_filters.group_kind(group.correct),
        scored.kept,
        group.correct,
        group.finished,
        group.lengths,
        tuple(v.outcome for v in group.verdicts),
        tuple(v.extracted for v in group.verdicts),
        tuple(c.text for c in group.completions),
        scored.reward,
        scored.advantages,
    )


def choose(groups: Iterable[GroupSummary], number: int) -> set[int]:
    """Places of the first `number` groups that may train."""
    return set(sorted(g.place for g in groups if g.kept)[:number])


def metrics(groups: Sequence[GroupSummary], chosen: set[int]) -> dict[str, float]:
    """What a step looked like. Rates are over all its rollouts; `signal_share` counts, of the groups (and tokens) that
    were sampled, those that were trained with an advantage other than zero."""
    lengths = np.concatenate([g.lengths for g in groups])
    finished = np.concatenate([g.finished for g in groups])
    correct = np.concatenate([g.correct for g in groups])
    total = np.concatenate([g.reward.total for g in groups])
    trained = [(g.advantages != 0) & (g.place in chosen) for g in groups]
    texts = [text for g in groups for text in g.texts]
    kinds = Counter(g.kind for g in groups)
    outcomes = Counter(outcome for g in groups for outcome in g.outcomes)
    return {
        "accuracy": float(correct.mean()),
        "length": float(lengths.mean()),
        **_means({"length_finished": lengths[finished], "length_truncated": lengths[~finished]}),
        **_means({"length_right": lengths[correct], "length_wrong": lengths[~correct]}),
        "truncated": float((~finished).mean()),
        "reward": float(total.mean()),
        "reward_std_in_group": float(np.mean([g.reward.total.std() for g in groups])),
        "reward_length": float(np.concatenate([g.reward.length for g in groups]).mean()),
        "repetition": float(np.mean([is_repetitive(text) for text in texts])),
        "empty_think": float(np.mean([bool(EMPTY_THINK.search(text)) for text in texts])),
        "answer_only": float(np.mean([is_answer_only(text) for text in texts])),
        "groups/sampled": float(len(groups)),
        "groups/trained": float(len(chosen)),
        "groups/surplus": float(sum(g.kept for g in groups) - len(chosen)),
        **({"groups/sampled_per_trained": len(groups) / len(chosen)} if chosen else {}),
        **{f"groups/{kind}": float(kinds[kind]) for kind in ("all_right", "mixed", "all_wrong")},
        **{f"grade/{o}": float(outcomes[o]) for o in ("match", "mismatch", "no_answer", "timeout", "error")},
        "signal_share/groups": float(np.mean([bool(t.any()) for t in trained])),
        "signal_share/tokens": float(sum(g.lengths[t].sum() for g, t in zip(groups, trained, strict=True)))
        / float(lengths.sum()),
    }


def _means(parts: dict[str, Ints]) -> dict[str, float]:
    """The mean of each part that is not empty."""
    return {name: float(values.mean()) for name, values in parts.items() if len(values)}


def pass_rates(groups: Iterable[GroupSummary], step: int) -> list[PassRate]:
    return [PassRate(g.problem_id, step, *g.pass_rate) for g in sorted(groups, key=lambda g: g.place)]


def rollout_rows(groups: Iterable[GroupSummary], chosen: set[int], step: int) -> list[dict[str, Any]]:
    """One row a rollout, as it is kept for people to read."""
    return [
        {
            "step": step,
            "problem_id": g.problem_id,
            "rollout": i,
            "outcome": g.outcomes[i],
            "correct": bool(g.correct[i]),
            "extracted": g.extracted[i],
            "length": int(g.lengths[i]),
            "finish_reason": "stop" if g.finished[i] else "length",
            "reward": float(g.reward.total[i]),
            "reward_length": float(g.reward.length[i]),
            "advantage": float(g.advantages[i]),
            "trained": g.place in chosen and bool(g.reward.usable[i]),
            "text": g.texts[i],
        }
        for g in sorted(groups, key=lambda g: g.place)
        for i in range(len(g.texts))
    ]
