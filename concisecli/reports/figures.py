"""The figures of evaluations and the numbers in them: budget curves, accuracy against length, lengths, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from concisecli.reports.drawing import Figure, Series
from concisecli.reports.reporting import Json, Settings, lineage_pairs

LENGTH_POINTS = 60  # of a distribution of lengths


def evaluation_figures(
    groups: Sequence[Settings], slots: Mapping[str, int], parents: Mapping[str, str]
) -> list[Figure]:
    """Per group of settings: budget curve and accuracy against length of each suite, then what is over all of them."""
    found: list[Figure] = []
    for place, group in enumerate(groups):
        mark = f"-{place + 1}" if len(groups) > 1 else ""
        under = f"Evaluation at {group.label}"
        suites = list(dict.fromkeys(suite for e in group.evaluations for suite in e.suites))
        figures: list[Figure] = []
        for number, suite in enumerate(suites):
            which = f"{mark}-s{number + 1}" if len(suites) > 1 else mark
            named = f" on {suite}" if len(suites) > 1 else ""
            figures += [
                _budget_curve(group, suite, slots, which, named),
                _pareto(group, suite, slots, which, named, lineage_pairs(group, parents)),
            ]
        figures += [
            _lengths(group, slots, mark),
            _right_and_wrong(group, mark),
            _difficulty(group, slots, mark),
            *_by_level(group, slots, mark),
            *_keywords(group, slots, mark),
        ]
        found += [replace(figure, group=under) for figure in figures if figure.series]
    return found


def _budget_curve(group: Settings, suite: str, slots: Mapping[str, int], mark: str, title: str) -> Figure:
    series = []
    for e in group.evaluations:
        if suite in e.scores["suites"]:
            curve = e.scores["suites"][suite]["curve"]
            series.append(
                Series(
                    e.model,
                    tuple(curve["budget"]),
                    tuple(curve["accuracy"]),
                    _band(curve["low"]),
                    _band(curve["high"]),
                    slot=slots[e.model],
                )
            )
    return Figure(
        f"budget{mark}",
        f"Accuracy within a budget{title}",
        "budget (tokens)",
        "right and finished within the budget (share of rollouts)",
        tuple(series),
        percent=True,
        marks=tuple(group.values["budgets"]),
        note="One generation at the largest budget gives the whole curve. Bands: 95 % interval over problems.",
    )


def _pareto(
    group: Settings,
    suite: str,
    slots: Mapping[str, int],
    mark: str,
    title: str,
    pairs: Sequence[tuple[int, int]],
) -> Figure:
    series = []
    places: dict[int, int] = {}  # evaluation -> its series
    for i, e in enumerate(group.evaluations):
        if suite in e.scores["suites"]:
            places[i] = len(series)
            found = e.scores["suites"][suite]
            length, accuracy = found["length"], found["pass_at_1"]
            series.append(
                Series(
                    e.model,
                    (length["value"],),
                    (accuracy["value"],),
                    _band([accuracy["low"]]),
                    _band([accuracy["high"]]),
                    _band([length["low"]]),
                    _band([length["high"]]),
                    slot=slots[e.model],
                )
            )
    return Figure(
        f"pareto{mark}",
        f"Accuracy against length{title}",
        "mean response length (tokens)",
        "pass@1 (share of rollouts)",
        tuple(series),
        kind="points",
        percent=True,
        from_zero=False,
        arrows=tuple((places[a], places[b]) for a, b in pairs if a in places and b in places),
        note="Up and to the left is better; arrows lead from a model to what was trained from it. "
        "Whiskers: 95 % intervals over problems.",
    )


def _band(values: Sequence[float | None]) -> tuple[float, ...] | None:
    return tuple(v for v in values if v is not None) if all(v is not None for v in values) else None


def _lengths(group: Settings, slots: Mapping[str, int], mark: str) -> Figure:
    """The distribution of lengths: how many rollouts are at most so long."""
    top = max(group.values["budgets"])
    grid = np.linspace(0, top, LENGTH_POINTS + 1).round()
    series = []
    for e in group.evaluations:
        lengths = np.sort(np.concatenate([row["lengths"] for row in e.scores["problems"]]))
        shares = np.searchsorted(lengths, grid, side="right") / len(lengths)
        series.append(Series(e.model, tuple(grid.tolist()), tuple(shares.tolist()), slot=slots[e.model]))
    return Figure(
        f"lengths{mark}",
        "How long rollouts are",
        "length (tokens)",
        "rollouts of at most this length (share)",
        tuple(series),
        percent=True,
        note="Steep is uniform, left is short.",
    )


def _right_and_wrong(group: Settings, mark: str) -> Figure:
    """Mean length of right and wrong rollouts of each model."""
    found = [(e.model, e.overall["by_correctness"]) for e in group.evaluations]
    series = []
    for name, slot in (("right", 5), ("wrong", 7)):
        places = [(float(i), row[name]) for i, (_, row) in enumerate(found) if row[name] is not None]
        if places:
            series.append(_bars(name, [x for x, _ in places], [point for _, point in places], slot))
    return Figure(
        f"right-wrong{mark}",
        "Length of right and of wrong rollouts",
        "model",
        "mean response length (tokens)",
        tuple(series),
        kind="bars",
        ticks=tuple(model for model, _ in found),
        note=f"Lines: 95 % interval over problems. {_within_problems(found)}".strip(),
    )


def _within_problems(found: Sequence[tuple[str, Json]]) -> str:
    """Whether wrong rollouts are longer than right ones of the same problem, which how hard it is cannot explain."""
    gaps = [
        f"{model} {row['within_gap']:+.1f}".replace("-", "−") + f" ({row['within_problems']:.0f} problems)"
        for model, row in found
        if "within_gap" in row
    ]
    return f"Wrong minus right within problems that have both, in tokens: {', '.join(gaps)}." if gaps else ""


def _bars(name: str, x: Sequence[float], values: Sequence[Json], slot: int) -> Series:
    """A series of values that each have an interval."""
    return Series(
        name,
        tuple(x),
        tuple(value["value"] for value in values),
        _band([value["low"] for value in values]),
        _band([value["high"] for value in values]),
        slot=slot,
    )


def _difficulty(group: Settings, slots: Mapping[str, int], mark: str) -> Figure:
    """How many problems each model solves how often."""
    bins = [row["bin"] for row in group.evaluations[0].overall["pass_rates"]]
    series = [
        _bars(e.model, list(map(float, range(len(bins)))), e.overall["pass_rates"], slots[e.model])
        for e in group.evaluations
    ]
    return Figure(
        f"difficulty{mark}",
        "How hard the problems are to each model",
        "pass rate of a problem (% of its rollouts)",
        "problems (share)",
        tuple(series),
        kind="bars",
        percent=True,
        ticks=tuple(bins),
        note="Lines: 95 % interval over problems.",
    )


def _by_level(group: Settings, slots: Mapping[str, int], mark: str) -> list[Figure]:
    """Accuracy and length by the level of the problems, where there are levels."""
    found = [(e, e.scores["by"]["level"]) for e in group.evaluations if "level" in e.scores["by"]]

    def of(metric: str) -> tuple[Series, ...]:
        return tuple(
            _bars(e.model, [float(row["value"]) for row in levels], [row[metric] for row in levels], slots[e.model])
            for e, levels in found
        )

    note = "Bands: 95 % bootstrap interval over the problems of a level."
    return [
        Figure(
            f"level{mark}",
            "Accuracy by level",
            "level of the problem",
            "pass@1 (share of rollouts)",
            of("pass_at_1"),
            percent=True,
            note=note,
        ),
        Figure(
            f"level-length{mark}",
            "Length by level",
            "level of the problem",
            "mean response length (tokens)",
            of("length"),
            note=note,
        ),
    ]


MOST_WORDS = 8


def _keywords(group: Settings, slots: Mapping[str, int], mark: str) -> list[Figure]:
    """How often words of reflection stand in a response; those that occur, the most frequent first."""
    tables = [e.scores["words"] for e in group.evaluations]
    most = {word: max(t[word]["per_response"]["value"] for t in tables) for word in tables[0]}
    shown = [word for word in sorted(most, key=lambda w: -most[w]) if most[word] > 0][:MOST_WORDS]
    if not shown:
        return []
    series = tuple(
        _bars(
            e.model,
            list(map(float, range(len(shown)))),
            [e.scores["words"][word]["per_response"] for word in shown],
            slots[e.model],
        )
        for e in group.evaluations
    )
    return [
        Figure(
            f"words{mark}",
            "Words of reflection",
            "occurrences per response",
            "word",
            series,
            kind="sideways",
            ticks=tuple(shown),
            note="Whole words, per response. Lines: 95 % interval over problems.",
        )
    ]
