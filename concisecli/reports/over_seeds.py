"""Several seeds of one thing as one: means over seeds, with intervals that say how much a seed matters.

The half-width of an interval is that of the mean over problems (the same problems in every seed, so more seeds do not
narrow it) and that of the mean over seeds (Student's t), added in quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Json = dict[str, Any]
# Two-sided 95 % quantiles of Student's t with 1, 2, ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
NORMAL = 1.96
SUMMED = ("rollouts",)
SHARES = {"pass_at_1", "cons_at_k", "budgets", "curve", "pass_rates", "precision"}  # lie between 0 and 1


def student(seeds: int) -> float:
    """The quantile for the mean of so many seeds; from eleven on the normal one, which is near enough."""
    return STUDENT[seeds - 2] if seeds - 2 < len(STUDENT) else NORMAL


def half_width(values: Sequence[float]) -> float:
    """Of the 95 % interval of the mean over seeds; `values` holds one a seed."""
    return student(len(values)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))


def interval(values: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None]) -> Json:
    """The mean of one value a seed with its interval; no interval where a seed has none."""
    mean = float(np.mean(values))
    ends = [(low, high) for low, high in zip(lows, highs, strict=True) if low is not None and high is not None]
    if len(ends) < len(values):
        return {"value": mean, "low": None, "high": None}
    between = half_width(values)
    below = math.hypot(float(np.mean([v - low for v, (low, _) in zip(values, ends, strict=True)])), between)
    above = math.hypot(float(np.mean([high - v for v, (_, high) in zip(values, ends, strict=True)])), between)
    return {"value": mean, "low": mean - below, "high": mean + above}


def widened(difference: Json, values: Sequence[float]) -> Json:
    """A difference with its interval over problems, widened by how much it varies between seeds; `values` holds one a
    seed."""
    between, middle = half_width(values), difference["difference"]
    below, above = (math.hypot(middle - difference["low"], between), math.hypot(difference["high"] - middle, between))
    spread = (below + above) / 2 / NORMAL
    p = math.erfc(abs(middle) / spread / math.sqrt(2)) if spread else float(middle == 0)
    return {
        "low": middle - below,
        "high": middle + above,
        "clear": abs(middle) > (below if middle > 0 else above),
        "p_value": p,
    }


def merged(scores: Sequence[Json]) -> Json:
    """One scores.json of several of the same settings but for the seed. A problem's row holds the rollouts of all."""
    first = scores[0]
    return {
        **first,
        "overall": _mean([s["overall"] for s in scores], ()),
        "suites": {
            name: _mean([s["suites"][name] for s in scores], ())
            for name in first["suites"]
            if all(name in s["suites"] for s in scores)
        },
        "by": {name: _groups([s["by"].get(name, []) for s in scores]) for name in first["by"]},
        "words": _mean([s["words"] for s in scores], ()),
        "problems": _problems([s["problems"] for s in scores]),
    }


def _mean(parts: Sequence[Any], path: tuple[str, ...]) -> Any:
    """Alike parts of several scores as one: a value with its interval, a number, or a mapping or list of them."""
    first, name = parts[0], path[-1] if path else ""
    if any(part is None for part in parts):
        return None
    if isinstance(first, Mapping) and {"value", "low", "high"} <= first.keys() and isinstance(first["value"], float):
        return {k: first[k] for k in first if isinstance(first[k], str)} | _clipped(
            interval(*([part[k] for part in parts] for k in ("value", "low", "high"))), path
        )
    if isinstance(first, Mapping) and {"budget", "accuracy"} <= first.keys():
        return _curve(parts)
    if isinstance(first, Mapping):
        return {k: _mean([part[k] for part in parts], (*path, k)) for k in first if all(k in part for part in parts)}
    if isinstance(first, list):
        return [_mean(row, path) for row in zip(*parts, strict=False)]
    if isinstance(first, bool | str):
        return first
    return sum(parts) if name in SUMMED else type(first)(np.mean(parts))


def _clipped(point: Json, path: Sequence[str]) -> Json:
    if point["low"] is None:
        return point
    high = min(1.0, point["high"]) if SHARES & set(path) else point["high"]
    return point | {"low": max(0.0, point["low"]), "high": high}


def _curve(parts: Sequence[Json]) -> Json:
    points = [
        _clipped(interval(*rows), ("curve",))
        for rows in zip(
            *(list(zip(*(p[k] for p in parts), strict=True)) for k in ("accuracy", "low", "high")), strict=True
        )
    ]
    return {
        "budget": parts[0]["budget"],
        "accuracy": [p["value"] for p in points],
        "low": [p["low"] for p in points],
        "high": [p["high"] for p in points],
    }


def _groups(tables: Sequence[Sequence[Json]]) -> list[Json]:
    """Breakdowns by the value that a group stands for; a group that not every seed has is left out."""
    by_value = [{row["value"]: row for row in table} for table in tables]
    shared = [value for value in by_value[0] if all(value in rows for rows in by_value)]
    return [
        {"value": value} | _mean([{k: v for k, v in rows[value].items() if k != "value"} for rows in by_value], ())
        for value in shared
    ]


def _problems(tables: Sequence[Sequence[Json]]) -> list[Json]:
    """Rows of the problems that every seed has: means, and the rollouts of all seeds one after another."""
    by_id = [{row["id"]: row for row in table} for table in tables]
    found = []
    for problem in by_id[0]:
        rows = [table[problem] for table in by_id if problem in table]
        if len(rows) == len(tables):
            lists = {k: [x for row in rows for x in row[k]] for k, v in rows[0].items() if isinstance(v, list)}
            means = {k: float(np.mean([row[k] for row in rows])) for k in ("pass_at_1", "cons_at_k")}
            found.append(rows[0] | lists | means)
    return found


def mean_rows(logs: Sequence[Sequence[Json]]) -> list[Json]:
    """The rows of a training log as means over seeds, of the steps that every log has."""
    by_step = [{row.get("step", i): row for i, row in enumerate(rows)} for rows in logs]
    found = []
    for step in sorted(set.intersection(*map(set, by_step))):
        rows = [log[step] for log in by_step]
        numbers = [k for k in rows[0] if k != "step" and all(isinstance(row.get(k), int | float) for row in rows)]
        found.append({"step": step} | {k: float(np.mean([row[k] for row in rows])) for k in numbers})
    return found
