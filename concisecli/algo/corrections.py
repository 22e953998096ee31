"""The engine that samples and the trainer never compute quite the same policy: how far apart they are, and what to do.

Shapes: [B, T] response positions; `log_ratio` = log pi_trainer - log pi_sampler of the sampled token, both before the
first optimiser step on these rollouts; `keep` is 1 where a token carries loss.

Sources: truncated importance sampling (Yao et al. 2025, https://fengyao.notion.site/off-policy-rl), masking as in
IcePop (Ring-1T, arXiv 2510.18855); the four modes side by side:
https://swift.readthedocs.io/en/latest/Instruction/GRPO/AdvancedResearch/training_inference_mismatch.html
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Level = Literal["token", "sequence"]
Mode = Literal["truncate", "mask"]
Sums = dict[str, Tensor]

MAX_LOG = 20.0
NEAR = (0.5, 2.0)  # ratios outside are counted


@torch.no_grad()
def importance_weights(
    log_ratio: Tensor, keep: Tensor, *, level: Level, mode: Mode, cap: float
) -> tuple[Tensor, Tensor]:
    """([B, T] factors on the policy term, [B, T] the tokens that still carry loss), both without a gradient.

    token      w_t = pi_trainer(t) / pi_sampler(t)
    sequence   w = the product of w_t over the row's tokens, at each of them
    truncate   min(w, cap); every token stays
    mask       w where 1/cap <= w <= cap; the other tokens (rows) carry no loss and are not counted
    """
    log_weight = torch.where(keep, log_ratio.double(), 0.0)
    if level == "sequence":
        log_weight = log_weight.sum(-1, keepdim=True).expand_as(log_weight)
    log_cap = math.log(cap)
    if mode == "truncate":
        return torch.where(keep, log_weight.clamp(max=log_cap).exp(), 1.0).to(log_ratio.dtype), keep
    inside = keep & (log_weight.abs() <= log_cap)
    return torch.where(inside, log_weight.clamp(-log_cap, log_cap).exp(), 1.0).to(log_ratio.dtype), inside


@torch.no_grad()
def mismatch_sums(log_ratio: Tensor, keep: Tensor) -> Sums:
    """Sums over the tokens in `keep`, to be merged over micro-batches and ranks; see `mismatch_metrics`."""
    log_ratio = torch.where(keep, log_ratio.double(), 0.0)
    ratio = log_ratio.clamp(max=MAX_LOG).exp()
    outside = keep & ((ratio < NEAR[0]) | (ratio > NEAR[1]))
    return {
        "mismatch": log_ratio.abs().sum(),
        "mismatch/kl": torch.where(keep, ratio - 1 - log_ratio, 0.0).sum(),
        "mismatch/outside": outside.sum(),
        "mismatch/tokens": keep.sum(),
        "mismatch_max": log_ratio.abs().max(),
    }


def mismatch_metrics(sums: Sums) -> dict[str, float]:
    """Taken out of merged `sums`: mean and max |log pi_trainer - log pi_sampler|, KL(sampler || trainer) by the k3
    estimate r - 1 - log r (http://joschu.net/blog/kl-approx.html), and the share of ratios outside [0.5, 2]."""
    if "mismatch/tokens" not in sums:
        return {}
    tokens = float(sums.pop("mismatch/tokens"))
    names = ("mismatch", "mismatch/kl", "mismatch/outside")
    means = {name: float(sums.pop(name)) / max(tokens, 1) for name in names}
    return means | {"mismatch_max": float(sums.pop("mismatch_max"))}
