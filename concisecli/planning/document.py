"""The plan of a pipeline as one document: settings, checks, stages with work, memory, time and cost, totals."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from concisecli.checks import check_pipeline
from concisecli.config import OptimiserConfig, Pipeline, StageSpec, TrainConfig
from concisecli.decisions import Outcome
from concisecli.pipeline import foresee
from concisecli.planning.fitting import Fit, fit
from concisecli.planning.hardware import PRICES_OF, Hardware
from concisecli.planning.memory import EngineMemory
from concisecli.planning.money import disk_bytes, dollars
from concisecli.planning.objective import meaning
from concisecli.planning.said import settings
from concisecli.planning.shapes import ModelShape, root_model, shape_of
from concisecli.planning.timing import ASSUMPTIONS, duration
from concisecli.planning.work import rows_of, work_of
from concisecli.store import RunManifest

Document = dict[str, Any]


def plan(
    pipeline: Pipeline, origins: Mapping[str, str], runs: Path, hardware: Hardware | None = None, flags: str = ""
) -> Document:
    """Everything that can be said of a pipeline before it runs. Nothing is written, no torch is loaded."""
    faults = check_pipeline(pipeline, origins)
    sound = not any(fault.level == "error" for fault in faults)
    outcomes, finished = foresee(pipeline, runs, origins, flags) if sound else ([], {})
    shapes = _shapes(pipeline)
    stages = [
        _stage(pipeline, spec, shapes.get(spec.name), finished, hardware, {o.stage: o for o in outcomes})
        for spec in pipeline.stages.values()
    ]
    return {
        "pipeline": str(pipeline.path),
        "run": pipeline.run,
        "hardware": _hardware(hardware),
        "settings": [_setting(s) for s in settings(pipeline, origins)],
        "checks": [{"level": f.level, "origin": f.origin, "message": f.message} for f in faults],
        "models": {shape.name: _model(shape) for shape in shapes.values() if shape is not None},
        "stages": stages,
        "total": _total(stages, runs),
        "assumptions": [*ASSUMPTIONS, *([f"prices: {PRICES_OF}"] if hardware else [])],
    }


def _shapes(pipeline: Pipeline) -> dict[str, ModelShape | None]:
    """By stage; one reference to a model is looked up once."""
    known: dict[str, ModelShape | None] = {}
    found = {}
    for spec in pipeline.stages.values():
        reference = root_model(pipeline, spec)
        if reference is not None:
            key = repr(reference)
            if key not in known:
                known[key] = shape_of(reference)
            found[spec.name] = known[key]
    return found


def _stage(
    pipeline: Pipeline,
    spec: StageSpec,
    shape: ModelShape | None,
    finished: Mapping[str, RunManifest],
    hardware: Hardware | None,
    outcomes: Mapping[str, Outcome],
) -> Document:
    work = work_of(spec, lambda role: rows_of(pipeline, spec, role, finished))
    outcome = outcomes.get(spec.name)
    found: Document = {
        "name": spec.name,
        "uses": spec.uses,
        "action": outcome.action if outcome else None,
        "reason": outcome.line if outcome else None,
        "model": shape.name if shape else None,
        "work": _numbers(dataclasses.asdict(work)) if work else None,
        "objective": meaning(spec.config) if isinstance(spec.config, TrainConfig) else {},
    }
    used = cards_used(spec.config, hardware)
    kept, most = disk_bytes(shape, spec.config, work)
    found["disk"] = {"kept": round(kept), "most": round(most)}
    if shape is None or work is None:
        return found
    if isinstance(spec.config, OptimiserConfig) or work.longest:
        found["memory"] = _memory(fit(shape, spec.config, work, used))
    if hardware is not None and used is not None:
        found["cards"] = used.count
        spent = duration(shape, spec.config, work, used)
        found["seconds"] = {
            "generating": _range(spent.generating),
            "training": _range(spent.training),
            "total": _range(spent.total),
        }
        found["dollars"] = _range(dollars(spent.total, hardware), 2)
    return found


def cards_used(config: Any, hardware: Hardware | None) -> Hardware | None:
    """As many as the stage has processes; the rest of what is rented is idle and paid for."""
    processes = getattr(config, "processes", 1)
    if hardware is None or processes == "auto":
        return hardware
    return dataclasses.replace(hardware, count=min(int(processes), hardware.count))


def _memory(found: Fit) -> Document:
    return {
        "training": _numbers(dataclasses.asdict(found.training)) if found.training else None,
        "engine": _engine(found.engine) if found.engine else None,
        "while_training": round(found.while_training),
        "while_generating": round(found.while_generating),
        "verdict": found.verdict,
        "advice": list(found.advice),
    }


def _engine(found: EngineMemory) -> Document:
    return _numbers(dataclasses.asdict(found) | {"each": found.each, "held": found.held})


def _total(stages: list[Document], runs: Path) -> Document:
    """What is still to be done: finished stages cost nothing more."""
    ahead = [s for s in stages if s["action"] != "skip"]
    seconds = [s["seconds"]["total"] for s in ahead if "seconds" in s]
    spent = [s["dollars"] for s in ahead if "dollars" in s]
    kept = sum(s["disk"]["kept"] for s in ahead)
    beside = max((s["disk"]["most"] - s["disk"]["kept"] for s in ahead), default=0)
    unknown = [s["name"] for s in ahead if s["uses"] in WORKING and "seconds" not in s]
    return {
        "seconds": _sum(seconds),
        "dollars": _sum(spent, 2),
        "not_counted": unknown,
        "worst_generated": _sum_of(ahead, "worst_generated"),
        "disk": {"kept": kept, "most": kept + beside, "free": _free(runs)},
    }


WORKING = ("sft", "train", "mine", "eval", "distill")


def _sum(ranges: list[list[float]], digits: int = 0) -> list[float] | None:
    if not ranges:
        return None
    return [round(sum(r[0] for r in ranges), digits), round(sum(r[1] for r in ranges), digits)]


def _sum_of(stages: list[Document], name: str) -> float:
    return sum((s["work"] or {}).get(name) or 0 for s in stages)


def _free(runs: Path) -> int | None:
    """Of the disk that the runs will lie on."""
    there = next((p for p in (runs.absolute(), *runs.absolute().parents) if p.is_dir()), None)
    return shutil.disk_usage(there).free if there else None


def _hardware(hardware: Hardware | None) -> Document | None:
    return None if hardware is None else {"count": hardware.count} | dataclasses.asdict(hardware.card)


def _model(shape: ModelShape) -> Document:
    return {
        "source": shape.source,
        "parameters": shape.parameters,
        "cache_bytes_per_token": 2 * shape.cache_per_token,
        "positions": shape.positions,
    }


def _setting(found: Any) -> Document:
    return {
        "path": found.path,
        "value": found.value,
        "origin": found.origin,
        "comment": found.comment,
        "sources": list(found.sources),
    }


def _range(pair: tuple[float, float], digits: int = 0) -> list[float]:
    return [round(pair[0], digits), round(pair[1], digits)]


def _numbers(fields: Mapping[str, Any]) -> Document:
    """Whole numbers where they are meant: bytes and tokens."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return round(value) if isinstance(value, float) and math.isfinite(value) and abs(value) >= 100 else value

    return {name: plain(value) for name, value in fields.items()}
