"""Bytes on one device: training state, activations, logits, and vLLM beside them.

N parameters, W devices. Checked against measured peaks in tests/test_plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from concisecli.config import OptimiserConfig, TrainConfig, VllmConfig
from concisecli.planning.shapes import ModelShape

GIB = 2**30
CHUNK_LOGITS = {"card": 2**27, "cpu": 2**24}  # logits held at once, as in `logprobs`
LOGIT_COPIES = 4  # logits, scaled, exponentials and their gradient
BUCKET = 500_000_000  # numbers in DeepSpeed's buffer for reducing gradients, its default
LIVE = 1_000_000_000  # parameters that ZeRO-3 keeps gathered at once, its default
DEVICE_OVERHEAD = 1.5 * GIB  # CUDA context, NCCL, kernels
FRAGMENTATION = 1.05


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes on one device, by what they are for."""

    weights: float
    gradients: float
    optimiser: float
    reference: float
    activations: float
    logits: float
    buffers: float
    host: float = 0.0  # what offloading moves to the memory of the machine

    @property
    def state(self) -> float:
        """What stays between two steps."""
        return self.weights + self.optimiser + self.reference

    @property
    def peak(self) -> float:
        return self.state + self.gradients + self.activations + self.logits + self.buffers


def training_memory(
    shape: ModelShape, config: OptimiserConfig, devices: int, *, on: Literal["card", "cpu"] = "card"
) -> TrainingMemory:
    """The peak of one optimiser step, in the backward pass of its last micro-batch."""
    backend = config.backend
    half = backend.dtype == "bfloat16"
    zero = getattr(backend, "zero_stage", 0)
    n, trained = float(shape.parameters), float(trained_parameters(shape, config))
    # Without ZeRO weights stay in fp32 and bf16 is autocast's: copies of the weights live with the activations.
    mixed = half and zero == 0
    width = 2 if half and zero > 0 else 4
    weights = width * n / (devices if zero == 3 else 1)
    gradients = width * trained / (devices if zero >= 2 else 1)
    master = 4 * trained if zero > 0 else 0.0  # ZeRO keeps fp32 weights of its own
    optimiser = (master + 8 * trained) / (devices if zero >= 1 else 1)  # and AdamW two moments
    offloaded = offloads(backend)
    host = (optimiser + gradients if "optimiser" in offloaded else 0.0) + (weights if "params" in offloaded else 0.0)
    reference = 0.0
    if isinstance(config, TrainConfig) and config.loss.kl_coef > 0 and trained == n:
        reference = (2 if half else 4) * n  # LoRA has the base at hand: adapters off
    return TrainingMemory(
        weights=0.0 if "params" in offloaded else weights,
        gradients=0.0 if "optimiser" in offloaded else gradients,
        optimiser=0.0 if "optimiser" in offloaded else optimiser,
        reference=reference,
        activations=activation_bytes(shape, config) + (2 * n if mixed else 0.0),
        logits=logit_bytes(shape, config, CHUNK_LOGITS[on]),
        buffers=buffer_bytes(shape, trained, zero, width, devices),
        host=host,
    )


def trained_parameters(shape: ModelShape, config: OptimiserConfig) -> int:
    """All of them, or the adapters' where the settings ask for LoRA on every matrix of the layers."""
    rank = lora_rank(config)
    if not rank:
        return shape.parameters
    sides = (
        2 * (shape.hidden + shape.query_width)  # q and o
        + 2 * (shape.hidden + shape.kv_width)  # k and v
        + 3 * (shape.hidden + shape.intermediate)
    )
    return rank * sides * shape.layers


def lora_rank(config: Any) -> int:
    return int(getattr(getattr(config, "adapter", None), "rank", 0))


def offloads(backend: Any) -> frozenset[str]:
    """Which of {"optimiser", "params"} DeepSpeed keeps in the memory of the machine, or on its disk."""
    return frozenset(part for part in ("optimiser", "params") if getattr(backend, f"offload_{part}", None))


def checkpointed(config: OptimiserConfig) -> bool:
    return bool(getattr(config, "gradient_checkpointing", False))


def activation_bytes(shape: ModelShape, config: OptimiserConfig) -> float:
    """What the forward pass keeps for the backward pass of one micro-batch."""
    tokens = longest_micro_batch(config)
    layer = layer_activations(shape, config)
    stream = 2 if config.backend.dtype == "bfloat16" and getattr(config.backend, "zero_stage", 0) > 0 else 4
    if checkpointed(config):
        return tokens * (shape.layers * shape.hidden * stream + layer)
    return tokens * shape.layers * layer


def layer_activations(shape: ModelShape, config: OptimiserConfig) -> float:
    """Bytes a token and layer, counted through transformers' Qwen2 with sdpa.

    A norm keeps its input, what it normalised and its output, the input in fp32; attention keeps rotated queries and
    keys, values and its output twice (before and after it is laid out by token); the gated MLP keeps both halves, the
    activated one and their product.
    """
    half = config.backend.dtype == "bfloat16"
    autocast = half and getattr(config.backend, "zero_stage", 0) == 0
    width = 2 if half else 4
    norm = shape.hidden * (10 if autocast else 8 if half else 12)
    attention = width * (4 * shape.query_width + 2 * shape.kv_width)
    return 2 * norm + attention + width * 4 * shape.intermediate


def longest_micro_batch(config: OptimiserConfig) -> int:
    """Tokens of the largest micro-batch: the budget, or one row where a row may be longer."""
    return max(config.micro_batch_tokens, longest_row(config))


def longest_row(config: Any) -> int:
    if isinstance(config, TrainConfig):
        return config.sampling.max_prompt_tokens + config.sampling.max_response_tokens
    return int(getattr(config, "max_tokens", 0) or 0)


def logit_bytes(shape: ModelShape, config: OptimiserConfig, chunk: int) -> float:
    return 4.0 * LOGIT_COPIES * min(chunk, longest_micro_batch(config) * shape.vocab)


def buffer_bytes(shape: ModelShape, trained: float, zero: int, width: int, devices: int) -> float:
    """What moving gradients and weights between devices needs."""
    if zero == 0:
        return 4.0 * trained if devices > 1 else 0.0  # one flat copy to sum over ranks
    live = width * min(LIVE, shape.parameters) if zero == 3 else 0.0
    return width * min(BUCKET, trained) + live


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes on one device for rollouts."""

    weights: float
    cache: float  # of keys and values, for `running` sequences at their longest
    share: float | None  # what vLLM takes whatever it needs; None: no such reservation
    running: int  # sequences at once, at most

    @property
    def needed(self) -> float:
        return self.weights + self.cache

    @property
    def each(self) -> float:
        """The cache of one sequence at its longest."""
        return self.cache / self.running

    @property
    def held(self) -> int:
        """Sequences whose cache fits at their longest; with more at once vLLM stops some and starts them again."""
        if self.share is None:
            return self.running
        return min(self.running, int(max(0.0, self.share - self.weights) / self.each))


def engine_memory(
    shape: ModelShape, engine: Any, *, longest: int, rollouts: int, device: float | None = None
) -> EngineMemory:
    """Of vLLM, or of the transformers engine, which shares the trainer's weights. `longest` is prompt and response,
    `rollouts` what one engine has to sample at a time, `device` the card's memory in bytes."""
    if isinstance(engine, VllmConfig):
        ways = engine.tensor_parallel_size
        running = max(1, min(engine.max_num_seqs, rollouts))
        width = 4 if engine.dtype == "float32" else 2
        share = engine.gpu_memory_utilization * device if device is not None else None
        cache = width * shape.cache_per_token * longest * running / ways
        return EngineMemory(width * shape.parameters / ways, cache, share, running)
    running = max(1, min(engine.batch_rollouts, rollouts))
    width = 4 if engine.dtype == "float32" else 2
    return EngineMemory(0.0, float(width * shape.cache_per_token * longest * running), None, running)
