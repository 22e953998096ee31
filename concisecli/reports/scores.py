"""From graded completions to scores: what an evaluation section needs, from one generation pass.

What `correct` and a vote mean is said in `attempts`. Shapes: [P] problems, [K] rollouts of one problem, [M] metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo import intervals, metrics
from concisecli.artifacts import read_json
from concisecli.config import EvalConfig
from concisecli.records import Bools, ConciseError, Outcome
from concisecli.reports.attempts import (
    BREAKDOWNS,
    KEPT_EXTRA,
    PASS_RATE_BINS,
    Attempts,
    pass_rate_bin,
    source_of,
    split,
)
from concisecli.store import split_config

SCHEMA = 1
OUTCOMES = get_args(Outcome)
POOL = tuple(word for word in metrics.REFLECTION_WORDS if word != "python")
GRID_POINTS = 48  # of the fine budget curve

Scores = dict[str, Any]


PARTS = ("settings", "grader", "overall", "suites", "by", "words", "problems")


def read(path: Path) -> Scores:
    """A scores.json. Raises ConciseError for a file that is none, is of another version or has no problem."""
    found = read_json(path)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ConciseError(f"{path} is not a scores.json of this version of concise; run the eval stage again")
    missing = [name for name in PARTS if name not in found]
    if missing or not found["problems"]:
        lacking = f"has no {', '.join(missing)}" if missing else "holds no problem"
        raise ConciseError(f"{path} {lacking}; delete its folder and run the eval stage again")
    return found


# --- the whole --------------------------------------------------------------------------------------------------------


def score(
    attempts: Sequence[Attempts],
    config: EvalConfig,
    *,
    grader: Mapping[str, Any],
    left_out: Sequence[Mapping[str, str]] = (),
) -> Scores:
    """Everything that scores.json holds; pure, so equal completions give equal bytes.

    Raises ConciseError when there is nothing to score.
    """
    if not attempts:
        raise ConciseError("there is no completion to score; are all prompts longer than max_prompt_tokens?")
    whole, suites = summary(attempts, config), split(attempts, source_of)
    return {
        "schema": SCHEMA,
        "settings": settings_of(config),
        "grader": dict(grader),
        "left_out": [dict(row) for row in left_out],
        "overall": whole,
        "suites": {name: summary(part, config) for name, part in suites.items()}
        if len(suites) > 1
        else dict.fromkeys(suites, whole),
        "by": {
            name: [{"value": value} | brief(part, config) for value, part in groups.items()]
            for name, key in BREAKDOWNS.items()
            if len(groups := split(attempts, key)) > 1
        },
        "words": words(attempts, config),
        "problems": [_problem_row(a, config) for a in attempts],
    }


def settings_of(config: EvalConfig) -> dict[str, Any]:
    """Everything that was asked of the sampler, as in the config; the grader is told apart."""
    keyed, _ = split_config(config)
    return {name: value for name, value in keyed.items() if name != "grader"}


def summary(attempts: Sequence[Attempts], config: EvalConfig) -> dict[str, Any]:
    """Every metric of a set of problems, with the whole budget curve and intervals over problems."""
    correct = [a.correct for a in attempts]
    most = max(len(c) for c in correct)
    fewest = min(len(c) for c in correct)
    redraws = _Redraws(len(attempts), config)
    grid = budget_grid(config.budgets)
    curve = redraws.each([_within(a, grid) for a in attempts])
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= fewest]
    return brief(attempts, config) | {
        "samples": most,
        "pass_at_1": redraws.around(correct) | _over_samples(correct, config),
        "pass_at_k": {str(k): metrics.mean_pass_at_k(correct, k) for k in ks},
        "budgets": {str(b): curve[grid.index(b)] for b in config.budgets},
        "curve": {
            "budget": grid,
            "accuracy": [point["value"] for point in curve],
            "low": [point["low"] for point in curve],
            "high": [point["high"] for point in curve],
        },
        "lengths": metrics.length_summary(_flat([a.lengths for a in attempts])),
        "by_correctness": _by_correctness(attempts, redraws),
        "pass_rates": _pass_rates(attempts, redraws),
    }


def _by_correctness(attempts: Sequence[Attempts], redraws: _Redraws) -> dict[str, Any]:
    """Mean length of right and of wrong rollouts with intervals, and the comparison within problems."""
    found = metrics.lengths_by_correctness([a.lengths for a in attempts], [a.correct for a in attempts])
    right = [(a.lengths[a.correct].sum(), a.correct.sum()) for a in attempts]
    wrong = [(a.lengths[~a.correct].sum(), (~a.correct).sum()) for a in attempts]
    return {
        **{name: value for name, value in found.items() if name.startswith("within")},
        "right": redraws.ratio(*zip(*right, strict=True)),
        "wrong": redraws.ratio(*zip(*wrong, strict=True)),
    }


def _pass_rates(attempts: Sequence[Attempts], redraws: _Redraws) -> list[dict[str, Any]]:
    """Share of the problems whose pass rate lies in each of PASS_RATE_BINS."""
    bins = [PASS_RATE_BINS.index(pass_rate_bin(float(a.correct.mean()))) for a in attempts]
    shares = redraws.each(np.eye(len(PASS_RATE_BINS))[bins])
    return [{"bin": name} | share for name, share in zip(PASS_RATE_BINS, shares, strict=True)]


def brief(attempts: Sequence[Attempts], config: EvalConfig) -> dict[str, Any]:
    """The metrics that a breakdown shows for each of its groups."""
    redraws = _Redraws(len(attempts), config)
    lengths = _flat([a.lengths for a in attempts])
    finished, answered = _flat([a.finished for a in attempts]), _flat([a.answered for a in attempts])
    pool = _flat([a.words[:, : len(POOL)].sum(axis=1) for a in attempts])
    outcomes = Counter(outcome for a in attempts for outcome in a.outcomes)
    right, given = [int(a.correct.sum()) for a in attempts], [int(a.answered.sum()) for a in attempts]
    matched_when_cut = _flat([np.array([o == "match" for o in a.outcomes]) & ~a.finished for a in attempts])
    return {
        "problems": len(attempts),
        "rollouts": len(lengths),
        "pass_at_1": redraws.around([a.correct for a in attempts]),
        "cons_at_k": redraws.around([[consensus(a, config)] for a in attempts]),
        "length": redraws.around([a.lengths for a in attempts]),
        "finished": _share(finished),
        "truncated": _share(~finished),
        "matched_when_cut": _share(matched_when_cut),
        "answered": _share(answered),
        **{name: outcomes[name] / len(lengths) for name in OUTCOMES if name != "match"},
        "precision": {
            "micro": redraws.ratio(right, given),
            "macro": metrics.macro_precision(right, given),
        },
        "mean_correct": float(np.mean(right)),
        "mean_answered": float(np.mean(given)),
        "repeated": _share(_flat([a.repeated for a in attempts])),
        "empty_think": _share(_flat([a.empty_think for a in attempts])),
        "answer_only": _share(_flat([a.answer_only for a in attempts])),
        "reflection_per_response": float(pool.mean()),
        "reflection_per_1k_tokens": float(1000 * pool.sum() / max(1, lengths.sum())),
        "tokens_per_correct": redraws.ratio([a.lengths.sum() for a in attempts], right),
    }


def consensus(attempts: Attempts, config: EvalConfig) -> float:
    """Credit of one problem under majority vote over all its samples."""
    answers = [None if cluster < 0 else str(cluster) for cluster in attempts.clusters]
    return metrics.cons_at_k(answers, attempts.correct.tolist(), tie=config.tie)


def words(attempts: Sequence[Attempts], config: EvalConfig) -> dict[str, Any]:
    """word -> how often a response (with its interval), a right one, a wrong one and a thousand tokens hold it."""
    counts, correct = np.concatenate([a.words for a in attempts]), _flat([a.correct for a in attempts])
    tokens = int(_flat([a.lengths for a in attempts]).sum())
    per_response = _Redraws(len(attempts), config).each([a.words.mean(axis=0) for a in attempts])

    def mean(rows: Any, column: int) -> float | None:
        return float(rows[:, column].mean()) if len(rows) else None

    return {
        word: {
            "per_response": per_response[i],
            "per_right_response": mean(counts[correct], i),
            "per_wrong_response": mean(counts[~correct], i),
            "per_1k_tokens": float(1000 * counts[:, i].sum() / max(1, tokens)),
        }
        for i, word in enumerate(metrics.REFLECTION_WORDS)
    }


def budget_grid(budgets: Sequence[int]) -> list[int]:
    """The budgets asked for and evenly spaced ones below the largest."""
    top = max(budgets)
    fine = np.linspace(top / GRID_POINTS, top, GRID_POINTS).round().astype(int).tolist()
    return sorted({*budgets, *(b for b in fine if b > 0)})


def _within(attempts: Attempts, grid: Sequence[int]) -> list[float]:
    """One problem's share of rollouts that count at each budget."""
    within = [metrics.accuracy_at_budget(attempts.correct, attempts.lengths, attempts.finished, b) for b in grid]
    return [float(w.mean()) for w in within]


def _over_samples(correct: Sequence[Bools], config: EvalConfig) -> dict[str, float | None]:
    """How far pass@1 of these very problems would move if they were sampled again."""
    if not config.bootstrap:
        return {"low_samples": None, "high_samples": None}
    low, high = intervals.bootstrap_interval(correct, resamples=config.bootstrap, seed=config.seed, over="samples")
    return {"low_samples": low, "high_samples": high}


def _problem_row(attempts: Attempts, config: EvalConfig) -> dict[str, Any]:
    """What comparisons and figures need of one problem, rollout by rollout."""
    return {
        "id": attempts.problem.id,
        "source": source_of(attempts),
        "level": attempts.problem.level,
        "prompt": attempts.problem.prompt,
        "answer": attempts.problem.answer,
        "extra": {name: value for name, value in attempts.problem.extra.items() if name in KEPT_EXTRA},
        "pass_at_1": float(attempts.correct.mean()),
        "cons_at_k": consensus(attempts, config),
        "lengths": attempts.lengths.tolist(),
        "correct": attempts.correct.astype(int).tolist(),
        "finished": attempts.finished.astype(int).tolist(),
        "answered": attempts.answered.astype(int).tolist(),
    }


# --- numbers ----------------------------------------------------------------------------------------------------------


class _Redraws:
    """Bootstrap intervals of 95 % over a fixed set of problems: the problems are redrawn once for all metrics, as
    `intervals.bootstrap_interval` would draw them for each (the two agree to rounding, and a test says so)."""

    def __init__(self, problems: int, config: EvalConfig) -> None:
        self.weights = np.zeros((config.bootstrap, problems))  # [resamples, P] how often a problem was drawn, / P
        drawn = np.random.default_rng(config.seed).integers(problems, size=(config.bootstrap, problems))
        for row, chosen in zip(self.weights, drawn, strict=True):
            row += np.bincount(chosen, minlength=problems) / problems

    def around(self, values: Sequence[ArrayLike]) -> dict[str, float | None]:
        """Mean over problems of the mean over samples with its interval; `values` [K] a problem."""
        (point,) = self.each([[np.mean(np.asarray(v, dtype=np.float64))] for v in values])
        return point

    def each(self, columns: ArrayLike) -> list[dict[str, float | None]]:
        """The same for every column of [P, M] problem means."""
        table = np.asarray(columns, dtype=np.float64)
        means = [float(m) for m in table.mean(axis=0)]
        if not len(self.weights):
            return [{"value": mean, "low": None, "high": None} for mean in means]
        low, high = np.quantile(self.weights @ table, (0.025, 0.975), axis=0)
        return [
            {"value": mean, "low": float(lo), "high": float(hi)} for mean, lo, hi in zip(means, low, high, strict=True)
        ]

    def ratio(self, above: ArrayLike, below: ArrayLike) -> dict[str, float | None] | None:
        """Sum over problems of `above` [P] over that of `below` [P] with its interval; None where nothing is below."""
        a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
        if not b.sum():
            return None
        value = float(a.sum() / b.sum())
        drawn_a, drawn_b = self.weights @ a, self.weights @ b
        some = drawn_b > 0  # a redraw of problems none of which has any says nothing
        if not some.any():
            return {"value": value, "low": None, "high": None}
        low, high = np.quantile(drawn_a[some] / drawn_b[some], (0.025, 0.975))
        return {"value": value, "low": float(low), "high": float(high)}


def _flat(arrays: Sequence[Any]) -> Any:
    return np.concatenate(arrays)


def _share(flags: Bools) -> float:
    return float(flags.mean())
