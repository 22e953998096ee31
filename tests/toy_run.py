"""A run's folder as the stages leave it, with made-up numbers: two models at two temperatures, three training logs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from concisecli import artifacts
from concisecli.config import EvalConfig, ReportConfig
from concisecli.records import Problem, StageRun
from concisecli.reports import attempts, scores
from concisecli.store import Output, RunManifest

MODELS = {"sft": (0.5, 50.0), "rl1": (0.9, 73.0), "lgrpo": (0.92, 35.0)}
PARENTS = {"sft": "new", "rl1": "sft", "lgrpo": "rl1"}
PROBLEMS = [Problem(f"p{i:02}", f"{20 + i}A-6B+4C=", str(18 + i), "chains", float(2 + i % 3)) for i in range(24)]


def fake_hash(name: str) -> str:
    return artifacts.sha256_text(name)


def manifest(
    stage: str, kind: str, config: dict, sources: dict[str, str], outputs: dict[str, str], mark: str = ""
) -> dict[str, Any]:
    """`mark` sets the content of a run apart: all but the problems or, with a *, lgrpo alone."""

    def content(name: str) -> str:
        marked = name.startswith("lgrpo") if "*" in mark else not name.startswith("test")
        return fake_hash(f"{name}{mark}" if marked else name)

    made = RunManifest(
        stage=stage,
        kind=kind,
        version=1,
        key=fake_hash(f"key of {content(stage) if mark else stage}"),
        config=config,
        runtime={},
        inputs={role: [content(name)] for role, name in sources.items()},
        sources={role: [name] for role, name in sources.items()},
        files={},
        outputs={name: Output(path=path, sha256=content(f"{stage}.{name}")) for name, path in outputs.items()},
        metrics={},
        seed=config.get("seed", 0),
        code={},
        env={},
    )
    return made.model_dump(mode="json")


def folder_of(run: Path, stage: str) -> Path:
    return run / f"{stage}-{fake_hash(f'key of {stage}')[:12]}"


def problems_of(suites: tuple[str, ...]) -> list[Problem]:
    return [replace(p, source=suites[i % len(suites)]) for i, p in enumerate(PROBLEMS)]


def write_evaluation(
    run: Path, model: str, temperature: float, *, text: str, suites: tuple[str, ...], seed: int, mark: str
) -> None:
    accuracy, length = MODELS[model]
    rng = np.random.default_rng([len(model), int(10 * temperature), seed])
    config = EvalConfig(budgets=(40, 80, 120), samples=4, temperature=temperature, top_p=1.0, bootstrap=100)
    rows = []
    for p in problems_of(suites):
        for k in range(4):
            right = bool(rng.random() < accuracy)
            tokens = int(np.clip(rng.normal(length, 10), 5, 120))
            answer = p.answer if right else str(int(p.answer) + 1)
            think = text or ("wait check 20-6=14 ok" if model != "lgrpo" else "20-6=14")
            rows.append(
                {
                    "problem_id": p.id,
                    "sample": k,
                    "length": tokens,
                    "text": f"<think>{think}</think><answer>{answer}</answer>",
                    "finish_reason": "stop",
                    "think_open": False,
                    "outcome": "match" if right else "mismatch",
                    "extracted": answer,
                    "rule": "same-text",
                    "correct": right,
                    "cluster": 0,
                }
            )
    stage = f"{model}_t{int(10 * temperature):02}"
    folder = folder_of(run, stage)
    artifacts.write_parquet(folder / "completions.parquet", rows)
    found = scores.score(attempts.gather(rows, problems_of(suites)), config, grader={"version": "1"})
    artifacts.write_json(folder / "scores.json", found)
    sources = {"model": f"{model}.model", "problems": "test.problems"}
    outputs = {"completions": "completions.parquet", "scores": "scores.json"}
    made = manifest(stage, "eval", found["settings"] | {"seed": seed}, sources, outputs, mark)
    artifacts.write_json(folder / "manifest.json", made)
    tokens = sum(row["length"] for row in rows)
    timings = [
        {"event": "begin", "time": 100.0},
        {"phase": "generate", "seconds": 4.0, "tokens": tokens},
        {"phase": "grade", "seconds": 0.5},
        {"event": "end", "time": 105.0},
    ]
    artifacts.write_jsonl(folder / "timings.jsonl", timings)


def write_training(
    run: Path, stage: str, steps: int = 40, *, seed: int = 0, mark: str = "", changes: dict[str, Any] | None = None
) -> None:
    accuracy, length = MODELS[stage]
    accuracy += 0.02 * seed
    folder = folder_of(run, stage)
    rows: list[dict[str, float]] = []
    for step in range(steps):
        if stage == "sft":
            rows.append({"step": step, "loss": 3 * math.exp(-step / 10)})
            continue
        done = (step + 1) / steps
        rows.append(
            {
                "step": step,
                "accuracy": 0.5 + (accuracy - 0.5) * done,
                "length": 60 + (length - 60) * done,
                "entropy": 0.5 - 0.2 * done,
                "truncated": 0.0,
                "groups/all_right": 10.0 * done,
                "groups/mixed": 20.0 * (1 - done) + 2,
                "groups/all_wrong": 4.0 * (1 - done),
                "signal_share/groups": 1 - done / 2,
                "grade/match": 20.0,
                "grade/mismatch": 12.0,
                "tokens": 500.0,
            }
        )
    artifacts.write_jsonl(folder / "metrics.jsonl", rows)
    timings = [{"step": step, "time": 0.0, "generate": 0.5, "train": 0.25} for step in range(steps)]
    artifacts.write_jsonl(folder / "timings.jsonl", timings)
    kind = "sft" if stage == "sft" else "train"
    config = {"lr": 1e-4, "steps": steps, "seed": seed} | (changes or {})
    sources = {"model": "new" if stage == "sft" else f"{PARENTS[stage]}.model"}
    made = manifest(stage, kind, config, sources, {"model": "model"}, mark)
    artifacts.write_json(folder / "manifest.json", made)


def write_run(
    run: Path,
    *,
    temperatures: tuple[float, ...] = (1.0, 0.6),
    text: str = "",
    suites: tuple[str, ...] = ("chains",),
    seed: int = 0,
    changes: dict[str, Any] | None = None,
) -> StageRun:
    """The report stage of a finished run, ready to be run itself. `changes` are settings of lgrpo."""
    mark = f" * {changes}" if changes else f" {seed}" if seed else ""
    for stage in MODELS:
        write_training(run, stage, seed=seed, mark=mark, changes=changes if stage == "lgrpo" else None)
        for temperature in temperatures:
            write_evaluation(run, stage, temperature, text=text, suites=suites, seed=seed, mark=mark)
    data = manifest("test", "data", {"count": 24}, {}, {"problems": "problems.parquet"})
    artifacts.write_json(folder_of(run, "test") / "manifest.json", data)
    stranger = manifest("unrelated", "data", {}, {}, {"problems": "problems.parquet"})
    artifacts.write_json(folder_of(run, "unrelated") / "manifest.json", stranger)
    evaluated = [folder_of(run, f"{m}_t{int(10 * t):02}") for t in temperatures for m in MODELS]
    trained = [folder_of(run, stage) for stage in MODELS]
    out = run / "report-000000000000"
    out.mkdir()
    return StageRun(
        "report",
        out,
        ReportConfig(title="A small run", examples=3, before="rl1_t10", after="lgrpo_t10"),
        {"scores": tuple(f / "scores.json" for f in evaluated), "metrics": tuple(f / "metrics.jsonl" for f in trained)},
        {
            "scores": tuple(artifacts.read_json(f / "manifest.json") for f in evaluated),
            "metrics": tuple(artifacts.read_json(f / "manifest.json") for f in trained),
        },
    )
