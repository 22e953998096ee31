"""The figures of training logs: metrics over RL steps along each line of descent, kinds of groups, the loss of SFT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from concisecli.reports.drawing import Figure, Series
from concisecli.reports.reporting import Json, Training

STEPS_LABEL = "RL step, counted from the first RL stage"
MOST_POINTS = 160  # of a curve; longer logs are averaged
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
    ("grad_norm", "Gradient norm", "norm before clipping", False),
)
MARKED = ("accuracy", "length", "truncated", "repetition", "empty_think")  # and eval/SUITE/pass_at_1: bear the alarms
KINDS = (("groups/all_right", "all right", 5), ("groups/mixed", "mixed", 4), ("groups/all_wrong", "all wrong", 7))
SMOOTHED = 15  # a running mean over a fifteenth of the points, so that trends stand out of the noise of single steps


def training_figures(trainings: Sequence[Training], slots: Mapping[str, int]) -> list[Figure]:
    """Curves over RL steps, counted from the first RL stage of each line of descent, then what is per stage."""
    rl = [t for t in trainings if any("accuracy" in row for row in t.rows)]
    starts = _starts(rl)

    def figure(
        key: str, title: str, label: str, *, share: bool = False, note: str = "", from_zero: bool = True
    ) -> Figure:
        curves = tuple(s for t in rl if (s := _curve(t, key, starts[t.stage], slots[t.stage])))
        marked = key in MARKED or key.endswith("/pass_at_1")
        return Figure(
            _slug(key),
            title,
            STEPS_LABEL,
            label,
            curves,
            percent=share,
            from_zero=from_zero,
            note=_and_seeds(note, rl),
            events=_events(rl, starts) if marked else (),
        )

    figures = [
        figure(
            key,
            title,
            label,
            share=share,
            from_zero=key != "entropy",
            note=_since_the_start(rl) if key == "length" else "",
        )
        for key, title, label, share in CURVES
        if not _always_zero(rl, key)
    ]
    figures[2:2] = [_change_since(rl, "length", "Length since each stage began", starts, slots)]
    for suite in _suites(rl):
        figures += [
            figure(
                f"eval/{suite}/pass_at_1",
                f"Accuracy on {suite} while training",
                "pass@1 (share of rollouts)",
                share=True,
            ),
            figure(f"eval/{suite}/length", f"Length on {suite} while training", "mean response length (tokens)"),
            _change_since(rl, f"eval/{suite}/length", f"Length on {suite} since each stage began", starts, slots),
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
            note=_and_seeds("", losses),
        )
    )
    return [replace(figure, group="Training") for figure in figures if figure.series]


ALARM = "alarm/"


def alarms(trainings: Sequence[Training]) -> list[Json]:
    """Each time that a warning came on in a training, with the steps (counted from 1) that it stayed on."""
    found: list[Json] = []
    for t in trainings:
        for one in t.seeds or (t,):
            for kind in dict.fromkeys(name for row in one.rows for name in row if name.startswith(ALARM)):
                steps = [_step(row, i) for i, row in enumerate(one.rows) if row.get(kind)]
                for first, last in _runs(steps):
                    found.append(
                        {
                            "stage": t.stage,
                            "run": one.run,
                            "seed": one.manifest.get("seed"),
                            "kind": kind.removeprefix(ALARM),
                            "first": first,
                            "last": last,
                        }
                    )
    return found


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of steps without a gap."""
    starts = [i for i, step in enumerate(steps) if i == 0 or step != steps[i - 1] + 1]
    return [(steps[a], steps[b - 1]) for a, b in zip(starts, [*starts[1:], len(steps)], strict=True)]


def _events(rl: Sequence[Training], starts: Mapping[str, int]) -> tuple[tuple[float, str], ...]:
    """Where each kind of warning first came on in each training."""
    first: dict[tuple[str, str], int] = {}
    for row in alarms(rl):
        key = row["stage"], row["kind"]
        first[key] = min(first.get(key, row["first"]), row["first"])
    return tuple((float(starts[stage] + step), kind.replace("_", " ")) for (stage, kind), step in first.items())


def _and_seeds(note: str, trainings: Sequence[Training]) -> str:
    seeds = "Means over seeds; bands from the lowest to the highest seed." if any(t.seeds for t in trainings) else ""
    return f"{note} {seeds}".strip()


def _suites(rl: Sequence[Training]) -> list[str]:
    """The suites that were evaluated while training, from the names of the metrics: eval/SUITE/pass_at_1."""
    names = dict.fromkeys(name for t in rl for row in t.rows for name in row)
    return [name.split("/")[1] for name in names if name.startswith("eval/") and name.endswith("/pass_at_1")]


def _change_since(
    rl: Sequence[Training], key: str, title: str, starts: Mapping[str, int], slots: Mapping[str, int]
) -> Figure:
    """How a length moved in each stage, in % of where it was when the stage began: the mean of the first tenth of its
    values, or the first value of a suite."""
    series = []
    for t in rl:
        values = [row[key] for row in t.rows if isinstance(row.get(key), int | float)]
        few = 1 if key.startswith("eval/") else max(1, len(values) // 10)
        begun = float(np.mean(values[:few])) if values else 0.0
        curve = _curve(t, key, starts[t.stage], slots[t.stage]) if begun else None
        if curve is not None:
            series.append(_scaled(curve, begun))
    return Figure(
        f"{_slug(key)}-change",
        title,
        STEPS_LABEL,
        "change of the mean length (%)",
        tuple(series),
        note=_and_seeds("", rl),
    )


def _scaled(curve: Series, begun: float) -> Series:
    def change(values: Sequence[float] | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(100 * (v / begun - 1) for v in values)

    return replace(
        curve, y=change(curve.y) or (), low=change(curve.low), high=change(curve.high), faint=change(curve.faint)
    )


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
    if training.seeds:
        low, high = _range_of_seeds(training, key, [step - start for step, _ in points], every)
        return Series(training.stage, x, tuple(smooth), low, high, slot=slot)
    return Series(training.stage, x, tuple(smooth), faint=tuple(y) if smooth != y else None, slot=slot)


def _range_of_seeds(
    training: Training, key: str, steps: Sequence[int], every: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The lowest and the highest seed at each point of the curve, each seed smoothed as the mean is."""
    curves = []
    for seed in training.seeds:
        values = {_step(row, i): float(row.get(key) or 0) for i, row in enumerate(seed.rows)}
        y = [values[step] for step in steps]
        means = [float(np.mean(y[i : i + every])) for i in range(0, len(y), every)]
        curves.append(running_mean(means, len(means) // SMOOTHED))
    return tuple(map(min, zip(*curves, strict=True))), tuple(map(max, zip(*curves, strict=True)))


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
        STEPS_LABEL,
        "share of the groups sampled",
        tuple(Series(label, x, share(key), slot=slot) for key, label, slot in KINDS) if present else (),
        kind="stack",
        percent=True,
    )


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())
