"""Commands that run no stage: they write, show, grade or score files. `cli` gives them their place."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from concisecli.flags import JsonFlag, PipelineFlag, SetFlag


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


def score(
    file: Annotated[Path, typer.Argument(help="JSONL of graded rollouts; - is stdin.")],
    method: Annotated[str | None, typer.Option(help="A shipped pipeline, such as lead, instead of -p.")] = None,
    pipeline: PipelineFlag = None,
    only: Annotated[str | None, typer.Option(metavar="STAGE", help="The train stage whose settings count.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="The limit of a response, in tokens.")] = None,
    sets: SetFlag = None,
) -> None:
    """Rewards and advantages of graded rollouts; needs no model.

    One JSON line a row, under the settings of one train stage of the pipeline.
    """
    from concisecli.stages.score import run_score
    from concisecli.standalone import train_config

    run_score(file, train_config(method, pipeline, only, sets or ()), sys.stdout, budget)


def grade(
    file: Annotated[Path | None, typer.Argument(help="JSONL with a response and a gold answer in each row.")] = None,
    gold_field: Annotated[str, typer.Option(help="The field that holds the gold answer.")] = "gold",
    response_field: Annotated[str, typer.Option(help="The field that holds the response.")] = "response",
    out: Annotated[Path | None, typer.Option(help="Write the rows to a file (.gz packs it) instead of stdout.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Where a second, independent check disagrees.")] = False,
    selftest: Annotated[bool, typer.Option("--selftest", help="Grade the labelled cases that ship.")] = False,
    sets: SetFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the summary, as JSON, on stdout.")] = False,
) -> None:
    """Judge a file of responses; needs no model.

    One JSON line a row on stdout, with outcome, correct, extracted and rule added; the summary goes to stderr.
    """
    from concisecli.records import UsageError
    from concisecli.stages import grade as grading
    from concisecli.standalone import grader_config

    config = grader_config(sets or ())
    fields = {"gold_field": gold_field, "response_field": response_field}
    if selftest:
        print(json.dumps(grading.selftest(config), ensure_ascii=False))
        return
    if file is None:
        raise UsageError("give a JSONL file of responses, or --selftest")
    if audit:
        print(json.dumps(grading.audit(file, config=config, **fields), ensure_ascii=False))
        return
    emit = None if as_json or out else print
    summary = grading.run_grade(file, config=config, out=out, emit=emit, **fields)
    print(json.dumps(summary, ensure_ascii=False), file=sys.stdout if as_json else sys.stderr)


def show(
    artifact: Annotated[Path, typer.Argument(help="The folder of a data stage, or a parquet or JSONL file.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Rows to print.")] = 5,
    start: Annotated[int, typer.Option(min=0, help="Rows to leave out first.")] = 0,
    containing: Annotated[str, typer.Option(help="Only rows that hold this text.")] = "",
    dropped: Annotated[bool, typer.Option("--dropped", help="The rows that were dropped, with the reason.")] = False,
    reason: Annotated[str | None, typer.Option(help="With --dropped: only this reason.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="As the tokens of this model; those with loss in [brackets].")
    ] = None,
    sets: SetFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Rows, dropped rows with reasons, tokens as the model sees them.

    With --tokens, --set changes the prompt: --set chat=false.
    """
    from concisecli import showing

    if dropped:
        rows = showing.dropped(artifact, reason, limit=count)
        if not as_json:
            print("  ".join(f"{name} {number}" for name, number in showing.dropped_counts(artifact).items()))
    else:
        rows = showing.rows(artifact, limit=count, skip=start, containing=containing)
    if tokens is not None:
        rows = as_tokens(rows, tokens, sets or ())
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for number, row in enumerate(rows, start + 1):
        print(text_of_row(number, row))


def as_tokens(rows: Sequence[dict[str, Any]], model: Path, sets: Sequence[str]) -> list[dict[str, Any]]:
    from concisecli.policy import load_tokenizer
    from concisecli.showing import marked, tokens
    from concisecli.standalone import prompt_config

    tokenizer, config = load_tokenizer(model), prompt_config(sets)
    shown = [tokens(row, tokenizer, config) for row in rows]
    return [{"tokens": len(row), "with_loss": sum(t.loss for t in row), "text": marked(row)} for row in shown]


def text_of_row(number: int, row: dict[str, Any]) -> str:
    lines = [f"{name:>12}  {value}" for name, value in row.items() if value not in (None, "", "{}")]
    return "\n".join([f"--- row {number}", *lines])
