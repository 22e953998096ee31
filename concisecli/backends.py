"""What holds the training state: plain torch on one process, or DeepSpeed over many."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


class Backend(Protocol):
    module: torch.nn.Module
    rank: int
    world: int

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
        """Every weight in full, by name: a collective where weights are sharded."""
        ...

    def save(self, folder: Path, state: dict[str, Any]) -> None: ...

    def load(self, folder: Path) -> dict[str, Any]: ...
