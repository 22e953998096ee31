"""Read the rows of a source, whatever its file format: streamed, with the place of every row, and bad rows named.

A row is a dict as the file has it; `columns` gives it our names. Only a line feed ends a JSONL record.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from concisecli.building import hubsets
from concisecli.config import FileSource, HubSource
from concisecli.records import ConciseError

MAX_ROW_BYTES = 16 << 20  # a longer row is a broken file, not a problem
BATCH_ROWS = 1024
BOM = b"\xef\xbb\xbf"
FORMATS = {".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".ndjson": "jsonl"}


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as the source has it; `place` is its line, its position in an array or table, or its file's name."""

    place: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BadRow:
    """A piece of the source that is no row, and why."""

    place: str
    reason: str
    text: str = ""


Rows = Iterator[RawRow | BadRow]


class Meter:
    """How much of a text file has been read, packed bytes counted as they lie on the disk."""

    def __init__(self) -> None:
        self.file: BinaryIO | None = None
        self.size = 0

    def measure(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def share(self) -> float:
        """From 0 to 1; 0 where nothing is known."""
        return self.file.tell() / self.size if self.file and self.size and not self.file.closed else 0.0


def read(name: str, source: FileSource | HubSource, *, may_be_empty: bool = False, meter: Meter | None = None) -> Rows:
    """Every row of the source in its own order; `meter` is told how far its file is read.

    Raises ConciseError where the file is missing, empty, cut, or of another format than it says."""
    path = source.path
    if path is None:
        return _hub_rows(name, cast(HubSource, source))
    check_exists(name, source)
    if isinstance(source, HubSource) and hubsets.is_copy(path):
        return _hub_rows(name, source)
    rows = _file_rows(name, path, source.format, meter)
    return rows if may_be_empty else _not_empty(name, path, rows)


def check_exists(name: str, source: FileSource | HubSource) -> None:
    """Raises ConciseError, with what the recipe notes about the source, where its local file is missing."""
    if source.path is not None and not source.path.exists():
        what = f". {source.note}" if source.note else ""
        raise ConciseError(f"source '{name}': {source.path} does not exist; fetch it or set sources.{name}.path{what}")


def size(source: FileSource | HubSource) -> int | None:
    """How many rows `read` will give, where that is quick to know."""
    path = source.path
    if path is None or not path.exists():
        return None
    if path.is_dir():
        return sum(1 for _ in path.rglob("*.json"))
    with path.open("rb") as file:
        head = file.read(4)
        if head == b"PAR1":
            return _table_size(path)
        if head[:2] == b"\x1f\x8b" or head == b"\x28\xb5\x2f\xfd" or head.lstrip()[:1] == b"[":
            return None
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _table_size(path: Path) -> int | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    except (pa.ArrowException, OSError):
        return None  # `read` will say what is wrong


def _not_empty(name: str, path: Path, rows: Rows) -> Rows:
    first = next(rows, None)
    if first is None:
        raise ConciseError(f"source '{name}': {path} holds no rows; fetch it again or take the source out")
    yield first
    yield from rows


def _file_rows(name: str, path: Path, declared: str, meter: Meter | None) -> Rows:
    if path.is_dir():
        return _folder_rows(path)
    kind = _kind(name, path, declared)
    if kind == "parquet":
        return _parquet_rows(path)
    reader = {"json": _array_rows, "jsonl": _line_rows, "csv": _csv_rows}[kind]
    return _readable(path, reader, meter)


def _kind(name: str, path: Path, declared: str) -> str:
    """The format by the file's name, checked against how its content begins."""
    head = _head(path)
    suffix = (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).suffix.lower()
    said = declared if declared != "auto" else FORMATS.get(suffix)
    seen = _looks_like(head)
    if said is None:
        said = seen
    if said is None:
        raise ConciseError(f"source '{name}': cannot tell the format of {path}; set sources.{name}.format")
    if said in ("json", "jsonl"):
        if seen == "parquet":
            raise _wrong_format(name, path, said, seen)
        return seen if seen in ("json", "jsonl") else said
    if seen is not None and seen != said:
        raise _wrong_format(name, path, said, seen)
    if said == "parquet" and seen != "parquet" and head:
        raise _wrong_format(name, path, said, "something else")
    return said


def _wrong_format(name: str, path: Path, said: str, seen: str) -> ConciseError:
    fix = f"set sources.{name}.format: {seen}" if seen in FORMATS.values() else "fetch it again"
    return ConciseError(f"source '{name}': {path} is read as {said} but its content is {seen}; {fix}")


def _looks_like(head: bytes) -> str | None:
    text = head.removeprefix(BOM).lstrip()
    if text.startswith(b"PAR1"):
        return "parquet"
    if text.startswith(b"["):
        return "json"
    return "jsonl" if text.startswith(b"{") else None


def _head(path: Path) -> bytes:
    try:
        with _open(path) as file:
            return file.read(4096)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError, OSError) as error:
        raise _cut(path, error) from error


def _readable(path: Path, reader: Any, meter: Meter | None) -> Rows:
    """The rows of a text file, its read errors told in one line."""
    try:
        with _open(path, meter) as file:
            yield from reader(path, file)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError, OSError) as error:
        raise _cut(path, error) from error


def _cut(path: Path, error: Exception) -> ConciseError:
    return ConciseError(f"{path} cannot be read to its end ({error or type(error).__name__}); fetch it again")


def _open(path: Path, meter: Meter | None = None) -> BinaryIO:
    """The file's bytes, unpacked by what it begins with rather than by its name."""
    file = path.open("rb")
    magic = file.read(4)
    file.seek(0)
    if meter is not None:
        meter.measure(file, path.stat().st_size)
    if magic[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if magic == b"\x28\xb5\x2f\xfd":
        return cast(BinaryIO, io.BufferedReader(_Zstd(file), 1 << 20))
    return file


class _Zstd(io.RawIOBase):
    """A zstd stream that raises where it is cut; zstandard's own reader ends there without a word."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.pending, self.frame = file, b"", zstandard.ZstdDecompressor().decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.pending:
            chunk = self.frame.unused_data if self.frame.eof else b""
            chunk = chunk or self.file.read(1 << 16)
            if not chunk:
                if not self.frame.eof:
                    raise EOFError("the zstd stream ends early")
                return 0
            if self.frame.eof:
                self.frame = zstandard.ZstdDecompressor().decompressobj()
            self.pending = self.frame.decompress(chunk)
        size = min(len(buffer), len(self.pending))
        buffer[:size], self.pending = self.pending[:size], self.pending[size:]
        return size


def _line_rows(path: Path, file: BinaryIO) -> Rows:
    for number, line in _lines(file):
        place = f"line {number}"
        if line is None:
            yield BadRow(place, f"longer than {MAX_ROW_BYTES >> 20} MiB")
        elif line.strip():
            yield _parsed(place, line)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Lines by number; None for one that is too long, of which no more than the limit is ever held."""
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(BOM)
        if len(line) <= MAX_ROW_BYTES:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_ROW_BYTES)
        yield number, None


def _parsed(place: str, line: bytes) -> RawRow | BadRow:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(place, f"not valid JSON ({_short(error)})", line[:200].decode("utf-8", "replace"))
    return _row(place, fields)


def _row(place: str, fields: Any) -> RawRow | BadRow:
    if not isinstance(fields, dict):
        return BadRow(place, f"a {type(fields).__name__}, not an object with named fields", repr(fields)[:200])
    return RawRow(place, fields)


def _array_rows(path: Path, file: BinaryIO) -> Rows:
    import ijson

    if file.peek(3)[:3] == BOM if hasattr(file, "peek") else False:
        file.read(3)
    number = 0
    try:
        for number, fields in enumerate(ijson.items(file, "item", use_float=True), 1):
            yield _row(f"row {number}", fields)
    except (ijson.JSONError, UnicodeDecodeError) as error:
        message = f"{path}: row {number + 1} of the array is not valid JSON ({_short(error)}); mend or fetch it again"
        raise ConciseError(message) from error


def _csv_rows(path: Path, file: BinaryIO) -> Rows:
    csv.field_size_limit(MAX_ROW_BYTES)
    reader = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), strict=True)
    try:
        for fields in reader:
            place = f"line {reader.line_num}"
            if None in fields or None in fields.values():
                yield BadRow(place, f"not {len(reader.fieldnames or ())} fields as the header has")
            else:
                yield RawRow(place, fields)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConciseError(f"{path}: line {reader.line_num + 1} is not valid CSV ({_short(error)}); mend it") from error


def _parquet_rows(path: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(BATCH_ROWS):
                for fields in batch.to_pylist():
                    number += 1
                    yield RawRow(f"row {number}", fields)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise _cut(path, error) from error


def _folder_rows(folder: Path) -> Rows:
    for path in sorted(folder.rglob("*.json"), key=lambda p: p.relative_to(folder).as_posix()):
        place = path.relative_to(folder).as_posix()
        if path.stat().st_size > MAX_ROW_BYTES:
            yield BadRow(place, f"longer than {MAX_ROW_BYTES >> 20} MiB")
        else:
            yield _parsed(place, path.read_bytes().removeprefix(BOM))


def _hub_rows(name: str, source: HubSource) -> Rows:
    for number, fields in enumerate(hubsets.rows(name, source), 1):
        yield RawRow(f"row {number}", fields)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
