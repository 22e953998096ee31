"""The `concise` command: every command has its place here, and every error becomes an exit code.

stdout carries the result and nothing else; progress and messages go to stderr. Commands import what they need in
their body, so that `concise --help` is quick.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from concisecli import inspection, stage_commands, tools
from concisecli.flags import with_sets

INTERRUPTED = 130
EXIT_CODES = (
    "Exit codes: 0 done or skipped; 1 failed; 2 wrong usage (a flag, a setting, or a path on the command line that "
    "is not there); 75 preempted: run again; 130 Ctrl-C. stdout carries the result, stderr the progress."
)


class Commands(TyperGroup):
    """All commands; Ctrl-C ends each of them with how to go on."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest if command is None else with_sets(command, rest)

    def invoke(self, ctx: Any) -> Any:
        from concisecli.company import in_company

        try:
            with in_company() as runs_it:  # under torchrun and the like: the first rank
                return super().invoke(ctx) if runs_it else None
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
    epilog=EXIT_CODES,
)
data = typer.Typer(
    cls=Commands, no_args_is_help=True, rich_markup_mode=None, help="Build and look at problems and examples."
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"concise {version_of('concise')}")
        raise typer.Exit()


app.command()(tools.init)
app.command()(inspection.plan)
app.command()(stage_commands.run)
app.add_typer(data, name="data")
data.command("build")(stage_commands.data_build)
data.command("distill")(stage_commands.stages_of("distill", "Sample examples from a teacher (the distill stages)."))
data.command()(tools.show)
app.command("sft")(stage_commands.stages_of("sft", "Supervised fine-tuning (the sft stages)."))
app.command()(stage_commands.train)
app.command("mine")(stage_commands.stages_of("mine", "Pick the problems that are still hard (the mine stages)."))
app.command("eval")(stage_commands.evaluate)
app.command()(stage_commands.report)
app.command()(inspection.status)
app.command()(tools.compare)
app.command()(tools.rollouts)
app.command()(tools.grade)
app.command()(tools.score)
app.command()(inspection.lineage)
app.command()(inspection.export)
app.command()(inspection.gc)
app.command()(inspection.doctor)
app.command()(inspection.schema)


def main() -> None:
    """The only place that turns an error into an exit code: what the user can mend is one line, a bug keeps its
    traceback."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where the user's own rewards and checks lie
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
