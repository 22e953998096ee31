"""Write a parquet or JSON Lines file of any number of rows, some thousand of them in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zstandard

from concisecli.artifacts import atomic_write, canonical_json, json_line
from concisecli.building import sources
from concisecli.config import FileSource
from concisecli.records import Example, Problem

BUFFERED = 4096


class TableWriter:
    """A file that appears whole or not at all. `schema` None: that of the first rows. Without rows there is a file only
    with `even_empty`, which needs a schema."""

    def __init__(self, path: Path, schema: Any, *, even_empty: bool = False) -> None:
        self.path, self.schema, self.rows, self.even_empty = path, schema, 0, even_empty
        self.buffer: list[dict[str, Any]] = []
        self.writer: Any = None
        self.stack = ExitStack()

    def __enter__(self) -> TableWriter:
        return self

    def add(self, row: dict[str, Any]) -> None:
        self.buffer.append(row)
        self.rows += 1
        if len(self.buffer) >= BUFFERED:
            self._flush()

    def add_problem(self, p: Problem) -> None:
        extra = canonical_json(dict(p.extra))
        self.add(
            {"id": p.id, "prompt": p.prompt, "answer": p.answer, "source": p.source, "level": p.level, "extra": extra}
        )

    def add_example(self, e: Example) -> None:
        spans = None if e.loss_spans is None else [list(span) for span in e.loss_spans]
        self.add({"problem_id": e.problem_id, "prompt": e.prompt, "response": e.response, "weight": e.weight,
                  "loss_spans": spans})  # fmt: skip

    def _flush(self) -> None:
        if not self.buffer and not (self.even_empty and self.writer is None):
            return
        if self.path.suffix == ".jsonl":
            self._open_text().write("".join(map(json_line, self.buffer)))
        else:
            self._write_table()
        self.buffer = []

    def _open_text(self) -> Any:
        if self.writer is None:
            temporary = self.stack.enter_context(atomic_write(self.path))
            self.writer = self.stack.enter_context(temporary.open("w", encoding="utf-8", newline="\n"))
        return self.writer

    def _write_table(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(self.buffer, schema=self.schema)
        if self.writer is None:
            self.schema = table.schema
            temporary = self.stack.enter_context(atomic_write(self.path))
            self.writer = self.stack.enter_context(pq.ParquetWriter(temporary, self.schema, compression="zstd"))
        self.writer.write_table(table)

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        if kind is None:
            self._flush()
        self.stack.__exit__(kind, error, at)


class DroppedWriter:
    """dropped.jsonl.zst: one line a dropped row, written as they come."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0

    def __enter__(self) -> DroppedWriter:
        self.stack = ExitStack()
        temporary = self.stack.enter_context(atomic_write(self.path))
        file = self.stack.enter_context(temporary.open("wb"))
        self.stream = self.stack.enter_context(zstandard.ZstdCompressor(level=6).stream_writer(file))
        return self

    def add(self, record: dict[str, Any]) -> None:
        self.stream.write(json_line(record).encode())
        self.rows += 1

    def __exit__(self, *error: Any) -> None:
        self.stack.__exit__(*error)


def read_dropped(path: Path) -> Iterable[dict[str, Any]]:
    """The records of dropped.jsonl.zst."""
    for row in sources.read("dropped", FileSource(path=path, format="jsonl"), may_be_empty=True):
        if isinstance(row, sources.RawRow):
            yield row.fields
