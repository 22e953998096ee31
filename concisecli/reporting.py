"""From scores, training logs and manifests to the tables and figures of a report: plain values, nothing drawn yet.

Everything that the page, the Markdown and the drawings show is in the `tables` made here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from concisecli import comparison
from concisecli.figures import Figure, Series

Json = dict[str, Any]
MOST_POINTS = 160  # of a training curve; longer logs are averaged


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One scores.json. `model` is the stage that made the model, or the model's own name."""

    stage: str
    model: str
    scores: Json
    manifest: Json = field(default_factory=dict)

    @property
    def overall(self) -> Json:
        found: Json = self.scores["overall"]
        return found

    @property
    def suites(self) -> list[str]:
        return list(self.scores["suites"])


@dataclass(frozen=True, slots=True)
class Training:
    """One metrics.jsonl. `parent` is the stage that its model came from."""

    stage: str
    kind: str
    parent: str
    rows: list[Json]
    manifest: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """Evaluations with equal settings may be compared; `label` names what sets them apart from the others."""

    label: str
    values: Json
    evaluations: tuple[Evaluation, ...]


# --- who is compared with whom ----------------------------------------------------------------------------------------

_SAME = ("temperature", "top_p", "min_p", "samples", "budgets")
_SHORT = {"temperature": "T", "top_p": "top-p", "min_p": "min-p", "samples": "n", "budgets": "budgets"}


def by_settings(evaluations: Sequence[Evaluation]) -> list[Settings]:
    """Groups of evaluations with the same sampling settings, in the order given."""
    groups: dict[str, list[Evaluation]] = {}
    for e in evaluations:
        groups.setdefault(str([e.scores["settings"][name] for name in _SAME]), []).append(e)
    values = [{name: part[0].scores["settings"][name] for name in _SAME} for part in groups.values()]
    differing = [name for name in _SAME if len({str(v[name]) for v in values}) > 1]
    return [
        Settings(_label(value, differing[:1] or ["temperature"]), value, tuple(part))
        for value, part in zip(values, groups.values(), strict=True)
    ]


def _label(values: Json, names: Sequence[str]) -> str:
    return ", ".join(f"{_SHORT[name]}={_plain(values[name])}" for name in names)


def _plain(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else f"{value:g}"


class Slots:
    """The place of every model in the palette: the same in all figures."""

    def __init__(self, evaluations: Sequence[Evaluation], trainings: Sequence[Training]) -> None:
        trained = [t.stage for t in trainings]
        names = dict.fromkeys([*(e.model for e in evaluations), *trained])
        self.of = {name: i for i, name in enumerate(names)}


# --- tables -----------------------------------------------------------------------------------------------------------


def headline(groups: Sequence[Settings]) -> list[Json]:
    """One table a group of settings: the papers' columns (Cons@k, Pass@1, Len) for each suite, and the budgets."""
    return [
        {
            "label": group.label,
            "settings": group.values,
            "k": group.evaluations[0].overall["samples"],
            "suites": suites,
            "budgets": group.values["budgets"],
            "rows": [_headline_row(e, suites, group.evaluations[0]) for e in group.evaluations],
        }
        for group in groups
        if (suites := list(dict.fromkeys(suite for e in group.evaluations for suite in e.suites)))
    ]


def _headline_row(evaluation: Evaluation, suites: Sequence[str], first: Evaluation) -> Json:
    cells = {}
    for suite in suites:
        found = evaluation.scores["suites"].get(suite)
        start = first.scores["suites"].get(suite)
        if found:
            cells[suite] = {
                "cons_at_k": found["cons_at_k"],
                "pass_at_1": found["pass_at_1"],
                "length": found["length"],
                "length_percent": _change(start, found) if start and evaluation is not first else None,
                "budgets": found["budgets"],
                "truncated": found["truncated"],
                "answer_only": found["answer_only"],
                "repeated": found["repeated"],
                "tokens_per_correct": found["tokens_per_correct"],
                "problems": found["problems"],
                "rollouts": found["rollouts"],
            }
    return {"stage": evaluation.stage, "model": evaluation.model, "suites": cells}


def _change(before: Json, after: Json) -> float:
    return float(100 * (after["length"]["value"] / before["length"]["value"] - 1))


def differences(groups: Sequence[Settings]) -> list[Json]:
    """Every model against the first and against the one before it, paired by problem."""
    rows = []
    for group in groups:
        models = group.evaluations
        pairs = [(0, i) for i in range(1, len(models))] + [(i - 1, i) for i in range(2, len(models))]
        for a, b in pairs:
            settings = models[a].scores["settings"]
            found = comparison.compare(
                models[a].scores, models[b].scores, resamples=settings["bootstrap"] or 1, seed=settings["seed"]
            )
            rows += [
                {"label": group.label, "before": models[a].model, "after": models[b].model, **_record(one)}
                for one in found
            ]
    return rows


def _record(one: comparison.Comparison) -> Json:
    """A comparison as JSON; flipped problems by their number."""
    row = asdict(one)
    for name in ("pass_at_1", "cons_at_k", "length"):
        row[name]["clear"] = getattr(one, name).clear
    return row | {"gained": len(one.gained), "lost": len(one.lost)}


# --- figures of evaluations -------------------------------------------------------------------------------------------


def evaluation_figures(groups: Sequence[Settings], slots: Mapping[str, int]) -> list[Figure]:
    figures: list[Figure] = []
    for place, group in enumerate(groups):
        mark = f"-{place + 1}" if len(groups) > 1 else ""
        title = f" ({group.label})" if len(groups) > 1 else ""
        suites = list(dict.fromkeys(suite for e in group.evaluations for suite in e.suites))
        for number, suite in enumerate(suites):
            which = f"{mark}-s{number + 1}" if len(suites) > 1 else mark
            named = f"{title}, {suite}" if len(suites) > 1 else title
            figures += [
                _budget_curve(group, suite, slots, which, named),
                _pareto(group, suite, slots, which, named),
            ]
        figures += [
            _right_and_wrong(group, mark, title),
            _difficulty(group, slots, mark, title),
            *_by_level(group, slots, mark, title),
            *_keywords(group, slots, mark, title),
        ]
    return [figure for figure in figures if figure.series]


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


def _pareto(group: Settings, suite: str, slots: Mapping[str, int], mark: str, title: str) -> Figure:
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
        note="Up and to the left is better. Whiskers: 95 % bootstrap intervals over problems, of both.",
    )


def _band(values: Sequence[float | None]) -> tuple[float, ...] | None:
    return tuple(v for v in values if v is not None) if all(v is not None for v in values) else None


def _right_and_wrong(group: Settings, mark: str, title: str) -> Figure:
    """Mean length of right and wrong rollouts of each model."""
    found = [(e.model, e.overall["by_correctness"]) for e in group.evaluations]
    series = [
        Series(name, tuple(float(i) for i, _ in places), tuple(v for _, v in places), slot=slot)
        for name, slot in (("right", 2), ("wrong", 1))
        if (places := [(i, row[name]) for i, (_, row) in enumerate(found) if name in row])
    ]
    return Figure(
        f"right-wrong{mark}",
        f"Length of right and of wrong rollouts{title}",
        "model",
        "mean response length (tokens)",
        tuple(series),
        kind="bars",
        ticks=tuple(model for model, _ in found),
    )


PASS_BINS = ("0", "to 25", "to 50", "to 75", "under 100", "100")


def _difficulty(group: Settings, slots: Mapping[str, int], mark: str, title: str) -> Figure:
    """How many problems each model solves how often."""
    series = []
    for e in group.evaluations:
        rates = [float(np.mean(row["correct"])) for row in e.scores["problems"]]
        counts = np.bincount([_pass_bin(rate) for rate in rates], minlength=len(PASS_BINS))
        shares = tuple(float(c) / len(rates) for c in counts)
        series.append(Series(e.model, tuple(map(float, range(len(PASS_BINS)))), shares, slot=slots[e.model]))
    return Figure(
        f"difficulty{mark}",
        f"How hard the problems are to each model{title}",
        "pass rate of a problem (%)",
        "share of problems",
        tuple(series),
        kind="bars",
        percent=True,
        ticks=PASS_BINS,
    )


def _pass_bin(rate: float) -> int:
    if rate in (0.0, 1.0):
        return 0 if rate == 0 else len(PASS_BINS) - 1
    return 1 + int(rate * 4)


def _by_level(group: Settings, slots: Mapping[str, int], mark: str, title: str) -> list[Figure]:
    """Accuracy and length by the level of the problems, where there are levels."""
    found = [(e, e.scores["by"]["level"]) for e in group.evaluations if "level" in e.scores["by"]]

    def of(metric: str) -> tuple[Series, ...]:
        return tuple(
            Series(
                e.model,
                tuple(float(level) for level in levels),
                tuple(part[metric]["value"] for part in levels.values()),
                _band([part[metric]["low"] for part in levels.values()]),
                _band([part[metric]["high"] for part in levels.values()]),
                slot=slots[e.model],
            )
            for e, levels in found
        )

    note = "Bands: 95 % bootstrap interval over the problems of a level."
    return [
        Figure(
            f"level{mark}",
            f"Accuracy by level{title}",
            "level of the problem",
            "pass@1 (share of rollouts)",
            of("pass_at_1"),
            percent=True,
            note=note,
        ),
        Figure(
            f"level-length{mark}",
            f"Length by level{title}",
            "level of the problem",
            "mean response length (tokens)",
            of("length"),
            note=note,
        ),
    ]


MOST_WORDS = 8


def _keywords(group: Settings, slots: Mapping[str, int], mark: str, title: str) -> list[Figure]:
    """How often words of reflection stand in a response; those that occur, the most frequent first."""
    tables = [e.scores["words"] for e in group.evaluations]
    most = {word: max(t[word]["per_response"] for t in tables) for word in tables[0]}
    shown = [word for word in sorted(most, key=lambda w: -most[w]) if most[word] > 0][:MOST_WORDS]
    if not shown:
        return []
    series = tuple(
        Series(
            e.model,
            tuple(map(float, range(len(shown)))),
            tuple(e.scores["words"][word]["per_response"] for word in shown),
            slot=slots[e.model],
        )
        for e in group.evaluations
    )
    return [
        Figure(
            f"words{mark}",
            f"Words of reflection{title}",
            "occurrences per response",
            "word",
            series,
            kind="sideways",
            ticks=tuple(shown),
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
    ("mismatch/mean", "Sampler against trainer", "mean difference of log-probs (nats)", False),
    ("grad_norm", "Gradient norm", "norm before clipping", False),
)
KINDS = (("groups/all_right", "all right", 2), ("groups/mixed", "mixed", 4), ("groups/all_wrong", "all wrong", 1))


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
    return [figure for figure in figures if figure.series]


def _starts(rl: Sequence[Training]) -> dict[str, int]:
    """stage -> RL steps that its model had seen before."""
    stages = {t.stage: t for t in rl}

    def start(stage: str, seen: frozenset[str] = frozenset()) -> int:
        parent = stages.get(stages[stage].parent)
        if parent is None or parent.stage in seen:
            return 0
        return start(parent.stage, seen | {stage}) + len(parent.rows)

    return {stage: start(stage) for stage in stages}


def _always_zero(rl: Sequence[Training], key: str) -> bool:
    return not any(row.get(key) for t in rl for row in t.rows)


def _curve(training: Training, key: str, start: int, slot: int) -> Series | None:
    """The metric over steps; long logs as means over runs of equally many steps."""
    points = [(start + i + 1, row[key]) for i, row in enumerate(training.rows) if isinstance(row.get(key), int | float)]
    if not points:
        return None
    every = -(-len(points) // MOST_POINTS)
    runs = [points[i : i + every] for i in range(0, len(points), every)]
    x = tuple(float(np.mean([step for step, _ in run])) for run in runs)
    return Series(training.stage, x, tuple(float(np.mean([v for _, v in run])) for run in runs), slot=slot)


def _group_kinds(training: Training, start: int) -> Figure:
    present = [row for row in training.rows if all(key in row for key, _, _ in KINDS)]
    totals = [max(1.0, sum(row[key] for key, _, _ in KINDS)) for row in present]
    every = -(-len(present) // MOST_POINTS) or 1

    def share(key: str) -> tuple[float, ...]:
        values = [row[key] / total for row, total in zip(present, totals, strict=True)]
        return tuple(float(np.mean(values[i : i + every])) for i in range(0, len(values), every))

    x = tuple(float(start + i + 1) for i in range(0, len(present), every))
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


# --- lineage, settings, cost ------------------------------------------------------------------------------------------


def lineage(manifests: Sequence[Json]) -> list[Json]:
    """Every stage behind the report with what it read and made, makers before users."""
    made_by = {m["stage"]: m for m in manifests}
    order: list[str] = []

    def visit(stage: str) -> None:
        if stage in order or stage not in made_by:
            return
        for reference in _references(made_by[stage]):
            visit(reference.split(".")[0])
        order.append(stage)

    for stage in made_by:
        visit(stage)
    return [
        {
            "stage": stage,
            "kind": (m := made_by[stage])["kind"],
            "key": m["key"][:12],
            "inputs": [
                {"role": role, "from": reference, "sha256": digest[:12]}
                for role, references in m.get("sources", {}).items()
                for reference, digest in zip(references, m["inputs"].get(role, []), strict=False)
            ],
            "outputs": [
                {"name": name, "path": output["path"], "sha256": output["sha256"][:12], "rows": output.get("rows")}
                for name, output in m.get("outputs", {}).items()
            ],
            "metrics": m.get("metrics", {}),
            "config": m.get("config", {}),
        }
        for stage in order
    ]


def _references(manifest: Json) -> list[str]:
    return [reference for references in manifest.get("sources", {}).values() for reference in references]


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if isinstance(value, Mapping) and value:
        return {k: v for name, part in value.items() for k, v in flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value}


def cost(timings: Mapping[str, Sequence[Json]]) -> list[Json]:
    """Seconds of each phase of each stage, summed over its timings file."""
    rows = []
    for stage, lines in timings.items():
        spent: dict[str, float] = {}
        for line in lines:
            if "phase" in line:
                spent[line["phase"]] = spent.get(line["phase"], 0.0) + line["seconds"]
            elif "step" in line:
                for name, seconds in line.items():
                    if name not in ("step", "time"):
                        spent[name] = spent.get(name, 0.0) + seconds
        if spent:
            rows.append({"stage": stage, "seconds": {name: round(s, 1) for name, s in spent.items()}})
    return rows
