"""What happens to one row by itself: from a source's fields to a cleaned, selected, decontaminated row, or a reason.

Pure apart from its caches, so that rows can be worked on in any process and in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from concisecli.building import canonical, cleaning, columns, filters
from concisecli.building.agreement import Reading, settle
from concisecli.building.cleaning import Drop
from concisecli.building.columns import ColumnMap, Row
from concisecli.building.contamination import EvalProblem, Hit, SuiteIndex
from concisecli.building.dedup import quantity_mark
from concisecli.config import DataConfig, FileSource, HubSource

CACHED_HITS = 50_000


@dataclass(frozen=True, slots=True)
class Lent:
    """What a reference source knows about a problem: by its key, for rows of other sources that lack it."""

    solution: str | None = None
    answer: str | None = None
    level: float | None = None
    difficulty: float | None = None
    pass_rate: float | None = None
    subject: str | None = None
    source: str = ""


Lender = Callable[[bytes], Lent | None]  # what is lent to the problem of a key


@dataclass(frozen=True, slots=True)
class Worked:
    """A row after its own work: its key, what its solution says, and why it goes if it does."""

    row: Row
    key: bytes
    response: str | None = None
    reading: Reading | None = None
    drop: Drop | None = None
    hit: Hit | None = None
    mark: bytes = b""  # of the quantities, for the search of near repeats


def mapped(
    name: str, source: FileSource | HubSource, columns_: ColumnMap, place: str, fields: Mapping[str, Any]
) -> tuple[Row, str | None]:
    """A row under our names, and the response of an example."""
    row = columns.map_row(name, place, fields, columns_)
    if source.rows != "examples":
        return row, None
    response = columns.response_text(fields, columns_)
    return replace(row, solution=response), response


def digest(row: Row, response: str | None) -> bytes:
    """16 bytes that are equal for rows which say the same, wherever they stand."""
    said = (row.problem, row.answer, row.solution, response, row.answers, row.level, row.difficulty, row.pass_rate)
    text = repr((*said, row.subject, row.choices))
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).digest()


class RowWork:
    """The work on the rows of every source of one recipe."""

    def __init__(self, config: DataConfig, suites: Sequence[EvalProblem], lent: Lender) -> None:
        self.config = config
        self.lent = lent
        rules = config.decontaminate
        self.index = SuiteIndex(suites, rules.containment) if rules and suites else None
        self.hits: dict[bytes, Hit | None] = {}
        self.counter = filters.token_counter(config.select)

    def work(self, source: FileSource | HubSource, row: Row, response: str | None) -> Worked:
        """All steps, in order, until one of them drops the row. `response` is that of an example."""
        if row.problem is None or not row.problem.strip():
            return Worked(row, b"", drop=Drop("no-problem"))
        cleaned = cleaning.clean(row, self.config.cleaning)
        if isinstance(cleaned, Drop):
            return Worked(row, b"", drop=cleaned)
        key = canonical.key(cleaned.problem or "")
        row = self._lend(cleaned, key)
        if source.rows == "examples":
            response = cleaning.mend(response, self.config.cleaning.control) if response else None
            if not response:
                return Worked(row, key, drop=Drop("no-response"))
        fault = cleaning.refuse(row)
        if fault and self.config.cleaning.on_fault == "flag":
            row, fault = replace(row, flags=(*row.flags, fault.reason)), None
        steps: tuple[Callable[[], Drop | None], ...] = (
            lambda: fault,
            lambda: filters.refuse(row, source.select, filters.token_counter(source.select)),
            lambda: filters.refuse(row, self.config.select, self.counter) if row.answer else None,
        )
        for step in steps:
            drop = step()
            if drop:
                return Worked(row, key, response, drop=drop)
        return self._settle(row, key, response)

    def _settle(self, row: Row, key: bytes, response: str | None) -> Worked:
        reading = None
        if self.config.agreement is not None and (response is None or row.answer is not None):
            settled = settle(row, self.config.agreement)
            if isinstance(settled, Drop):
                return self._unsettled(row, key, response, settled)
            had_answer = row.answer is not None
            row, reading = settled
            drop = None if had_answer else filters.refuse(row, self.config.select, self.counter)
            if drop:
                return Worked(row, key, response, drop=drop)
        elif response is None and row.answer is None:
            return Worked(row, key, response, drop=Drop("no-answer"))
        hit = self._contamination(key, row.problem or "")
        rules = self.config.decontaminate
        if hit and rules and rules.action == "drop":
            drop = Drop("contaminated", f"{hit.suite} {hit.name}: {hit.rule}, {hit.share:.2f}")
            return Worked(row, key, response, reading, drop, hit)
        return Worked(row, key, response, reading, None, hit, _mark(row))

    def _unsettled(self, row: Row, key: bytes, response: str | None, drop: Drop) -> Worked:
        """A row whose answer could not be read; with `check: flag` an answer that was given stands."""
        rules = self.config.agreement
        if rules is not None and rules.check == "flag" and row.answer is not None:
            return Worked(replace(row, flags=(*row.flags, drop.reason)), key, response, mark=_mark(row))
        return Worked(row, key, response, drop=drop)

    def _lend(self, row: Row, key: bytes) -> Row:
        """The row with what it lacks, where a reference source has it."""
        lent = self.lent(key)
        if lent is None:
            return row
        named = ("level", "difficulty", "pass_rate", "subject")
        missing: dict[str, Any] = {n: getattr(lent, n) for n in named if getattr(row, n) is None}
        join = self.config.agreement is not None and self.config.agreement.without_solution == "join"
        if join and row.solution is None and lent.solution is not None and lent.source != row.source:
            missing |= {"solution": lent.solution, "flags": (*row.flags, f"solution from {lent.source}")}
        return replace(row, **missing)

    def _contamination(self, key: bytes, problem: str) -> Hit | None:
        if self.index is None:
            return None
        if key not in self.hits:
            if len(self.hits) >= CACHED_HITS:
                self.hits.clear()
            self.hits[key] = self.index.hit(problem)
        return self.hits[key]


def _mark(row: Row) -> bytes:
    return quantity_mark(row.problem or "")
