"""The README's table, recomputed from saved completions by nothing but this file: no import of the project.

    python tests/readme_numbers.py collect OFF_0 RUNS_0 RUNS_1 RUNS_2   # gather the completions of `concise run --runs`
    python tests/readme_numbers.py                                      # print the table

OFF_0 is seed 0 with `--set lgrpo.reward.length=off`.

A completion is right when its text is exactly think tags, then answer tags around the gold answer. Intervals are 95 %
percentile bootstraps over problems (2,000 resamples, the seeds of a problem resampled together).
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "data" / "tiny_completions.parquet"
STRICT = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
STAGES = (
    ("base", "SFT base"),
    ("rl1", "stage 1: GRPO++"),
    ("lgrpo", "stage 2: L-GRPO"),
    ("lgrpo_off", "the same, `length: off`"),
    ("lead", "stage 2: LEAD, mined"),
)
TEMPERATURES = (("t10", "1.0"), ("t06", "0.6"))
BUDGETS = (40, 80, 120)


def collect(off: Path, runs: list[Path]) -> None:
    rows = []
    for seed, root in enumerate(runs):
        for stage, _ in STAGES:
            if stage != "lgrpo_off":
                rows += completions(root, seed, stage, stage)
    rows += completions(off, 0, "lgrpo", "lgrpo_off")
    DATA.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), DATA, compression="zstd", compression_level=19)


def completions(root: Path, seed: int, stage: str, name: str) -> list[dict]:
    (test,) = root.glob("tiny/test-*/problems.parquet")
    gold = {p["id"]: p["answer"] for p in pq.read_table(test).to_pylist()}
    rows = []
    for temperature, _ in TEMPERATURES:
        path = max(root.glob(f"tiny/{stage}_{temperature}-*/completions.parquet"), key=lambda p: p.stat().st_mtime)
        rows += [
            {
                "seed": seed,
                "stage": name,
                "temperature": temperature,
                "problem_id": c["problem_id"],
                "gold": gold[c["problem_id"]],
                "length": c["length"],
                "finish_reason": c["finish_reason"],
                "text": c["text"],
            }
            for c in pq.read_table(path).to_pylist()
        ]
    return rows


def right(row: dict) -> bool:
    match = STRICT.fullmatch(row["text"].strip())
    return bool(match) and row["finish_reason"] == "stop" and match[2].strip() == row["gold"]


def table(path: Path = DATA) -> str:
    rows = pq.read_table(path).to_pylist()
    lines = [
        "| T | | pass@1 | by seed | length | "
        + " | ".join(f"≤ {b} tokens" for b in BUDGETS)
        + " | checks | answer only |",
        "|---|---|---|---|---|---|" + "---|" * (len(BUDGETS) + 2),
    ]
    for temperature, shown in TEMPERATURES:
        for stage, name in STAGES:
            chosen = [r for r in rows if r["stage"] == stage and r["temperature"] == temperature]
            lines.append(line(shown, name, chosen))
    return "\n".join(lines)


def line(temperature: str, name: str, rows: list[dict]) -> str:
    correct = np.array([right(r) for r in rows], dtype=float)
    length = np.array([r["length"] for r in rows], dtype=float)
    problems = np.array([r["problem_id"] for r in rows])
    low, high = interval(correct, problems)
    seeds = np.array([r["seed"] for r in rows])
    by_seed = " / ".join(f"{100 * correct[seeds == s].mean():.1f}" for s in sorted(set(seeds.tolist())))
    length_low, length_high = interval(length, problems)
    length_by_seed = " / ".join(f"{length[seeds == s].mean():.1f}" for s in sorted(set(seeds.tolist())))
    budgets = " | ".join(f"{100 * (correct * (length <= b)).mean():.1f} %" for b in BUDGETS)
    checks = np.mean([r["text"].count("wait check ") for r in rows])
    answer_only = 100 * np.mean([r["text"].startswith("<think></think>") for r in rows])
    return (
        f"| {temperature} | {name} | {100 * correct.mean():.1f} % [{100 * low:.1f}, {100 * high:.1f}] | {by_seed} "
        f"| {length.mean():.1f} [{length_low:.1f}, {length_high:.1f}] | {length_by_seed} | {budgets} "
        f"| {checks:.2f} | {answer_only:.1f} % |"
    )


def interval(values: np.ndarray, problems: np.ndarray) -> tuple[float, float]:
    _, place = np.unique(problems, return_inverse=True)
    sums = np.bincount(place, weights=values)
    counts = np.bincount(place)
    draws = np.random.default_rng(0).integers(0, len(sums), size=(2000, len(sums)))
    means = sums[draws].sum(1) / counts[draws].sum(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect(Path(sys.argv[2]), [Path(p) for p in sys.argv[3:]])
    else:
        print(table())
        print(json.dumps({"rows": pq.read_metadata(DATA).num_rows, "bytes": DATA.stat().st_size}), file=sys.stderr)
