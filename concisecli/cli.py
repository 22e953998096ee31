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

if TYPE_CHECKING:
    from concisecli.config import Pipeline
    from concisecli.pipeline import Outcome
    from concisecli.selection import Selection

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

PipelineFlag = Annotated[
    Path | None, typer.Option("-p", "--pipeline", help="Pipeline file; default: concise.yaml in this folder.")
]
SetFlag = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Override a setting: rl1.reward.alpha=0.1. Repeatable."),
]
SeedFlag = Annotated[int | None, typer.Option("--seed", help="The seed of the whole pipeline.")]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="Say what would run and why; write nothing.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout instead of text.")]
RunsFlag = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where artifacts are kept.")]
OnlyFlag = Annotated[list[str] | None, typer.Option("--only", metavar="STAGE", help="Only this stage. Repeatable.")]
ForceFlag = Annotated[
    list[str] | None, typer.Option("--force", metavar="STAGE", help="Make this stage anew. Repeatable.")
]
RUNS = Path("runs")


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
    """Run a pipeline: finished stages are skipped, unfinished ones go on where they stopped."""
    from concisecli.records import UsageError
    from concisecli.selection import Selection

    if pipeline and pipeline_flag and pipeline != pipeline_flag:
        raise UsageError(f"two pipelines were given, {pipeline} and {pipeline_flag}; give one")
    selection = Selection(only=tuple(only or ()), from_=from_, until=until, force=tuple(force or ()))
    work(pipeline or pipeline_flag, selection, sets, seed, dry_run, as_json, runs)


def stage_command(kind: str, text: str) -> None:
    """A command that runs the stages of one kind and has no flags of its own."""

    @app.command(kind, help=text)
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
    if recipe is None:
        stages(("data",), pipeline, only, force, sets, seed, dry_run, as_json, runs)
        return
    from concisecli.standalone import recipe_pipeline

    alone(recipe_pipeline(recipe), ("data",), sets, seed, force, dry_run, as_json, runs)


@data.command("show")
def data_show(
    artifact: Annotated[Path, typer.Argument(help="A parquet or JSONL file, or the folder of a finished stage.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Rows to print.")] = 5,
    start: Annotated[int, typer.Option(min=0, help="Rows to leave out first.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print rows of an artifact."""
    from concisecli.standalone import rows_of, text_of_row

    rows = rows_of(artifact)[start : start + count]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for number, row in enumerate(rows, start + 1):
        print(text_of_row(number, row))


stage_command("sft", "Supervised fine-tuning: the sft stages of the pipeline.")


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
    """Reinforcement learning: the train stages of the pipeline."""
    stages(("train",), pipeline, only, force, sets, seed, dry_run, as_json, runs, number=stage)


stage_command("mine", "Pick the problems that are still hard: the mine stages of the pipeline.")


@app.command("eval")
def evaluate(
    model: Annotated[str | None, typer.Option(help="A folder or hf:ORG/NAME: evaluate it without a pipeline.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="With --model: problems as a file, or a recipe. Repeatable.")
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(min=1, help="Tokens a response may take. Repeatable.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Rollouts a problem.")] = None,
    pipeline: PipelineFlag = None,
    only: OnlyFlag = None,
    force: ForceFlag = None,
    sets: SetFlag = None,
    seed: SeedFlag = None,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
    runs: RunsFlag = RUNS,
) -> None:
    """Pass@1, Cons@k, lengths and accuracy under budgets: the eval stages, or any model on any problems."""
    sets = [
        *(sets or ()),
        *([f"budgets={sorted(set(budget))}"] if budget else ()),
        *([f"samples={samples}"] if samples else ()),
    ]
    if model is None and not data:
        stages(("eval",), pipeline, only, force, sets, seed, dry_run, as_json, runs)
        return
    from concisecli.standalone import eval_pipeline

    alone(eval_pipeline(model, data or ()), ("data", "eval"), sets, seed, force, dry_run, as_json, runs, "eval")


stage_command("report", "Tables and figures of what was measured: the report stages of the pipeline.")


# --- without a graph --------------------------------------------------------------------------------------------------


@app.command()
def init(
    method: Annotated[str, typer.Argument(help="tiny, conciser, lead, lead-code, ...")],
    folder: Annotated[Path, typer.Option("--dir", help="Where to write.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write concise.yaml, and the recipes it names, to edit."""
    from concisecli.standalone import write_method

    written = write_method(method, folder, force=force)
    if as_json:
        print(json.dumps({"pipeline": str(written[0]), "recipes": [str(p) for p in written[1:]]}))
        return
    for path in written:
        print(path)
    where = "" if folder == Path(".") else f" in {folder}"
    print(f"edit it{where}, look with: concise run --dry-run, start with: concise run", file=sys.stderr)


@app.command()
def score(
    file: Annotated[Path, typer.Argument(help="JSONL of graded rollouts; - is stdin.")],
    method: Annotated[str | None, typer.Option(help="A shipped pipeline, such as lead, instead of -p.")] = None,
    pipeline: PipelineFlag = None,
    only: Annotated[str | None, typer.Option(metavar="STAGE", help="The train stage whose settings count.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="The limit of a response, in tokens.")] = None,
    sets: SetFlag = None,
) -> None:
    """Rewards and advantages of graded rollouts under a stage's settings: one JSON line a row, no model needed."""
    from concisecli.stages.score import run_score
    from concisecli.standalone import train_config

    run_score(file, train_config(method, pipeline, only, sets or ()), sys.stdout, budget)


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
    from concisecli.selection import Selection

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
    from concisecli.loading import pipeline_of
    from concisecli.selection import Selection
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
    from concisecli.pipeline import execute

    width = max(len(name) for name in pipeline.stages)

    def tell(outcome: Outcome) -> None:
        if not as_json:
            print(line_of(outcome, width), flush=True)

    outcomes = execute(pipeline, runs, selection, dry_run, origins=origins, flags=flags, tell=tell)
    if as_json:
        stages = [as_record(outcome) for outcome in outcomes]
        print(json.dumps({"pipeline": str(pipeline.path), "run": pipeline.run, "stages": stages}, ensure_ascii=False))


def flags(overrides: Sequence[str], runs: Path) -> str:
    """What a proposed command needs to mean the same artifacts."""
    words = [f" --set {shlex.quote(text)}" for text in overrides]
    return "".join([*words, *([f" --runs {shlex.quote(str(runs))}"] if runs != RUNS else [])])


def line_of(outcome: Outcome, width: int) -> str:
    parts = [f"{outcome.stage:<{width}}  {outcome.line}"]
    if outcome.outputs:
        parts.append(str(outcome.folder))
    parts += [f"{name} {number(value)}" for name, value in outcome.metrics.items() if is_number(value)]
    return "  ".join(parts)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def as_record(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage,
        "kind": outcome.kind,
        "action": outcome.action,
        "reason": outcome.reason,
        "folder": str(outcome.folder) if outcome.folder else None,
        "outputs": {name: str(path) for name, path in outcome.outputs.items()},
        "metrics": dict(outcome.metrics),
    }


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
