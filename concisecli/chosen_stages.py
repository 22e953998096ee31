"""Which stages of a pipeline a command is about."""

from __future__ import annotations

from dataclasses import dataclass

from concisecli.checks import upstream
from concisecli.config import Pipeline, StageSpec
from concisecli.did_you_mean import nearest
from concisecli.records import UsageError


@dataclass(frozen=True, slots=True)
class Selection:
    """Which stages a command is about; everything left empty means all of them."""

    kinds: tuple[str, ...] = ()
    number: int | None = None  # train stages whose `stage` is this
    only: tuple[str, ...] = ()
    from_: str | None = None  # this stage and those that depend on it
    until: str | None = None  # this stage and those it depends on
    force: tuple[str, ...] = ()  # made anew even where they are finished


EVERYTHING = Selection()


def select(pipeline: Pipeline, selection: Selection) -> set[str]:
    """The names of the selected stages. Raises UsageError for a name that is not there, or when none is left."""
    for name in (*selection.only, *selection.force, *filter(None, (selection.from_, selection.until))):
        known_stage(pipeline, name)
    chosen = set(pipeline.stages)
    if selection.kinds:
        chosen &= {n for n, s in pipeline.stages.items() if s.uses in selection.kinds}
    if selection.number is not None:
        chosen &= {n for n in chosen if getattr(pipeline.stages[n].config, "stage", None) == selection.number}
    if selection.only:
        chosen &= set(selection.only)
    if selection.until:
        chosen &= {selection.until, *ancestors(pipeline, selection.until)}
    if selection.from_:
        chosen &= {n for n in pipeline.stages if n == selection.from_ or selection.from_ in ancestors(pipeline, n)}
    other = [n for n in selection.only if selection.kinds and pipeline.stages[n].uses not in selection.kinds]
    if other:
        of_kind = [n for n, s in pipeline.stages.items() if s.uses in selection.kinds]
        raise UsageError(
            f"{pipeline.path}: stage '{other[0]}' is no {' or '.join(selection.kinds)} stage, it uses "
            f"{pipeline.stages[other[0]].uses}; those are {', '.join(of_kind) or 'none'}"
        )
    if not chosen:
        there = ", ".join(f"{n} ({s.uses}{stage_number(s)})" for n, s in pipeline.stages.items())
        raise UsageError(f"{pipeline.path} has no such stage; its stages are {there}")
    return chosen


def stage_number(spec: StageSpec) -> str:
    return f" stage {spec.config.stage}" if spec.uses == "train" else ""


def known_stage(pipeline: Pipeline, name: str) -> None:
    if name not in pipeline.stages:
        near = nearest(name, pipeline.stages)
        hint = f"did you mean '{near}'?" if near else f"its stages are {', '.join(pipeline.stages)}"
        raise UsageError(f"{pipeline.path} has no stage '{name}'; {hint}")


def ancestors(pipeline: Pipeline, name: str) -> set[str]:
    direct = upstream(pipeline, pipeline.stages[name])
    return direct.union(*(ancestors(pipeline, above) for above in direct))
