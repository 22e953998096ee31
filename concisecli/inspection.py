"""Commands that look at pipelines, runs and the machine, and tidy up; none of them runs a stage."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from concisecli.flags import RUNS, JsonFlag, PipelineFlag, RunsFlag, SeedFlag, SetFlag, repeated, with_flags


@dataclasses.dataclass(frozen=True)
class PlanFlags:
    """What names a pipeline and where its artifacts lie."""

    pipeline: PipelineFlag = None
    sets: SetFlag = None
    seed: SeedFlag = None
    as_json: JsonFlag = False
    runs: RunsFlag = RUNS


@with_flags
def plan(
    flags: PlanFlags,
    file: Annotated[
        Path | None, typer.Argument(metavar="PIPELINE", help="Pipeline file; default: concise.yaml.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="CARDS", help="The cards to plan for: 8xH20. Adds verdict, time and cost.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="DOLLARS", help="Of one card an hour, instead of the table's: 1.8 or 1.8-2.5.")
    ] = None,
) -> None:
    """Settings with their sources, checks, work, memory, time and cost, before anything runs."""
    from concisecli.loading import find_pipeline, load_pipeline_with_origins
    from concisecli.planning.document import plan as planned
    from concisecli.planning.hardware import parse_hardware
    from concisecli.records import UsageError
    from concisecli.stage_commands import one_pipeline

    if price and not gpu:
        raise UsageError("--price is of the cards that --gpu names; give both")
    overrides = [*(flags.sets or ()), *([f"seed={flags.seed}"] if flags.seed is not None else ())]
    hardware = parse_hardware(gpu, price) if gpu else None
    pipeline, origins = load_pipeline_with_origins(find_pipeline(one_pipeline(file, flags.pipeline)), overrides)
    document = planned(pipeline, origins, flags.runs, hardware, repeated(overrides, flags.runs))
    if flags.as_json:
        print_json(document)
    else:
        from concisecli.plan_page import show

        show(document)
    if any(fault["level"] == "error" for fault in document["checks"]):
        raise UsageError(f"{pipeline.path} cannot run as it is; see checks above")


def print_json(document: Any) -> None:
    """One line, and nothing else on stdout."""
    print(json.dumps(document, ensure_ascii=False))
