"""From scores, training logs and manifests to the tables of a report: plain values that a page only has to format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from concisecli.reports import comparison

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One scores.json. `model` is the stage that made the model, or the model's own name."""

    stage: str
    model: str
    scores: Json
    manifest: Json = field(default_factory=dict)
    run: str = ""

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


@dataclass(frozen=True, slots=True)
class Settings:
    """Evaluations with equal settings may be compared; `label` names what sets them apart from the others."""

    label: str
    values: Json
    evaluations: tuple[Evaluation, ...]


# --- who is compared with whom ----------------------------------------------------------------------------------------

_SAME = ("temperature", "top_p", "min_p", "samples", "budgets")
_SHORT = {"temperature": "T", "top_p": "top-p", "min_p": "min-p", "samples": "n", "budgets": "budgets"}


def told_apart(
    evaluations: Sequence[Evaluation], trainings: Sequence[Training]
) -> tuple[list[Evaluation], list[Training]]:
    """The same with the run's name put before the names that stand for something in several runs."""
    runs_of: dict[str, set[str]] = {}
    for name, run in [*((e.model, e.run) for e in evaluations), *((t.stage, t.run) for t in trainings)]:
        runs_of.setdefault(name, set()).add(run)

    def named(name: str, run: str) -> str:
        return f"{run}/{name}" if len(runs_of.get(name, ())) > 1 else name

    return (
        [replace(e, model=named(e.model, e.run)) for e in evaluations],
        [replace(t, stage=named(t.stage, t.run), parent=named(t.parent, t.run)) for t in trainings],
    )


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
    return {"stage": evaluation.stage, "model": evaluation.model, "suites": cells}


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


def ablation(trainings: Sequence[Training], groups: Sequence[Settings]) -> Json | None:
    """The settings in which the RL stages differ from each other, and what came of it: one column a stage. None where
    nothing differs."""
    stages = [t for t in trainings if t.kind == "train" and t.manifest.get("config")]
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


def parents_of(trainings: Sequence[Training]) -> dict[str, str]:
    """model -> the model that its training started from."""
    return {t.stage: t.parent for t in trainings}


def differences(groups: Sequence[Settings], parents: Mapping[str, str]) -> list[Json]:
    """Every model against the one it was trained from (`step` is true) and against the first, paired by problem."""
    rows = []
    for group in groups:
        models = group.evaluations
        pairs = lineage_pairs(group, parents)
        for a, b in dict.fromkeys([*pairs, *((0, i) for i in range(1, len(models)))]):
            settings = models[a].scores["settings"]
            found = comparison.compare(
                models[a].scores, models[b].scores, resamples=settings["bootstrap"] or 1000, seed=settings["seed"]
            )
            pair = {"label": group.label, "before": models[a].model, "after": models[b].model, "step": (a, b) in pairs}
            rows += [pair | _record(one) for one in found]
    return rows


def lineage_pairs(group: Settings, parents: Mapping[str, str]) -> list[tuple[int, int]]:
    """(parent, child) among the evaluations; a model that no training log is about follows the one before it."""
    names = [e.model for e in group.evaluations]
    pairs = []
    for i, name in enumerate(names):
        if name not in parents and i:
            pairs.append((i - 1, i))
        elif parents.get(name) in names:
            pairs.append((names.index(parents[name]), i))
    return pairs


def _record(one: comparison.Comparison) -> Json:
    """A comparison as JSON; flipped problems by their number."""
    row = asdict(one)
    for name in ("pass_at_1", "cons_at_k", "length"):
        row[name]["clear"] = getattr(one, name).clear
    return row | {"gained": len(one.gained), "lost": len(one.lost)}


# --- lineage, settings, cost ------------------------------------------------------------------------------------------


def lineage(manifests: Sequence[Json]) -> list[Json]:
    """Every stage behind the report with what it read and made, makers before users."""
    makers: dict[str, Json] = {}
    for manifest in manifests:
        for output in manifest.get("outputs", {}).values():
            makers.setdefault(output["sha256"], manifest)
    order: dict[str, Json] = {}
    # A stage that changes nothing makes what it read, and so seems to be its own ancestor: nobody is visited twice.
    visited: set[str] = set()

    def visit(manifest: Json) -> None:
        if manifest["key"] in visited:
            return
        visited.add(manifest["key"])
        for digest in read_by(manifest):
            if digest in makers:
                visit(makers[digest])
        order[manifest["key"]] = manifest

    for manifest in manifests:
        visit(manifest)
    places = _places(list(order.values()), makers)
    return [_link(manifest) | places[key] for key, manifest in order.items()]


def _places(ordered: Sequence[Json], makers: Mapping[str, Json]) -> dict[str, Json]:
    """key -> where the stage stands in a drawing of the graph: `column` behind all that it reads, `row` near what it
    reads, and `reads`, the indices of those stages."""
    index = {m["key"]: i for i, m in enumerate(ordered)}
    places: dict[str, Json] = {}
    for m in ordered:
        read = list(dict.fromkeys(makers[d]["key"] for d in read_by(m) if d in makers))
        before = [places[key] for key in read if key in places]
        places[m["key"]] = {
            "column": max((p["column"] + 1 for p in before), default=0),
            "row": sum(p["row"] for p in before) / len(before) if before else float(len(places)),
            "reads": [index[key] for key in read if key in places],
        }
    for column in {p["column"] for p in places.values()}:
        together = sorted((p for p in places.values() if p["column"] == column), key=lambda p: p["row"])
        for row, place in enumerate(together):
            place["row"] = row
    return places


def read_by(manifest: Json) -> list[str]:
    """The content hashes of everything that a stage read."""
    return [digest for digests in manifest.get("inputs", {}).values() for digest in digests]


def _model_of(manifest: Json) -> str | None:
    """The model that a stage makes or looks at: it lends the stage its colour."""
    if "model" in manifest.get("outputs", {}):
        return str(manifest["stage"])
    reference = next(iter(manifest.get("sources", {}).get("model", [])), None)
    return None if reference is None else str(reference).split(".")[0]


def _link(manifest: Json) -> Json:
    return {
        "stage": manifest["stage"],
        "kind": manifest["kind"],
        "key": manifest["key"][:12],
        "model": _model_of(manifest),
        "inputs": [
            {"role": role, "from": reference, "sha256": digest[:12]}
            for role, references in manifest.get("sources", {}).items()
            for reference, digest in zip(references, manifest["inputs"].get(role, []), strict=False)
        ],
        "outputs": [
            {"name": name, "path": output["path"], "sha256": output["sha256"][:12], "rows": output.get("rows")}
            for name, output in manifest.get("outputs", {}).items()
        ],
        "metrics": manifest.get("metrics", {}),
        "config": manifest.get("config", {}),
    }


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if isinstance(value, Mapping) and value:
        return {k: v for name, part in value.items() for k, v in flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value}


def cost(
    timings: Mapping[str, Sequence[Json]], trainings: Sequence[Training], evaluations: Sequence[Evaluation]
) -> list[Json]:
    """Of each stage: seconds of each phase, summed over its timings file, and tokens sampled and trained on."""
    logs = {t.stage: t.rows for t in trainings}
    sampled = {e.stage: sum(sum(row["lengths"]) for row in e.scores["problems"]) for e in evaluations}
    rows = []
    for stage, lines in timings.items():
        log = logs.get(stage, [])
        drawn = sampled.get(stage) or round(sum(_rollouts(row) * (row.get("length") or 0) for row in log))
        trained = round(sum(row.get("tokens") or 0 for row in log))
        seconds = _seconds(lines)
        if seconds or drawn or trained:
            rows.append({"stage": stage, "seconds": seconds, "sampled_tokens": drawn, "trained_tokens": trained})
    return rows


def _rollouts(row: Json) -> float:
    """Rollouts of a step, from the counts of their outcomes."""
    return sum(value or 0 for name, value in row.items() if name.startswith("grade/"))


def _seconds(lines: Sequence[Json]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for line in lines:
        if "phase" in line:
            spent[line["phase"]] = spent.get(line["phase"], 0.0) + line["seconds"]
        elif "step" in line:
            for name, seconds in line.items():
                if name not in ("step", "time"):
                    spent[name] = spent.get(name, 0.0) + seconds
    return {name: round(seconds, 1) for name, seconds in spent.items()}
