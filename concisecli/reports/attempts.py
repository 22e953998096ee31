"""The rollouts of an evaluation, problem by problem, as arrays; and what problems can be grouped by.

A rollout is `correct` when the grader matched its answer *and* it ended by itself, so that the accuracy at the largest
budget is pass@1, and accuracy at a smaller budget is what a run with that limit would have given. A rollout that was
cut off has no vote in Cons@k, as one without an answer has none.

Shapes: [K] rollouts of one problem in the order of their sample index, [W] words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concisecli.algo import metrics
from concisecli.algo.repetition import LONGEST_NGRAM, is_repetitive
from concisecli.records import Bools, ConciseError, Ints, Problem

ABSTAINS = -1  # the cluster of a rollout that has no vote


@dataclass(frozen=True, slots=True)
class Attempts:
    """The rollouts of one problem; every array is [K], `words` [K, W] counts of metrics.REFLECTION_WORDS."""

    problem: Problem
    lengths: Ints
    correct: Bools
    finished: Bools
    answered: Bools
    outcomes: tuple[str, ...]
    clusters: Ints  # equal for equivalent answers
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
        repeated=flags(lambda row: is_repeated(row["text"])),
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
    return re.search(r"[^\s$\\(\[*]", body.replace("<answer>", "")) is None


RUN = 10  # equal n-grams in a row that make a text repetitive


def is_repeated(text: str) -> bool:
    """`is_repetitive`, asked only of texts that could be: a run of RUN n-grams needs (RUN - 1) n words in a row that
    equal the one n places on, and few texts have as many for any n."""
    words = text.split()
    ids = np.fromiter(map(hash, words), dtype=np.int64, count=len(words))  # equal words have equal ids at least
    lengths = range(1, min(LONGEST_NGRAM, len(words) // RUN) + 1)
    could = any(b"\x01" * ((RUN - 1) * n) in (ids[n:] == ids[:-n]).tobytes() for n in lengths)
    return (could or len(max(words, key=len, default="")) >= 100) and is_repetitive(text, repetition_run=RUN)


# --- breakdowns -------------------------------------------------------------------------------------------------------


def source_of(attempts: Attempts) -> str:
    return attempts.problem.source or "unnamed"


def _level(attempts: Attempts) -> str | None:
    level = attempts.problem.level
    return None if level is None else f"{level:g}"


def _subject(attempts: Attempts) -> str | None:
    value = attempts.problem.extra.get("subject")
    return None if value is None else str(value)


PASS_RATE_BINS = ("0", "<25", "25-50", "50-75", "75+", "100")  # percent of a problem's rollouts


def pass_rate_bin(rate: float) -> str:
    if rate in (0.0, 1.0):
        return PASS_RATE_BINS[0 if rate == 0 else -1]
    return PASS_RATE_BINS[1 + int(rate * 4)]


def _pass_rate(attempts: Attempts) -> str | None:
    return pass_rate_bin(float(attempts.correct.mean()))


def _number(attempts: Attempts) -> str | None:
    """GRPO-LEAD's bands of an AIME paper, whose problems grow harder with their number."""
    number = attempts.problem.extra.get("problem_number")
    try:
        n = int(str(number))
    except ValueError:
        return None
    return next((f"{low}-{low + 4}" for low in (1, 6, 11) if low <= n <= low + 4), None)


KEPT_EXTRA = ("subject", "problem_number")  # of a problem's extra fields, those that a breakdown reads
BREAKDOWNS: dict[str, Callable[[Attempts], str | None]] = {
    "level": _level,
    "subject": _subject,
    "pass_rate": _pass_rate,
    "problem_number": _number,
}


def split(attempts: Sequence[Attempts], key: Callable[[Attempts], str | None]) -> dict[str, list[Attempts]]:
    """By the value of `key`, values in natural order; problems without one are left out."""
    parts: dict[str, list[Attempts]] = {}
    for a in attempts:
        value = key(a)
        if value is not None:
            parts.setdefault(value, []).append(a)
    return dict(sorted(parts.items(), key=lambda item: _natural(item[0])))


def _natural(text: str) -> list[tuple[int, float, str]]:
    return [(0, float(t), "") if t.isdigit() else (1, 0.0, t) for t in re.findall(r"\d+|\D+", text)]
