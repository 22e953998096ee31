"""Commands that run no stage: they write, show, grade or score files. `cli` gives them their place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from concisecli.flags import JsonFlag, PipelineFlag, SetFlag
from concisecli.wording import percent, seconds


def init(
    method: Annotated[str, typer.Argument(help="A pipeline that ships: tiny, conciser, lead ...")],
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
    profile: Annotated[str | None, typer.Option(help="strict, lenient (default) or inside-think.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Worker processes; 0: one a core.")] = None,
    deadline: Annotated[float | None, typer.Option(metavar="SECONDS", help="For one verdict; default 5.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Where a second, independent check disagrees.")] = False,
    selftest: Annotated[bool, typer.Option("--selftest", help="Grade the labelled cases that ship.")] = False,
    sets: SetFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only the summary, as one line of JSON on stdout.")] = False,
) -> None:
    """Judge a file of responses; needs no model.

    One JSON line a row on stdout, with outcome, correct, extracted and rule added; the summary goes to stderr.
    """
    from concisecli.records import ConciseError, UsageError
    from concisecli.stages import grade as grading
    from concisecli.standalone import grader_config

    flags = {"profile": profile, "workers": workers, "deadline_s": deadline}
    config = grader_config([*(sets or ()), *(f"{name}={value}" for name, value in flags.items() if value is not None)])
    fields = {"gold_field": gold_field, "response_field": response_field}
    if selftest:
        told(grading.selftest(config), as_json, selftest_lines)
        return
    if file is None:
        raise UsageError("give a JSONL file of responses, or --selftest")
    if audit:
        told(grading.audit(file, config=config, **fields), as_json, audit_lines)
        return
    emit = None if as_json or out else print
    summary = grading.run_grade(file, config=config, out=out, emit=emit, **fields)
    if not summary["rows"]:
        raise ConciseError(f"{file} has no rows to grade")
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        print("\n".join(grade_lines(summary)), file=sys.stderr)


def told(found: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    print(json.dumps(found, ensure_ascii=False) if as_json else "\n".join(lines(found)))


def grade_lines(summary: dict[str, Any]) -> list[str]:
    """`4 rows in 0.4 s: match 2, mismatch 1, no_answer 1; accuracy 50.0 %`"""
    counts = ", ".join(f"{outcome} {number:,}" for outcome, number in summary["counts"].items() if number)
    accuracy = "" if summary["accuracy"] is None else f"; accuracy {percent(summary['accuracy'])} %"
    lines = [f"{summary['rows']:,} rows in {seconds(summary['seconds'])}: {counts or 'none'}{accuracy}"]
    agreement = summary.get("agreement")
    if agreement:
        lines.append(f"agrees with {agreement['right']:,} of {agreement['of']:,} labels")
        lines += [f"  {one}" for one in agreement["disagreements"]]
    return lines


def audit_lines(found: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in found["counts"].items())
    return [f"{found['rows']:,} rows: {counts}", *(f"  {one}" for one in found["disagreements"])]


def selftest_lines(found: dict[str, Any]) -> list[str]:
    wrong = [f"  {one}" for one in found["wrong"]]
    limits = [f"  {one['gold']} and {one['answer']}: {one['outcome']} ({one['why']})" for one in found["known_limits"]]
    return [
        f"{found['right']:,} of {found['cases']:,} cases right, {found['accepted_wrongly']} accepted wrongly",
        *wrong,
        *(["known limits:", *limits] if limits else []),
    ]


def compare(
    evaluations: Annotated[
        list[Path], typer.Argument(help="Folders of eval stages, or scores.json files: A B [C ...].")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Evaluations side by side, paired by problem: each against the first."""
    from rich.console import Console

    from concisecli.stages import compare as comparing

    pairs = comparing.run_compare(evaluations)
    if as_json:
        print(json.dumps(comparing.as_json(pairs), ensure_ascii=False))
        return
    Console().print(*comparing.tables(pairs), sep="\n")


def rollouts(
    run: Annotated[Path, typer.Argument(help="The folder of a run or of one of its stages.")],
    stage: Annotated[str | None, typer.Option(help="Only those of this stage.")] = None,
    step: Annotated[str | None, typer.Option(metavar="N or FIRST-LAST", help="Only those of these steps.")] = None,
    problem: Annotated[
        str | None, typer.Option(help="Only those of this problem; the start of its id will do.")
    ] = None,
    right: Annotated[bool | None, typer.Option("--right/--wrong", help="Only right ones; only wrong ones.")] = None,
    verdict: Annotated[str | None, typer.Option(help="match, mismatch, no_answer, timeout or error.")] = None,
    contains: Annotated[str | None, typer.Option(metavar="REGEX", help="Only those whose text matches.")] = None,
    changed_since: Annotated[
        str | None, typer.Option(metavar="STAGE", help="Problems whose majority verdict was another there.")
    ] = None,
    longest: Annotated[bool, typer.Option("--longest", help="The longest first.")] = False,
    shortest: Annotated[bool, typer.Option("--shortest", help="The shortest right ones first.")] = False,
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="Rollouts to show.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the draw, where none of the orders is asked for.")] = 0,
    unfold: Annotated[bool, typer.Option("--unfold", help="Show the thinking whole.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Look at what was sampled, in training and in evaluation, also while a run is under way."""
    from rich.console import Console

    from concisecli.records import UsageError
    from concisecli.stages import rollouts as viewing

    if longest and shortest:
        raise UsageError("--longest and --shortest exclude each other; give one")
    order: viewing.Order = "longest" if longest else "shortest" if shortest else "drawn"
    wanted = viewing.Wanted(
        stage, step_range(step), problem, right, verdict, contains, changed_since, order, number, seed
    )
    rows = viewing.select(run, wanted)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    Console().print(*viewing.views(rows, unfold=unfold), sep="\n")


def step_range(text: str | None) -> tuple[int, int] | None:
    """`12` or `10-20`, both ends included."""
    from concisecli.records import UsageError

    if text is None:
        return None
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        raise UsageError(f"--step {text}: give a step or a range, such as 12 or 10-20")
    return int(first), int(last or first)


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
    from concisecli.building import showing
    from concisecli.records import ConciseError

    if dropped:
        rows = showing.dropped(artifact, reason, limit=count)
        if not as_json:
            print("  ".join(f"{name} {number}" for name, number in showing.dropped_counts(artifact).items()))
    else:
        rows = showing.rows(artifact, limit=count, skip=start, containing=containing)
        if not rows:
            raise ConciseError(f"{artifact} has no rows{f' that hold {containing!r}' if containing else ''}")
    if tokens is not None:
        rows = as_tokens(rows, tokens, sets or ())
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for number, row in enumerate(rows, start + 1):
        print(text_of_row(number, row))


def as_tokens(rows: Sequence[dict[str, Any]], model: Path, sets: Sequence[str]) -> list[dict[str, Any]]:
    from concisecli.building.showing import marked, tokens
    from concisecli.policy import load_tokenizer
    from concisecli.standalone import prompt_config

    tokenizer, config = load_tokenizer(model), prompt_config(sets)
    shown = [tokens(row, tokenizer, config) for row in rows]
    return [{"tokens": len(row), "with_loss": sum(t.loss for t in row), "text": marked(row)} for row in shown]


def text_of_row(number: int, row: dict[str, Any]) -> str:
    lines = [f"{name:>12}  {value}" for name, value in row.items() if value not in (None, "", "{}")]
    return "\n".join([f"--- row {number}", *lines])
