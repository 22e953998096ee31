"""The slopes of a loss by single tokens, told before the whole loss is there; see `logprobs.Slopes`.

They save the recomputation of logits and decide nothing: `losses` is called on the batch, and its gradient is what
counts. Shapes: [n] the tokens of a chunk, [B, T] the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from concisecli.algo import losses
from concisecli.batching import TrainBatch

Importance = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Foretold:
    """What the loss of a batch will be made of.

    `weights` [B]; `own`: the old log-probs are the policy's own; `correction`: whether the batch's factors count, or
    how to make them from log-ratios and a mask; `settings` are those of `losses.policy_loss`.
    """

    batch: TrainBatch
    weights: Tensor
    own: bool = False
    reference: Tensor | None = None
    correction: bool | Importance = False
    settings: dict[str, Any] = field(default_factory=dict)

    def of_examples(self, logprobs: Tensor, entropy: Tensor | None, places: Tensor) -> tuple[Tensor, None]:
        return -self.weights[self._rows(places)], None

    def of_rollouts(self, logprobs: Tensor, entropy: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor | None]:
        """Only where no token's loss depends on another's: neither ratio nor correction of whole sequences."""
        rows = self._rows(places)
        sampled = self.batch.old_logprobs.flatten()[places]
        return losses.token_slopes(
            logprobs,
            logprobs if self.own else sampled,
            self.batch.advantages[rows],
            self.weights[rows],
            ref_logprobs=None if self.reference is None else self.reference.flatten()[places],
            entropy=entropy,
            correction=self._corrections(logprobs - sampled, places),
            **self.settings,
        )

    def _corrections(self, log_ratio: Tensor, places: Tensor) -> Tensor | None:
        if callable(self.correction):
            everything = log_ratio.new_ones(len(places), 1).bool()
            return self.correction(log_ratio.detach()[:, None], everything)[0][:, 0]
        return self.batch.correction.flatten()[places] if self.correction else None

    def _rows(self, places: Tensor) -> Tensor:
        return places // self.batch.input_ids.shape[1]
