"""What commands print about a stage: a line for people, a record for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concisecli.decisions import Outcome

SHOWN = 4  # metrics on a line; --json has all
FIRST = ("accuracy", "pass_at_1", "length", "kept", "rows", "loss", "truncated")


def line_of(outcome: Outcome, width: int) -> str:
    parts = [f"{outcome.stage:<{width}}  {outcome.line}"]
    if outcome.outputs:
        parts.append(str(outcome.folder))
    metrics = {name: outcome.metrics[name] for name in (*FIRST, *outcome.metrics) if name in outcome.metrics}
    return "  ".join([*parts, *values_of(metrics)[:SHOWN]])


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
