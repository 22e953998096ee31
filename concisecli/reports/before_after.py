"""The same problem before and after: which ones are shown, chosen by a rule and not by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Json = dict[str, Any]
KINDS = ("shorter", "gained", "lost", "longer")  # in turn, as long as there are problems of the kind
SAID = {
    "shorter": "right both times, now shorter",
    "longer": "right both times, now longer or as long",
    "gained": "wrong before, right now",
    "lost": "right before, wrong now",
    "neither": "wrong both times",
}
LONGEST = 6000  # characters of a response that are shown


def choose(
    before: Mapping[str, Any],
    before_rows: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any],
    after_rows: Sequence[Mapping[str, Any]],
    *,
    number: int,
    seed: int,
) -> Json:
    """`number` problems with their first rollouts of both evaluations, and how many problems each kind of change has.

    Looks at the first rollout of every problem only, and draws problems with the seed, so that nothing is picked for
    its looks.
    """
    first_before, first_after = _first(before_rows), _first(after_rows)
    asked = {row["id"]: row for row in before["problems"]}
    shared = [row["id"] for row in after["problems"] if row["id"] in asked]
    kinds: dict[str, list[str]] = {kind: [] for kind in SAID}
    for problem in shared:
        kinds[_kind(first_before[problem], first_after[problem])].append(problem)
    shown = _in_turn(kinds, number, np.random.default_rng(seed))
    return {
        "counts": {SAID[kind]: len(problems) for kind, problems in kinds.items()},
        "shown": [
            {
                "problem_id": problem,
                "prompt": asked[problem]["prompt"],
                "answer": asked[problem]["answer"],
                "change": SAID[kind],
                "before": _shown(first_before[problem]),
                "after": _shown(first_after[problem]),
            }
            for kind, problem in shown
        ],
    }


def _first(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {row["problem_id"]: row for row in rows if row["sample"] == 0}


def _kind(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if before["correct"] and after["correct"]:
        return "shorter" if after["length"] < before["length"] else "longer"
    if before["correct"]:
        return "lost"
    return "gained" if after["correct"] else "neither"


def _in_turn(kinds: Mapping[str, list[str]], number: int, rng: np.random.Generator) -> list[tuple[str, str]]:
    waiting = {kind: [kinds[kind][i] for i in rng.permutation(len(kinds[kind]))] for kind in KINDS}
    shown: list[tuple[str, str]] = []
    while len(shown) < number and any(waiting.values()):
        shown += [(kind, waiting[kind].pop()) for kind in KINDS if waiting[kind]]
    return shown[:number]


def _shown(row: Mapping[str, Any]) -> Json:
    text = row["text"]
    think, closing, answer = text.partition("</think>")
    return {
        "length": row["length"],
        "outcome": row["outcome"],
        "finish_reason": row["finish_reason"],
        "extracted": row["extracted"],
        "correct": bool(row["correct"]),
        "think": _cut(think.removeprefix("<think>").strip()) if closing else "",
        "text": _cut(answer.strip() if closing else text),
    }


def _cut(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}\n[… {len(text) - LONGEST} characters left out …]\n{text[-LONGEST // 2 :]}"
