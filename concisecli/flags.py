"""The flags that commands share, each spelled and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
RUNS = Path("runs")
