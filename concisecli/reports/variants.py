"""Which models of several runs are the same but for the seed, and what sets the others apart.

A model is known by the settings of the stage that made it and of every stage behind that one. Models with equal
settings but for seeds are replicas, and are averaged (`over_seeds`); models of one name with other settings are
variants, named after what was changed. The stages of a sweep are taken for the stage they were copied from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from concisecli.artifacts import canonical_json
from concisecli.reports import over_seeds
from concisecli.reports.lineage import flat
from concisecli.reports.reporting import Evaluation, Json, Training, Variant
from concisecli.wording import number

NAMED = 2  # changes that a name spells out; a variant with more is called after its run


Swept = Mapping[str, tuple[str, Mapping[str, Any]]]  # stage of a sweep -> what it was copied from, and its values


def settings_behind(manifest: Json, makers: Mapping[str, Json], swept: Swept | None = None) -> dict[str, Any]:
    """ "stage.setting" -> value of the stage of a manifest and of all that it was made from; what came from outside is
    there under "stage.inputs.role"."""
    known = swept or {}
    found: dict[str, Any] = {}
    seen: set[str] = set()

    def visit(m: Json) -> None:
        if m["key"] in seen:
            return
        seen.add(m["key"])
        stage = known[m["stage"]][0] if m["stage"] in known else m["stage"]
        found.update({f"{stage}.{name}": value for name, value in flat(m.get("config", {})).items()})
        for role, digests in m.get("inputs", {}).items():
            for digest, reference in zip(digests, m.get("sources", {}).get(role, digests), strict=False):
                if digest in makers:
                    visit(makers[digest])
                elif reference != "new":  # a model made anew is told by its seed alone
                    found[f"{stage}.inputs.{role}"] = reference

    visit(manifest)
    return found


def is_seed(setting: str) -> bool:
    return setting.rpartition(".")[2] == "seed"


class Names:
    """What each model is called, by the key of the stage that made it; models that no manifest tells of are called
    after their run where their name is not theirs alone."""

    def __init__(self, makers: Mapping[str, Json], swept: Swept | None = None) -> None:
        self.makers = makers
        self.swept = swept or {}
        self.variants: dict[str, Variant] = {}  # key of the maker -> its variant
        self._known: dict[str, list[tuple[str, dict[str, Any], Variant]]] = {}
        self._runs: dict[str, set[str]] = {}

    def meet(self, name: str, manifest: Json | None, run: str) -> None:
        """Every model is met once before any is named."""
        if manifest is None:
            self._runs.setdefault(name, set()).add(run)
            return
        if manifest["key"] in self.variants:
            return
        name, values = self.swept.get(name, (name, {}))
        values = {k: v for k, v in values.items() if not is_seed(k)}
        behind = settings_behind(manifest, self.makers, self.swept)
        settings = {k: v for k, v in behind.items() if not is_seed(k)}
        signature, known = canonical_json(settings), self._known.setdefault(name, [])
        for other, _, variant in known:
            if other == signature:
                self.variants[manifest["key"]] = variant
                return
        first = known[0][1] if known else settings
        variant = _variant(name, run, settings, first, [v.label for _, _, v in known], values)
        known.append((signature, settings, variant))
        self.variants[manifest["key"]] = variant

    def label(self, name: str, manifest: Json | None, run: str) -> str:
        if manifest is not None:
            return self.variants[manifest["key"]].label
        taken = len(self._runs.get(name, ())) > 1 or name in self._known
        return f"{run}/{name}" if taken else name


def _variant(
    name: str,
    run: str,
    settings: Mapping[str, Any],
    first: Mapping[str, Any],
    taken: Sequence[str],
    values: Mapping[str, Any],
) -> Variant:
    changed = tuple(
        (_short(setting, name), first.get(setting), settings.get(setting))
        for setting in sorted({*first, *settings})
        if first.get(setting) != settings.get(setting)
    )
    if values:  # of a sweep: each is called after its values, the first one too
        label = f"{name} ({', '.join(f'{_short(field, name)} {number(value)}' for field, value in values.items())})"
    elif not taken:
        return Variant(name, name)
    else:
        said = ", ".join(f"{setting} {number(value)}" for setting, _, value in changed)
        label = f"{name} ({said})" if len(changed) <= NAMED else f"{run}/{name}"
    label = label if label not in taken else f"{label} {len(taken) + 1}"
    return Variant(label, name, changed, tuple(values.items()))


def _short(setting: str, stage: str) -> str:
    return setting.removeprefix(f"{stage}.")


def maker_of(manifest: Json, makers: Mapping[str, Json]) -> Json | None:
    """The stage that made the model which a stage read."""
    digests = manifest.get("inputs", {}).get("model", [])
    return makers.get(digests[0]) if digests else None


def model_read(manifest: Json) -> str:
    """The stage that made the model which a stage read, or the model's own name; "" for a stage that read none."""
    reference = str(next(iter(manifest.get("sources", {}).get("model", [])), ""))
    if reference.startswith("hf:"):
        return reference[3:].split("@")[0].split("/")[-1]
    return Path(reference).name if "/" in reference else reference.split(".")[0]


def named(
    evaluations: Sequence[Evaluation],
    trainings: Sequence[Training],
    makers: Mapping[str, Json],
    swept: Swept | None = None,
) -> tuple[list[Evaluation], list[Training], list[Variant], dict[str, str]]:
    """Each evaluation and each training once, under the name of its variant and with its replicas averaged; the
    variants, the first one of each name first; and what each model is called, by the key of the stage that made it.
    Evaluations of one model at several places of a pipeline stay apart."""
    trainings, evaluations = _once(trainings), _once(evaluations)
    names = Names(makers, swept)
    subjects = {id(e): maker_of(e.manifest, makers) for e in evaluations}
    for t in trainings:
        names.meet(t.stage, t.manifest or None, t.run)
    for e in evaluations:
        names.meet(e.model, subjects[id(e)], e.run)

    def parent(t: Training) -> str:
        maker = maker_of(t.manifest, makers)
        known = maker is not None and maker["key"] in names.variants
        return names.label(t.parent, maker if known else None, t.run)

    def ancestors(maker: Json | None) -> tuple[str, ...]:
        """What the models are called from which a model descends, the nearest first; the last one is from outside."""
        found: list[str] = []
        seen: set[str] = set()
        while maker is not None and maker["key"] not in seen:
            seen.add(maker["key"])
            before = maker_of(maker, makers)
            known = before is not None and before["key"] in labels
            found.append(labels[before["key"]] if before is not None and known else model_read(maker))
            maker = before
        return tuple(name for name in found if name and name != "new")

    labels = {key: variant.label for key, variant in names.variants.items()}
    trained = [replace(t, stage=names.label(t.stage, t.manifest or None, t.run), parent=parent(t)) for t in trainings]
    evaluated = [
        replace(e, model=names.label(e.model, subjects[id(e)], e.run), ancestors=ancestors(subjects[id(e)]))
        for e in evaluations
    ]
    variants = list({variant.label: variant for variant in names.variants.values()}.values())
    return _merged_evaluations(evaluated, swept or {}), _merged_trainings(trained), variants, labels


def _once(items: Sequence[Any]) -> list[Any]:
    """Two runs may share a stage, down to its key."""
    found: dict[str, Any] = {}
    for i, item in enumerate(items):
        found.setdefault(f"{item.manifest.get('key', i)}", item)
    return list(found.values())


def _merged_evaluations(evaluations: Sequence[Evaluation], swept: Swept) -> list[Evaluation]:
    together: dict[str, list[Evaluation]] = {}
    for i, e in enumerate(evaluations):
        settings = {name: value for name, value in e.scores["settings"].items() if not is_seed(name)}
        stage = swept[e.stage][0] if e.stage in swept else e.stage
        key = canonical_json([e.model, stage, settings, e.suites]) if e.manifest else str(i)
        together.setdefault(key, []).append(e)
    return [
        group[0]
        if len(group) == 1
        else replace(group[0], scores=over_seeds.merged([e.scores for e in group]), seeds=tuple(group))
        for group in together.values()
    ]


def _merged_trainings(trainings: Sequence[Training]) -> list[Training]:
    together: dict[str, list[Training]] = {}
    for i, t in enumerate(trainings):
        together.setdefault(t.stage if t.manifest else f"{t.stage} {i}", []).append(t)
    return [
        group[0]
        if len(group) == 1
        else replace(group[0], rows=over_seeds.mean_rows([t.rows for t in group]), seeds=tuple(group))
        for group in together.values()
    ]
