"""How sure one may be of a mean over problems: bootstrap intervals, paired differences, standard errors.

Everything is drawn from the seed it is given. Shapes: one array of values a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from concisecli.records import Floats


class Interval(NamedTuple):
    low: float
    high: float


class PairedDifference(NamedTuple):
    """`difference` after minus before, its interval, and the two-sided bootstrap p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap_interval(
    values: Sequence[ArrayLike],
    *,
    resamples: int,
    seed: int,
    over: Literal["problems", "samples", "both"] = "problems",
    level: float = 0.95,
) -> Interval:
    """Percentile interval of the mean over problems of the mean over samples; `values` [n_p] a problem.

    problems  other problems of the kind might have been asked
    samples   the same problems might have been answered otherwise
    both      either; the widest
    """
    means = _resampled_means(values, resamples=resamples, seed=seed, over=over)
    return _percentiles(means, level)


def standard_error(values: Sequence[ArrayLike]) -> float:
    """Standard error over problems of the mean over problems; 0 for a single problem."""
    means = np.array([np.mean(np.asarray(v, dtype=np.float64)) for v in values])
    return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else 0.0


def paired_bootstrap(
    before: Mapping[str, ArrayLike],
    after: Mapping[str, ArrayLike],
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
) -> PairedDifference:
    """Difference of two evaluations of the same problems, resampling problems, so that how hard each is cancels.

    Both map a problem's id to its [n] values. Raises ValueError when no id is in both; others are left out.
    """
    shared = [problem for problem in before if problem in after]
    if not shared:
        raise ValueError("the two evaluations share no problem")
    gain = [[np.mean(np.asarray(after[p], float)) - np.mean(np.asarray(before[p], float))] for p in shared]
    means = _resampled_means(gain, resamples=resamples, seed=seed, over="problems")
    low, high = _percentiles(means, level)
    tail = min(np.mean(means <= 0), np.mean(means >= 0))
    return PairedDifference(float(np.mean(gain)), low, high, min(1.0, 2 * float(tail)))


def _resampled_means(
    values: Sequence[ArrayLike], *, resamples: int, seed: int, over: Literal["problems", "samples", "both"]
) -> Floats:
    """[resamples] the mean over problems of the mean over samples, redrawn with replacement."""
    rows = [np.asarray(value, dtype=np.float64) for value in values]
    counts = np.array([len(row) for row in rows])
    padded = np.zeros((len(rows), counts.max()))
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    problem_means = np.array([row.mean() for row in rows])
    everyone, drawn_columns = np.arange(len(rows)), np.arange(counts.max())
    rng = np.random.default_rng(seed)

    def redraw() -> float:
        chosen = everyone if over == "samples" else rng.integers(len(rows), size=len(rows))
        if over == "problems":
            return float(problem_means[chosen].mean())
        count = counts[chosen, None]
        picked = (rng.random((len(rows), padded.shape[1])) * count).astype(np.int64)
        drawn = np.where(drawn_columns < count, padded[chosen[:, None], picked], 0.0)
        return float((drawn.sum(axis=1) / count[:, 0]).mean())

    return np.array([redraw() for _ in range(resamples)])


def _percentiles(means: Floats, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return Interval(float(low), float(high))
