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


# --- runs -------------------------------------------------------------------------------------------------------------

RunArgument = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="A run by name or folder; default: that of concise.yaml, or the last."),
]


def status(
    run: RunArgument = None,
    pipeline: PipelineFlag = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds until Ctrl-C.")] = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """How a run stands, also from another shell: progress, speed, time left, health."""
    from concisecli.upkeep.runs import run_folder
    from concisecli.upkeep.status import status as look

    expected, stages = pipeline_here(pipeline)
    folder = run_folder(run, runs, expected)
    names = stages if folder.name == expected else ()
    if as_json:
        found = [stage.as_record() for stage in look(folder, names)]
        print_json({"run": folder.name, "folder": str(folder), "stages": found})
        return
    from concisecli.status_page import follow, show

    follow(folder, names) if watch else show(folder, look(folder, names))


def pipeline_here(given: Path | None) -> tuple[str | None, tuple[str, ...]]:
    """(run, stages in order) of the pipeline that was given or lies in this folder; (None, ()) where none does."""
    from concisecli.checks import order
    from concisecli.loading import PIPELINE_FILE, find_pipeline, load_pipeline
    from concisecli.records import ConciseError

    if given is None and not Path(PIPELINE_FILE).is_file():
        return None, ()
    try:
        loaded = load_pipeline(find_pipeline(given))
        return loaded.run, tuple(order(loaded))
    except ConciseError:
        if given is not None:
            raise
        return None, ()  # a file that is just being edited is no reason not to look at a run


def lineage(
    artifact: Annotated[
        str, typer.Argument(metavar="RUN/STAGE", help="A finished stage, or a run for all of its ends.")
    ],
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """From an artifact back to the data and models it was made from, with hashes."""
    from concisecli.upkeep import lineage as tracing

    found = [tracing.lineage(folder) for folder in tracing.ends(artifact, runs)]
    if as_json:
        print_json([made.as_record() for made in found])
        return
    for made in found:
        print("\n".join(tracing.lines(made)))


def export(
    model: Annotated[
        str | None, typer.Argument(metavar="[RUN[/STAGE]]", help="Default: the last stage of training of the run here.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where to; default: export/RUN-STAGE.")] = None,
    output: Annotated[str, typer.Option(help="model, or best where the stage evaluated while training.")] = "model",
    push: Annotated[
        str | None, typer.Option(metavar="ORG/NAME", help="Also upload it to the Hugging Face hub.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With --push: for everybody to see.")] = False,
    pipeline: PipelineFlag = None,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """A plain Hugging Face folder with a model card: lineage, data and licences, evaluations."""
    from concisecli.upkeep import export as exporting

    stage = exporting.trained_stage(model, runs, pipeline_here(pipeline)[0])
    target = to or Path("export") / f"{stage.path.parent.name}-{stage.stage}"
    written = exporting.export(stage, output, target)
    url = None
    if not as_json:
        print(written)
    if push:
        url = exporting.push(written, push, private=not public)
        if not as_json:
            print(url)
    if as_json:
        print_json({"folder": str(written), "stage": str(stage.path), "url": url})


def gc(
    run: RunArgument = None,
    pipeline: PipelineFlag = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list.")] = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """List what a run keeps and no longer needs, and remove it after asking.

    With its pipeline at hand: what that, as it is now, would not use. Else: what newer stages have replaced.
    """
    import sys

    from concisecli.records import UsageError
    from concisecli.upkeep import leftovers as tidying
    from concisecli.upkeep.runs import run_folder

    expected, _ = pipeline_here(pipeline)
    folder = run_folder(run, runs, expected)
    current = tidying.current_folders(pipeline, runs) if folder.name == expected else None
    found = tidying.leftovers(folder, current)
    total = sum(leftover.bytes for leftover in found)
    if not as_json:
        for leftover in found:
            print(f"{tidying.amount(leftover.bytes):>10}  {leftover.path}  {leftover.why}")
        print(f"{tidying.amount(total):>10}  in all, {len(found)} of {folder}")
    if found and not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("say --yes to remove these, or --dry-run to list them only")
        yes = typer.confirm("remove these?", err=True)
    done, left = tidying.remove(folder, found) if yes and not dry_run else ([], [])
    if as_json:
        rows = [{"path": str(f.path), "why": f.why, "bytes": f.bytes, "removed": f in done} for f in found]
        print_json({"run": str(folder), "bytes": total, "leftovers": rows})
    for leftover, why in left:
        print(f"left alone: {leftover.path}: {why}", file=sys.stderr)


def doctor(
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also look at a model's folder.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask whether the hub can be reached.")] = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """What this machine can run, and what to do where it cannot."""
    from concisecli.records import ConciseError, UsageError
    from concisecli.upkeep.doctor import examine

    if model is not None and not model.is_dir():
        raise UsageError(f"there is no model folder {model}")
    found = examine(runs, model, hub=not offline)
    if as_json:
        print_json([finding.as_record() for finding in found])
    else:
        from concisecli.status_page import show_findings

        show_findings(found)
    wrong = [finding.name for finding in found if finding.level == "error"]
    if wrong:
        raise ConciseError(f"not in order: {', '.join(wrong)}")


def schema(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it to a file instead of stdout.")
    ] = None,
) -> None:
    """JSON Schema of pipeline files, for editors."""
    from concisecli.artifacts import write_json
    from concisecli.upkeep.schema import schema as made

    if out is None:
        print_json(made())
    else:
        write_json(out, made())
        print(out)
