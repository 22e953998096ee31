"""From saved completions to a report: 500 problems x 32 rollouts of a few thousand characters, judged, scored, drawn.

The baseline is a bound, 20 s on two cores and 1 GB, except for the intervals, where it is one bootstrap a metric.
"""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from concisecli import artifacts
from concisecli.algo import intervals, metrics
from concisecli.config import EvalConfig, GraderConfig, ReportConfig
from concisecli.records import Problem, StageRun
from concisecli.reports import attempts, scores
from concisecli.stages import evaluate, report

PROBLEMS, SAMPLES = 500, 32
BOUND_S, BOUND_MB = 20.0, 1000.0
SENTENCE = "so we have that the sum of all terms is equal to wait let us check again however this gives therefore"


def run() -> list[dict[str, Any]]:
    """Rows {name, value, unit, baseline, ratio, note}."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = _peak_mb()
        problems = _write_completions(folder)
        spent: dict[str, tuple[float, float]] = {}
        with _timed(spent, "judge"):
            rows = artifacts.read_parquet(folder / evaluate.COMPLETIONS)
            judged = evaluate.judge(rows, problems, GraderConfig())
            artifacts.write_parquet(folder / evaluate.COMPLETIONS, judged)
        del rows
        with _timed(spent, "score"):
            gathered = attempts.gather(judged, problems)
            artifacts.write_json(folder / evaluate.SCORES, scores.score(gathered, _config(), grader={}))
        del judged
        with _timed(spent, "report"):
            stage = StageRun("report", folder / "out", ReportConfig(), {"scores": (folder / evaluate.SCORES,) * 2})
            stage.folder.mkdir()
            report.run(stage)
        peak = _peak_mb()
        whole, work = (sum(each) for each in zip(*spent.values(), strict=True))
        parts, cpu = (", ".join(f"{phase} {both[i]:.1f}" for phase, both in spent.items()) for i in (0, 1))
        note = f"{PROBLEMS} x {SAMPLES} saved completions; {parts}; {len(os.sched_getaffinity(0))} cores"
        return [
            _row("saved completions to report", whole, "s", BOUND_S, note),
            _row("of that, user and system time", work, "CPU-s", BOUND_S, f"on one core at most so long; {cpu}"),
            _row("peak memory of that", peak, "MB", BOUND_MB, f"of which {before:.0f} MB before it began"),
            _intervals(gathered),
        ]


def _row(name: str, value: float, unit: str, baseline: float, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": baseline / value, "note": note}


def _config() -> EvalConfig:
    return EvalConfig(budgets=(1024, 2048, 4096), samples=SAMPLES)


def _write_completions(folder: Path) -> list[Problem]:
    """Answers of three kinds (right in another spelling, wrong, none) behind 400 to 800 words of reasoning."""
    rng, words = np.random.default_rng(0), SENTENCE.split()
    problems = [
        Problem(f"p{i}", f"What is half of {i}?", rf"\frac{{{i}}}{{2}}", "made", i % 5) for i in range(PROBLEMS)
    ]
    rows = []
    for i, problem in enumerate(problems):
        for sample in range(SAMPLES):
            body = " ".join(words[w] for w in rng.integers(len(words), size=rng.integers(400, 800)))
            answer = (rf"\boxed{{{i / 2}}}", rf"\boxed{{{i // 2}}}", rf"\boxed{{\sqrt{{{i}}}}}", "")[rng.integers(4)]
            rows.append(
                {
                    "problem_id": problem.id,
                    "sample": sample,
                    "length": len(body) // 4,
                    "text": f"<think>{body}</think>{answer}",
                    "finish_reason": "stop",
                    "think_open": False,
                }
            )
    artifacts.write_parquet(folder / evaluate.COMPLETIONS, rows)
    return problems


def _intervals(gathered: list[attempts.Attempts]) -> dict[str, Any]:
    """All intervals of a summary from one redraw of the problems, beside one bootstrap a point of the curve."""
    config = _config()
    ours = _seconds(lambda: scores.summary(gathered, config))
    grid = scores.budget_grid(config.budgets)

    def plain() -> None:
        for budget in grid:
            within = [metrics.accuracy_at_budget(a.correct, a.lengths, a.finished, budget) for a in gathered]
            intervals.bootstrap_interval(within, resamples=config.bootstrap, seed=0)

    return _row("summary with all intervals", ours, "s", _seconds(plain), "one bootstrap a point of the budget curve")


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextlib.contextmanager
def _timed(spent: dict[str, tuple[float, float]], phase: str) -> Iterator[None]:
    """Seconds by the clock, and of work by this process and those that it has waited for."""
    began, worked = time.perf_counter(), sum(os.times()[:4])
    yield
    spent[phase] = time.perf_counter() - began, sum(os.times()[:4]) - worked


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
