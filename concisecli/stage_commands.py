"""Commands that run stages: flags become a selection, `pipeline.execute` does the work."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from concisecli.flags import StageFlags, repeated, with_flags

if TYPE_CHECKING:
    from concisecli.chosen_stages import Selection
    from concisecli.config import Pipeline
    from concisecli.decisions import Outcome


@with_flags
def run(
    flags: StageFlags,
    file: Annotated[
        Path | None, typer.Argument(metavar="PIPELINE", help="Pipeline file; default: concise.yaml.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="This stage and those that depend on it.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="This stage and those it depends on.")] = None,
) -> None:
    """Run a pipeline: skip what is done, resume what is not.

    On the GPUs of one machine: `processes: auto` in the pipeline. Or under a launcher, which is not launched again:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 -m concisecli run PIPELINE

    deepspeed --no_local_rank --module concisecli run PIPELINE

    srun --ntasks-per-node 8 concise run PIPELINE
    """
    from concisecli.chosen_stages import Selection

    selection = Selection(only=tuple(flags.only or ()), from_=from_, until=until, force=tuple(flags.force or ()))
    work(one_pipeline(file, flags.pipeline), selection, flags)


def one_pipeline(argument: Path | None, flag: Path | None) -> Path | None:
    """The pipeline of a command that takes it both as its argument and with -p."""
    from concisecli.records import UsageError

    if argument and flag and argument != flag:
        raise UsageError(f"two pipelines were given, {argument} and {flag}; give one")
    return argument or flag


def stages_of(kind: str, text: str) -> Callable[..., None]:
    """A command that runs the stages of one kind and has no flags of its own."""

    def command(flags: StageFlags) -> None:
        stages((kind,), flags)

    command.__doc__ = text
    return with_flags(command)


@with_flags
def data_build(
    flags: StageFlags,
    recipe: Annotated[str | None, typer.Argument(help="A recipe file or the name of a shipped one.")] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="TOOL", help="Also write for verl, trl or conciser. Repeatable.")
    ] = None,
) -> None:
    """Build one recipe, or the data stages of the pipeline."""
    flags = flags.and_set({f"to=[{', '.join(to)}]": " ".join(f"--to {tool}" for tool in to)} if to else {})
    if recipe is None:
        stages(("data",), flags)
        return
    from concisecli.standalone import recipe_pipeline

    alone(recipe_pipeline(recipe), ("data",), flags)


@with_flags
def train(
    flags: StageFlags,
    stage: Annotated[int | None, typer.Option("--stage", min=1, help="Stage 1, 2, ... of the curriculum.")] = None,
) -> None:
    """Reinforcement learning (the train stages)."""
    stages(("train",), flags, number=stage)


@with_flags
def evaluate(
    flags: StageFlags,
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run's folder or a stage's: evaluate its weights.")
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(metavar="WHICH", help="With RUN: all, last, or numbers of updates: 50,100.")
    ] = "last",
    model: Annotated[str | None, typer.Option(help="A folder or hf:ORG/NAME: evaluate it without a pipeline.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="With --model: problems as a file, or a recipe. Repeatable.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="With --model: aime24,math500 and so on.")] = None,
    preset: Annotated[str | None, typer.Option(help="How a paper samples: conciser, lead, lead-7b.")] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a response may take. Repeatable.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Rollouts a problem.")] = None,
    regrade: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Judge the completions of a finished eval again, no model.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --regrade: where to write; default: FOLDER-regraded.")] = None,
) -> None:
    """Accuracy and lengths under budgets (the eval stages).

    With --model and --data: any model on any problems, without a pipeline. With RUN: the weights that its trainings
    wrote (`weights_every`) and ended with.
    """
    if regrade is not None:
        from concisecli.standalone import regraded

        print_metrics(*regraded(regrade, out, flags.sets or ()), flags.as_json)
        return
    from concisecli.building.suites import suites_named
    from concisecli.standalone import eval_pipeline, preset_sets

    of_flags = {f"budgets={sorted(set(budget))}": " ".join(f"--budget {b}" for b in budget)} if budget else {}
    of_flags |= {f"samples={samples}": f"--samples {samples}"} if samples else {}
    presets = dict.fromkeys(preset_sets(preset), f"--preset {preset}") if preset else {}
    flags = flags.and_set(of_flags, first=presets)
    problems = [*(data or ()), *(suites_named(suite) if suite else ())]
    if run is not None:
        over_checkpoints(run, checkpoints, model, problems, flags)
        return
    if model is None and not problems:
        stages(("eval",), flags)
        return
    alone(eval_pipeline(model, problems), ("data", "eval"), flags, "eval")


def over_checkpoints(run: Path, which: str, model: str | None, problems: Sequence[str], flags: StageFlags) -> None:
    """One eval a model folder and problem set, and a table of all."""
    from concisecli.checkpoint_evals import eval_pipeline, table
    from concisecli.records import UsageError

    if model is not None:
        raise UsageError("give either the folder of a run or --model, not both")
    outcomes = alone(eval_pipeline(run, which, problems), ("data", "eval"), flags, "eval")
    if not flags.as_json and not flags.dry_run:
        print("\n".join(["", *table(outcomes)]))


@with_flags
def report(
    flags: StageFlags,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of runs: report on these, no pipeline.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="With RUN: where to write.")] = Path("report"),
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="With RUN: every finished version of each stage; seeds are averaged, changes compared."
        ),
    ] = False,
) -> None:
    """Tables and figures of what was measured (the report stages).

    With one or several RUN: of everything in these folders, finished or under way.
    """
    if not folders:
        stages(("report",), flags)
        return
    from concisecli.config import ReportConfig
    from concisecli.stages.report import of_runs

    made = of_runs(folders, out, ReportConfig(), every=every)
    paths = {name: str(out / path) for name, path in made.outputs.items()}
    print(json.dumps(paths) if flags.as_json else "\n".join(paths.values()))


# --- from flags to stages ---------------------------------------------------------------------------------------------


def stages(kinds: tuple[str, ...], flags: StageFlags, number: int | None = None) -> None:
    """The stages of some kinds of one pipeline; here a `--set` need not name the stage."""
    from concisecli.chosen_stages import Selection

    only, force = tuple(flags.only or ()), tuple(flags.force or ())
    work(flags.pipeline, Selection(kinds=kinds, number=number, only=only, force=force), flags)


def work(given: Path | None, selection: Selection, flags: StageFlags) -> None:
    from concisecli.loading import find_pipeline, load_pipeline_with_origins
    from concisecli.standalone import named_sets

    path = find_pipeline(given)
    overrides = flags.overrides
    with flags.told_as_typed():
        if selection.kinds:
            overrides = named_sets(overrides, lambda some: load_pipeline_with_origins(path, some)[0], selection)
        pipeline, origins = load_pipeline_with_origins(path, overrides)
        finish(pipeline, origins, selection, flags, overrides)


def alone(tree: dict[str, Any], kinds: tuple[str, ...], flags: StageFlags, settings_of: str = "data") -> list[Outcome]:
    """A pipeline made by the command itself; a `--set` is for its stages of the kind `settings_of`, or of another kind
    that alone has such a setting (`sources` of a data stage)."""
    from concisecli.chosen_stages import Selection
    from concisecli.config import KINDS
    from concisecli.loading import pipeline_of
    from concisecli.standalone import named_sets

    with flags.told_as_typed():
        overrides = flags.overrides
        for kind in (*(k for k in kinds if k != settings_of), settings_of):
            shared = set(KINDS[settings_of].model_fields) if kind != settings_of else set()
            own = set(KINDS[kind].model_fields) - shared
            meant = [text for text in overrides if kind == settings_of or re.split(r"[.=]", text)[0] in own]
            others = [text for text in overrides if text not in meant]
            chosen = Selection(kinds=(kind,))
            overrides = [*others, *named_sets(meant, lambda some: pipeline_of(tree, some)[0], chosen)]
        pipeline, origins = pipeline_of(tree, overrides)
        return finish(pipeline, origins, Selection(kinds=kinds, force=tuple(flags.force or ())), flags, overrides)


def finish(
    pipeline: Pipeline,
    origins: dict[str, str],
    selection: Selection,
    flags: StageFlags,
    overrides: Sequence[str],
) -> list[Outcome]:
    """Execute and print: one line a stage as it ends, or one JSON document at the end."""
    from concisecli.aliases import spoken
    from concisecli.limits import limited
    from concisecli.outcomes import as_record, line_of
    from concisecli.pipeline import execute

    for line in spoken(origins):
        print(line, file=sys.stderr)

    width = max(len(name) for name in pipeline.stages)

    def tell(outcome: Outcome) -> None:
        if not flags.as_json:
            print(line_of(outcome, width), flush=True)

    again = repeated(overrides, flags.runs)
    with limited(flags.max_hours, flags.max_tokens):
        outcomes = execute(pipeline, flags.runs, selection, flags.dry_run, origins=origins, flags=again, tell=tell)
    if flags.as_json:
        stages = [as_record(outcome) for outcome in outcomes]
        print(json.dumps({"pipeline": str(pipeline.path), "run": pipeline.run, "stages": stages}, ensure_ascii=False))
    blocked = sum(outcome.action == "blocked" for outcome in outcomes)
    if blocked:
        from concisecli.records import ConciseError

        raise ConciseError(f"{blocked} of {len(outcomes)} stages cannot run as things are; see above")
    return outcomes


def print_metrics(folder: Path, metrics: dict[str, Any], as_json: bool) -> None:
    from concisecli.outcomes import values_of

    if as_json:
        print(json.dumps({"folder": str(folder), "metrics": metrics}, ensure_ascii=False))
    else:
        print("  ".join([str(folder), *values_of(metrics)]))
