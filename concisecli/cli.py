"""The `concise` command: flags become a selection of stages, `pipeline.execute` does the work.

stdout carries the result and nothing else; progress and messages go to stderr. Commands import what they need in
their body, so that `concise --help` is quick.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from concisecli import tools
from concisecli.flags import (
    RUNS,
    DryRunFlag,
    ForceFlag,
    JsonFlag,
    OnlyFlag,
    PipelineFlag,
    RunsFlag,
    SeedFlag,
    SetFlag,
)

if TYPE_CHECKING:
    from concisecli.chosen_stages import Selection
    from concisecli.config import Pipeline
    from concisecli.pipeline import Outcome

INTERRUPTED = 130


class Commands(TyperGroup):
    """All commands; Ctrl-C ends each of them with how to go on."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            again = shlex.join(["concise", *sys.argv[1:]])
            print(f"\nconcise: stopped; to go on, run the same command again: {again}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train reasoning models that think correctly and briefly: whole ConciseR and GRPO-LEAD curricula. "
    "Start with: concise init tiny && concise run",
)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build and look at problems and examples.")
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"concise {version_of('concise')}")
        raise typer.Exit()


# --- the graph --------------------------------------------------------------------------------------------------------


@app.command()
def run(
    pipeline: Annotated[Path | None, typer.Argument(help="Pipeline file; default: concise.yaml.")] = None,
    pipeline_flag: PipelineFlag = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="This stage and those that depend on it.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="This stage and those it depends on.")] = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Run a pipeline: skip what is done, resume what is not."""
    from concisecli.chosen_stages import Selection
    from concisecli.records import UsageError

    if pipeline and pipeline_flag and pipeline != pipeline_flag:
        raise UsageError(f"two pipelines were given, {pipeline} and {pipeline_flag}; give one")
    selection = Selection(only=tuple(only or ()), from_=from_, until=until, force=tuple(force or ()))
    work(pipeline or pipeline_flag, selection, sets, seed, dry_run, as_json, runs)


def stage_command(kind: str, text: str, group: typer.Typer = app) -> None:
    """A command that runs the stages of one kind and has no flags of its own."""

    @group.command(kind, help=text)
    def command(
        pipeline: PipelineFlag = None,
        only: OnlyFlag = None,
        force: ForceFlag = None,
        sets: SetFlag = None,
        seed: SeedFlag = None,
        dry_run: DryRunFlag = False,
        as_json: JsonFlag = False,
        runs: RunsFlag = RUNS,
    ) -> None:
        stages((kind,), pipeline, only, force, sets, seed, dry_run, as_json, runs)


@data.command("build")
def data_build(
    recipe: Annotated[str | None, typer.Argument(help="A recipe file or the name of a shipped one.")] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="TOOL", help="Also write for verl, trl or conciser. Repeatable.")
    ] = None,
    pipeline: PipelineFlag = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Build one recipe, or the data stages of the pipeline."""
    sets = [*(sets or ()), *([f"to=[{', '.join(to)}]"] if to else ())]
    if recipe is None:
        stages(("data",), pipeline, only, force, sets, seed, dry_run, as_json, runs)
        return
    from concisecli.standalone import recipe_pipeline

    alone(recipe_pipeline(recipe), ("data",), sets, seed, force, dry_run, as_json, runs)


stage_command("distill", "Sample examples from a teacher (the distill stages).", data)
stage_command("sft", "Supervised fine-tuning (the sft stages).")


@app.command()
def train(
    stage: Annotated[int | None, typer.Option("--stage", min=1, help="Stage 1, 2, ... of the curriculum.")] = None,
    pipeline: PipelineFlag = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Reinforcement learning (the train stages)."""
    stages(("train",), pipeline, only, force, sets, seed, dry_run, as_json, runs, number=stage)


stage_command("mine", "Pick the problems that are still hard (the mine stages).")


@app.command("eval")
def evaluate(
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
    pipeline: PipelineFlag = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Accuracy and lengths under budgets (the eval stages).

    With --model and --data: any model on any problems, without a pipeline.
    """
    if regrade is not None:
        from concisecli.standalone import regraded

        print_metrics(*regraded(regrade, out, sets or ()), as_json)
        return
    from concisecli.building.suites import suites_named
    from concisecli.standalone import eval_pipeline, preset_sets

    sets = [
        *(preset_sets(preset) if preset else ()),
        *(sets or ()),
        *([f"budgets={sorted(set(budget))}"] if budget else ()),
        *([f"samples={samples}"] if samples else ()),
    ]
    problems = [*(data or ()), *(suites_named(suite) if suite else ())]
    if model is None and not problems:
        stages(("eval",), pipeline, only, force, sets, seed, dry_run, as_json, runs)
        return
    alone(eval_pipeline(model, problems), ("data", "eval"), sets, seed, force, dry_run, as_json, runs, "eval")


@app.command()
def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of runs: report on these, no pipeline.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="With RUN: where to write.")] = Path("report"),
    pipeline: PipelineFlag = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Tables and figures of what was measured (the report stages).

    With one or several RUN: of everything in these folders, finished or under way.
    """
    if not folders:
        stages(("report",), pipeline, only, force, sets, seed, dry_run, as_json, runs)
        return
    from concisecli.config import ReportConfig
    from concisecli.stages.report import of_runs

    made = of_runs(folders, out, ReportConfig())
    paths = {name: str(out / path) for name, path in made.outputs.items()}
    print(json.dumps(paths) if as_json else "\n".join(paths.values()))


app.command()(tools.init)
app.command()(tools.compare)
app.command()(tools.rollouts)
app.command()(tools.grade)
app.command()(tools.score)
data.command()(tools.show)


# --- from flags to stages ---------------------------------------------------------------------------------------------


def stages(
    kinds: tuple[str, ...],
    pipeline: Path | None,
    only: Sequence[str] | None,
    force: Sequence[str] | None,
    sets: Sequence[str] | None,
    seed: int | None,
    dry_run: bool,
    as_json: bool,
    runs: Path,
    number: int | None = None,
) -> None:
    """The stages of some kinds of one pipeline; here a `--set` need not name the stage."""
    from concisecli.chosen_stages import Selection

    selection = Selection(kinds=kinds, number=number, only=tuple(only or ()), force=tuple(force or ()))
    work(pipeline, selection, sets, seed, dry_run, as_json, runs)


def work(
    given: Path | None,
    selection: Selection,
    sets: Sequence[str] | None,
    seed: int | None,
    dry_run: bool,
    as_json: bool,
    runs: Path,
) -> None:
    from concisecli.loading import find_pipeline, load_pipeline_with_origins
    from concisecli.standalone import named_sets

    path = find_pipeline(given)
    overrides = [*(sets or ()), *([f"seed={seed}"] if seed is not None else ())]
    if selection.kinds:
        overrides = named_sets(overrides, lambda some: load_pipeline_with_origins(path, some)[0], selection)
    pipeline, origins = load_pipeline_with_origins(path, overrides)
    finish(pipeline, origins, selection, dry_run, as_json, runs, flags(overrides, runs))


def alone(
    tree: dict[str, Any],
    kinds: tuple[str, ...],
    sets: Sequence[str] | None,
    seed: int | None,
    force: Sequence[str] | None,
    dry_run: bool,
    as_json: bool,
    runs: Path,
    settings_of: str = "data",
) -> None:
    """A pipeline made by the command itself; a `--set` is for its stages of the kind `settings_of`."""
    from concisecli.chosen_stages import Selection
    from concisecli.loading import pipeline_of
    from concisecli.standalone import named_sets

    overrides = [*(sets or ()), *([f"seed={seed}"] if seed is not None else ())]
    overrides = named_sets(overrides, lambda some: pipeline_of(tree, some)[0], Selection(kinds=(settings_of,)))
    pipeline, origins = pipeline_of(tree, overrides)
    selection = Selection(kinds=kinds, force=tuple(force or ()))
    finish(pipeline, origins, selection, dry_run, as_json, runs, flags(overrides, runs))


def finish(
    pipeline: Pipeline,
    origins: dict[str, str],
    selection: Selection,
    dry_run: bool,
    as_json: bool,
    runs: Path,
    flags: str,
) -> None:
    """Execute and print: one line a stage as it ends, or one JSON document at the end."""
    from concisecli.outcomes import as_record, line_of
    from concisecli.pipeline import execute

    width = max(len(name) for name in pipeline.stages)

    def tell(outcome: Outcome) -> None:
        if not as_json:
            print(line_of(outcome, width), flush=True)

    outcomes = execute(pipeline, runs, selection, dry_run, origins=origins, flags=flags, tell=tell)
    if as_json:
        stages = [as_record(outcome) for outcome in outcomes]
        print(json.dumps({"pipeline": str(pipeline.path), "run": pipeline.run, "stages": stages}, ensure_ascii=False))


def print_metrics(folder: Path, metrics: dict[str, Any], as_json: bool) -> None:
    from concisecli.outcomes import values_of

    if as_json:
        print(json.dumps({"folder": str(folder), "metrics": metrics}, ensure_ascii=False))
    else:
        print("  ".join([str(folder), *values_of(metrics)]))


def flags(overrides: Sequence[str], runs: Path) -> str:
    """What a proposed command needs to mean the same artifacts."""
    words = [f" --set {shlex.quote(text)}" for text in overrides]
    return "".join([*words, *([f" --runs {shlex.quote(str(runs))}"] if runs != RUNS else [])])


def main() -> None:
    """The only place that turns an error into an exit code: what the user can mend is one line, a bug keeps its
    traceback."""
    try:
        app(prog_name="concise")
    except KeyboardInterrupt:  # outside of any command
        sys.exit(INTERRUPTED)
    except Exception as error:
        from concisecli.records import ConciseError

        if not isinstance(error, ConciseError):
            raise
        print(f"concise: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
