"""What commands print: the line and the record of a stage, and rows of an artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from concisecli.artifacts import iter_jsonl, read_parquet
from concisecli.pipeline import Outcome
from concisecli.records import ConciseError, UsageError
from concisecli.store import MANIFEST, read_manifest

# --- stages -----------------------------------------------------------------------------------------------------------


def line_of(outcome: Outcome, width: int) -> str:
    parts = [f"{outcome.stage:<{width}}  {outcome.line}"]
    if outcome.outputs:
        parts.append(str(outcome.folder))
    return "  ".join([*parts, *values_of(outcome.metrics)])


def values_of(metrics: Mapping[str, Any]) -> list[str]:
    """The numbers among the metrics as "name value"."""
    return [
        f"{name} {number(value)}"
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]


def number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def as_record(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage,
        "kind": outcome.kind,
        "action": outcome.action,
        "reason": outcome.reason,
        "folder": str(outcome.folder) if outcome.folder else None,
        "outputs": {name: str(path) for name, path in outcome.outputs.items()},
        "metrics": dict(outcome.metrics),
    }


# --- rows -------------------------------------------------------------------------------------------------------------


def rows_of(artifact: Path, *, dropped: bool = False) -> list[dict[str, Any]]:
    """The rows of a parquet or JSONL file (.zst too), or of the first such output of a finished stage's folder."""
    if artifact.is_dir():
        artifact = readable_output(artifact, dropped)
    if not artifact.is_file():
        raise UsageError(f"there is no file {artifact}")
    if artifact.suffix == ".zst":
        from concisecli.stages.data import read_dropped

        return list(read_dropped(artifact))
    return read_parquet(artifact) if artifact.suffix == ".parquet" else list(iter_jsonl(artifact))


def readable_output(folder: Path, dropped: bool) -> Path:
    if not (folder / MANIFEST).is_file():
        raise ConciseError(f"{folder} is not the folder of a finished stage; give a parquet or JSONL file")
    outputs = read_manifest(folder / MANIFEST).outputs
    if dropped:
        if "dropped" not in outputs:
            raise ConciseError(f"{folder} holds no dropped rows; it made {', '.join(outputs)}")
        return folder / outputs["dropped"].path
    readable = [folder / o.path for o in outputs.values() if o.path.endswith((".parquet", ".jsonl"))]
    if not readable:
        raise ConciseError(f"{folder} holds no parquet or JSONL file among its outputs")
    return readable[0]


def text_of_row(number: int, row: dict[str, Any]) -> str:
    lines = [f"{name:>12}  {value}" for name, value in row.items() if value not in (None, "", "{}")]
    return "\n".join([f"--- row {number}", *lines])
