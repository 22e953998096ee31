"""Which figures a report has, and the numbers in them: budget curves, accuracy against length, training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from concisecli.figures import Figure, Series
from concisecli.reporting import Json, Settings, Training, lineage_pairs

MOST_POINTS = 160  # of a training curve; longer logs are averaged


# --- figures of evaluations -------------------------------------------------------------------------------------------


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
    for e in group.evaluations:
        if suite in e.scores["suites"]:
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
        arrows=tuple(pairs) if len(series) == len(group.evaluations) else (),
        note="Up and to the left is better; arrows lead from a model to what was trained from it. "
        "Whiskers: 95 % intervals over problems.",
    )


def _band(values: Sequence[float | None]) -> tuple[float, ...] | None:
    return tuple(v for v in values if v is not None) if all(v is not None for v in values) else None


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
        note="Lines: 95 % interval over problems.",
    )


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


# --- figures of training ----------------------------------------------------------------------------------------------

CURVES: tuple[tuple[str, str, str, bool], ...] = (  # key, title, y label, share
    ("accuracy", "Accuracy while training", "right rollouts of the step (share)", True),
    ("length", "Length while training", "mean response length (tokens)", False),
    ("entropy", "Entropy of the policy", "entropy (nats per token)", False),
    ("signal_share/groups", "Groups with a signal", "groups with a nonzero advantage (share)", True),
    ("signal_share/tokens", "Tokens with a signal", "tokens with a nonzero advantage (share)", True),
    ("truncated", "Cut off at the limit", "rollouts cut off (share)", True),
    ("repetition", "Repetition", "repetitive rollouts (share)", True),
    ("empty_think", "Empty thinking", "rollouts with an empty think block (share)", True),
    ("kl", "Distance from the reference", "KL divergence (nats per token)", False),
    ("mismatch", "Sampler against trainer", "mean difference of log-probs (nats per token)", False),
    ("validation/accuracy", "Accuracy on validation problems", "right rollouts (share)", True),
    ("validation/length", "Length on validation problems", "mean response length (tokens)", False),
    ("grad_norm", "Gradient norm", "norm before clipping", False),
)
KINDS = (("groups/all_right", "all right", 5), ("groups/mixed", "mixed", 4), ("groups/all_wrong", "all wrong", 7))
SMOOTHED = 15  # a running mean over a fifteenth of the points, so that trends stand out of the noise of single steps


def training_figures(trainings: Sequence[Training], slots: Mapping[str, int]) -> list[Figure]:
    """Curves over RL steps, counted from the first RL stage of each line of descent, then what is per stage."""
    rl = [t for t in trainings if any("accuracy" in row for row in t.rows)]
    starts = _starts(rl)
    figures = [
        Figure(
            _slug(key),
            title,
            "RL step, counted from the first RL stage",
            label,
            tuple(s for t in rl if (s := _curve(t, key, starts[t.stage], slots[t.stage]))),
            percent=share,
            from_zero=key != "entropy",
            note=_since_the_start(rl) if key == "length" else "",
        )
        for key, title, label, share in CURVES
        if not _always_zero(rl, key)
    ]
    figures += [_group_kinds(t, starts[t.stage]) for t in rl]
    losses = [t for t in trainings if t not in rl]
    figures.append(
        Figure(
            "sft-loss",
            "Loss of supervised fine-tuning",
            "step",
            "loss (nats per token)",
            tuple(s for t in losses if (s := _curve(t, "loss", 0, slots[t.stage]))),
        )
    )
    return [replace(figure, group="Training") for figure in figures if figure.series]


def _starts(rl: Sequence[Training]) -> dict[str, int]:
    """stage -> RL steps that its model had seen before."""
    stages = {t.stage: t for t in rl}

    def start(stage: str, seen: frozenset[str] = frozenset()) -> int:
        parent = stages.get(stages[stage].parent)
        if parent is None or parent.stage in seen:
            return 0
        return start(parent.stage, seen | {stage}) + _step(parent.rows[-1], len(parent.rows) - 1)

    return {stage: start(stage) for stage in stages}


def _step(row: Json, place: int) -> int:
    """The step of a row, counted from 1."""
    return int(row.get("step", place)) + 1


def _always_zero(rl: Sequence[Training], key: str) -> bool:
    return not any(row.get(key) for t in rl for row in t.rows)


def _curve(training: Training, key: str, start: int, slot: int) -> Series | None:
    """The metric over steps; long logs as means over runs of equally many steps."""
    points = [
        (start + _step(row, i), row[key])
        for i, row in enumerate(training.rows)
        if isinstance(row.get(key), int | float)
    ]
    if not points:
        return None
    every = -(-len(points) // MOST_POINTS)
    runs = [points[i : i + every] for i in range(0, len(points), every)]
    x = tuple(float(np.mean([step for step, _ in run])) for run in runs)
    y = [float(np.mean([v for _, v in run])) for run in runs]
    smooth = running_mean(y, len(y) // SMOOTHED)
    return Series(training.stage, x, tuple(smooth), faint=tuple(y) if smooth != y else None, slot=slot)


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """Each value as the mean of itself and up to `reach` neighbours on either side."""
    return [float(np.mean(values[max(0, i - reach) : i + reach + 1])) for i in range(len(values))]


def _since_the_start(rl: Sequence[Training]) -> str:
    """The change of the mean length in each stage, from its first tenth of the steps to its last."""
    said = []
    for t in rl:
        lengths = [row["length"] for row in t.rows if isinstance(row.get("length"), int | float)]
        tenth = max(1, len(lengths) // 10)
        if len(lengths) > 1:
            percent = 100 * (np.mean(lengths[-tenth:]) / np.mean(lengths[:tenth]) - 1)
            said.append(f"{t.stage} {percent:+.0f} %".replace("-", "−"))
    return f"Change from the first tenth of a stage's steps to its last: {', '.join(said)}." if said else ""


def _group_kinds(training: Training, start: int) -> Figure:
    steps = [(_step(row, i), row) for i, row in enumerate(training.rows) if all(key in row for key, _, _ in KINDS)]
    present = [row for _, row in steps]
    totals = [max(1.0, sum(row[key] for key, _, _ in KINDS)) for row in present]
    every = -(-len(present) // MOST_POINTS) or 1

    def share(key: str) -> tuple[float, ...]:
        values = [row[key] / total for row, total in zip(present, totals, strict=True)]
        return tuple(float(np.mean(values[i : i + every])) for i in range(0, len(values), every))

    x = tuple(float(start + step) for step, _ in steps[::every])
    return Figure(
        f"groups-{_slug(training.stage)}",
        f"Kinds of groups in {training.stage}",
        "RL step, counted from the first RL stage",
        "share of the groups sampled",
        tuple(Series(label, x, share(key), slot=slot) for key, label, slot in KINDS) if present else (),
        kind="stack",
        percent=True,
    )


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
