"""What stands behind `concise grade`: verdicts for a file of responses, an audit of them, and a self-test.

Rows are JSON objects, one a line, plain or gzipped. Only a line feed ends a row: U+2028 and its like may stand inside
strings, where `str.splitlines` would cut.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, BinaryIO

from concisecli.config import GraderConfig
from concisecli.grader import answers
from concisecli.grader.grading import OUTCOMES, GradeItem, GraderPool, Timed
from concisecli.grader.grading_audit import second_opinion
from concisecli.records import ConciseError, UsageError

BATCH = 2048  # rows graded between two lines of progress
SHOWN = 50  # disagreements and wrong cases that a summary carries

# Right answers this grader is known to reject, and why: in doubt the answer is no.
KNOWN_LIMITS: tuple[tuple[str, str, str], ...] = (
    ("5", "x+y=5", "an equation in two unknowns is not taken as a value"),
    ("(1,2)", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "a point and a column vector are kept apart"),
    ("1,2", "(1,2)", "a list and a point are kept apart"),
    ("xy=1", "y=\\frac{1}{x}", "equations match when they differ by a constant factor only"),
    ("\\frac{x}{2}", "1/2x", "a slash before a product is ambiguous"),
    ("2.74", "2,74", "a comma before other than three digits separates a list"),
    ("12 \\text{ ways}", "12 \\text{ methods}", "two nouns count as two units"),
    ("12", "110_3", "a number in another base is another answer"),
    ("3", "\\text{three}", "number words are words"),
    ("-2<x<2", "x^2<4", "only linear inequalities are solved"),
    ("6", "\\gcd(12,18)", "math-verify works it out while parsing, so that nothing shows that it read the whole text"),
)


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fields: dict[str, Any]


def rows(file: Path) -> Iterator[Row]:
    """The rows of a JSONL file, numbered from 1 by line."""
    with _open(file) as stream:
        for number, line in enumerate(_lines(stream, file), 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except ValueError as error:
                raise ConciseError(f"line {number} of {file} is not JSON ({error}); mend or remove it") from error
            if not isinstance(fields, dict):
                raise ConciseError(f"line {number} of {file} is not a JSON object; each line has to be one row")
            yield Row(number, fields)


def _lines(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    """The lines of a binary stream, which end at line feeds only."""
    try:
        yield from stream
    except (EOFError, OSError, zlib.error) as error:
        raise ConciseError(f"cannot read {file} to its end ({error}); copy or pack it again") from error


def _open(file: Path) -> BinaryIO:
    try:
        with file.open("rb") as probe:
            packed = probe.read(2) == b"\x1f\x8b"
        return gzip.open(file, "rb") if packed else file.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def run_grade(
    file: Path,
    *,
    gold_field: str = "gold",
    response_field: str = "response",
    config: GraderConfig | None = None,
    out: Path | None = None,
    emit: Callable[[str], object] | None = None,
) -> dict[str, Any]:
    """Grade every row. Graded rows go to `out` (gzipped where its name ends in .gz) or, line by line, to `emit`.

    A row may carry `think_open` (the prompt ended in an open <think>) and `equivalent` (a label: agreement with it is
    counted). The summary: rows, counts by outcome, accuracy, agreement, seconds, grader."""
    config = config or GraderConfig()
    counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    labelled = agreed = 0
    disagreements: list[dict[str, Any]] = []
    began = time.monotonic()
    with _Sink(out, emit) as sink:
        for row, timed in _graded(file, gold_field, response_field, config):
            verdict = timed.verdict
            counts[verdict.outcome] += 1
            graded = _graded_fields(row, timed)
            sink.write(graded)
            if isinstance(row.fields.get("equivalent"), bool):
                labelled += 1
                if row.fields["equivalent"] == verdict.correct:
                    agreed += 1
                elif len(disagreements) < SHOWN:
                    disagreements.append(_short(row, gold_field, graded) | {"equivalent": row.fields["equivalent"]})
    total = sum(counts.values())
    summary: dict[str, Any] = {
        "file": str(file),
        "out": str(out) if out else None,
        "rows": total,
        "counts": dict(counts),
        "accuracy": counts["match"] / total if total else None,
        "seconds": round(time.monotonic() - began, 3),
        "grader": answers.identity(config),
    }
    if labelled:
        summary["agreement"] = {
            "right": agreed,
            "of": labelled,
            "share": agreed / labelled,
            "disagreements": disagreements,
        }
    return summary


def audit(
    file: Path,
    *,
    gold_field: str = "gold",
    response_field: str = "response",
    config: GraderConfig | None = None,
) -> dict[str, Any]:
    """Where a second, independent check disagrees with the grader: rejected although the strings or numbers agree,
    or accepted although the numbers differ."""
    config = config or GraderConfig()
    counts: Counter[str] = Counter(agree=0, disagree=0, no_opinion=0)
    found: list[dict[str, Any]] = []
    for row, timed in _graded(file, gold_field, response_field, config):
        opinion = second_opinion(timed.verdict.extracted, row.fields[gold_field])
        if opinion is None:
            counts["no_opinion"] += 1
        elif opinion == timed.verdict.correct:
            counts["agree"] += 1
        else:
            counts["disagree"] += 1
            graded = _graded_fields(row, timed)
            found.append(_short(row, gold_field, graded) | {"second": "match" if opinion else "mismatch"})
    return {
        "file": str(file),
        "rows": sum(counts.values()),
        "counts": dict(counts),
        "disagreements": found,
        "grader": answers.identity(config),
    }


def selftest(config: GraderConfig | None = None) -> dict[str, Any]:
    """The labelled cases that ship with the package, right or wrong by kind, and the known limits as they are today."""
    config = config or GraderConfig()
    cases = shipped_cases()
    with GraderPool(config) as pool:
        verdicts = pool.grade([GradeItem(c["response"], c["gold"]) for c in cases])
    kinds: dict[str, dict[str, int]] = {}
    wrong = []
    for case, verdict in zip(cases, verdicts, strict=True):
        kind = kinds.setdefault(case["id"].split("-")[1], {"right": 0, "of": 0})
        kind["of"] += 1
        if verdict.correct == case["equivalent"]:
            kind["right"] += 1
        else:
            wrong.append(
                {k: case[k] for k in ("id", "gold", "equivalent", "why")}
                | {"outcome": verdict.outcome, "rule": verdict.rule}
            )
    limits = []
    for gold, answer, why in KNOWN_LIMITS:
        verdict = answers.judge(answer, gold)
        limits.append({"gold": gold, "answer": answer, "outcome": verdict.outcome, "rule": verdict.rule, "why": why})
    return {
        "cases": len(cases),
        "right": len(cases) - len(wrong),
        "accepted_wrongly": sum(not w["equivalent"] for w in wrong),
        "wrong": wrong,
        "kinds": kinds,
        "known_limits": limits,
        "grader": answers.identity(config),
    }


def shipped_cases() -> list[dict[str, Any]]:
    """The labelled cases in the package: id, gold, response, equivalent, why, source."""
    text = resources.files("concisecli.grader").joinpath("grading_cases.jsonl").read_bytes()
    return [json.loads(line) for line in text.split(b"\n") if line.strip()]


def _graded(file: Path, gold_field: str, response_field: str, config: GraderConfig) -> Iterator[tuple[Row, Timed]]:
    progress = _Progress(file)
    with GraderPool(config) as pool:
        batch: list[Row] = []
        for row in rows(file):
            _require(row, file, gold_field, response_field)
            batch.append(row)
            if len(batch) >= BATCH:
                yield from zip(batch, _grade_batch(pool, batch, gold_field, response_field), strict=True)
                progress.show(sum(pool.counts.values()), pool.counts)
                batch = []
        if batch:
            yield from zip(batch, _grade_batch(pool, batch, gold_field, response_field), strict=True)


def _grade_batch(pool: GraderPool, batch: list[Row], gold_field: str, response_field: str) -> list[Timed]:
    return pool.grade_timed(
        [GradeItem(r.fields[response_field], r.fields[gold_field], r.fields.get("think_open") is True) for r in batch]
    )


def _require(row: Row, file: Path, gold_field: str, response_field: str) -> None:
    for name, flag in ((gold_field, "--gold-field"), (response_field, "--response-field")):
        if name not in row.fields:
            there = ", ".join(sorted(row.fields)) or "none"
            raise UsageError(
                f"line {row.number} of {file} has no field {name!r}; its fields are {there}; name yours with {flag}"
            )
    response = row.fields[response_field]
    if response is not None and not isinstance(response, str):
        raise UsageError(
            f"line {row.number} of {file}: field {response_field!r} holds {type(response).__name__}, not a text; "
            "write one response a row"
        )


def _graded_fields(row: Row, timed: Timed) -> dict[str, Any]:
    verdict = timed.verdict
    return row.fields | {
        "outcome": verdict.outcome,
        "correct": verdict.correct,
        "extracted": verdict.extracted,
        "rule": verdict.rule,
        "seconds": round(timed.seconds, 6),
    }


def _short(row: Row, gold_field: str, graded: dict[str, Any]) -> dict[str, Any]:
    """A row as a summary shows it: long texts cut."""
    shown = {"line": row.number, "id": row.fields.get("id"), "gold": row.fields[gold_field]}
    shown |= {k: graded[k] for k in ("extracted", "outcome", "rule")}
    return {k: v[:200] if isinstance(v, str) else v for k, v in shown.items()}


def dump_line(fields: dict[str, Any]) -> str:
    """One row as one line; characters that some readers take for the end of a line are escaped."""
    line = json.dumps(fields, ensure_ascii=False)
    if any(c in line for c in "\u2028\u2029\x85") or any("\ud800" <= c <= "\udfff" for c in line):
        line = json.dumps(fields)
    return line


class _Sink:
    """Where graded rows go. A file appears whole or not at all."""

    def __init__(self, out: Path | None, emit: Callable[[str], object] | None) -> None:
        self.out, self.emit = out, emit
        self.stream: Any = None
        self.part = out.with_name(f".{out.name}.{os.getpid()}.part") if out else None

    def __enter__(self) -> _Sink:
        if self.out and self.part:
            if self.out.is_dir():
                raise UsageError(f"cannot write {self.out}: it is a folder; name a file in it")
            try:
                self.stream = gzip.open(self.part, "wb") if self.out.suffix == ".gz" else self.part.open("wb")
            except OSError as error:
                raise UsageError(f"cannot write {self.out}: {error.strerror or error}") from error
        return self

    def write(self, fields: dict[str, Any]) -> None:
        if self.stream is not None:
            self.stream.write(dump_line(fields).encode() + b"\n")
        elif self.emit is not None:
            self.emit(dump_line(fields))

    def __exit__(self, kind: object, *_: object) -> None:
        if self.stream is None or self.part is None or self.out is None:
            return
        self.stream.close()
        if kind is None:
            os.replace(self.part, self.out)
        else:
            self.part.unlink(missing_ok=True)


class _Progress:
    """Rows, rate and time left on stderr: every second on a terminal, every ten seconds elsewhere."""

    def __init__(self, file: Path) -> None:
        self.total = 0
        self.file = file
        self.began = self.last = time.monotonic()
        self.tty = sys.stderr.isatty()

    def show(self, done: int, counts: Counter[str]) -> None:
        now = time.monotonic()
        if now - self.last < (1.0 if self.tty else 10.0):
            return
        if not self.total:
            with _open(self.file) as stream:
                self.total = sum(1 for line in stream if line.strip())
        self.last = now
        rate = done / max(now - self.began, 1e-9)
        left = max(self.total - done, 0) / max(rate, 1e-9)
        troubles = f"{counts['timeout']} timeouts, {counts['error']} errors"
        line = f"{done}/{self.total} rows · {rate:,.0f} rows/s · {left:,.0f} s left · {troubles}"
        print(f"\r{line}\x1b[K" if self.tty else line, end="" if self.tty else "\n", file=sys.stderr, flush=True)
        if self.tty and done >= self.total:
            print(file=sys.stderr)
