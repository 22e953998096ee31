"""What a build remembers of all its rows: kept in a file beside the parts, so that memory does not grow with the rows.

A SQLite database that lives no longer than the build. It is filled anew on every try, from finished parts too, so that
a torn one does no harm; whatever it answers is ordered by row number, never by where a row happens to lie.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from concisecli.artifacts import unwritable
from concisecli.building.cleaning import Drop
from concisecli.building.dedup import Entry
from concisecli.building.rowwork import Lent
from concisecli.records import ConciseError

CACHE_MEGABYTES = 48
BATCH = 8192  # rows decided at a time, more where one group has more

TABLES = """
create table met (key blob, said blob, place text, verified int, primary key (key, said)) without rowid;
create table fates (said blob primary key, reason text, detail text) without rowid;
create table lent (key blob primary key, fields text) without rowid;
create table rows (number integer primary key, key blob, mark blob, answer text, verified int, place text, source text,
                   example int, problem text);
create table drops (number integer primary key, reason text, detail text);
"""


@dataclass(frozen=True, slots=True)
class Met:
    """A problem with its answer that was met before: where, and whether a worked solution verified it."""

    place: str
    verified: bool


class Ledger:
    """Rows met, their fates, what is lent, and the rows among which repeats are looked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Ledger:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error
        with self._told():
            # No lock and no journal: the stage's folder has one writer, and a torn file is made anew.
            self.base = sqlite3.connect(f"file:{self.path.absolute()}?nolock=1", uri=True, isolation_level=None)
            for setting in ("journal_mode=off", "synchronous=off", f"cache_size=-{CACHE_MEGABYTES << 10}"):
                self.base.execute(f"pragma {setting}")
            self.base.executescript(TABLES)
            self.base.execute("begin")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.base.close()
        self.path.unlink(missing_ok=True)

    # --- rows met while sources are worked through --------------------------------------------------------------------

    def met(self, key: bytes, said: bytes) -> Met | None:
        """Where the problem of a key was met with the answer and response behind `said`."""
        found = self._one("select place, verified from met where key = ? and said = ?", key, said)
        return Met(found[0], bool(found[1])) if found else None

    def meet(self, key: bytes, said: bytes, place: str, verified: bool) -> None:
        """Note a row; the first with its key and answer stands."""
        self._do("insert or ignore into met values (?, ?, ?, ?)", (key, said, place, verified))

    def fate(self, said: bytes) -> Drop | None:
        """What becomes of the next row that says just what an earlier one said."""
        found = self._one("select reason, detail from fates where said = ?", said)
        return Drop(*found) if found else None

    def add_fates(self, fates: Mapping[bytes, Drop]) -> None:
        self._do(
            "insert or replace into fates values (?, ?, ?)", *((said, d.reason, d.detail) for said, d in fates.items())
        )

    # --- what reference sources lend ----------------------------------------------------------------------------------

    def lend(self, key: bytes, lent: Lent) -> None:
        """Note what a source knows about a problem; the first source that knows it stands."""
        known = {name: value for name, value in asdict(lent).items() if value is not None}
        self._do("insert or ignore into lent values (?, ?)", (key, json.dumps(known)))

    def lent(self, key: bytes) -> Lent | None:
        found = self._one("select fields from lent where key = ?", key)
        return Lent(**json.loads(found[0])) if found else None

    # --- the rows among which repeats are looked for ------------------------------------------------------------------

    def add_rows(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Rows as (number, key, mark, answer, verified, place, source, example, problem)."""
        with self._told():
            self.base.executemany("insert into rows values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def index(self, column: str) -> None:
        """Prepare `groups` by a column, once all rows are there."""
        self._do(f"create index by_{column} on rows ({column})", ())

    def groups(self, column: str) -> Iterator[tuple[list[int], list[Entry], list[str]]]:
        """Problems still kept that share a key or a mark, whole groups together, some thousand rows at a time: their
        numbers, best rank first within a group, their entries and texts."""
        left = "not example and number not in (select number from drops)"
        shared = f"select {column} from rows where {left} group by {column} having count(*) > 1"
        wanted = f"select {column}, number, answer, key, mark, verified, place, problem from rows where {left}"
        batch: list[Any] = []
        for row in self._all(f"{wanted} and {column} in ({shared}) order by {column}, verified desc, number"):
            if len(batch) >= BATCH and row[0] != batch[-1][0]:
                yield _taken(batch)
                batch = []
            batch.append(row)
        if batch:
            yield _taken(batch)

    def drop(self, drops: Mapping[int, Drop]) -> None:
        self._do("insert into drops values (?, ?, ?)", *((n, d.reason, d.detail) for n, d in drops.items()))

    def count_left(self) -> dict[str, int]:
        """How many rows of each source are still kept."""
        left = "number not in (select number from drops)"
        return dict(self._all(f"select source, count(*) from rows where {left} group by source"))

    def draw(self, quotas: Mapping[str, int] | None, limit: int, seed: int) -> None:
        """Keep as many rows of each source as its quota, or of all as the limit. A row's place in the draw is a hash of
        the seed and its id, so that neither order nor the other rows change it."""
        self.base.create_function("place_in_draw", 1, lambda name: place_in_draw(seed, name), deterministic=True)
        row_id = "lower(hex(key)) || case when example then place else '' end"
        left = "number not in (select number from drops)"
        for source, most in (quotas if quotas is not None else {"": limit}).items():
            self._do(
                f"insert into drops select number, 'not-drawn', '' from rows where {left} and ? in ('', source) "
                f"order by place_in_draw({row_id}), number limit -1 offset ?",
                (source, most),
            )

    def drops(self) -> Iterator[tuple[int, Drop]]:
        """What goes, by row number."""
        for number, reason, detail in self._all("select number, reason, detail from drops order by number"):
            yield number, Drop(reason, detail)

    # --- SQLite -------------------------------------------------------------------------------------------------------

    def _told(self) -> _Told:
        return _Told(self.path)

    def _one(self, question: str, *values: Any) -> tuple[Any, ...] | None:
        with self._told():
            found: tuple[Any, ...] | None = self.base.execute(question, values).fetchone()
        return found

    def _all(self, question: str) -> Iterator[Any]:
        with self._told():
            yield from self.base.execute(question)

    def _do(self, order: str, *rows: Sequence[Any]) -> None:
        with self._told():
            self.base.executemany(order, rows)


class _Told:
    """A full disk and the like as one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, sqlite3.OperationalError):
            raise ConciseError(f"cannot write {self.path}: {error}; make room or set another --runs folder") from error


def _taken(batch: Sequence[Any]) -> tuple[list[int], list[Entry], list[str]]:
    entries = [
        Entry(answer, key, mark, (0 if verified else 1, number), bool(verified), place)
        for _, number, answer, key, mark, verified, place, _ in batch
    ]
    return [row[1] for row in batch], entries, [row[7] for row in batch]


def place_in_draw(seed: int, row_id: str) -> bytes:
    return hashlib.sha256(f"{seed}:{row_id}".encode()).digest()
