"""`make bench [NAME ...]`: every ratio of the project, each taken side by side in one run, written to RESULTS.md.

A benchmark is a module of this package with `run() -> list[dict]`; a row has name, value, unit, baseline, ratio (how
many times better than the baseline) and note. Each runs in a process of its own, on one thread unless it says so.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
COLUMNS = ("name", "value", "unit", "baseline", "ratio", "note")


def main(names: list[str]) -> int:
    known = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    results = earlier()
    failed = []
    for name in names or known:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows = measured(name)
        if rows is None:
            failed.append(name)
            continue
        results[name] = {"machine": machine(), "date": datetime.date.today().isoformat(), "rows": rows}
        for row in rows:
            print("  " + "  ".join(str(shown(row.get(c))) for c in COLUMNS))
    RESULTS.write_text(page(results), encoding="utf-8")
    print(f"wrote {RESULTS}", file=sys.stderr)
    return 1 if failed else 0


def measured(name: str) -> list[dict] | None:
    code = f"import json, tests.bench.{name} as b; print('\\n@' + json.dumps(b.run()))"
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("@")]
    return json.loads(lines[-1][1:]) if done.returncode == 0 and lines else None


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.split(":", 1)[1].strip() for x in info.read_text().splitlines() if "model name" in x), cpu)
    torch = importlib.import_module("torch")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(os.sched_getaffinity(0))
    return f"{cpu}, {cores} cores, {gpu}, Python {platform.python_version()}, torch {torch.__version__}"


def page(results: dict[str, dict]) -> str:
    text = [
        "# Measured ratios",
        "",
        "Written by `make bench` (one benchmark: `python -m tests.bench NAME`). Each ratio was taken side by side",
        "in one run; above 1 is better than the baseline. The data of this page stand in the comment at its end.",
        "",
    ]
    for name, result in sorted(results.items()):
        text += [f"## {name}", "", f"{result['machine']}; {result['date']}", ""]
        text += ["| what | value | unit | baseline | ratio | note |", "|---|---|---|---|---|---|"]
        text += ["| " + " | ".join(str(shown(row.get(c))) for c in COLUMNS) + " |" for row in result["rows"]]
        text.append("")
    return "\n".join(text) + f"\n<!-- {json.dumps(results)} -->\n"


def earlier() -> dict[str, dict]:
    """What other benchmarks measured before: a run of one leaves the others' rows."""
    if not RESULTS.exists():
        return {}
    last = RESULTS.read_text(encoding="utf-8").rstrip().splitlines()[-1]
    return json.loads(last.removeprefix("<!-- ").removesuffix(" -->")) if last.startswith("<!-- ") else {}


def shown(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
