"""How long the commands take that answer at once: `concise --help` and `concise plan`, each against its bound."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPEATS = 5
BOUNDS = {  # seconds
    ("--help",): 0.35,
    ("plan", "pipelines/lead.yaml", "--gpu", "8xH20"): 1.0,
    ("plan", "pipelines/conciser.yaml", "--gpu", "8xH20"): 1.0,
}


def run() -> list[dict[str, Any]]:
    return [row for words, bound in BOUNDS.items() for row in measured(words, bound)]


def measured(words: tuple[str, ...], bound: float) -> list[dict[str, Any]]:
    """Wall-clock and CPU seconds of the quickest of some calls, which is what an idle machine takes."""
    wall, spent = min(called(words) for _ in range(REPEATS)), min(called(words)[1] for _ in range(REPEATS))
    name = " ".join(("concise", *words))
    note = f"quickest of {REPEATS}; the bound is the baseline"
    return [
        {"name": name, "value": wall[0], "unit": "s", "baseline": bound, "ratio": bound / wall[0], "note": note},
        {
            "name": f"{name}, CPU",
            "value": spent,
            "unit": "CPU-s",
            "baseline": bound,
            "ratio": bound / spent,
            "note": note,
        },
    ]


def called(words: tuple[str, ...]) -> tuple[float, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "concisecli", *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
