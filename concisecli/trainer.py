"""`Trainer.update`: rows in, optimiser steps done, metrics out; one micro-batch loop for RL and SFT, on any backend.

Tokens and rows are counted over the whole minibatch of all ranks before the first backward, so that the gradient
depends neither on the size or order of the micro-batches nor on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from concisecli import collectives
from concisecli.algo import corrections, losses
from concisecli.backends import Backend, Reference
from concisecli.batching import Row, TrainBatch, canonical, collate, micro_batches, minibatches, share
from concisecli.config import LossConfig, OptimiserConfig, SftConfig, TrainConfig
from concisecli.foretold import Foretold
from concisecli.records import ConciseError

Metrics = dict[str, float]


class NonFiniteError(ConciseError):
    """A loss or a gradient is NaN or infinite. The weights are as they were before the step."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """Over one minibatch, on all ranks together."""

    tokens: int
    rows: int


class Trainer:
    """Trains `backend` on rollouts when `loss` is given, on examples when it is None.

    `temperature` is the one the rollouts were sampled at; `reference` the frozen model that `loss.kl_coef` > 0 needs;
    `max_response_tokens` the constant that `reduce: sequence-sum-norm` divides by.
    """

    def __init__(
        self,
        backend: Backend,
        config: SftConfig | TrainConfig,
        pad_id: int,
        *,
        loss: LossConfig | None = None,
        temperature: float = 1.0,
        reference: Reference | None = None,
        max_response_tokens: int = 1,
    ) -> None:
        if loss and (loss.kl_coef > 0) != (reference is not None):
            raise ValueError("a reference model is needed when, and only when, kl_coef is above 0")
        self.backend = backend
        self.loss = loss
        self._config = config
        self._pad_id = pad_id
        self._temperature = temperature
        self._reference = reference
        self._max_response_tokens = max_response_tokens
        self._parts = config.updates_per_batch if isinstance(config, TrainConfig) else 1
        self._epochs = config.epochs if isinstance(config, TrainConfig) else 1
        self._apart: list[corrections.Sums] = []  # of trainer and sampler, of the rows seen before the first step

    def update(self, rows: Sequence[Row], step: int) -> Metrics:
        """Train on this rank's `rows`, which together with those of the other ranks are the batch of `step` (from 0).

        Every rank must call it, also without rows; a batch that is empty everywhere changes nothing. The batch is
        split into `updates_per_batch` minibatches of whole groups and passed over `epochs` times, an optimiser step
        each. Metrics are means over those steps (`*_min`, `*_max`: extremes; `tokens`, `rows`: sums over all steps).

        Raises NonFiniteError before the step whose loss or gradient is not finite.
        """
        everyone = canonical(row for rank_rows in collectives.gather(list(rows)) for row in rank_rows if row.tokens)
        parts = minibatches(everyone, self._parts, seed=self._config.seed, step=step)
        fresh = [share(part, self.backend.world) for part in parts]
        self._apart.clear()
        scored = self._with_own_logprobs(fresh) if self.loss and self.loss.old_logprobs == "trainer" else fresh
        if self._masks:  # then the masks are known, and counted, before the first backward
            fresh = scored
        done: list[Metrics] = []
        for index in range(self._parts * self._epochs):
            ranks = (scored if done else fresh)[index % self._parts]
            if any(ranks):
                lr = learning_rate(self._config, step * self._parts * self._epochs + index, self._optimiser_steps)
                done.append(self._optimiser_step(ranks, lr, step=step, first=not done))
        return _mean_over_steps(done) | self._mismatch(bool(done))

    @property
    def _corrects(self) -> bool:
        return self.loss is not None and self.loss.correction != "none"

    @property
    def _masks(self) -> bool:
        return self._corrects and self.loss is not None and self.loss.correction_mode == "mask"

    @property
    def _optimiser_steps(self) -> int:
        return self._config.steps * self._parts * self._epochs

    def _optimiser_step(self, shares: list[list[Row]], lr: float, *, step: int, first: bool) -> Metrics:
        counts = self._counts(shares)
        sums: list[losses.Sums] = []
        for batch in self._micro_batches(shares):
            loss, micro_sums = self._objective(batch, counts, first=first)
            self.backend.backward(loss)
            sums.append(micro_sums)
        totals = _over_ranks(losses.merge(sums))
        metrics = losses.summary(totals)
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteError(f"step {step}: the loss is {metrics['loss']}; nothing was updated")
        if not self.backend.finite():
            raise NonFiniteError(f"step {step}: a gradient is not finite; nothing was updated")
        self.backend.set_lr(lr)
        return metrics | {"grad_norm": self.backend.step(), "lr": lr, "rows": float(counts.rows)}

    def _mismatch(self, any_step: bool) -> Metrics:
        """How far sampler and trainer were apart before the first step: over the first minibatch, over all of them
        with `old_logprobs: trainer`."""
        if self.loss is None or not any_step:
            return {}
        return corrections.mismatch_metrics(_over_ranks(losses.merge(self._apart)))

    def _counts(self, shares: list[list[Row]]) -> _Counts:
        if self._masks:  # a rank knows the masks of its own rows only
            mine = shares[self.backend.rank]
            tokens, rows = collectives.reduce([sum(r.tokens for r in mine), sum(r.tokens > 0 for r in mine)])
            return _Counts(int(tokens), int(rows))
        return _Counts(sum(row.tokens for part in shares for row in part), sum(map(len, shares)))

    def _micro_batches(self, shares: list[list[Row]]) -> list[TrainBatch]:
        """This rank's micro-batches, as many as the rank with the most has: ZeRO-2 and 3 wait for each other in every
        backward, so the others add batches that train nothing."""
        split = [self._split(rows) for rows in shares]
        batches = [collate(rows, self._pad_id) for rows in split[self.backend.rank]]
        missing = max(map(len, split)) - len(batches)
        if missing:
            shortest = min((row for rows in shares for row in rows), key=lambda row: row.length)
            padding = collate([shortest], self._pad_id)
            padding = replace(padding, response_mask=torch.zeros_like(padding.response_mask))
            batches += [padding] * missing
        return [batch.to(self.backend.device) for batch in batches]

    def _split(self, rows: list[Row]) -> list[list[Row]]:
        means = self.loss is not None and self.loss.reduce == "micro-token"  # then it matters who shares a micro-batch
        return micro_batches(rows, self._config.micro_batch_tokens, packed=self.backend.packed and not means)

    def _objective(self, batch: TrainBatch, counts: _Counts, *, first: bool) -> tuple[Tensor, losses.Sums]:
        if self.loss is None:
            weights = self._token_weights("token", batch, counts)
            slopes = Foretold(batch, weights).of_examples
            logprobs, _ = self.backend.score(batch, temperature=1.0, with_entropy=False, slopes=slopes)
            return losses.sft_nll(logprobs, batch.response_mask, weights)
        return self._policy_loss(self.loss, batch, counts, first=first)

    def _policy_loss(
        self, loss: LossConfig, batch: TrainBatch, counts: _Counts, *, first: bool
    ) -> tuple[Tensor, losses.Sums]:
        # Before the policy's own pass: ZeRO-3 and a switched adapter want nothing between it and its backward.
        reference = self._reference and self._reference.score(batch, temperature=self._temperature)
        # Before the first step the old log-probs are those of the policy as it is: they cost no pass of their own.
        own = loss.old_logprobs == "trainer" and first
        corrects_here = self._corrects and own and not self._masks
        weights = self._token_weights(loss.reduce, batch, counts)
        settings = {
            "eps_low": loss.eps_low,
            "eps_high": loss.eps_high,
            "kl_coef": loss.kl_coef,
            "entropy_coef": loss.entropy_coef,
            "total_tokens": self._tokens_behind_means(loss, batch, counts),
        }
        foretold = Foretold(
            batch,
            weights,
            own=own,
            reference=reference,
            correction=self._importance if corrects_here else self._corrects,
            settings=settings,
        )
        tokens_alone = loss.ratio == "token" and not (corrects_here and loss.correction == "sequence")
        logprobs, entropy = self.backend.score(
            batch,
            temperature=self._temperature,
            with_entropy=True,
            slopes=foretold.of_rollouts if tokens_alone else None,
        )
        log_ratio = logprobs.detach() - batch.old_logprobs  # over the sampler, before the first step
        correction = self._importance(log_ratio, batch.response_mask)[0] if corrects_here else batch.correction
        total, sums = losses.policy_loss(
            logprobs,
            logprobs.detach() if own else batch.old_logprobs,
            batch.advantages,
            batch.response_mask,
            weights,
            ratio=loss.ratio,
            ref_logprobs=reference,
            entropy=entropy,
            correction=correction if self._corrects else None,
            **settings,
        )
        if first and not self._masks:
            self._apart.append(corrections.mismatch_sums(log_ratio, batch.response_mask))
        if self._corrects:
            sums["correction"] = losses.masked_sum(correction, batch.response_mask)
        return total, sums

    def _importance(self, log_ratio: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.loss
        assert loss is not None
        assert loss.correction != "none"
        return corrections.importance_weights(
            log_ratio, keep, level=loss.correction, mode=loss.correction_mode, cap=loss.correction_cap
        )

    def _token_weights(self, reduce: losses.Reduce, batch: TrainBatch, counts: _Counts) -> Tensor:
        weights = losses.row_weights(
            reduce,
            batch.token_counts,
            total_tokens=counts.tokens,
            total_rows=self._planned_rows if reduce == "micro-token" else counts.rows,
            max_response_tokens=self._max_response_tokens,
        )
        return weights * batch.weights

    def _tokens_behind_means(self, loss: LossConfig, batch: TrainBatch, counts: _Counts) -> float:
        """What entropy and KL are divided by: the tokens of the batch, or what makes them means over a micro-batch."""
        if loss.reduce != "micro-token":
            return counts.tokens
        lengths = batch.token_counts
        return float(lengths.sum() * self._planned_rows / (lengths > 0).sum().clamp(min=1))

    @property
    def _planned_rows(self) -> float:
        """Rows of a minibatch in which no group was dropped."""
        config = self._config
        assert isinstance(config, TrainConfig)
        return config.batch_problems * config.sampling.group_size / config.updates_per_batch

    def _with_own_logprobs(self, shares: list[list[list[Row]]]) -> list[list[list[Row]]]:
        """The minibatches with the trainer's log-probs as the old ones, except one that is used before any step."""
        used_once = self._epochs == 1 and not self._masks
        first = next((i for i, ranks in enumerate(shares) if any(ranks)), 0)
        return [
            ranks if i == first and used_once else self._scored(ranks, measure=self._masks or i != first)
            for i, ranks in enumerate(shares)
        ]

    @torch.no_grad()
    def _scored(self, shares: list[list[Row]], *, measure: bool = False) -> list[list[Row]]:
        """`shares` with this rank's rows scored by the policy as it is, and corrected for the sampler's."""
        rank = self.backend.rank
        ordered = [row for rows in self._split(shares[rank]) for row in rows]
        mine: list[Row] = []
        for batch in self._micro_batches(shares):
            logprobs, _ = self.backend.score(batch, temperature=self._temperature, with_entropy=False)
            log_ratio = logprobs - batch.old_logprobs
            if measure:
                self._apart.append(corrections.mismatch_sums(log_ratio, batch.response_mask))
            found = [logprobs]
            if self._corrects:
                found += self._importance(log_ratio, batch.response_mask)
            rows = zip(ordered[len(mine) :], *(values.cpu() for values in found), strict=False)
            mine += [_with_old(*row) for row in rows]  # what is left over is padding
        return [mine if r == rank else rows for r, rows in enumerate(shares)]


def _with_old(row: Row, logprobs: Tensor, correction: Tensor | None = None, keep: Tensor | None = None) -> Row:
    """The row with [T] old log-probs and, where there are, the factors and the tokens of a correction."""
    response = slice(len(row.prompt_ids), row.length)
    old = tuple(logprobs[response].tolist())
    if correction is None or keep is None:
        return replace(row, old_logprobs=old)
    mask, factors = tuple(keep[response].tolist()), tuple(correction[response].tolist())
    return replace(row, old_logprobs=old, correction=factors, loss_mask=mask)


def learning_rate(config: OptimiserConfig, index: int, total: int) -> float:
    """The rate of optimiser step `index` of `total`: linear warm-up, then constant, or a cosine that reaches
    `lr_floor` times `lr` at the last step. A function of the index alone, so a resumed run needs no state for it."""
    if index < config.warmup_steps:
        return config.lr * (index + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    progress = min(1.0, (index - config.warmup_steps) / max(1, total - 1 - config.warmup_steps))
    return config.lr * (config.lr_floor + (1 - config.lr_floor) * (1 + math.cos(math.pi * progress)) / 2)


def _over_ranks(sums: losses.Sums) -> losses.Sums:
    """The sums of one rank as those of all, in float64."""
    names = sorted(sums)
    values = torch.stack([sums[name].double() for name in names]).tolist()
    by_op: dict[str, list[int]] = {"sum": [], "min": [], "max": []}
    for i, name in enumerate(names):
        by_op[name[-3:] if name.endswith(("_min", "_max")) else "sum"].append(i)
    for op, indices in by_op.items():
        reduced = collectives.reduce([values[i] for i in indices], op)  # type: ignore[arg-type]
        for i, value in zip(indices, reduced, strict=True):
            values[i] = value
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in zip(names, values, strict=True)}


def _mean_over_steps(steps: list[Metrics]) -> Metrics:
    if not steps:
        return {"tokens": 0.0, "rows": 0.0, "optimiser_steps": 0.0}
    names = {name for metrics in steps for name in metrics}
    merged = {"optimiser_steps": float(len(steps))}
    for name in sorted(names):
        values = [metrics[name] for metrics in steps if name in metrics]
        if name in ("tokens", "rows"):
            merged[name] = sum(values)
        elif name.endswith("_min"):
            merged[name] = min(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged
