"""From graded completions to scores: what an evaluation section needs, from one generation pass.

One rule runs through every number: a rollout is `correct` when the grader matched its answer *and* it ended by itself,
so that the accuracy at the largest budget is pass@1, and accuracy at a smaller budget is what a run with that limit
would have given. Rollouts that were cut off abstain from the vote of Cons@k, as those without an answer do.

Shapes: [K] rollouts of one problem in the order of their sample index, [W] words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo import metrics
from concisecli.algo.repetition import is_repetitive
from concisecli.config import EvalConfig
from concisecli.records import Bools, ConciseError, Ints, Problem

SCHEMA = 1
OUTCOMES = ("match", "mismatch", "no_answer", "timeout", "error")
POOL = tuple(word for word in metrics.REFLECTION_WORDS if word != "python")
GRID_POINTS = 48  # of the fine budget curve

Scores = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempts:
    """The rollouts of one problem; every array is [K], `words` [K, W] counts of metrics.REFLECTION_WORDS."""

    problem: Problem
    lengths: Ints
    correct: Bools
    finished: Bools
    answered: Bools
    outcomes: tuple[str, ...]
    clusters: Ints  # equal for equivalent answers, -1 abstains
    repeated: Bools
    empty_think: Bools
    answer_only: Bools
    words: Ints


def gather(rows: Iterable[Mapping[str, Any]], problems: Sequence[Problem]) -> list[Attempts]:
    """Completions, in any order, as one `Attempts` a problem in the order of `problems`; problems without a
    completion are left out. Raises ConciseError for completions of a problem that is not among `problems`."""
    by_problem: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault(row["problem_id"], []).append(row)
    strange = set(by_problem) - {p.id for p in problems}
    if strange:
        raise ConciseError(
            f"completions of problem {min(strange)!r}, which is not among the problems; were they mixed up?"
        )
    return [_attempts(p, sorted(by_problem[p.id], key=_sample)) for p in problems if p.id in by_problem]


def _sample(row: Mapping[str, Any]) -> int:
    return int(row["sample"])


def _attempts(problem: Problem, rows: Sequence[Mapping[str, Any]]) -> Attempts:
    def flags(of_row: Callable[[Mapping[str, Any]], bool]) -> Bools:
        return np.fromiter((of_row(row) for row in rows), dtype=bool, count=len(rows))

    counts = [metrics.reflection_words(row["text"]) for row in rows]
    return Attempts(
        problem=problem,
        lengths=np.array([row["length"] for row in rows], dtype=np.int64),
        correct=flags(lambda row: bool(row["correct"])),
        finished=flags(lambda row: row["finish_reason"] == "stop"),
        answered=flags(votes),
        outcomes=tuple(row["outcome"] for row in rows),
        clusters=np.array([row["cluster"] for row in rows], dtype=np.int64),
        repeated=flags(lambda row: is_repetitive(row["text"])),
        empty_think=flags(lambda row: metrics.think_body(row["text"]) == ""),
        answer_only=flags(lambda row: is_answer_only(row["text"])),
        words=np.array([[count[word] for word in metrics.REFLECTION_WORDS] for count in counts], dtype=np.int64),
    )


def is_correct(outcome: str, finish_reason: str) -> bool:
    return outcome == "match" and finish_reason == "stop"


def votes(row: Mapping[str, Any]) -> bool:
    """Whether a rollout has an answer to vote with: it ended by itself and an answer was found in it."""
    return row["extracted"] is not None and row["finish_reason"] == "stop"


def is_answer_only(text: str) -> bool:
    """Whether a response gives its answer without any reasoning: nothing inside its think block or, where it has none,
    nothing before the answer."""
    body = metrics.think_body(text)
    if body is None:
        before, found, _ = text.rpartition(r"\boxed")
        if not found:
            before, found, _ = text.partition("<answer>")
        body = before if found else text
    return not re.sub(r"<answer>|[\s$\\(\[*]", "", body)


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
    whole, suites = summary(attempts, config), _split(attempts, _source)
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
            name: {value: brief(part, config) for value, part in groups.items()}
            for name, key in BREAKDOWNS.items()
            if len(groups := _split(attempts, key)) > 1
        },
        "words": words(attempts),
        "problems": [_problem_row(a, config) for a in attempts],
    }


def settings_of(config: EvalConfig) -> dict[str, Any]:
    """What was asked of the sampler and the grader, as in the config."""
    kept = ("budgets", "samples", "temperature", "top_p", "min_p", "max_prompt_tokens", "seed", "tie", "bootstrap")
    dump = config.model_dump(mode="json")
    return {name: dump[name] for name in kept} | {
        "engine": config.engine.type,
        "dtype": config.engine.dtype,
        "prompt": dump["prompt"],
    }


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
        "by_correctness": metrics.lengths_by_correctness([a.lengths for a in attempts], correct),
    }


def brief(attempts: Sequence[Attempts], config: EvalConfig) -> dict[str, Any]:
    """The metrics that a breakdown shows for each of its groups."""
    redraws = _Redraws(len(attempts), config)
    lengths, correct = _flat([a.lengths for a in attempts]), _flat([a.correct for a in attempts])
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
            "micro": float(correct.sum() / answered.sum()) if answered.any() else None,
            "macro": metrics.macro_precision(right, given),
        },
        "mean_correct": float(np.mean(right)),
        "mean_answered": float(np.mean(given)),
        "repeated": _share(_flat([a.repeated for a in attempts])),
        "empty_think": _share(_flat([a.empty_think for a in attempts])),
        "answer_only": _share(_flat([a.answer_only for a in attempts])),
        "reflection_per_response": float(pool.mean()),
        "reflection_per_1k_tokens": float(1000 * pool.sum() / max(1, lengths.sum())),
        "tokens_per_correct": float(lengths.sum() / correct.sum()) if correct.any() else None,
    }


def consensus(attempts: Attempts, config: EvalConfig) -> float:
    """Credit of one problem under majority vote over all its samples."""
    answers = [None if cluster < 0 else str(cluster) for cluster in attempts.clusters]
    return metrics.cons_at_k(answers, attempts.correct.tolist(), tie=config.tie)


def words(attempts: Sequence[Attempts]) -> dict[str, dict[str, float | None]]:
    """word -> how often a response, a right one, a wrong one and a thousand tokens hold it."""
    counts, correct = np.concatenate([a.words for a in attempts]), _flat([a.correct for a in attempts])
    tokens = max(1, int(_flat([a.lengths for a in attempts]).sum()))

    def mean(rows: Any, column: int) -> float | None:
        return float(rows[:, column].mean()) if len(rows) else None

    return {
        word: {
            "per_response": mean(counts, i),
            "per_right_response": mean(counts[correct], i),
            "per_wrong_response": mean(counts[~correct], i),
            "per_1k_tokens": float(1000 * counts[:, i].sum() / tokens),
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
    low, high = metrics.bootstrap_interval(correct, resamples=config.bootstrap, seed=config.seed, over="samples")
    return {"low_samples": low, "high_samples": high}


def _problem_row(attempts: Attempts, config: EvalConfig) -> dict[str, Any]:
    """What comparisons and figures need of one problem, rollout by rollout."""
    return {
        "id": attempts.problem.id,
        "source": attempts.problem.source,
        "level": attempts.problem.level,
        "prompt": attempts.problem.prompt,
        "answer": attempts.problem.answer,
        "pass_at_1": float(attempts.correct.mean()),
        "cons_at_k": consensus(attempts, config),
        "lengths": attempts.lengths.tolist(),
        "correct": attempts.correct.astype(int).tolist(),
        "finished": attempts.finished.astype(int).tolist(),
        "answered": attempts.answered.astype(int).tolist(),
    }


# --- breakdowns -------------------------------------------------------------------------------------------------------


def _source(attempts: Attempts) -> str | None:
    return attempts.problem.source or "unnamed"


def _level(attempts: Attempts) -> str | None:
    level = attempts.problem.level
    return None if level is None else f"{level:g}"


def _subject(attempts: Attempts) -> str | None:
    value = attempts.problem.extra.get("subject")
    return None if value is None else str(value)


def _pass_rate(attempts: Attempts) -> str | None:
    rate = float(attempts.correct.mean())
    if rate in (0.0, 1.0):
        return "never" if rate == 0 else "always"
    return ("under 25 %", "25-50 %", "50-75 %", "75 % and more")[int(rate * 4)]


def _number(attempts: Attempts) -> str | None:
    """GRPO-LEAD's bands of an AIME paper, whose problems grow harder with their number."""
    number = attempts.problem.extra.get("problem_number")
    try:
        n = int(str(number))
    except ValueError:
        return None
    return next((f"{low}-{low + 4}" for low in (1, 6, 11) if low <= n <= low + 4), None)


BREAKDOWNS: dict[str, Callable[[Attempts], str | None]] = {
    "level": _level,
    "subject": _subject,
    "pass_rate": _pass_rate,
    "problem_number": _number,
}


def _split(attempts: Sequence[Attempts], key: Callable[[Attempts], str | None]) -> dict[str, list[Attempts]]:
    """By the value of `key`, values in natural order; problems without one are left out."""
    parts: dict[str, list[Attempts]] = {}
    for a in attempts:
        value = key(a)
        if value is not None:
            parts.setdefault(value, []).append(a)
    return dict(sorted(parts.items(), key=lambda item: _natural(item[0])))


def _natural(text: str) -> list[tuple[int, float, str]]:
    return [(0, float(t), "") if t.isdigit() else (1, 0.0, t) for t in re.findall(r"\d+|\D+", text)]


# --- numbers ----------------------------------------------------------------------------------------------------------


class _Redraws:
    """Bootstrap intervals of 95 % over a fixed set of problems: the problems are redrawn once for all metrics, as
    `metrics.bootstrap_interval` would draw them for each (the two agree to rounding, and a test says so)."""

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


def _flat(arrays: Sequence[Any]) -> Any:
    return np.concatenate(arrays)


def _share(flags: Bools) -> float:
    return float(flags.mean())
