"""What holds the training state: plain torch, or DeepSpeed sharding it over many processes.

Both take a loss that is this rank's share of a sum over the global batch and add gradients up over ranks, so that one
trainer serves both. In bfloat16 the optimiser always steps fp32 masters: torch keeps fp32 weights and computes under
autocast (as does ZeRO-0), ZeRO 1-3 keeps bf16 weights beside its own fp32 copies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from concisecli import collectives
from concisecli.batching import TrainBatch
from concisecli.config import DeepSpeedConfig, OptimiserConfig, TorchConfig
from concisecli.logprobs import Slopes, packs, token_logprobs
from concisecli.records import ConciseError

Dtype = Literal["float32", "bfloat16"]
Scores = tuple[Tensor, Tensor | None]


class Backend(Protocol):
    module: torch.nn.Module
    device: torch.device
    rank: int
    world: int
    packed: bool  # rows go through the model end to end, without padding

    def score(
        self, batch: TrainBatch, *, temperature: float, with_entropy: bool, slopes: Slopes | None = None
    ) -> Scores:
        """The forward pass: [B, T] log-probs, and entropies when asked for, at the response's positions. `slopes`
        foretells what `backward` will ask of them, to save work; see `token_logprobs`."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of `loss`, which is already this rank's share of the global mean's sum."""
        ...

    def finite(self) -> bool:
        """Whether every gradient on every rank is finite; asked before `step`, which would apply a NaN."""
        ...

    def step(self) -> float:
        """Clip, update, zero; the gradient norm before clipping."""
        ...

    def set_lr(self, lr: float) -> None: ...

    def named_weights(self) -> Iterable[tuple[str, Tensor]]:
        """Every weight in full, by name: a collective where weights are sharded. Tied weights come once."""
        ...

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write weights, optimiser and the caller's `state` (whatever JSON gives back unchanged) into `folder`, a
        collective. Making the folder durable, and whole or absent, is the work of `checkpoints`."""
        ...

    def load(self, folder: Path) -> dict[str, Any]:
        """Take up what `save` wrote, bit for bit, and return the caller's state."""
        ...


def make_backend(config: TorchConfig | DeepSpeedConfig, module: torch.nn.Module, optimiser: OptimiserConfig) -> Backend:
    """The backend that `config.type` names, training `module` with AdamW as `optimiser` says."""
    if config.type == "deepspeed":
        return DeepSpeedBackend(config, module, optimiser)
    return TorchBackend(config, module, optimiser)


def score(
    module: torch.nn.Module,
    batch: TrainBatch,
    *,
    dtype: Dtype,
    temperature: float,
    with_entropy: bool,
    slopes: Slopes | None = None,
    packed: bool = False,
) -> Scores:
    """`token_logprobs` of a batch under the arithmetic of `dtype`; also what a frozen reference is scored with."""
    device = batch.input_ids.device.type
    with torch.autocast(device, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext():
        return token_logprobs(
            module,
            batch.input_ids,
            batch.attention_mask,
            batch.response_mask,
            temperature=temperature,
            with_entropy=with_entropy,
            slopes=slopes,
            packed=packed,
        )


class TorchBackend:
    """Replicated weights, AdamW, gradients summed over ranks: one process, or a few with a model that fits each."""

    def __init__(self, config: TorchConfig, module: torch.nn.Module, optimiser: OptimiserConfig) -> None:
        collectives.init()
        self.device = collectives.device()
        self.rank, self.world = collectives.rank(), collectives.world()
        self.module = module.to(self.device).eval()  # no dropout: the policy that trains is the one that sampled
        self.optimiser = _adamw(module, optimiser)
        self._dtype: Dtype = config.dtype
        self.packed = packs(self.module, optimiser.packing)
        self._clip_norm = optimiser.clip_norm
        self._params = [p for p in module.parameters() if p.requires_grad]
        self._norm: Tensor | None = None  # of the gradient summed over ranks, once that is done

    def score(
        self, batch: TrainBatch, *, temperature: float, with_entropy: bool, slopes: Slopes | None = None
    ) -> Scores:
        settings = {"temperature": temperature, "with_entropy": with_entropy, "slopes": slopes, "packed": self.packed}
        return score(self.module, batch, dtype=self._dtype, **settings)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def finite(self) -> bool:
        return math.isfinite(self._total_norm())  # a NaN or an infinity anywhere makes the norm one

    def step(self) -> float:
        norm = self._total_norm()
        torch.nn.utils.clip_grads_with_norm_(self._params, self._clip_norm, self._norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._norm = None
        return norm

    def set_lr(self, lr: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = lr

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, param in self.module.named_parameters():
            yield name, param.detach()

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        _write_state(folder, state)
        if self.rank == 0:
            held = {"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict()}
            torch.save(held, folder / "torch.pt")
        collectives.barrier()

    def load(self, folder: Path) -> dict[str, Any]:
        held = torch.load(folder / "torch.pt", map_location=self.device, weights_only=True)
        self.module.load_state_dict(held["module"])
        self.optimiser.load_state_dict(held["optimiser"])
        return _read_state(folder)

    def _total_norm(self) -> float:
        if self._norm is None:
            if self.world > 1:
                self._sum_over_ranks()
            self._norm = torch.nn.utils.get_total_norm([p.grad for p in self._params if p.grad is not None])
        return self._norm.item()

    def _sum_over_ranks(self) -> None:
        for param in self._params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        flat = torch.cat([p.grad.flatten() for p in self._params])
        torch.distributed.all_reduce(flat)
        for param, part in zip(self._params, flat.split([p.numel() for p in self._params]), strict=True):
            param.grad.copy_(part.view_as(param))


class DeepSpeedBackend:
    """DeepSpeed with ZeRO 0-3 under torchrun, the deepspeed launcher or alone.

    One optimiser step is one `engine.step()` after any number of `backward`s with gradient accumulation left to us:
    DeepSpeed's own divides by a fixed number of micro-batches, which is wrong when their token counts differ.
    """

    def __init__(self, config: DeepSpeedConfig, module: torch.nn.Module, optimiser: OptimiserConfig) -> None:
        deepspeed = _import_deepspeed()
        collectives.init(alone=True)
        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), auto_mpi_discovery=False)
        self.device = collectives.device()
        self.rank, self.world = collectives.rank(), collectives.world()
        self.module = module.eval()
        self._zero = deepspeed.zero
        self._zero_stage = config.zero_stage
        self._norm = math.nan  # ZeRO-0 only
        self._spread = torch.zeros((), dtype=torch.float64, device=self.device)
        module.to(self.device)
        for param in module.parameters():
            param.register_hook(self._watch)
        self.packed = packs(module, optimiser.packing)
        adamw = _adamw(module, optimiser)
        if config.zero_stage == 0:
            # It gives no norm, and sums gradients over ranks only within its own step: clip there.
            adamw.register_step_pre_hook(lambda *_: self._clip_unsharded(optimiser.clip_norm))
        self.engine, *_ = deepspeed.initialize(
            model=_Scorer(module, config.dtype if config.zero_stage == 0 else "float32"),
            optimizer=adamw,
            config=_deepspeed_json(config, optimiser),
            dist_init_required=False,
        )

    def score(
        self, batch: TrainBatch, *, temperature: float, with_entropy: bool, slopes: Slopes | None = None
    ) -> Scores:
        settings = {"temperature": temperature, "with_entropy": with_entropy, "slopes": slopes, "packed": self.packed}
        return self.engine(batch, **settings)

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.world)  # DeepSpeed divides the sum over ranks by their number

    def finite(self) -> bool:
        (spread,) = collectives.reduce([self._spread.item()])
        return math.isfinite(spread)

    def step(self) -> float:
        self.engine.step()
        self._spread.zero_()
        return self._norm if self._zero_stage == 0 else float(self.engine.get_global_grad_norm())

    def set_lr(self, lr: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, param in self.module.named_parameters():
            if self._zero_stage < 3:
                yield name, param.detach()
                continue
            with self._zero.GatheredParameters([param], modifier_rank=None):
                whole = param.detach().clone()  # the gathered one is freed when the block ends
            yield name, whole

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        _write_state(folder, state)
        self.engine.save_checkpoint(str(folder), tag="deepspeed", save_latest=False)
        collectives.barrier()

    def load(self, folder: Path) -> dict[str, Any]:
        path, _ = self.engine.load_checkpoint(str(folder), tag="deepspeed")
        if path is None:
            raise ConciseError(f"{folder} holds no DeepSpeed checkpoint for this number of processes and ZeRO stage")
        return _read_state(folder)

    def _watch(self, grad: Tensor) -> None:
        """Remember whether a gradient was ever not finite: fp32 ZeRO does not look, and shards are out of reach."""
        low, high = torch.aminmax(grad)
        self._spread += high.double() - low.double()

    def _clip_unsharded(self, clip_norm: float) -> None:
        self._norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm).item()


class _Scorer(torch.nn.Module):
    """The policy as DeepSpeed sees it: its hooks gather and free weights around one forward call, ours."""

    def __init__(self, policy: torch.nn.Module, dtype: Dtype) -> None:
        super().__init__()
        self.policy = policy
        self._dtype = dtype

    def forward(self, batch: TrainBatch, **settings: Any) -> Scores:
        return score(self.policy, batch, dtype=self._dtype, **settings)


def _adamw(module: torch.nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    params = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        params, lr=config.lr, betas=config.adam_betas, weight_decay=config.weight_decay, fused=True
    )


def _import_deepspeed() -> Any:
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("LOCAL_RANK", str(collectives.local_rank()))  # it insists, also without a launcher
    try:
        import deepspeed
        from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder
    except ImportError as error:
        raise ConciseError("backend 'deepspeed' is not installed; pip install 'concise[gpu]', or use torch") from error
    # Else the first init on a CPU compiles a C++ op: 30-80 s, and fatal without g++ and ninja. Plain gloo does.
    ShareMemCommBuilder.is_compatible = lambda self, verbose=False: False
    for handler in deepspeed.utils.logger.handlers:
        handler.setStream(sys.stderr)  # stdout is for results
    deepspeed.utils.logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed.c10d_logger")  # its own calls
    return deepspeed


def _deepspeed_json(config: DeepSpeedConfig, optimiser: OptimiserConfig) -> dict[str, Any]:
    sharded = config.zero_stage > 0
    return {
        "train_micro_batch_size_per_gpu": 1,  # only counted, never used: we form the micro-batches
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimiser.clip_norm if sharded else 0.0,
        "zero_optimization": {"stage": config.zero_stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,  # torch's AdamW: its resume is bit-exact, DeepSpeed's CPU Adam is not
        "bf16": {"enabled": sharded and config.dtype == "bfloat16"},
        "steps_per_print": None,
    }


def _write_state(folder: Path, state: dict[str, Any]) -> None:
    text = json.dumps(state)
    if json.loads(text) != state:
        raise TypeError("the state of a checkpoint must come back unchanged from JSON: no tuples, no integer keys")
    if collectives.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(text, encoding="utf-8")
    collectives.barrier()


def _read_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))
