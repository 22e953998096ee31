"""What is minimised, as sums over a micro-batch whose denominators were counted over the whole batch beforehand.

So the losses of micro-batches, and of ranks, add up to the mean over the batch: the gradient depends neither on the
size nor on the order of the micro-batches. Shapes: [B, T] response positions, [B] rows. `mask` is 1 where a token
carries loss; what stands elsewhere (padding, -inf, NaN) is never looked at.

Sources: GRPO (arXiv 2402.03300), clip-higher and the token mean of DAPO (arXiv 2503.14476), the constant denominator
of Dr. GRPO (arXiv 2503.20783), the sequence ratio of GSPO (arXiv 2507.18071), ConciseR's entropy bonus (arXiv
2505.21178).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

Reduce = Literal["token", "sequence", "sequence-sum-norm", "micro-token"]
Sums = dict[str, Tensor]

MAX_LOG = (
    20.0  # exp of more overflows sooner or later, and the gradient of an infinite ratio that is clipped is 0 * inf
)


def row_weights(
    reduce: Reduce, lengths: Tensor, *, total_tokens: float, total_rows: float, max_response_tokens: int
) -> Tensor:
    """[B] the weight of each token of a row; the loss is the sum of weight times token loss.

    `lengths` [B] tokens of the row that carry loss; `total_tokens` and `total_rows` (rows with at least one such
    token) are counted over the whole batch, all micro-batches and all ranks, so a masked row or token leaves numerator
    and denominator alike.

    token              mean over all tokens of the batch: 1 / total_tokens
    sequence           mean over rows of the mean over their tokens: 1 / (total_rows * length)
    sequence-sum-norm  mean over rows of their token sums over a constant: 1 / (total_rows * max_response_tokens)
    micro-token        mean over the tokens of this micro-batch, times its share of `total_rows`, there the rows that
                       the batch was meant to have: rows / (total_rows * tokens of the micro-batch). What GRPO-LEAD's
                       released code does (verl's `masked_mean` in each micro-batch), and the one reduction whose
                       gradient depends on how rows are put into micro-batches.
    """
    lengths = lengths.to(torch.float64 if lengths.dtype == torch.float64 else torch.float32)
    rows = max(total_rows, 1)  # an all-masked batch weighs nothing: its sums are zero anyway
    if reduce == "token":
        return torch.full_like(lengths, 1.0 / max(total_tokens, 1))
    if reduce == "sequence":
        return 1.0 / (rows * lengths.clamp(min=1))
    if reduce == "sequence-sum-norm":
        return torch.full_like(lengths, 1.0 / (rows * max_response_tokens))
    if reduce == "micro-token":
        return torch.full_like(lengths, 1.0) * (lengths > 0).sum() / (rows * lengths.sum().clamp(min=1))
    raise ValueError(f"reduce '{reduce}' is none of token, sequence, sequence-sum-norm, micro-token")


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    total_tokens: float,
    ratio: Literal["token", "sequence"] = "token",
    kl_coef: float = 0.0,
    ref_logprobs: Tensor | None = None,
    entropy_coef: float = 0.0,
    entropy: Tensor | None = None,
    correction: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """This micro-batch's share of the loss to minimise, and sums for the metrics (`merge`, then `summary`).

    logprobs, old_logprobs, ref_logprobs, entropy, mask [B, T]; advantages [B]; `weights` [B] from `row_weights`;
    `correction` [B, T] factors on the surrogate, from `corrections.importance_weights`.

        - sum(weights * clipped surrogate) + (kl_coef * sum(k3) - entropy_coef * sum(entropy)) / total_tokens

    KL and entropy are means over the tokens of the batch whatever `reduce` is, so neither changes the policy term.
    `ref_logprobs` is needed when `kl_coef` > 0 and `entropy` (with its gradient) when `entropy_coef` > 0; given with a
    coefficient of 0 they are measured only. All masked: 0, with a zero gradient.
    """
    keep = mask.bool()
    log_ratio = log_ratios(logprobs, old_logprobs, keep, ratio=ratio)
    ratios = log_ratio.exp()
    advantage = advantages.unsqueeze(-1)
    surrogate = clipped_surrogate(ratios, advantage, eps_low=eps_low, eps_high=eps_high)
    if correction is not None:
        surrogate = surrogate * correction
    policy = -masked_sum(surrogate * weights.unsqueeze(-1), keep)
    loss, sums = policy, {"policy_loss": policy}

    if ref_logprobs is not None:
        kl = masked_sum(k3_kl(logprobs, ref_logprobs, keep), keep)
        sums["kl"] = kl
        if kl_coef:
            loss = loss + kl_coef * kl / max(total_tokens, 1)
    elif kl_coef:
        raise ValueError("kl_coef needs ref_logprobs")
    if entropy is not None:
        total_entropy = masked_sum(entropy, keep)
        sums["entropy"] = total_entropy
        if entropy_coef:
            loss = loss - entropy_coef * total_entropy / max(total_tokens, 1)
    elif entropy_coef:
        raise ValueError("entropy_coef needs entropy")

    sums |= _ratio_sums(log_ratio, ratios, advantage, keep, eps_low=eps_low, eps_high=eps_high)
    sums["loss"] = loss
    return loss, {name: value.detach() for name, value in sums.items()}


def token_slopes(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    correction: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """The derivatives of `policy_loss` by single tokens' log-probs and entropies: [n], [n].

    Everything is [n], a token each; `settings` are `policy_loss`'s. Only for `ratio: token`, where no token's loss
    depends on another's.
    """
    leaves = [x.detach()[:, None].requires_grad_() for x in (logprobs, entropy) if x is not None]
    with torch.enable_grad():
        loss, _ = policy_loss(
            leaves[0],
            old_logprobs[:, None],
            advantages,
            torch.ones_like(leaves[0], dtype=torch.bool),
            weights,
            ref_logprobs=None if ref_logprobs is None else ref_logprobs[:, None],
            entropy=leaves[1] if entropy is not None else None,
            correction=None if correction is None else correction[:, None],
            **settings,
        )
        slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
    return slopes[0][:, 0], slopes[1][:, 0] if entropy is not None and slopes[1] is not None else None


def sft_nll(logprobs: Tensor, mask: Tensor, weights: Tensor) -> tuple[Tensor, Sums]:
    """This micro-batch's share of the supervised loss: sum of weights * -logprob over the tokens that carry loss.

    logprobs, mask [B, T]; `weights` [B]: `row_weights` times the weight of the example. Sums: `loss`, the unweighted
    `nll`, `tokens`.
    """
    keep = mask.bool()
    loss = -masked_sum(logprobs * weights.unsqueeze(-1), keep)
    sums = {"loss": loss, "nll": -masked_sum(logprobs, keep), "tokens": keep.sum()}
    return loss, {name: value.detach() for name, value in sums.items()}


def clipped_surrogate(ratios: Tensor, advantages: Tensor, *, eps_low: float, eps_high: float) -> Tensor:
    """min(r A, clip(r, 1 - eps_low, 1 + eps_high) A), to be maximised. Shapes broadcast."""
    return torch.minimum(ratios * advantages, ratios.clamp(1 - eps_low, 1 + eps_high) * advantages)


def log_ratios(logprobs: Tensor, old_logprobs: Tensor, keep: Tensor, *, ratio: Literal["token", "sequence"]) -> Tensor:
    """[B, T] log of policy over behaviour policy, 0 where masked.

    sequence: the mean over the row's tokens stands at each of them (GSPO's length-normalised ratio); its gradient
    reaches every token of the row alike.
    """
    log_ratio = torch.where(keep, logprobs - old_logprobs, 0.0)
    if ratio == "sequence":
        mean = log_ratio.sum(-1, keepdim=True) / keep.sum(-1, keepdim=True).clamp(min=1)
        log_ratio = torch.where(keep, mean, 0.0)
    return log_ratio.clamp(max=MAX_LOG)


def k3_kl(logprobs: Tensor, ref_logprobs: Tensor, keep: Tensor | None = None) -> Tensor:
    """exp(d) - d - 1 with d = log reference - log policy: an estimate of KL(policy || reference) that is never
    negative (http://joschu.net/blog/kl-approx.html). 0 where masked."""
    d = ref_logprobs - logprobs
    if keep is not None:
        d = torch.where(keep, d, 0.0)
    return d.clamp(max=MAX_LOG).exp() - d - 1


def masked_sum(values: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, values, 0.0).sum()


def merge(parts: Iterable[Sums]) -> Sums:
    """The sums of several micro-batches as those of one. `*_min` and `*_max` take the extreme, the rest add up;
    a reduction over ranks does the same."""
    merged: Sums = {}
    for part in parts:
        for name, value in part.items():
            if name not in merged:
                merged[name] = value
            elif name.endswith("_min"):
                merged[name] = torch.minimum(merged[name], value)
            elif name.endswith("_max"):
                merged[name] = torch.maximum(merged[name], value)
            else:
                merged[name] = merged[name] + value
    return merged


def summary(sums: Sums) -> dict[str, float]:
    """Merged sums as metrics: losses and extremes as they are, everything else a mean over the tokens. Without any
    token the extremes are left out."""
    tokens = float(sums["tokens"])
    as_is = ("loss", "policy_loss", "ratio_min", "ratio_max", "tokens")
    values = {name: float(value) if name in as_is else float(value) / max(tokens, 1) for name, value in sums.items()}
    return {name: value for name, value in values.items() if math.isfinite(value) or tokens}


@torch.no_grad()
def _ratio_sums(
    log_ratio: Tensor, ratios: Tensor, advantage: Tensor, keep: Tensor, *, eps_low: float, eps_high: float
) -> Sums:
    """How far the policy has moved: tokens whose gradient the clip cut off, the ratio's spread, KL from the old one."""
    clipped_high = keep & (advantage > 0) & (ratios > 1 + eps_high)
    clipped_low = keep & (advantage < 0) & (ratios < 1 - eps_low)
    return {
        "tokens": keep.sum(),
        "clip_high": clipped_high.sum(),
        "clip_low": clipped_low.sum(),
        "ratio": masked_sum(ratios, keep),
        "ratio_min": torch.where(keep, ratios, math.inf).min(),
        "ratio_max": torch.where(keep, ratios, -math.inf).max(),
        "approx_kl": masked_sum(ratios - 1 - log_ratio, keep),
    }
