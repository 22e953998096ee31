"""What a sweep found: a table with a row a setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from concisecli.algo import metrics
from concisecli.reports.reporting import Evaluation, Json, Settings, Variant


def sweeps(variants: Sequence[Variant], groups: Sequence[Settings]) -> list[Json]:
    """One table a swept model, group of settings and suite: a row a setting, seeds averaged. `break_even` is the chance
    of being right from which answering pays, where the penalty of a wrong answer was swept."""
    tables = []
    for base in dict.fromkeys(v.base for v in variants if v.values):
        ways = {v.label: dict(v.values) for v in variants if v.base == base and v.values}
        for group in groups:
            for suite in dict.fromkeys(suite for e in group.evaluations for suite in e.suites):
                rows = [
                    _setting_row(e, suite, ways[e.model])
                    for e in sorted(
                        group.evaluations, key=lambda e: list(ways).index(e.model) if e.model in ways else 0
                    )
                    if e.model in ways and suite in e.scores["suites"]
                ]
                if rows:
                    fields = list(dict.fromkeys(name for row in rows for name in row["values"]))
                    tables.append({"model": base, "label": group.label, "suite": suite, "fields": fields, "rows": rows})
    return tables


def _setting_row(evaluation: Evaluation, suite: str, values: Json) -> Json:
    found = evaluation.scores["suites"][suite]
    return {
        "model": evaluation.model,
        "values": values,
        "seeds": len(evaluation.seeds) or 1,
        **{name: found[name] for name in ("pass_at_1", "cons_at_k", "length", "answered", "truncated")},
        "precision": found["precision"]["micro"],
        "break_even": next((_pays_from(v) for name, v in values.items() if name.endswith("reward.wrong")), None),
    }


def _pays_from(wrong: Any) -> float | None:
    return metrics.break_even(-wrong) if isinstance(wrong, int | float) and wrong <= 0 else None
