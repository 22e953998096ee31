"""Rows a second and memory of `data build` on published files, against a straightforward loop on the same rows.

The loop parses and verifies every row with math-verify in one process and then compares the hashed shingles of every
pair of rows. The build does that and more: it also looks for eval problems of six suites. Needs the shared data.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[3] / "shared" / "data"
SUITES = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
RAW = (
    "math_train_l3to5.jsonl",
    "math_test_minus500_l3to5.jsonl",
    "dapo_math_17k.parquet",
    "deepscaler_preview_3000.jsonl",
    "lead_stage_2&3_data.json",
    "deepscaler_aime.json",
    "deepscaler_math_2000.json",
    "gsm8k_train_1500.jsonl",
)
COMPARED = 8000  # rows on which the loop is run: its second half costs the square of them
SIZES = (2000, 8000, 32000)
MIXTURE = 65_000  # rows of ConciseR's sources before filtering


def run() -> list[dict[str, Any]]:
    if not SHARED.exists():
        return [{"name": "data build", "note": "the shared data are not here"}]
    rows = published_rows()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        loop_s = straightforward(rows[:COMPARED])
        builds = {size: built(folder, rows[:size]) for size in SIZES}
    ours = COMPARED / builds[COMPARED]["seconds"]
    loop = COMPARED / loop_s
    first, last = SIZES[0], SIZES[-1]
    exponent = math.log(builds[last]["seconds"] / builds[first]["seconds"]) / math.log(last / first)
    minutes = builds[last]["seconds"] * (MIXTURE / last) ** max(exponent, 1.0) / 60
    note = f"{COMPARED} rows of {len(RAW)} published files; {len(os.sched_getaffinity(0))} cores"
    by_size = [
        row(
            f"whole build, {size} rows",
            size / b["seconds"],
            "rows/s",
            f"peak {b['megabytes']:.0f} MB, {b['kept']} kept",
        )
        for size, b in builds.items()
    ]
    return [
        row("whole build", ours, "rows/s", note) | {"baseline": loop, "ratio": ours / loop},
        *by_size,
        row("cost exponent", exponent, "", f"{first} to {last} rows; below 1 where fixed costs still show"),
        row("peak memory", builds[last]["megabytes"], "MB", "the build and its largest worker"),
        row("the 65k mixture, extrapolated", minutes, "minutes", "from the largest build"),
    ]


def row(name: str, value: float, unit: str, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "note": note}


def published_rows() -> list[dict[str, Any]]:
    """The rows of the files in one order, under the names problem, answer and solution."""
    from concisecli.building import columns, sources
    from concisecli.config import FileSource

    rows = []
    for name in RAW:
        raw = [
            r.fields
            for r in sources.read(name, FileSource(path=SHARED / "raw" / name))
            if isinstance(r, sources.RawRow)
        ]
        mapping = columns.column_map(name, {}, raw[:64], "problems")
        mapped = [columns.map_row(name, str(i), fields, mapping) for i, fields in enumerate(raw)]
        rows += [{"problem": r.problem, "answer": r.answer, "solution": r.solution} for r in mapped]
    random.Random(0).shuffle(rows)
    return rows


def straightforward(rows: list[dict[str, Any]]) -> float:
    """Seconds of the loop a first draft would be: parse and verify each row, then compare every pair of rows."""
    from math_verify import parse, verify

    began = time.perf_counter()
    kept = []
    for row in rows:
        solution, answer = row["solution"], row["answer"]
        answer = answer or (solution or "").rpartition("\\boxed{")[2].partition("}")[0]
        gold = parse(f"\\boxed{{{answer}}}")
        if gold and (not solution or verify(gold, parse(solution))):
            kept.append(row)
    hashed = []
    for row in kept:
        words = row["problem"].lower().split()
        hashed.append({hash(" ".join(words[i : i + 3])) for i in range(max(1, len(words) - 2))})
    unique: list[set[int]] = []
    for own in hashed:
        if not any(len(own & other) >= 0.8 * len(own | other) for other in unique):
            unique.append(own)
    return time.perf_counter() - began


def built(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds and memory of a build in a process of its own, its start not counted."""
    path = folder / f"{len(rows)}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "local.yaml").write_text("".join(f"{s}: {(SHARED / 'eval' / s).resolve()}.jsonl\n" for s in SUITES))
    code = "import sys, tests.bench.data as b; b.child(*sys.argv[1:])"
    out = folder / f"out{len(rows)}"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(folder / "local.yaml"), str(out)], check=True, capture_output=True
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def child(path: str, local: str, out: str) -> None:
    from concisecli.config import DataConfig
    from concisecli.records import StageRun
    from concisecli.stages import data

    config = DataConfig.model_validate({"sources": {"mixture": {"type": "file", "path": path}}, "local": local})
    began = time.perf_counter()
    result = data.run(StageRun("bench", Path(out), config, {}))
    seconds = time.perf_counter() - began
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    print(json.dumps({"seconds": seconds, "megabytes": peak, "kept": result.rows["problems"]}))
