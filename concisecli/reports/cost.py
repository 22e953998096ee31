"""What a run cost: seconds by phase, tokens, tokens a second and GPU hours of every stage behind a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
OVERLAPPED = "overlapped"  # seconds of generation that went on while the policy trained, and are in `train` already


@dataclass(frozen=True, slots=True)
class Spent:
    """One stage's folder: its timings.jsonl, the rows of its metrics.jsonl, tokens that an evaluation sampled, and GPUs
    in use (None: not recorded)."""

    stage: str
    kind: str
    timings: Sequence[Json]
    log: Sequence[Json] = ()
    sampled_tokens: int = 0
    gpus: int | None = None


def cost(stages: Sequence[Spent]) -> Json:
    """{"rows": one a stage, "total": all of them}; folders of one stage, such as its seeds, are added up and counted.

    `seconds` is by phase, `total_seconds` from begin to end with what no phase accounts for; tokens a second are over
    the phase that made them.
    """
    by_stage: dict[str, list[Json]] = {}
    for spent in stages:
        row = _row(spent)
        if row["total_seconds"] or row["sampled_tokens"] or row["trained_tokens"]:
            by_stage.setdefault(spent.stage, []).append(row)
    rows = [_sum(stage, found) for stage, found in by_stage.items()]
    return {"rows": rows, "total": _sum("all stages", rows) if rows else None}


def _row(spent: Spent) -> Json:
    seconds = _phases(spent.timings)
    whole = max(_whole(spent.timings), sum(s for phase, s in seconds.items() if phase != OVERLAPPED))
    if not seconds and whole:
        seconds = {"build" if spent.kind == "data" else "whole": whole}
    sampled = spent.sampled_tokens or round(sum(_rollouts(row) * (row.get("length") or 0) for row in spent.log))
    gpu_hours = None if spent.gpus is None else spent.gpus * whole / 3600
    return {
        "kind": spent.kind,
        "folders": 1,
        "seconds": seconds,
        "total_seconds": whole,
        "sampled_tokens": sampled,
        "trained_tokens": round(sum(row.get("tokens") or 0 for row in spent.log)),
        "gpu_hours": gpu_hours,
    }


def _sum(stage: str, rows: Sequence[Json]) -> Json:
    phases = dict.fromkeys(phase for row in rows for phase in row["seconds"])
    seconds = {phase: round(sum(row["seconds"].get(phase, 0.0) for row in rows), 1) for phase in phases}
    tokens = {name: sum(row[name] for row in rows) for name in ("sampled_tokens", "trained_tokens")}
    hours = [row["gpu_hours"] for row in rows if row["gpu_hours"] is not None]
    return {
        "stage": stage,
        "kind": rows[0]["kind"],
        "folders": sum(row["folders"] for row in rows),
        "seconds": seconds,
        "total_seconds": round(sum(row["total_seconds"] for row in rows), 1),
        **tokens,
        "sampled_per_second": _rate(
            tokens["sampled_tokens"], seconds.get("generate", 0.0) + seconds.get(OVERLAPPED, 0.0)
        ),
        "trained_per_second": _rate(tokens["trained_tokens"], seconds.get("train")),
        "gpu_hours": round(sum(hours), 3) if hours else None,
    }


def _rate(tokens: int, seconds: float | None) -> float | None:
    return round(tokens / seconds, 1) if tokens and seconds else None


def _rollouts(row: Json) -> float:
    """Rollouts of a step, from the counts of their outcomes."""
    return sum(value or 0 for name, value in row.items() if name.startswith("grade/"))


def _phases(lines: Sequence[Json]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for line in lines:
        if "phase" in line:
            spent[line["phase"]] = spent.get(line["phase"], 0.0) + line["seconds"]
        elif "step" in line:
            for name, seconds in line.items():
                if name not in ("step", "time"):
                    spent[name] = spent.get(name, 0.0) + seconds
    return spent


def _whole(lines: Sequence[Json]) -> float:
    """Seconds between each begin and the last sign of life before the next one: a stage that was killed and resumed has
    several, and the time between them is nobody's."""
    whole, begun, last = 0.0, None, 0.0
    for line in lines:
        if line.get("event") == "begin":
            whole += 0.0 if begun is None else last - begun
            begun = last = line["time"]
        elif "time" in line:
            last = max(last, line["time"])
    return whole + (0.0 if begun is None else last - begun)
