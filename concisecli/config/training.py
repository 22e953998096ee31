"""Where the training state lives, how it is stepped, and a model made from nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from concisecli.config.base import Config, StageConfig, Trackers, runtime
from concisecli.config.rollouts import PromptConfig


class TorchConfig(Config):
    type: Literal["torch"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"


class DeepSpeedConfig(Config):
    type: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 2
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


BackendConfig = Annotated[TorchConfig | DeepSpeedConfig, Field(discriminator="type")]


class NewModelConfig(Config):
    """A model made from nothing: a byte tokenizer with whole `words` added, and a small Qwen2."""

    words: tuple[str, ...] = ()
    hidden_size: int = 64
    layers: int = 3
    heads: int = 2
    intermediate_size: int = 192
    max_positions: int = 512
    initializer_range: float = 0.08  # transformers' 0.02 doubles the training a model this small needs
    seed: int | None = None  # None: the pipeline's seed


class OptimiserConfig(StageConfig):
    """AdamW and its schedule, counted in optimiser steps. Shared by `sft` and `train`."""

    lr: float = Field(1e-6, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    lr_floor: float = Field(0.0, ge=0, le=1)  # cosine ends at this share of lr
    clip_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, ge=1)
    packing: Literal["auto", "on", "off"] = runtime("auto")  # rows end to end, unpadded; auto: with flash attention
    save_every: int = runtime(50, ge=1)
    trackers: Trackers = runtime(())
    backend: BackendConfig = TorchConfig()
    prompt: PromptConfig = PromptConfig()
