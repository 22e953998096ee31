"""`sweep:` in a pipeline file: one graph that holds a variant of a stage for every value, what they share once.

    sweep: {rl1.reward.wrong: [-1, -2, -3], rl1.seed: [0, 1, 2]}

An axis touches the stages that have its field and everything made from them. A stage is copied once for each choice of
the axes that touch it, so that parents common to several variants are trained once. Reports are not copied: they are
given every variant and know its values (`ReportConfig.variants`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concisecli.config import KINDS, SHARED
from concisecli.did_you_mean import nearest, tree
from concisecli.marked import Marked
from concisecli.records import UsageError

GATHERS = "report"  # the kind of stage that takes in all variants
MOST = 256  # stages a sweep may add


@dataclass(frozen=True, slots=True)
class Axis:
    name: str  # as the user wrote it: "rl1.reward.wrong", "reward.wrong", "seed"
    field: tuple[str, ...]  # below the config of a stage
    stages: tuple[str, ...]  # that have the field and are meant
    values: tuple[Marked, ...]

    @property
    def word(self) -> str:
        return self.field[-1]


Choice = tuple[tuple[int, int], ...]  # (number of the axis, number of its value), of the axes that touch a stage


def expanded(pipeline: Marked) -> Marked:
    """The tree without `sweep`, its stages multiplied. Raises UsageError for an axis that fits no stage."""
    if not pipeline.is_mapping or "sweep" not in pipeline.value:
        return pipeline
    sweep, rest = pipeline.value["sweep"], {k: v for k, v in pipeline.value.items() if k != "sweep"}
    stages = rest.get("stages")
    if stages is None or not stages.is_mapping or not all(s.is_mapping for s in stages.value.values()):
        return Marked(rest, pipeline.origin, pipeline.base)  # what is wrong with them is told elsewhere
    axes = [axis(name, values, stages.value) for name, values in pairs(sweep)]
    touched = {name: touching(name, stages.value, axes) for name in stages.value}
    planned = [(name, choice) for name in stages.value for choice in choices(name, stages.value, axes, touched)]
    if len(planned) - len(stages.value) > MOST:
        raise UsageError(f"{sweep.origin}: the sweep makes {len(planned)} stages; at most {MOST} more than are written")
    made: dict[str, Marked] = {}
    for name, choice in planned:
        named = label(name, choice, axes)
        if named in made:
            raise UsageError(f"{sweep.origin}: two values of the sweep give the name {named}; change one")
        made[named] = variant(name, choice, stages.value, axes, touched)
    return Marked(rest | {"stages": Marked(made, stages.origin, stages.base)}, pipeline.origin, pipeline.base)


def pairs(sweep: Marked) -> list[tuple[str, Marked]]:
    if not sweep.is_mapping or not sweep.value:
        raise UsageError(f"{sweep.origin}: sweep is a mapping from a field to a list of values")
    return list(sweep.value.items())


def axis(name: str, values: Marked, stages: Mapping[str, Marked]) -> Axis:
    if not isinstance(values.value, list) or not values.value:
        raise UsageError(f"{values.origin}: sweep.{name} is a list of values, such as [1, 2]")
    first, *below = name.split(".")
    if first in stages:
        chosen, field = [first], tuple(below)
    else:
        field = (first, *below)
        left_out = (GATHERS, "data") if field == ("seed",) else (GATHERS,)  # one data set for all seeds
        chosen = [n for n, s in stages.items() if kind_of(s) not in left_out and has(kind_of(s), field)]
    wrong = [n for n in chosen if not has(kind_of(stages[n]), field)]
    if not chosen or wrong or not field:
        near = nearest(first, stages) or nearest(first, SHARED)
        hint = f"did you mean '{near}'?" if near and near != first else f"the stages are {', '.join(stages)}"
        raise UsageError(f"{values.origin}: sweep.{name} is a field of no stage; {hint}")
    return Axis(name, field, tuple(chosen), tuple(values.value))


def kind_of(stage: Marked) -> str:
    uses = stage.value.get("uses")
    return str(uses.value) if uses is not None else ""


def has(kind: str, field: tuple[str, ...]) -> bool:
    """Whether stages of this kind have the setting, or one that holds it (a mapping of the user's own)."""
    paths = set(tree(KINDS[kind])) if kind in KINDS else set()
    return field in paths


def parents(stage: Marked, names: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """The stages that a stage takes something from."""
    inputs = stage.value.get("inputs")
    given = inputs.value.values() if inputs is not None and inputs.is_mapping else ()
    texts = [one.value for g in given for one in (g.value if isinstance(g.value, list) else [g])]
    makers = [text.partition(".")[0] for text in texts if isinstance(text, str)]
    return [maker for maker in makers if maker in names]


def touching(name: str, stages: Mapping[str, Marked], axes: Sequence[Axis], above: tuple[str, ...] = ()) -> set[int]:
    """Numbers of the axes that change a stage or anything it is made from."""
    if name in above:  # a circle is told by the checks
        return set()
    own = {i for i, a in enumerate(axes) if name in a.stages}
    return own.union(*(touching(p, stages, axes, (*above, name)) for p in parents(stages[name], stages)))


def choices(
    name: str, stages: Mapping[str, Marked], axes: Sequence[Axis], touched: Mapping[str, set[int]]
) -> list[Choice]:
    if kind_of(stages[name]) == GATHERS:
        return [()]
    return every_choice(sorted(touched[name]), axes)


def every_choice(numbers: Sequence[int], axes: Sequence[Axis]) -> list[Choice]:
    values = [[(i, v) for v in range(len(axes[i].values))] for i in numbers]
    return [tuple(choice) for choice in itertools.product(*values)]


def label(name: str, choice: Choice, axes: Sequence[Axis]) -> str:
    """`rl1-wrong_-2-seed_1`: a stage's name with the values it was given, fit for a folder and a --set."""
    words = [f"{axes[i].word}_{in_a_name(axes[i].values[v])}" for i, v in choice]
    return "-".join([name, *words])


def in_a_name(value: Marked) -> str:
    return re.sub(r"[^\w+-]+", "_", str(value.plain())).strip("_") or "none"


def variant(
    name: str, choice: Choice, stages: Mapping[str, Marked], axes: Sequence[Axis], touched: Mapping[str, set[int]]
) -> Marked:
    stage = stages[name]
    for i, v in choice:
        if name in axes[i].stages:
            value = axes[i].values[v]
            stage = stage.with_value(("config", *axes[i].field), value)
    inputs = stage.value.get("inputs")
    if inputs is None or not inputs.is_mapping:
        return stage
    gathers = kind_of(stage) == GATHERS
    given = {role: rewired(g, choice, stages, axes, touched, gathers) for role, g in inputs.value.items()}
    stage = stage.with_value(("inputs",), Marked(given, inputs.origin, inputs.base))
    return told_of_variants(stage, stages, axes, touched) if gathers else stage


def rewired(
    given: Marked,
    choice: Choice,
    stages: Mapping[str, Marked],
    axes: Sequence[Axis],
    touched: Mapping[str, set[int]],
    gathers: bool,
) -> Marked:
    """An input that names the variants of the stages it named: one each, or for a report all of them."""
    if isinstance(given.value, list):
        parts = [rewired(g, choice, stages, axes, touched, gathers) for g in given.value]
        flat = [one for p in parts for one in (p.value if isinstance(p.value, list) else [p])]
        return Marked(flat, given.origin, given.base)
    maker, dot, output = given.value.partition(".") if isinstance(given.value, str) else ("", "", "")
    if maker not in stages or not dot:
        return given
    numbers = sorted(touched[maker])
    wanted = every_choice(numbers, axes) if gathers else [tuple((i, v) for i, v in choice if i in touched[maker])]
    named = [Marked(f"{label(maker, c, axes)}.{output}", given.origin, given.base) for c in wanted]
    return Marked(named, given.origin, given.base) if gathers and numbers else named[0]


def told_of_variants(
    stage: Marked, stages: Mapping[str, Marked], axes: Sequence[Axis], touched: Mapping[str, set[int]]
) -> Marked:
    """A report with the values behind each name, and its `before` and `after` as names that exist."""
    variants = {
        label(name, choice, axes): {
            "stage": name,
            "values": {axes[i].name: axes[i].values[v].plain() for i, v in choice},
        }
        for name, node in stages.items()
        if kind_of(node) != GATHERS and touched[name]
        for choice in every_choice(sorted(touched[name]), axes)
    }
    stage = stage.with_value(("config", "variants"), Marked.of(variants, stage.origin, stage.base))
    for side in ("before", "after"):
        config = stage.value["config"].value
        named = config[side].value if side in config else None
        if named in stages and touched[named]:
            first = label(named, tuple((i, 0) for i in sorted(touched[named])), axes)
            stage = stage.with_value(("config", side), Marked(first, config[side].origin, config[side].base))
    return stage
