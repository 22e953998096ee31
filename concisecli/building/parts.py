"""Work through a source in parts of some thousand rows. A finished part is a pair of files that a rerun takes as they
are; the second of them is renamed into place last.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

from concisecli.artifacts import atomic_write, read_parquet, write_jsonl, write_parquet
from concisecli.building import sources
from concisecli.building.agreement import decided, questions
from concisecli.building.cleaning import Drop
from concisecli.building.columns import PEEK_ROWS, ColumnMap, Row, column_map
from concisecli.building.contamination import Hit
from concisecli.building.ledger import Ledger
from concisecli.building.rowwork import RowWork, Worked, digest, mapped
from concisecli.config import AgreementConfig, DataConfig, FileSource, HubSource
from concisecli.monitor import progress
from concisecli.records import ConciseError, Verdict

ASKED_AT_ONCE = 256
JudgeMany = Callable[[Sequence[tuple[str, str]]], list[Verdict]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that stands by itself; whether it stands beside the others is decided later."""

    row: Row
    key: bytes
    response: str | None
    verified: bool
    mark: bytes = b""  # of the problem's quantities, for the search of near repeats

    @property
    def at(self) -> str:
        return f"{self.row.source} {self.row.place}"


def _said(item: Kept) -> bytes:
    """16 bytes of the answer and response that a problem was met with."""
    said = f"{item.row.answer}\x1f{item.response or ''}"
    return hashlib.blake2b(said.encode("utf-8", "backslashreplace"), digest_size=16).digest()


def _repeat(ledger: Ledger, item: Kept) -> Drop | None:
    """Why a row goes at once: a copy with the same answer was met. A verified copy stands beside one that is not."""
    met = ledger.met(item.key, _said(item))
    if met is None or (item.verified and not met.verified):
        return None
    return Drop("duplicate", f"of {met.place}" + (", which has a verified solution" if met.verified else ""))


@dataclass(slots=True)
class Tally:
    """What the parts of one source came to."""

    read: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    columns: dict[str, str] = field(default_factory=dict)
    flags: Counter[str] = field(default_factory=Counter)
    overlaps: Counter[str] = field(default_factory=Counter)  # rows, by the suite that they hold a problem of
    held: dict[str, set[str]] = field(default_factory=dict)  # suite -> names of its problems that rows hold


def work_through(
    name: str,
    source: FileSource | HubSource,
    config: DataConfig,
    worker: RowWork,
    judge: JudgeMany,
    ledger: Ledger | None,
    folder: Path,
) -> tuple[list[Path], Tally]:
    """The part files of the kept rows of a source, in order, and what was counted."""
    meter = sources.Meter()
    raw = sources.read(name, source, meter=meter)
    first = list(islice(raw, PEEK_ROWS))
    peeked = [r.fields for r in first if isinstance(r, sources.RawRow)]
    mapping = column_map(name, source.columns, peeked, source.rows)
    rows = progress(_chain(first, raw), sources.size(source), what=f"data  {name}", share=meter.share)
    tally = Tally()
    paths = []
    number = 0
    while chunk := list(islice(rows, config.shard_rows)):
        path = folder / f"{name}-{config.shard_rows}-{number:05d}.parquet"
        done = _finished(path)
        if done is None:
            _write(path, _part(name, source, config, worker, judge, ledger, mapping, chunk), len(chunk), mapping.used)
            done = _finished(path) or {}
        elif ledger is not None:
            _meet_again(ledger, path, done)
        _count(tally, done)
        paths.append(path)
        number += 1
    return paths, tally


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest


@dataclass(slots=True)
class Part:
    """What became of the rows of one part. Dropped rows are kept by position, so that their order does not tell how a
    source was cut into parts; `outcomes` is the fate of the next row that says just what one of these says."""

    kept: list[Kept] = field(default_factory=list)
    dropped: dict[int, dict[str, Any]] = field(default_factory=dict)
    overlaps: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[bytes, Drop] = field(default_factory=dict)


def _part(
    name: str,
    source: FileSource | HubSource,
    config: DataConfig,
    worker: RowWork,
    judge: JudgeMany,
    ledger: Ledger | None,
    mapping: ColumnMap,
    chunk: Sequence[sources.RawRow | sources.BadRow],
) -> Part:
    part = Part()
    asking = Asking(judge)
    worked: dict[int, Worked] = {}
    first: dict[bytes, int] = {}  # what a row says -> where in the part it is said first
    copies: dict[int, tuple[bytes, Row, str | None, Drop | None]] = {}
    for at, raw in enumerate(chunk):
        if isinstance(raw, sources.BadRow):
            if config.on_bad_row == "stop":
                where = source.path or name
                raise ConciseError(f"{where}: {raw.place} is {raw.reason}; mend it, or set on_bad_row: drop")
            part.dropped[at] = bad_row(name, raw)
            continue
        row, response = mapped(name, source, mapping, raw.place, raw.fields)
        said, fate = digest(row, response), None
        if ledger is not None and (said in first or (fate := ledger.fate(said))):
            copies[at] = said, row, response, fate
            continue
        first[said] = at
        one = worked[at] = worker.work(source, row, response)
        if one.hit:
            part.overlaps.append(overlap_record(one))
        if config.agreement is not None and one.drop is None and one.row.answer is not None:
            asking.add(one)
    items = _judged(worked, config.agreement, asking)
    for said, at in first.items():
        _settle(part, at, said, worked[at], items[at], ledger)
    for at, (said, row, response, fate) in copies.items():
        part.dropped[at] = drop_record(row, fate or part.outcomes[said], response)
    if ledger is not None:
        ledger.add_fates(part.outcomes)
    return part


def _settle(part: Part, at: int, said: bytes, worked: Worked, item: Kept | Drop, ledger: Ledger | None) -> None:
    """Put one row where it belongs, and note the fate of its copies."""
    if isinstance(item, Drop):
        part.dropped[at] = drop_record(worked.row, item, worked.response)
        part.outcomes[said] = item
        return
    repeat = _repeat(ledger, item) if ledger is not None else None
    if repeat:
        part.dropped[at] = drop_record(item.row, repeat, item.response)
        part.outcomes[said] = repeat
        return
    part.kept.append(item)
    if ledger is not None:
        ledger.meet(item.key, _said(item), item.at, item.verified)
        part.outcomes[said] = _repeat(ledger, replace(item, verified=False)) or Drop("duplicate", f"of {item.at}")


class Asking:
    """Questions to the grader, put to it some hundred rows at a time while the next rows are worked on."""

    def __init__(self, judge: JudgeMany) -> None:
        self.judge, self.waiting = judge, list[Worked]()
        self.thread = ThreadPoolExecutor(1)
        self.asked: set[tuple[str, str]] = set()
        self.answers: list[Future[list[tuple[tuple[str, str], Verdict]]]] = []

    def add(self, worked: Worked) -> None:
        self.waiting.append(worked)
        if len(self.waiting) >= ASKED_AT_ONCE:
            self._ask()

    def _ask(self) -> None:
        new = [q for q in questions([(w.row, w.reading) for w in self.waiting]) if q not in self.asked]
        self.asked.update(new)
        self.answers.append(self.thread.submit(lambda: list(zip(new, self.judge(new), strict=True)) if new else []))
        self.waiting = []

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        self._ask()
        with self.thread:
            return dict(pair for future in self.answers for pair in future.result())


def _judged(worked: Mapping[int, Worked], config: AgreementConfig | None, asking: Asking) -> dict[int, Kept | Drop]:
    """The rows whose answers stand, verified ones marked, and why the others go."""
    results: dict[int, Row | Drop] = {at: w.drop or w.row for at, w in worked.items()}
    verdicts = asking.verdicts()
    if config is not None:
        places = [at for at, w in worked.items() if w.drop is None and w.row.answer is not None]
        pairs = [(worked[at].row, worked[at].reading) for at in places]
        results |= dict(zip(places, decided(pairs, config, verdicts), strict=True))
    return {
        at: result
        if isinstance(result, Drop)
        else Kept(result, worked[at].key, worked[at].response, "verified" in result.flags, worked[at].mark)
        for at, result in results.items()
    }


# --- records ----------------------------------------------------------------------------------------------------------


def bad_row(name: str, raw: sources.BadRow) -> dict[str, Any]:
    return {"source": name, "place": raw.place, "reason": "bad-row", "detail": raw.reason, "row": {"text": raw.text}}


def drop_record(row: Row, drop: Drop, response: str | None = None) -> dict[str, Any]:
    """One line of the file of dropped rows."""
    texts = {"problem": row.problem, "answer": row.answer, "solution": row.solution, "id": row.foreign_id}
    if response is not None:
        texts |= {"response": response, "solution": None}
    return {
        "source": row.source,
        "place": row.place,
        "reason": drop.reason,
        "detail": drop.detail,
        "row": {k: _storable(v) for k, v in texts.items() if v is not None},
    }


def _storable(text: str) -> str:
    """Text that can be written as UTF-8: a lone surrogate becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def overlap_record(worked: Worked) -> dict[str, Any]:
    hit: Hit = worked.hit  # type: ignore[assignment]
    return {"place": worked.row.place, "suite": hit.suite, "name": hit.name, "rule": hit.rule, "share": hit.share,
            "problem": worked.row.problem}  # fmt: skip


# --- files ------------------------------------------------------------------------------------------------------------


def part_schema() -> Any:
    import pyarrow as pa

    types = {"answers": pa.list_(pa.string()), "choices": pa.list_(pa.string()), "flags": pa.list_(pa.string())}
    types |= {"level": pa.float64(), "difficulty": pa.float64(), "pass_rate": pa.float64()}
    names = [f.name for f in fields(Row)]
    own = [(name, types.get(name, pa.string())) for name in names]
    return pa.schema(
        [*own, ("key", pa.binary()), ("response", pa.string()), ("verified", pa.bool_()), ("mark", pa.binary())]
    )


def _write(path: Path, part: Part, read: int, used: dict[str, str]) -> None:
    own = ("key", "response", "verified", "mark")
    rows = [asdict(k.row) | {name: getattr(k, name) for name in own} for k in part.kept]
    dropped = [part.dropped[at] for at in sorted(part.dropped)]
    write_jsonl(path.with_suffix(".dropped.jsonl"), dropped)
    write_parquet(path, rows, part_schema())
    counts = {
        "read": read,
        "kept": len(rows),
        "columns": used,
        "overlaps": part.overlaps,
        "reasons": Counter(d["reason"] for d in dropped),
        "flags": Counter(flag for k in part.kept for flag in k.row.flags),
        "outcomes": {said.hex(): [drop.reason, drop.detail] for said, drop in part.outcomes.items()},
    }
    with atomic_write(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(counts))


def _meet_again(ledger: Ledger, path: Path, counts: Mapping[str, Any]) -> None:
    """What a finished part of an earlier try had met."""
    for item in read_part(path):
        ledger.meet(item.key, _said(item), item.at, item.verified)
    ledger.add_fates({bytes.fromhex(said): Drop(*fate) for said, fate in counts["outcomes"].items()})


def _finished(path: Path) -> dict[str, Any] | None:
    """The counts of a part that is whole; they are written after everything else of it."""
    counts = path.with_suffix(".json")
    return json.loads(counts.read_text()) if counts.exists() and path.exists() else None


def read_part(path: Path) -> list[Kept]:
    kept = []
    for row in read_parquet(path):
        key, response, verified, mark = (row.pop(name) for name in ("key", "response", "verified", "mark"))
        for name in ("answers", "choices", "flags"):
            row[name] = tuple(row[name] or ())
        kept.append(Kept(Row(**row), key, response, verified, mark))
    return kept


def read_parts(paths: Iterable[Path]) -> Iterator[Kept]:
    for path in paths:
        yield from read_part(path)


def _count(tally: Tally, counts: Mapping[str, Any]) -> None:
    tally.read += counts["read"]
    tally.kept += counts["kept"]
    tally.reasons.update(counts["reasons"])
    tally.flags.update(counts["flags"])
    for name, column in counts["columns"].items():
        tally.columns.setdefault(name, column)
    for hit in counts["overlaps"]:
        tally.overlaps[hit["suite"]] += 1
        tally.held.setdefault(hit["suite"], set()).add(hit["name"])


def overlaps_of(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The rows of some parts that hold a problem of an evaluation suite, with the problem."""
    for path in paths:
        yield from (_finished(path) or {}).get("overlaps", ())
