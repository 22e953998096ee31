"""The flags that commands share, each spelled and explained once, and groups of them as one argument."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

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
HoursFlag = Annotated[
    float | None, typer.Option("--max-hours", min=0, help="Save and stop after so long, with exit code 75.")
]
TokensFlag = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="The same after so many response tokens were sampled.")
]
RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class StageFlags:
    """What every command that runs stages understands."""

    pipeline: PipelineFlag = None
    only: OnlyFlag = None
    force: ForceFlag = None
    sets: SetFlag = None
    seed: SeedFlag = None
    dry_run: DryRunFlag = False
    as_json: JsonFlag = False
    runs: RunsFlag = RUNS
    max_hours: HoursFlag = None
    max_tokens: TokensFlag = None
    typed: Mapping[str, str] = dataclasses.field(default_factory=dict, metadata={"flag": False})

    @property
    def overrides(self) -> list[str]:
        return [*(self.sets or ()), *([f"seed={self.seed}"] if self.seed is not None else ())]

    def and_set(self, sets: Mapping[str, str], *, first: Mapping[str, str] | None = None) -> StageFlags:
        """With the overrides that flags of a command stand for, each with the flag as it was typed: `first` under what
        `--set` says, `sets` over it."""
        first = first or {}
        spelled = {**self.typed, **first, **sets}
        return dataclasses.replace(self, sets=[*first, *(self.sets or ()), *sets], typed=spelled)

    @contextlib.contextmanager
    def told_as_typed(self) -> Iterator[None]:
        """Messages name the flag that was typed, not the override that it stands for."""
        from concisecli.records import ConciseError

        try:
            yield
        except ConciseError as error:
            text = str(error)
            for override, flag in {**self.typed, f"seed={self.seed}": f"--seed {self.seed}"}.items():
                text = re.sub(rf"--set (?:[\w+-]+\.)?{re.escape(override)}(?=: )", flag, text)
            error.args = (text,)
            raise


def with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `flags`, a dataclass of options, is spread over the command line.

    typer reads signatures, so the command gets one in which every field of the dataclass is a parameter.
    """
    own = inspect.signature(function, eval_str=True).parameters
    group = own["flags"].annotation
    annotations = get_type_hints(group, include_extras=True)
    shared = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=annotations[f.name])
        for f in dataclasses.fields(group)
        if f.metadata.get("flag", True)
    ]
    kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "flags"]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        flags = group(**{p.name: given.pop(p.name) for p in shared})
        function(**given, flags=flags)

    command.__signature__ = inspect.Signature([*kept, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (*kept, *shared)}
    return command


def repeated(overrides: Sequence[str], runs: Path) -> str:
    """What a proposed command needs to mean the same artifacts: " --set seed=1 --runs elsewhere"."""
    words = [f" --set {shlex.quote(text)}" for text in overrides]
    return "".join([*words, *([f" --runs {shlex.quote(str(runs))}"] if runs != RUNS else [])])


A_SETTING = re.compile(r"(?:[A-Za-z_][\w-]*\.)*[A-Za-z_][\w-]*=.*", re.DOTALL)


def with_sets(command: Any, args: Sequence[str]) -> list[str]:
    """The arguments of a command with `rl1.lr=1e-5` written out as `--set rl1.lr=1e-5`, where it takes settings.

    What follows an option that wants a value, and what follows `--`, is left alone.
    """
    options = [p for p in command.params if p.param_type_name == "option"]
    if not any("--set" in p.opts for p in options):
        return list(args)
    takes_value = {name for p in options if not p.is_flag for name in (*p.opts, *p.secondary_opts)}
    written: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*written, word, *rest]
        if word in takes_value and rest:
            written += [word, rest.pop(0)]
        elif A_SETTING.fullmatch(word) and not Path(word).exists():
            written += ["--set", word]
        else:
            written.append(word)
    return written
