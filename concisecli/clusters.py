"""Which answers of a problem are one answer: the votes of Cons@k.

Greedy first fit by the grader's equivalence, in the order of sampling: an answer joins the first cluster whose first
answer it equals. Answers that matched the gold answer are one cluster without being compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

ABSTAINS = -1
Equal = Callable[[Sequence[tuple[str, str]]], list[bool]]  # pairs of answers -> whether each is one answer


def assign(rows: Sequence[Mapping[str, Any]], equal: Equal) -> list[int]:
    """[rows] the cluster of each completion among those of its problem, counted from 0; ABSTAINS where it has no vote.

    `rows` have problem_id, sample, extracted, outcome and finish_reason. `equal` judges many pairs at once.
    """
    order = sorted(range(len(rows)), key=lambda i: rows[i]["sample"])
    votes: dict[str, list[int]] = {}
    for i in order:
        if rows[i]["extracted"] is not None and rows[i]["finish_reason"] == "stop":
            votes.setdefault(rows[i]["problem_id"], []).append(i)
    names = {i: _name(rows[i]) for voters in votes.values() for i in voters}
    homes = _first_fit({p: list(dict.fromkeys(names[i] for i in voters)) for p, voters in votes.items()}, equal)
    found = [ABSTAINS] * len(rows)
    for problem, voters in votes.items():
        numbers: dict[str | None, int] = {}
        for i in voters:
            home = homes[problem][names[i]]
            found[i] = numbers.setdefault(home, len(numbers))
    return found


def _name(row: Mapping[str, Any]) -> str | None:
    """The text that stands for an answer; None for every one that matched the gold answer."""
    return None if row["outcome"] == "match" else str(row["extracted"])


Names = list[str | None]


def _first_fit(names: Mapping[str, Names], equal: Equal) -> dict[str, dict[str | None, str | None]]:
    """problem -> text -> the text of its cluster's first answer. One round a cluster, over all problems at once."""
    homes: dict[str, dict[str | None, str | None]] = {p: {None: None} for p in names}
    waiting = {p: [n for n in texts if n is not None] for p, texts in names.items()}
    while waiting := {p: texts for p, texts in waiting.items() if texts}:
        pairs = [(p, texts[0], text) for p, texts in waiting.items() for text in texts[1:]]
        same = equal([(first, text) for _, first, text in pairs]) if pairs else []
        for p, texts in waiting.items():
            homes[p][texts[0]] = texts[0]
        for (p, first, text), is_same in zip(pairs, same, strict=True):
            if is_same:
                homes[p][text] = first
        waiting = {p: [t for t in texts if t not in homes[p]] for p, texts in waiting.items()}
    return homes
