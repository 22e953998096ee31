"""Plain torch: whole weights on every rank, gradients summed over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from concisecli import adapters, collectives
from concisecli.backends import Dtype, Scores, adamw, read_state, score, write_state
from concisecli.batching import TrainBatch
from concisecli.config import OptimiserConfig, TorchConfig
from concisecli.logprobs import Slopes, packs


class TorchBackend:
    """Replicated weights, AdamW, gradients summed over ranks: one process, or a few with a model that fits each."""

    def __init__(self, config: TorchConfig, module: torch.nn.Module, optimiser: OptimiserConfig) -> None:
        collectives.init()
        self.device = collectives.device()
        self.rank, self.world = collectives.rank(), collectives.world()
        self.module = module.to(self.device).eval()  # no dropout: the policy that trains is the one that sampled
        self.optimiser = adamw(module, optimiser)
        self._dtype: Dtype = config.dtype
        self._adapted = adapters.attached(module)
        self.packed = packs(self.module, optimiser.packing)
        self._clip_norm = optimiser.clip_norm
        self._params = [param for _, param in adapters.trainable(module)]
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
        return adapters.merged_weights(self.module, _whole)

    def adapter_weights(self) -> Iterator[tuple[str, Tensor]]:
        return adapters.adapter_weights(self.module, _whole)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        write_state(folder, state)
        if self.rank == 0:
            kept = dict(adapters.trainable(self.module)) if self._adapted else self.module.state_dict()
            held = {"module": kept, "optimiser": self.optimiser.state_dict()}
            torch.save(held, folder / "torch.pt")
        collectives.barrier()

    def load(self, folder: Path) -> dict[str, Any]:
        held = torch.load(folder / "torch.pt", map_location=self.device, weights_only=True)
        self.module.load_state_dict(held["module"], strict=not self._adapted)
        self.optimiser.load_state_dict(held["optimiser"])
        return read_state(folder)

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


def _whole(params: list[torch.nn.Parameter]) -> list[Tensor]:
    return [param.detach() for param in params]
