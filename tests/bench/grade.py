"""Pairs judged a second: plain math-verify in one process against the pool with one and two workers, in one run.

`rollouts` has the shape of training, 64 problems x 32 rollouts with few distinct answers; `distinct` are MATH answers
written in other spellings than their golds, no two alike, so that text alone decides nothing. The golds come from the
MATH rows beside this checkout, or where there are none from a list of the same forms made here.
"""

from __future__ import annotations

import json
import logging
import random
import re
import statistics
import time
from pathlib import Path
from typing import Any

from concisecli.config import GraderConfig
from concisecli.grader.extraction import extract
from concisecli.grader.grading import GradeItem, GraderPool

MATH = Path(__file__).parents[3] / "shared" / "data" / "raw" / "math_test_minus500_l3to5.jsonl"
DISTINCT, REPEATS = 800, 3
WORK = "We simplify, collect terms and check the result against the conditions of the problem. " * 6


def run() -> list[dict[str, Any]]:
    """Rows {name, value, unit, baseline, ratio, note}: medians of runs taken in turn."""
    logging.disable(logging.WARNING)
    rows = []
    for name, items in (("rollouts 64 x 32", rollouts()), ("distinct spellings", distinct())):
        rows.extend(_rows(name, items))
    return rows


def _rows(name: str, items: list[GradeItem]) -> list[dict[str, Any]]:
    seconds: dict[str, list[float]] = {"plain": [], "1 worker": [], "2 workers": []}
    plain: list[bool] = []
    ours: dict[str, list[bool]] = {}
    for _ in range(REPEATS):
        began = time.perf_counter()
        plain = _plain(items)
        seconds["plain"].append(time.perf_counter() - began)
        for workers in (1, 2):
            with GraderPool(GraderConfig(workers=workers)) as pool:
                pool.warm()
                began = time.perf_counter()
                verdicts = pool.grade(items)
                seconds[f"{workers} worker{'s' * (workers > 1)}"].append(time.perf_counter() - began)
                ours[str(workers)] = [v.correct for v in verdicts]
    lost = sum(p and not o for p, o in zip(plain, ours["2"], strict=True))
    gained = sum(o and not p for p, o in zip(plain, ours["2"], strict=True))
    base = len(items) / statistics.median(seconds["plain"])
    found = []
    for label in ("1 worker", "2 workers"):
        rate = len(items) / statistics.median(seconds[label])
        note = f"{len(items)} pairs; accepted by plain only {lost}, by the pool only {gained}"
        found.append(
            {
                "name": f"{name}, {label}",
                "value": round(rate),
                "unit": "pairs/s",
                "baseline": f"plain math-verify, one process: {base:.0f}",
                "ratio": round(rate / base, 2),
                "note": note + ("" if ours["1"] == ours["2"] else "; WORKERS DISAGREE"),
            }
        )
    return found


def _plain(items: list[GradeItem]) -> list[bool]:
    """math-verify as its README uses it: parse the gold, parse the response, verify."""
    from math_verify import parse, verify

    return [bool(verify(parse(f"\\boxed{{{item.gold}}}"), parse(item.response))) for item in items]


def golds() -> list[str]:
    """Distinct golds: MATH's, or forms like them."""
    if MATH.exists():
        with MATH.open("rb") as file:
            found = [extract(json.loads(line)["solution"]) for line in file]
        texts = [f.text for f in found if f is not None]
    else:
        draw = random.Random(0)
        forms = ("{a}", "\\frac{{{a}}}{{{b}}}", "{a}\\sqrt{{{b}}}", "({a},{b})", "{a}+{b}i", "x^2+{a}x+{b}", "{a}\\pi")
        texts = [draw.choice(forms).format(a=draw.randint(2, 99), b=draw.randint(2, 99)) for _ in range(6000)]
    return list(dict.fromkeys(texts))


def distinct() -> list[GradeItem]:
    """Each gold once, answered in another spelling: values as fractions, sums and products as equal ones."""
    draw = random.Random(1)
    items = []
    for gold in golds():
        if respelled := _respell(gold, draw):
            items.append(GradeItem(f"{WORK}So the answer is $\\boxed{{{respelled}}}$.", gold))
        if len(items) == DISTINCT:
            break
    return items


def _respell(gold: str, draw: random.Random) -> str | None:
    k = draw.randint(2, 9)
    if re.fullmatch(r"-?\d{1,12}", gold):
        return f"\\frac{{{int(gold) * k}}}{{{k}}}"
    if fraction := re.fullmatch(r"(-?)\\[dt]?frac\{(\d{1,9})\}\{(\d{1,9})\}", gold):
        return f"{fraction[1]}\\frac{{{int(fraction[2]) * k}}}{{{int(fraction[3]) * k}}}"
    if re.fullmatch(r"[\d+\-*/^{}()\\a-z ]+", gold) and not re.search(
        r"text|begin|circ|cup|in\b|infty|mathbf|,|!", gold
    ):
        return f"\\frac{{{k}({gold})}}{{{k}}}"
    if point := re.fullmatch(r"\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\)", gold):
        return f"\\left(\\frac{{{int(point[1]) * k}}}{{{k}}},{point[2]}\\right)"
    return None


def rollouts() -> list[GradeItem]:
    """64 problems, 32 rollouts each, at most four distinct answers a problem, most of them numbers."""
    draw = random.Random(2)
    items = []
    for gold in draw.sample(golds(), 64):
        answers = [gold, _respell(gold, draw) or gold, str(draw.randint(0, 99)), f"\\frac{{{draw.randint(1, 9)}}}{{7}}"]
        for _ in range(32):
            answer = draw.choices(answers, weights=(10, 3, 3, 2))[0]
            items.append(GradeItem(f"{WORK}So the answer is $\\boxed{{{answer}}}$.", gold))
    return items


if __name__ == "__main__":
    for row in run():
        print(row)
