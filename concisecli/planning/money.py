"""Disk and dollars."""

from __future__ import annotations

from typing import Any

from concisecli.config import DistillConfig, EvalConfig, OptimiserConfig, SftConfig, TrainConfig
from concisecli.planning.hardware import Hardware
from concisecli.planning.memory import trained_parameters
from concisecli.planning.shapes import ModelShape
from concisecli.planning.work import Range, Work

CHECKPOINTS = 2  # kept; a third exists while it is written
BYTES_A_TOKEN = 2.0  # of a rollout's text and numbers in parquet, packed


def dollars(seconds: Range, hardware: Hardware) -> Range:
    low, high = hardware.card.price
    return seconds[0] / 3600 * hardware.count * low, seconds[1] / 3600 * hardware.count * high


def disk_bytes(shape: ModelShape | None, config: Any, work: Work | None) -> tuple[float, float]:
    """(what stays, what is there at the worst moment) of one stage: weights, checkpoints, rollouts."""
    kept = BYTES_A_TOKEN * (work.generated[1] if work and work.generated else 0.0)
    if not isinstance(config, SftConfig | TrainConfig | EvalConfig | DistillConfig):
        return kept, kept
    if shape is None or not isinstance(config, OptimiserConfig):
        return kept, kept
    sharded = getattr(config.backend, "zero_stage", 0) > 0
    width = 2 if sharded and config.backend.dtype == "bfloat16" else 4
    models = 2 if isinstance(config, TrainConfig) and config.evaluate_every else 1  # model/ and best/
    if isinstance(config, TrainConfig) and config.weights_every:
        written = config.steps // config.weights_every
        models += min(written, config.weights_keep) if config.weights_keep else written
    kept += models * width * shape.parameters
    trained = trained_parameters(shape, config)
    checkpoint = width * shape.parameters + (12 if sharded else 8) * trained
    writes = config.save_every < config.steps
    return kept, kept + (CHECKPOINTS + 1) * checkpoint * writes
