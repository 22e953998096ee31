"""Two evaluations of the same problems side by side: differences, how sure they are, and which problems flipped.

Everything is paired by problem, so that how hard each problem is cancels out. Works on the contents of scores.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concisecli.algo import intervals
from concisecli.records import ConciseError


@dataclass(frozen=True, slots=True)
class Difference:
    """`after` minus `before` with its interval of 95 % over problems; `p_value` is two-sided, of no difference."""

    problems: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    p_value: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero; one problem alone has no interval over problems."""
        return self.problems > 1 and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One suite, A (`before`) against B (`after`). `length_percent` is the change of the mean length in % of A's, with
    its interval; `budget_to_match` the smallest budget at which B is as accurate as A ever is (None: never);
    `budget_of_best` where A gets there."""

    suite: str
    problems: int
    only_before: int
    only_after: int
    pass_at_1: Difference
    cons_at_k: Difference
    length: Difference
    length_percent: tuple[float, float, float]
    budget_of_best: int | None
    budget_to_match: int | None
    gained: tuple[str, ...]
    lost: tuple[str, ...]


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], *, resamples: int = 1000, seed: int = 0
) -> list[Comparison]:
    """One record a suite that both evaluations have. A problem flips when a majority of its rollouts turns.

    Raises ConciseError when the two share no problem.
    """
    ours, theirs = _by_suite(before), _by_suite(after)
    shared = [suite for suite in ours if suite in theirs and ours[suite].keys() & theirs[suite].keys()]
    if not shared:
        raise ConciseError("the two evaluations share no problem; compare evaluations of the same data")
    return [_compare(suite, ours[suite], theirs[suite], resamples, seed) for suite in shared]


Rows = dict[str, Mapping[str, Any]]


def _by_suite(scores: Mapping[str, Any]) -> dict[str, Rows]:
    suites: dict[str, Rows] = {}
    for row in scores["problems"]:
        suites.setdefault(row["source"], {})[row["id"]] = row
    return suites


def _compare(suite: str, before: Rows, after: Rows, resamples: int, seed: int) -> Comparison:
    both = [problem for problem in before if problem in after]
    ours, theirs = [before[p] for p in both], [after[p] for p in both]

    def difference(column: str) -> Difference:
        a = {row["id"]: np.atleast_1d(row[column]) for row in ours}
        b = {row["id"]: np.atleast_1d(row[column]) for row in theirs}
        found = intervals.paired_bootstrap(a, b, resamples=max(1, resamples), seed=seed)
        level = float(np.mean([np.mean(v) for v in a.values()])), float(np.mean([np.mean(v) for v in b.values()]))
        return Difference(len(both), *level, found.difference, found.low, found.high, found.p_value)

    best, at = best_accuracy(ours)
    return Comparison(
        suite=suite,
        problems=len(both),
        only_before=len(before) - len(both),
        only_after=len(after) - len(both),
        pass_at_1=difference("correct"),
        cons_at_k=difference("cons_at_k"),
        length=difference("lengths"),
        length_percent=_percent(ours, theirs, resamples, seed),
        budget_of_best=at,
        budget_to_match=budget_reaching(theirs, best),
        gained=tuple(b["id"] for a, b in zip(ours, theirs, strict=True) if not _mostly(a) and _mostly(b)),
        lost=tuple(b["id"] for a, b in zip(ours, theirs, strict=True) if _mostly(a) and not _mostly(b)),
    )


def _mostly(row: Mapping[str, Any]) -> bool:
    return float(np.mean(row["correct"])) > 0.5


def _percent(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], resamples: int, seed: int
) -> tuple[float, float, float]:
    """(change of the mean length in %, low, high), problems redrawn in pairs."""
    a = np.array([np.mean(row["lengths"]) for row in before])
    b = np.array([np.mean(row["lengths"]) for row in after])
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(a), size=(max(1, resamples), len(a)))
    changes = 100 * (b[drawn].mean(axis=1) / a[drawn].mean(axis=1) - 1)
    low, high = np.quantile(changes, (0.025, 0.975))
    return float(100 * (b.mean() / a.mean() - 1)), float(low), float(high)


def best_accuracy(rows: Sequence[Mapping[str, Any]]) -> tuple[float, int | None]:
    """The accuracy without a budget, and the smallest budget that gives it; (0, None) when nothing is right."""
    steps = _steps(rows)
    return (steps[-1][1], steps[-1][0]) if steps else (0.0, None)


def budget_reaching(rows: Sequence[Mapping[str, Any]], accuracy: float) -> int | None:
    """The smallest budget, in tokens, at which the accuracy is at least `accuracy`; None when it never is."""
    # Sums of the same shares in another order differ in the last bits.
    return next((budget for budget, reached in _steps(rows) if reached >= accuracy - 1e-12), None)


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(budget, accuracy) at every budget where the accuracy rises."""
    gains: dict[int, float] = {}
    for row in rows:
        for length, correct in zip(row["lengths"], row["correct"], strict=True):
            if correct:
                gains[length] = gains.get(length, 0.0) + 1 / (len(row["correct"]) * len(rows))
    steps, total = [], 0.0
    for budget in sorted(gains):
        total += gains[budget]
        steps.append((budget, total))
    return steps
