"""The evaluations that papers report: which problem sets, sampled how. Loads nothing heavy.

A suite is a data recipe of the same name; a preset is a set of `EvalConfig` fields, shown and stored like any others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concisecli.did_you_mean import nearest
from concisecli.records import UsageError

SUITES = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "gsm8k")

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # ConciseR (arXiv 2505.21178): Pass@1 averaged over 32 samples, at most 3,072 tokens.
    "conciser": {"temperature": 0.6, "top_p": 0.95, "min_p": 0.0, "samples": 32, "budgets": (1024, 2048, 3072)},
    # GRPO-LEAD (arXiv 2504.09696): 14k tokens for the 14B model; the 8k of the 7B model are a point of the same pass.
    "lead": {"temperature": 0.6, "top_p": 1.0, "min_p": 0.01, "samples": 32, "budgets": (2048, 4096, 8192, 14336)},
    "lead-7b": {"temperature": 0.6, "top_p": 1.0, "min_p": 0.01, "samples": 32, "budgets": (2048, 4096, 6144, 8192)},
}


def suites_named(text: str) -> list[str]:
    """The suites of "aime24,math500", each once, in the order given. Raises UsageError naming the nearest."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise UsageError(f"no suite given; there are: {', '.join(SUITES)}")
    for name in names:
        if name not in SUITES:
            raise UsageError(f"there is no suite '{name}'{_hint(name, SUITES)}")
    return names


def preset_named(name: str) -> Mapping[str, Any]:
    """The `EvalConfig` fields of a preset. Raises UsageError naming the nearest."""
    if name not in PRESETS:
        raise UsageError(f"there is no preset '{name}'{_hint(name, tuple(PRESETS))}")
    return PRESETS[name]


def _hint(name: str, known: tuple[str, ...]) -> str:
    close = nearest(name.lower(), known)
    return f"; did you mean '{close}'?" if close else f"; there are: {', '.join(known)}"
