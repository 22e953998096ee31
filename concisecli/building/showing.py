"""What `data show` shows of an artifact: rows, dropped rows by reason, and the tokens that a model will see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from concisecli.artifacts import example_of, iter_jsonl, problem_of, read_parquet
from concisecli.building import tables
from concisecli.config import PromptConfig
from concisecli.records import ConciseError, UsageError

DROPPED = "dropped.jsonl.zst"
TABLES = ("problems.parquet", "examples.parquet")


@dataclass(frozen=True, slots=True)
class ShownToken:
    """One token of a row: what it says, its id, and whether it carries loss."""

    text: str
    id: int
    loss: bool


def files_of(artifact: Path) -> list[Path]:
    """The tables of an artifact: of a stage's folder, or the file itself."""
    if artifact.is_file():
        return [artifact]
    if not artifact.exists():
        raise UsageError(f"there is no {artifact}; name the folder of a data stage or a file")
    found = [artifact / name for name in TABLES if (artifact / name).exists()]
    if not found:
        raise UsageError(f"{artifact} holds neither {' nor '.join(TABLES)}; name the folder of a data stage or a file")
    return found


def rows(artifact: Path, *, limit: int = 10, skip: int = 0, containing: str = "") -> list[dict[str, Any]]:
    """Rows of the artifact's tables as they are stored; with `containing`, those that hold a text."""
    found = (row for path in files_of(artifact) for row in _stored(path) if containing in str(row))
    return list(islice(found, skip, skip + limit))


def _stored(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return iter_jsonl(path)
    if path.suffix == ".zst":
        return iter(tables.read_dropped(path))
    return iter(read_parquet(path))


def dropped_counts(artifact: Path) -> dict[str, int]:
    """How many rows went for each reason, most frequent first."""
    counts = Counter(row["reason"] for row in tables.read_dropped(_dropped_file(artifact)))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def dropped(artifact: Path, reason: str | None = None, *, limit: int = 10) -> list[dict[str, Any]]:
    """Dropped rows, of one reason or of all: source, place, reason, detail, row."""
    found = (row for row in tables.read_dropped(_dropped_file(artifact)) if reason in (None, row["reason"]))
    return list(islice(found, limit))


def _dropped_file(artifact: Path) -> Path:
    path = artifact / DROPPED if artifact.is_dir() else artifact
    if path.exists():
        return path
    if not artifact.exists():
        raise ConciseError(f"there is no {artifact}; name the folder of a data stage or a file")
    if not any((artifact / name).exists() for name in TABLES):
        raise ConciseError(f"{artifact} holds no finished build, so no list of dropped rows yet; run its stage again")
    raise ConciseError(f"{path} does not exist; a synthetic source drops no rows")


def tokens(row: dict[str, Any], tokenizer: Any, prompt: PromptConfig) -> list[ShownToken]:
    """The row as the model will see it: a problem's prompt, or an example with its loss mask, token by token."""
    from concisecli.prompts import example_ids, prompt_ids

    if "response" in row:
        ids, mask = example_ids(tokenizer, example_of(row, "row"), prompt)
    elif "prompt" in row:
        ids = prompt_ids(tokenizer, problem_of(row, "row").prompt, prompt)
        mask = [False] * len(ids)
    else:
        raise ConciseError("the row has neither a prompt nor a response; show a problems or examples table")
    return [ShownToken(tokenizer.decode([i]), i, loss) for i, loss in zip(ids, mask, strict=True)]


def marked(shown: list[ShownToken]) -> str:
    """One line of tokens, those that carry loss in brackets."""
    return "".join(f"[{t.text}]" if t.loss else t.text for t in shown)
