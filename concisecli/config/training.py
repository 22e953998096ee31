"""Where the training state lives, how it is stepped, and a model made from nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from concisecli.config.base import Config, Processes, StageConfig, Trackers, runtime
from concisecli.config.rollouts import PromptConfig


class TorchConfig(Config):
    type: Literal["torch"] = "torch"  # plain torch: whole weights and optimiser on every rank
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and activations


class DeepSpeedConfig(Config):
    type: Literal["deepspeed"] = "deepspeed"  # ZeRO over ranks, with offload
    zero_stage: Literal[0, 1, 2, 3] = 2  # what is shared out: 1 optimiser, 2 and gradients, 3 and weights
    dtype: Literal["float32", "bfloat16"] = "bfloat16"  # of weights and activations; master weights stay float32
    offload_optimiser: Literal["cpu", "nvme"] | None = None  # where its state lives and steps; needs ZeRO 1-3, nvme 3
    offload_params: Literal["cpu", "nvme"] | None = None  # where shards wait for their turn; needs ZeRO 3
    nvme_path: Path | None = None  # the folder on a fast disk that nvme means
    load_sharded: bool = runtime(True)  # ZeRO 3: no rank ever holds the whole model in its own memory
    # DeepSpeed's own JSON for what has no field here, or the path of a file of it, whose content then enters the key.
    raw: dict[str, Any] = Field({}, json_schema_extra={"or_file": True})

    @field_validator("raw", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        return _json_file(Path(value)) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.offload_optimiser and self.zero_stage == 0:
            raise ValueError("offload_optimiser needs zero_stage 1, 2 or 3")
        if self.zero_stage < 3 and (self.offload_params or self.offload_optimiser == "nvme"):
            raise ValueError("offload_params, and offload_optimiser: nvme, need zero_stage: 3")
        if "nvme" in (self.offload_optimiser, self.offload_params) and self.nvme_path is None:
            raise ValueError("nvme needs nvme_path, a folder on the disk to use")
        _check_raw(self.raw)
        return self


# What is set here or by the trainer, by its key in DeepSpeed's JSON. Overriding it would change the gradient or the
# resume without a word.
OWNED = {
    "train_batch_size": "micro-batches are formed from micro_batch_tokens",
    "train_micro_batch_size_per_gpu": "micro-batches are formed from micro_batch_tokens",
    "gradient_accumulation_steps": "it follows from batch and micro_batch_tokens",
    "managed_gradient_accumulation": "it follows from batch and micro_batch_tokens",
    "gradient_clipping": "set clip_norm",
    "gradient_predivide_factor": "gradients are sums with counts of the whole batch",
    "prescale_gradients": "gradients are sums with counts of the whole batch",
    "bf16": "set backend.dtype",
    "bfloat16": "set backend.dtype",
    "fp16": "set backend.dtype",
    "amp": "set backend.dtype",
    "torch_autocast": "set backend.dtype",
    "data_types": "set backend.dtype",
    "optimizer": "set lr, adam_betas and weight_decay",
    "scheduler": "set schedule and warmup_steps",
    "checkpoint.load_universal": "it follows from the checkpoint",
    "zero_optimization.stage": "set backend.zero_stage",
    "zero_optimization.offload_optimizer.device": "set backend.offload_optimiser",
    "zero_optimization.offload_optimizer.nvme_path": "set backend.nvme_path",
    "zero_optimization.offload_param.device": "set backend.offload_params",
    "zero_optimization.offload_param.nvme_path": "set backend.nvme_path",
}


def _check_raw(raw: dict[str, Any]) -> None:
    for key, instead in OWNED.items():
        node: Any = raw
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            raise ValueError(f"raw may not set '{key}': {instead}")


def _json_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error


BackendConfig = Annotated[TorchConfig | DeepSpeedConfig, Field(discriminator="type")]


class NewModelConfig(Config):
    """A model made from nothing: a byte tokenizer with whole `words` added, and a small Qwen2."""

    words: tuple[str, ...] = ()  # tokens of their own beside the 256 bytes
    hidden_size: int = 64  # width
    layers: int = 3  # decoder layers
    heads: int = 2  # attention heads
    intermediate_size: int = 192  # width of the feed-forward part
    max_positions: int = 512  # longest sequence, tokens
    initializer_range: float = 0.08  # transformers' 0.02 doubles the training a model this small needs
    seed: int | None = None  # None: the pipeline's seed


class AdapterConfig(Config):
    """LoRA (arXiv 2106.09685): W + alpha / rank * B A, where A and B train and W stays as it is."""

    rank: int = Field(16, ge=1)  # r of the two factors; 16 to 64 is usual for RL
    alpha: float = Field(32.0, gt=0)  # the update is scaled by alpha / rank
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"  # names of modules, all but the head
    dropout: Literal[0] = 0  # the policy that trains is the one that sampled


class OptimiserConfig(StageConfig):
    """AdamW and its schedule, counted in optimiser steps. Shared by `sft` and `train`."""

    lr: float = Field(1e-6, gt=0)  # learning rate at its highest; AdamW (arXiv 1711.05101)
    adam_betas: tuple[float, float] = (0.9, 0.999)  # decay of the first and second moment
    weight_decay: float = Field(0.0, ge=0)  # decoupled
    warmup_steps: int = Field(0, ge=0)  # optimiser steps of linear rise
    schedule: Literal["constant", "cosine"] = "constant"  # after the warm-up
    lr_floor: float = Field(0.0, ge=0, le=1)  # cosine ends at this share of lr
    clip_norm: float = Field(1.0, gt=0)  # largest norm of the gradient over all weights
    # Padded tokens of one forward pass: memory against speed; the gradient stays, but with loss.reduce: micro-token
    micro_batch_tokens: int = Field(16384, ge=1)
    packing: Literal["auto", "on", "off"] = runtime("auto")  # rows end to end, unpadded; auto: with flash attention
    liger: bool = runtime(False)  # Liger's kernels for rotation, norm and SwiGLU; on a GPU, with concise[liger]
    gradient_checkpointing: bool = runtime(False)  # a third more time for activations of one layer instead of all
    adapter: AdapterConfig | None = None  # train low-rank updates in the place of all weights
    save_every: int = runtime(50, ge=1)  # steps between two checkpoints to resume from
    trackers: Trackers = runtime(())  # where metrics are shown besides metrics.jsonl
    processes: Processes = runtime(1)  # ranks; auto: one a GPU, 1 on a CPU
    backend: BackendConfig = TorchConfig()  # where the training state lives
    prompt: PromptConfig = PromptConfig()  # how a problem is put to the model
