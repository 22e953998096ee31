"""From scores, training logs and manifests to the tables of a report: plain values that a page only has to format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from concisecli.reports import comparison, over_seeds
from concisecli.reports.lineage import flat

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One scores.json. `model` is the stage that made the model, or the model's own name."""

    stage: str
    model: str
    scores: Json
    manifest: Json = field(default_factory=dict)
    run: str = ""
    path: Path | None = None  # of the scores.json
    seeds: tuple[Evaluation, ...] = ()  # what it is the mean of
    ancestors: tuple[str, ...] = ()  # the models that `model` was trained from, the nearest first

    @property
    def overall(self) -> Json:
        found: Json = self.scores["overall"]
        return found

    @property
    def suites(self) -> list[str]:
        """In the order of the problems."""
        return list(dict.fromkeys(row["source"] for row in self.scores["problems"]))


@dataclass(frozen=True, slots=True)
class Training:
    """One metrics.jsonl. `parent` is the stage that its model came from."""

    stage: str
    kind: str
    parent: str
    rows: list[Json]
    manifest: Json = field(default_factory=dict)
    run: str = ""
    seeds: tuple[Training, ...] = ()  # what it is the mean of


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a model of a name (`base`) was made. `changed` is against the first way, setting by setting:
    (name, there, here). `values` are those that a sweep gave, field by field, without seeds."""

    label: str
    base: str
    changed: tuple[tuple[str, Any, Any], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()


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
    """Groups of evaluations with the same sampling settings, in the order given. Where a model was evaluated several
    times with the same settings, on one suite after another, each set of suites is a group."""
    groups: dict[str, list[Evaluation]] = {}
    for e in evaluations:
        groups.setdefault(str([e.scores["settings"][name] for name in _SAME]), []).append(e)
    values = [{name: part[0].scores["settings"][name] for name in _SAME} for part in groups.values()]
    differing = [name for name in _SAME if len({str(v[name]) for v in values}) > 1]
    found = []
    for value, part in zip(values, groups.values(), strict=True):
        label, sets = _label(value, differing[:1] or ["temperature"]), _by_suites(part)
        found += [
            Settings(f"{label} on {', '.join(suites)}" if len(sets) > 1 else label, value, tuple(together))
            for suites, together in sets.items()
        ]
    return found


def _by_suites(evaluations: Sequence[Evaluation]) -> dict[tuple[str, ...], list[Evaluation]]:
    if len({e.model for e in evaluations}) == len(evaluations):
        return {(): list(evaluations)}
    found: dict[tuple[str, ...], list[Evaluation]] = {}
    for e in evaluations:
        found.setdefault(tuple(e.suites), []).append(e)
    return found


def _label(values: Json, names: Sequence[str]) -> str:
    return ", ".join(f"{_SHORT[name]}={_plain(values[name])}" for name in names)


def _plain(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


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


ENDINGS = ("finished", "truncated", "no_answer", "timeout", "error", "repeated", "empty_think", "answer_only")


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
                **{name: found[name] for name in ENDINGS},
                "precision": found["precision"],
                "tokens_per_correct": found["tokens_per_correct"],
                "reflection_per_response": found["reflection_per_response"],
                "problems": found["problems"],
                "rollouts": found["rollouts"],
            }
    return {
        "stage": evaluation.stage,
        "model": evaluation.model,
        "suites": cells,
        "seeds": [
            {
                "run": e.run,
                "seed": e.manifest.get("seed"),
                "suites": {s: _of_seed(e.scores["suites"][s]) for s in cells},
            }
            for e in evaluation.seeds
        ],
    }


def _of_seed(found: Json) -> Json:
    return {name: found[name]["value"] for name in ("cons_at_k", "pass_at_1", "length")}


def _change(before: Json, after: Json) -> float:
    return float(100 * (after["length"]["value"] / before["length"]["value"] - 1))


def breakdowns(groups: Sequence[Settings]) -> list[Json]:
    """Tables by subject and by the number of an AIME problem, with GRPO-LEAD's columns, where there are such."""
    tables = []
    for group in groups:
        for name in ("subject", "problem_number"):
            rows = [
                {"model": e.model, **{column: part[column] for column in BREAKDOWN_COLUMNS}}
                for e in group.evaluations
                for part in e.scores["by"].get(name, [])
            ]
            if rows:
                tables.append({"label": group.label, "by": name.replace("_", " "), "rows": rows})
    return tables


BREAKDOWN_COLUMNS = (
    "value",
    "problems",
    "cons_at_k",
    "mean_correct",
    "mean_answered",
    "precision",
    "pass_at_1",
    "length",
)


def ablation(trainings: Sequence[Training], groups: Sequence[Settings], variants: Sequence[Variant]) -> Json | None:
    """The settings in which the RL stages differ from each other, and what came of it: one column a stage, variants
    left to a table of their own. None where nothing differs."""
    changed = {v.label for v in variants if v.changed}
    stages = [t for t in trainings if t.kind == "train" and t.manifest.get("config") and t.stage not in changed]
    configs = [flat(t.manifest["config"]) for t in stages]
    names = list(dict.fromkeys(name for config in configs for name in config))
    differing = [name for name in names if len({str(config.get(name)) for config in configs}) > 1]
    if not differing:
        return None
    results = []
    for group in groups:
        found = {e.model: e.overall for e in group.evaluations}
        for label, metric in (("Pass@1", "pass_at_1"), ("Len", "length")):
            values = [found[t.stage][metric] if t.stage in found else None for t in stages]
            results.append({"label": f"{label} at {group.label}", "metric": metric, "values": values})
    return {
        "stages": [{"stage": t.stage, "from": t.parent} for t in stages],
        "settings": [{"setting": name, "values": [config.get(name) for config in configs]} for name in differing],
        "results": results,
    }


def variants_table(variants: Sequence[Variant], groups: Sequence[Settings]) -> list[Json]:
    """Of each model that was made in several ways: what was changed against the first way, and what came of it, paired
    by problem. Ways that nothing was evaluated of are left out."""
    tables = []
    for base in dict.fromkeys(v.base for v in variants if v.changed):
        ways = [v for v in variants if v.base == base]
        rows = [_way(way, ways[0], groups) for way in ways]
        rows = [row for row in rows if row["results"]]
        if len(rows) > 1:
            tables.append({"model": base, "rows": rows})
    return tables


def _way(way: Variant, first: Variant, groups: Sequence[Settings]) -> Json:
    results = []
    for group in groups:
        found = {e.model: e for e in group.evaluations}
        if way.label in found:
            e, start = found[way.label], found.get(first.label)
            differences = _differences(start, e) if start is not None and way is not first else []
            results += [
                {
                    "label": group.label,
                    "suite": suite,
                    **{name: e.scores["suites"][suite][name] for name in ("cons_at_k", "pass_at_1", "length")},
                    "difference": next((d for d in differences if d["suite"] == suite), None),
                }
                for suite in e.suites
            ]
    changed = [{"setting": name, "before": before, "after": after} for name, before, after in way.changed]
    return {"model": way.label, "changed": changed, "results": results}


def parents_of(trainings: Sequence[Training]) -> dict[str, str]:
    """model -> the model that its training started from."""
    return {t.stage: t.parent for t in trainings}


def differences(groups: Sequence[Settings], parents: Mapping[str, str]) -> list[Json]:
    """Every model against the one it was trained from (`step` is true) and against the first, paired by problem.
    `trained` names the models on the way from one to the other, the last one first."""
    rows = []
    for group in groups:
        models = group.evaluations
        pairs = lineage_pairs(group, parents)
        for a, b in dict.fromkeys([*pairs, *((0, i) for i in range(1, len(models)))]):
            pair = {"label": group.label, "before": models[a].model, "after": models[b].model, "step": (a, b) in pairs}
            pair["trained"] = _between(models[a].model, models[b])
            rows += [pair | row for row in _differences(models[a], models[b])]
    return rows


def _between(before: str, after: Evaluation) -> list[str]:
    chain = [after.model, *after.ancestors]
    return chain[: chain.index(before)] if before in chain else [after.model]


def against_the_whole(groups: Sequence[Settings], whole: str | None) -> list[Json]:
    """Every end of a line of descent against the model that the evaluation stage `whole` is about, paired by problem:
    what leaving a stage out costs. `trained` names the models that each was made by way of, the last one first."""
    rows = []
    names = {e.model for group in groups for e in group.evaluations if e.stage == whole}
    inner = {name for group in groups for e in group.evaluations for name in e.ancestors}
    for group in groups:
        full = next((e for e in group.evaluations if e.model in names), None)
        if full is None:
            continue
        for e in group.evaluations:
            if e is not full and e.ancestors and e.model not in inner:
                pair = {
                    "label": group.label,
                    "before": full.model,
                    "after": e.model,
                    "trained": [e.model, *e.ancestors],
                }
                rows += [pair | row for row in _differences(full, e)]
    return rows


def _differences(before: Evaluation, after: Evaluation) -> list[Json]:
    """One row a suite that both have problems of."""
    settings = before.scores["settings"]
    if not set(before.suites) & set(after.suites):
        return []
    found = comparison.compare(
        before.scores, after.scores, resamples=settings["bootstrap"] or 1000, seed=settings["seed"]
    )
    return [_over_seeds(_record(one), before, after) for one in found]


def _over_seeds(row: Json, before: Evaluation, after: Evaluation) -> Json:
    """Where a side is a mean over seeds: intervals that hold how much a seed matters, too. Seeds are paired in their
    order; a side that all seeds share stands against each."""
    most = max(len(before.seeds), len(after.seeds))
    ours, theirs = before.seeds or (before,) * most, after.seeds or (after,) * most
    row["seeds"] = most if len(ours) == len(theirs) else 0
    if not row["seeds"]:
        return row
    suite = row["suite"]
    pairs = [(a.scores["suites"][suite], b.scores["suites"][suite]) for a, b in zip(ours, theirs, strict=True)]
    for name in ("pass_at_1", "cons_at_k", "length"):
        values = [b[name]["value"] - a[name]["value"] for a, b in pairs]
        row[name] |= over_seeds.widened(row[name], values)
    changes = [_change(a, b) for a, b in pairs]
    middle, low, high = row["length_percent"]
    wide = over_seeds.widened({"difference": middle, "low": low, "high": high}, changes)
    return row | {"length_percent": (middle, wide["low"], wide["high"])}


def lineage_pairs(group: Settings, parents: Mapping[str, str]) -> list[tuple[int, int]]:
    """(ancestor, descendant) among the evaluations: the nearest ancestor that was evaluated. A model whose descent
    neither a manifest nor a training log tells follows the one before it."""
    names = [e.model for e in group.evaluations]
    pairs = []
    for i, e in enumerate(group.evaluations):
        chain = e.ancestors or ((parents[e.model],) if e.model in parents else ())
        nearest = next((name for name in chain if name in names), None)
        if nearest is not None:
            pairs.append((names.index(nearest), i))
        elif not chain and e.model not in parents and i:
            pairs.append((i - 1, i))
    return pairs


def _record(one: comparison.Comparison) -> Json:
    """A comparison as JSON; flipped problems by their number."""
    row = asdict(one)
    for name in ("pass_at_1", "cons_at_k", "length"):
        row[name]["clear"] = getattr(one, name).clear
    return row | {"gained": len(one.gained), "lost": len(one.lost)}
