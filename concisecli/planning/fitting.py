"""Does a stage fit the hardware, and if not, which settings would make it fit?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from concisecli.config import DeepSpeedConfig, OptimiserConfig, VllmConfig
from concisecli.planning.hardware import Hardware
from concisecli.planning.memory import (
    DEVICE_OVERHEAD,
    FRAGMENTATION,
    GIB,
    EngineMemory,
    TrainingMemory,
    checkpointed,
    engine_memory,
    longest_row,
    lora_rank,
    offloads,
    training_memory,
)
from concisecli.planning.shapes import ModelShape
from concisecli.planning.timing import rollouts_at_once
from concisecli.planning.work import Work

TIGHT = 0.92  # of the card's memory, from which it may or may not fit
LITTLE = 0.3  # share for an engine that must leave room
ALONE = 0.9  # share for an engine that has the card to itself


@dataclass(frozen=True, slots=True)
class Fit:
    """Bytes on one device in the two phases of a step, and whether the card holds them."""

    training: TrainingMemory | None
    engine: EngineMemory | None
    while_training: float
    while_generating: float
    verdict: Literal["fits", "tight", "too large", "unknown"]
    advice: tuple[str, ...] = ()

    @property
    def peak(self) -> float:
        return max(self.while_training, self.while_generating)


def fit(shape: ModelShape, config: Any, work: Work, hardware: Hardware | None) -> Fit:
    """Without hardware: the bytes on one device that does all, and no verdict."""
    made = _fit(shape, config, work, hardware)
    if hardware is None:
        return made
    if made.verdict in ("too large", "tight"):
        return replace(made, advice=tuple(advice(shape, config, work, hardware)))
    return replace(made, advice=tuple(unused(config, made)))


def unused(config: Any, made: Fit) -> Iterator[str]:
    """Memory that a stage which only samples leaves lying idle while its sequences have too little."""
    engine = made.engine
    if made.training is None and engine is not None and engine.share is not None and engine.held < engine.running:
        share = config.engine.gpu_memory_utilization
        if share < ALONE:
            yield (
                "the cache does not hold all sequences at their longest while the rest of the card lies idle; set "
                f"engine.gpu_memory_utilization={ALONE} where a stage only samples"
            )


def _fit(shape: ModelShape, config: Any, work: Work, hardware: Hardware | None) -> Fit:
    devices = hardware.count if hardware else 1
    memory = hardware.card.memory * GIB if hardware else None
    training = training_memory(shape, config, devices) if isinstance(config, OptimiserConfig) else None
    engine = None
    if work.longest and hasattr(config, "engine") and getattr(config, "source", "resample") == "resample":
        engine = _engine(shape, config, work, devices, memory)
    state = training.state if training else 0.0
    reserved = 0.0 if engine is None else engine.share if engine.share is not None else engine.needed
    while_generating = _whole(state + reserved) if engine else 0.0
    while_training = _whole(training.peak) if training else 0.0  # engines give their memory back meanwhile
    # vLLM takes its share whether it needs it or not; a share too small for its weights and one sequence cannot start.
    short = (
        engine is not None
        and engine.share is not None
        and engine.share < engine.weights + engine.cache / engine.running
    )
    if memory is None:
        verdict: Literal["fits", "tight", "too large", "unknown"] = "unknown"
    elif short or max(while_training, while_generating) > memory:
        verdict = "too large"
    else:
        verdict = "tight" if max(while_training, while_generating) > TIGHT * memory else "fits"
    return Fit(training, engine, while_training, while_generating, verdict)


def _engine(shape: ModelShape, config: Any, work: Work, devices: int, memory: float | None) -> EngineMemory:
    ways = config.engine.tensor_parallel_size if isinstance(config.engine, VllmConfig) else 1
    each = max(1, round(rollouts_at_once(config, work) * ways / devices)) if work.rollouts else 1 << 30
    return engine_memory(shape, config.engine, longest=work.longest or 1, rollouts=each, device=memory)


def _whole(used: float) -> float:
    return used * FRAGMENTATION + DEVICE_OVERHEAD


# --- advice -----------------------------------------------------------------------------------------------------------


def advice(shape: ModelShape, config: Any, work: Work, hardware: Hardware) -> Iterator[str]:
    """The mildest change, or chain of changes, after which it fits; then the number of cards that would do."""
    changed, said = config, list[str]()
    for text, update in changes(config):
        changed = update(changed)
        said.append(text)
        if _fit(shape, changed, work, hardware).verdict == "fits":
            yield "set " + ", ".join(said)
            break
    else:
        yield "no change of settings known here makes it fit"
    for count in (2, 4, 8, 16, 32, 64):
        if count > hardware.count and _fit(shape, config, work, Hardware(hardware.card, count)).verdict == "fits":
            yield f"or take {count} x {hardware.card.name}"
            break


def changes(config: Any) -> Iterator[tuple[str, Any]]:
    """Settings that save memory, from those that cost nothing to those that cost most."""
    engine = getattr(config, "engine", None)
    if isinstance(config, OptimiserConfig):
        if isinstance(config.backend, DeepSpeedConfig) and config.backend.zero_stage < 3:
            yield "backend.zero_stage=3", lambda c: _with(c, backend=_with(c.backend, zero_stage=3))
        row = longest_row(config)
        if config.micro_batch_tokens > row > 0:
            yield f"micro_batch_tokens={row}", lambda c: _with(c, micro_batch_tokens=row)
        if "gradient_checkpointing" in type(config).model_fields and not checkpointed(config):
            yield "gradient_checkpointing=true", lambda c: _with(c, gradient_checkpointing=True)
    if isinstance(engine, VllmConfig) and engine.gpu_memory_utilization > 0.3:
        yield (
            "engine.gpu_memory_utilization=0.3",
            lambda c: _with(c, engine=_with(c.engine, gpu_memory_utilization=0.3)),
        )
    if isinstance(config, OptimiserConfig) and isinstance(config.backend, DeepSpeedConfig):
        fields = type(config.backend).model_fields
        if "offload_optimiser" in fields and "optimiser" not in offloads(config.backend):
            yield "backend.offload_optimiser=cpu", lambda c: _with(c, backend=_with(c.backend, offload_optimiser="cpu"))
    if isinstance(config, OptimiserConfig) and "adapter" in type(config).model_fields and not lora_rank(config):
        low_rank: Any = type(config).model_validate({**config.model_dump(), "adapter": {}})  # at its own defaults
        yield f"adapter.rank={lora_rank(low_rank)}", lambda c: _with(c, adapter=low_rank.adapter)


def _with(config: Any, **changed: Any) -> Any:
    return config.model_copy(update=changed)
