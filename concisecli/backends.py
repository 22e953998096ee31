"""What holds the training state, and how one is made: plain torch, or DeepSpeed sharding it over many processes.

Both take a loss that is this rank's share of a sum over the global batch and add gradients up over ranks, so that one
trainer serves both. In bfloat16 the optimiser always steps fp32 masters: torch keeps fp32 weights and computes under
autocast (as does ZeRO-0), ZeRO 1-3 keeps bf16 weights beside its own fp32 copies.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from concisecli import adapters, collectives, kernels, policy
from concisecli.batching import Row, TrainBatch, collate
from concisecli.config import DeepSpeedConfig, OptimiserConfig, TorchConfig
from concisecli.logprobs import Slopes, token_logprobs
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
        """Every weight in full, one at a time and an adapter's part added, by the names of the plain model: a
        collective where weights are sharded. Tied weights come once."""
        ...

    def adapter_weights(self) -> Iterable[tuple[str, Tensor]]:
        """The adapter's own weights in full, by the names of peft's files: a collective as `named_weights`."""
        ...

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Write what trains, its optimiser and the caller's `state` (whatever JSON gives back unchanged) into `folder`,
        a collective. Making the folder durable, and whole or absent, is the work of `checkpoints`."""
        ...

    def load(self, folder: Path) -> dict[str, Any]:
        """Take up what `save` wrote, bit for bit, and return the caller's state. A checkpoint of another number of
        processes is taken up to rounding, or refused with a ConciseError that says why."""
        ...


class Reference(Protocol):
    def score(self, batch: TrainBatch, *, temperature: float) -> Tensor:
        """[B, T] log-probs by the frozen model at the response's positions, without a gradient; a collective where it
        is sharded."""
        ...


def make_backend(
    config: TorchConfig | DeepSpeedConfig, model: Path | torch.nn.Module, optimiser: OptimiserConfig
) -> Backend:
    """The backend that `config.type` names, training `model` (a folder, or what is loaded already) with AdamW as
    `optimiser` says, or an adapter in it. Raises ConciseError when the folder or the settings do not fit it."""
    if config.type == "deepspeed":
        from concisecli.backend_deepspeed import DeepSpeedBackend, load_model

        module = load_model(config, model) if isinstance(model, Path) else model
        return DeepSpeedBackend(config, _prepared(module, optimiser), optimiser)
    from concisecli.backend_torch import TorchBackend

    module = policy.load_model(model) if isinstance(model, Path) else model
    return TorchBackend(config, _prepared(module, optimiser), optimiser)


def make_reference(config: OptimiserConfig, model: Path, backend: Backend) -> Reference:
    """The model in the folder `model`, from which `backend` started, as it was: what the KL is measured from. For an
    adapter it is the base that is in memory anyway; with ZeRO-3 it is sharded like the policy."""
    if config.adapter:
        return AdapterOff(backend)
    if config.backend.type == "deepspeed" and config.backend.zero_stage == 3:
        from concisecli.backend_deepspeed import ShardedReference

        return ShardedReference(config.backend, model, packed=backend.packed)
    module = policy.load_model(model, config.backend.dtype)
    kernels.use(module, config)
    return FrozenModel(module, config.backend.dtype, backend.device, packed=backend.packed)


class FrozenModel:
    """A whole model on this rank's device."""

    def __init__(self, module: torch.nn.Module, dtype: Dtype, device: torch.device, *, packed: bool = False) -> None:
        self.module = module.to(device).eval().requires_grad_(False)
        self._settings: dict[str, Any] = {"dtype": dtype, "with_entropy": False, "packed": packed}

    @torch.no_grad()
    def score(self, batch: TrainBatch, *, temperature: float) -> Tensor:
        return score(self.module, batch, temperature=temperature, **self._settings)[0]


class AdapterOff:
    """The policy's own base."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @torch.no_grad()
    def score(self, batch: TrainBatch, *, temperature: float) -> Tensor:
        with adapters.switched_off(self._backend.module):
            return self._backend.score(batch, temperature=temperature, with_entropy=False)[0]


@torch.no_grad()
def sequence_logprobs(backend: Backend, ids: Sequence[int]) -> list[float]:
    """log pi(ids[t] | ids[:t]) at temperature 1 for t = 1.., by the policy that trains: a collective."""
    batch = collate([Row(tuple(ids[:1]), tuple(ids[1:]))], pad_id=0).to(backend.device)
    return [float(x) for x in backend.score(batch, temperature=1.0, with_entropy=False)[0][0, 1:]]


def write_model(backend: Backend, tokenizer: Any, folder: Path) -> None:
    """The weights as they are as an ordinary Hugging Face folder, whole or not at all: a collective. The first rank
    writes, and no rank ever holds more than one file of them."""
    _first_rank_takes(
        backend, backend.named_weights(), lambda w: policy.save_model(backend.module, tokenizer, folder, w)
    )


def write_adapter(backend: Backend, folder: Path) -> None:
    """The adapter alone, as peft's folder: a collective."""
    _first_rank_takes(backend, backend.adapter_weights(), lambda w: adapters.save(backend.module, dict(w), folder))


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
    with (
        torch.autocast(device, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext(),
        _recomputing(module),
    ):
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


@contextlib.contextmanager
def _recomputing(module: torch.nn.Module) -> Iterator[None]:
    """Let gradient checkpointing, where it is on, happen: transformers keeps it for layers in training mode. Only the
    layers themselves are put into it, not what is in them, where it would mean dropout."""
    layers = [m for m in module.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]
    for layer in layers:
        layer.training = torch.is_grad_enabled()
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _prepared(module: Any, config: OptimiserConfig) -> torch.nn.Module:
    kernels.use(module, config)
    if config.adapter:
        adapters.attach(module, config.adapter, seed=config.seed)
    if config.gradient_checkpointing:
        try:
            module.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        except ValueError as error:
            raise ConciseError(f"gradient_checkpointing: {error}") from error
    return module


def adamw(module: torch.nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    params = [param for _, param in adapters.trainable(module)]
    return torch.optim.AdamW(
        params, lr=config.lr, betas=config.adam_betas, weight_decay=config.weight_decay, fused=True
    )


def _first_rank_takes(backend: Backend, weights: Iterable[tuple[str, Tensor]], write: Any) -> None:
    if backend.rank == 0:
        write(weights)
    else:
        for _ in weights:  # takes part in gathering each, and lets it go
            pass
    collectives.barrier()


def write_state(folder: Path, state: dict[str, Any]) -> None:
    text = json.dumps(state)
    if json.loads(text) != state:
        raise TypeError("the state of a checkpoint must come back unchanged from JSON: no tuples, no integer keys")
    if collectives.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(text, encoding="utf-8")
    collectives.barrier()


def read_state(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "state.json").read_text(encoding="utf-8"))
