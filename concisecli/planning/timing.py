"""Hours from work, shape and hardware: a low and a high figure, each with its assumptions said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from concisecli.config import OptimiserConfig, TrainConfig, VllmConfig
from concisecli.planning.hardware import Hardware
from concisecli.planning.memory import GIB, checkpointed, lora_rank
from concisecli.planning.shapes import ModelShape
from concisecli.planning.work import Range, Work

TRAIN_MFU: Range = (0.20, 0.45)  # share of the card's bf16 speed that forward and backward reach
FLOAT32_SPEED = 1 / 8  # of the bf16 speed
DECODE_BANDWIDTH: Range = (0.30, 0.65)  # share of the memory's bandwidth that vLLM's decoding reaches
PLAIN_BANDWIDTH: Range = (0.03, 0.12)  # the same of the transformers engine
DECODE_MFU = 0.4  # at batches so large that arithmetic is the limit
BESIDE: Range = (1.05, 1.25)  # grading, weight sync, checkpoints, start-up

ASSUMPTIONS = (
    "responses are 30 % to 65 % of the limit long on average; the worst case has all of them at the limit",
    "training reaches 20 % to 45 % of the card's bf16 speed (float32: an eighth of that)",
    "vLLM decodes at 30 % to 65 % of the memory's bandwidth, the transformers engine at 3 % to 12 %",
    "5 % to 25 % on top for grading, weight sync, checkpoints and starting",
    "sampling and training take turns on all cards; data stages and reports are not counted",
)


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds of one whole stage, (short, long)."""

    generating: Range = (0.0, 0.0)
    training: Range = (0.0, 0.0)

    @property
    def total(self) -> Range:
        low, high = self.generating[0] + self.training[0], self.generating[1] + self.training[1]
        return low * BESIDE[0], high * BESIDE[1]


def duration(shape: ModelShape, config: Any, work: Work, hardware: Hardware) -> Duration:
    return Duration(
        generating=generating_seconds(shape, config, work, hardware) if work.generated else (0.0, 0.0),
        training=training_seconds(shape, config, work, hardware) if work.trained else (0.0, 0.0),
    )


def training_seconds(shape: ModelShape, config: OptimiserConfig, work: Work, hardware: Hardware) -> Range:
    assert work.trained is not None
    speed = hardware.card.tflops * 1e12 * hardware.count
    if config.backend.dtype == "float32":
        speed *= FLOAT32_SPEED
    mean = [tokens / (work.trained_rows or 1) for tokens in work.trained]
    passes = passes_of(config)
    low = work.trained[0] * passes * forward_flops(shape, mean[0]) / (speed * TRAIN_MFU[1])
    high = work.trained[1] * passes * forward_flops(shape, mean[1]) / (speed * TRAIN_MFU[0])
    return low, high


def passes_of(config: OptimiserConfig) -> float:
    """In forward passes: a backward pass is two (one with LoRA, which needs no gradient of the weights), checkpointing
    repeats the forward, a reference or old log-probs add one."""
    backward = 1.0 if lora_rank(config) else 2.0
    passes = 1.0 + backward + (1.0 if checkpointed(config) else 0.0)
    if isinstance(config, TrainConfig):
        passes += 1.0 if config.loss.kl_coef > 0 else 0.0
        updates = config.updates_per_batch * config.epochs
        if config.loss.old_logprobs == "trainer" and updates > 1:
            passes += 1.0 / config.epochs
    return passes


def forward_flops(shape: ModelShape, length: float) -> float:
    """Of one token in a sequence of `length`: two for each parameter, and attention over half of the sequence."""
    return 2.0 * shape.multiplied + 4.0 * shape.layers * shape.query_width * length / 2


def generating_seconds(shape: ModelShape, config: Any, work: Work, hardware: Hardware) -> Range:
    assert work.generated is not None
    assert work.rollouts is not None
    engine = config.engine
    ways = engine.tensor_parallel_size if isinstance(engine, VllmConfig) else 1
    engines = max(1, hardware.count // ways)
    at_once = rollouts_at_once(config, work) / engines
    reach = DECODE_BANDWIDTH if isinstance(engine, VllmConfig) else PLAIN_BANDWIDTH
    seconds = []
    for tokens, share in zip(work.generated, reversed(reach), strict=True):
        mean = tokens / work.rollouts
        running = running_sequences(shape, engine, at_once, mean, hardware)
        step = decode_step_seconds(shape, engine, running, mean, hardware, share)
        busy = tokens / engines / running * step
        # A round is not over before its longest rollout, which nearly always meets the limit, whatever the mean.
        rounds = work.rollouts / max(1.0, at_once * engines)
        last = rounds * mean / _mean_share(tokens, work) * decode_step_seconds(shape, engine, 1, mean, hardware, share)
        seconds.append(max(busy, last))
    return seconds[0], seconds[1]


def _mean_share(tokens: float, work: Work) -> float:
    """The mean length as a share of the limit."""
    limit = (work.worst_generated or tokens) / (work.worst_rollouts or work.rollouts or 1)
    return tokens / (work.rollouts or 1) / limit


def rollouts_at_once(config: Any, work: Work) -> float:
    """What the engines are asked for before something waits for the answer: a step's batch, or everything."""
    if isinstance(config, TrainConfig):
        return float(config.batch_problems * config.sampling.group_size)
    return float(work.rollouts or 1)


def running_sequences(shape: ModelShape, engine: Any, at_once: float, mean: float, hardware: Hardware) -> float:
    """Sequences that one engine decodes together: as many as are asked for, allowed, and fit its cache."""
    if not isinstance(engine, VllmConfig):
        return max(1.0, min(float(engine.batch_rollouts), at_once))
    width = 4 if engine.dtype == "float32" else 2
    ways = engine.tensor_parallel_size
    room = engine.gpu_memory_utilization * hardware.card.memory * GIB * 0.95 - width * shape.parameters / ways
    held = room / (width * shape.cache_per_token / ways * (mean / 2 + 1))
    return max(1.0, min(float(engine.max_num_seqs), at_once, held))


def decode_step_seconds(
    shape: ModelShape, engine: Any, running: float, mean: float, hardware: Hardware, share: float
) -> float:
    """One token for each running sequence: weights and cache are read once, and every token is multiplied."""
    ways = engine.tensor_parallel_size if isinstance(engine, VllmConfig) else 1
    width = 4 if engine.dtype == "float32" else 2
    read = width * (shape.multiplied + running * mean / 2 * shape.cache_per_token) / ways
    multiplied = 2.0 * shape.multiplied * running / ways
    return max(
        read / (hardware.card.bandwidth * 1e9 * share),
        multiplied / (hardware.card.tflops * 1e12 * DECODE_MFU),
    )
