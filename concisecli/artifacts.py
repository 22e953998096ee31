"""Files that are whole or absent: hashes, atomic writes, JSON, JSON Lines, and parquet of problems and examples.

No file written here holds a time of day, so that equal work leaves equal hashes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from concisecli.records import ConciseError, Example, Problem

# --- hashes -----------------------------------------------------------------------------------------------------------


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_path(path: Path) -> str:
    """The hash of a file's bytes, or of a folder's names and contents (parts still being written left out)."""
    if path.is_file():
        return sha256_file(path)
    if not path.is_dir():
        raise ConciseError(f"there is no {path}; was it moved or deleted?")
    return sha256_of_files({str(p.relative_to(path)): sha256_file(p) for p in files_below(path)})


def sha256_of_files(hashes: Mapping[str, str]) -> str:
    """The hash of a set of files, given each one's name and hash."""
    return sha256_text(canonical_json({name.replace(os.sep, "/"): digest for name, digest in hashes.items()}))


def files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(TEMPORARY))


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling for equal values: keys sorted, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


# --- atomic writes ----------------------------------------------------------------------------------------------------

TEMPORARY = ".partial"


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; when the block ends well it is flushed to disk and renamed into place.
    A full disk or a folder that cannot be written ends in a ConciseError that names the file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which stands in the place of `folder` once it is durable; an error leaves what was there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    yield making
    for file in making.iterdir():
        sync_file(file)
    sync_folder(making)
    if folder.exists():
        os.rename(folder, old)
    os.rename(making, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def unwritable(path: Path, error: OSError) -> Exception:
    """A ConciseError where the reason is the disk or the rights; any other error as it is."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space and run the same command again",
        errno.EDQUOT: "the disk quota is used up; free some space and run the same command again",
        errno.EROFS: "the disk is read-only; choose another folder with --runs",
        errno.EACCES: "no right to write there; choose another folder with --runs",
        errno.EPERM: "no right to write there; choose another folder with --runs",
        errno.ENOTDIR: "part of the path is a file, not a folder; choose another with --runs",
    }
    reason = reasons.get(error.errno or 0)
    if error.errno == errno.ENOENT and not path.parent.is_dir():  # where no folder can be made, as below /proc
        reason = "its folder cannot be made; choose another place"
    return ConciseError(f"cannot write {path}: {reason}") if reason else error


def copy_folder(source: Path, target: Path) -> None:
    """A flat folder copied whole or not at all, in the place of what is at `target`."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}{TEMPORARY}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
        for file in temporary.iterdir():
            sync_file(file)
        sync_folder(temporary)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise unwritable(target, error) from error


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(folder)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


# --- JSON -------------------------------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ConciseError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConciseError(f"{path} is not valid JSON ({error}); was it edited or cut off?") from error


def json_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object a line; the number of rows. `rows` may be a generator."""
    count = 0
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json_line(row))
            count += 1
    return count


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows at the end of a log; what a killed run wrote too much is taken back by `keep_jsonl`."""
    try:
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.writelines(map(json_line, rows))
    except OSError as error:
        raise unwritable(path, error) from error


def keep_jsonl(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Keep the rows of a log up to the first one that is not wanted, or that a kill cut off."""
    if not path.exists():
        return
    kept: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n") or not wanted(row := json_object(line, str(path))):
                break
            kept.append(row)
    write_jsonl(path, kept)


def iter_jsonl(path: Path, *, whole: bool = True) -> Iterator[dict[str, Any]]:
    """The rows of a JSON Lines file. Only a line feed ends a row: U+2028 and the like are part of the text.
    Raises ConciseError with file and line for what is not a JSON object. A file that is still written, or whose writer
    was killed, is not `whole`: a last line without its end is passed over."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConciseError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, 1):
            if line.strip() and (whole or line.endswith(b"\n")):
                yield json_object(line, f"{path}:{number}")


def json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConciseError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise ConciseError(f"{where}: a row is a JSON object {{...}}, not {type(row).__name__}")
    return row


# --- parquet ----------------------------------------------------------------------------------------------------------


def write_parquet(path: Path, rows: list[dict[str, Any]], schema: Any = None) -> None:
    """`rows` as one parquet file; `schema` is a pyarrow schema and is needed where `rows` may be empty."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_write(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd")


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConciseError(f"cannot read {path} as parquet: {str(error).splitlines()[0]}") from error
    return rows


def problem_schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    return pa.schema(
        [("id", text), ("prompt", text), ("answer", text), ("source", text), ("level", pa.float64()), ("extra", text)]
    )


def example_schema() -> Any:
    import pyarrow as pa

    text = pa.string()
    spans = pa.list_(pa.list_(pa.int64()))
    return pa.schema(
        [("problem_id", text), ("prompt", text), ("response", text), ("weight", pa.float64()), ("loss_spans", spans)]
    )


def write_problems(path: Path, problems: Iterable[Problem]) -> int:
    """Problems as parquet; `extra` travels as JSON text. The number of rows."""
    rows = [
        {
            "id": p.id,
            "prompt": p.prompt,
            "answer": p.answer,
            "source": p.source,
            "level": p.level,
            "extra": canonical_json(dict(p.extra)),
        }
        for p in problems
    ]
    write_parquet(path, rows, problem_schema())
    return len(rows)


def read_problems(path: Path) -> list[Problem]:
    return [problem_of(row, f"{path}: row {number}") for number, row in enumerate(read_parquet(path), 1)]


def problem_of(row: Mapping[str, Any], where: str) -> Problem:
    missing = [name for name in ("id", "prompt", "answer") if not isinstance(row.get(name), str)]
    if missing:
        raise ConciseError(f"{where}: no {', no '.join(missing)}; make the file with: concise data build")
    return Problem(
        id=row["id"],
        prompt=row["prompt"],
        answer=row["answer"],
        source=row.get("source") or "",
        level=row.get("level"),
        extra=json.loads(row.get("extra") or "{}"),
    )


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Examples as parquet. The number of rows."""
    rows = [
        {
            "problem_id": e.problem_id,
            "prompt": e.prompt,
            "response": e.response,
            "weight": e.weight,
            "loss_spans": None if e.loss_spans is None else [list(span) for span in e.loss_spans],
        }
        for e in examples
    ]
    write_parquet(path, rows, example_schema())
    return len(rows)


def read_examples(path: Path) -> list[Example]:
    return [example_of(row, f"{path}: row {number}") for number, row in enumerate(read_parquet(path), 1)]


def example_of(row: Mapping[str, Any], where: str) -> Example:
    missing = [name for name in ("prompt", "response") if not isinstance(row.get(name), str)]
    if missing:
        raise ConciseError(f"{where}: no {', no '.join(missing)}; make the file with: concise data build")
    spans = row.get("loss_spans")
    return Example(
        problem_id=row.get("problem_id") or "",
        prompt=row["prompt"],
        response=row["response"],
        weight=1.0 if row.get("weight") is None else row["weight"],
        loss_spans=None if spans is None else tuple((start, end) for start, end in spans),
    )
