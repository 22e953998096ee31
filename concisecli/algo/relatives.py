"""Length rewards of related work, as bonuses on the base reward of a rollout, to compare with the two papers' own.

Shapes: [G] the rollouts of one group; each function takes lengths in tokens and who is correct and returns [G]. The
base reward each one stands on is 1 for correct and 0 for wrong unless its docstring says otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo.moments import mean_and_std
from concisecli.config import RewardConfig, StdKind
from concisecli.records import Bools, Floats

WEIGHTS = {  # `length_weight` where it is unset: what each one's authors used
    "kimi": 1.0,
    "l1-exact": 3e-4,
    "l1-max": 2e-3,
    "shorterbetter": 1e-3,
    "cosine": 0.5,
    "arora-zanette": 0.1,
}


def relative_of(lengths: Floats, correct: Bools, cfg: RewardConfig, budget: int) -> Floats:
    """[G] the bonus that `cfg.length` names, for the names in this module."""
    weight = cfg.length_weight if cfg.length_weight is not None else WEIGHTS.get(cfg.length, 0.0)
    match cfg.length:
        case "kimi":
            return weight * kimi_bonus(lengths, correct)
        case "l1-exact":
            return target_bonus(lengths, correct, target=cfg.target_tokens, weight=weight)
        case "l1-max":
            return at_most_bonus(lengths, correct, target=cfg.target_tokens, weight=weight)
        case "shorterbetter":
            return shortest_bonus(lengths, correct, weight=weight)
        case "cosine":
            return cosine_bonus(lengths, correct, budget=budget, depth=weight)
        case "arora-zanette":
            return sigmoid_bonus(lengths, correct, weight=weight)
        case "thinkprune":
            return limit_bonus(lengths, correct, limit=cfg.target_tokens, correct_reward=cfg.correct)
        case _:
            raise ValueError(f"{cfg.length} is no length reward of related work")


def kimi_bonus(lengths: ArrayLike, correct: ArrayLike) -> Floats:
    """0.5 for the group's shortest down to -0.5 for its longest; wrong rollouts are never paid for being short.
    Kimi k1.5 (arXiv 2501.12599)."""
    length, right = _columns(lengths, correct)
    spread = np.ptp(length) if len(length) else 0.0
    if spread == 0:
        return np.zeros(len(length))
    share = 0.5 - (length - length.min()) / spread
    return np.where(right, share, np.minimum(share, 0.0))


def sigmoid_bonus(
    lengths: ArrayLike, correct: ArrayLike, *, weight: float, std: StdKind = "population", std_eps: float = 1e-7
) -> Floats:
    """-weight * sigmoid(z) on correct rollouts, z over the correct ones. Arora & Zanette (arXiv 2502.04463)."""
    length, right = _columns(lengths, correct)
    bonus = np.zeros(len(length))
    if right.any():
        mean, spread = mean_and_std(length[right], std) if right.sum() > 1 else (float(length[right][0]), 0.0)
        bonus[right] = -weight / (1 + np.exp(-(length[right] - mean) / (spread + std_eps)))
    return bonus


def target_bonus(lengths: ArrayLike, correct: ArrayLike, *, target: float, weight: float = 3e-4) -> Floats:
    """-weight * |length - target|, right or wrong: a length to hit, not to undercut. L1-Exact (arXiv 2503.04697)."""
    length, _ = _columns(lengths, correct)
    return -weight * np.abs(length - target)


def at_most_bonus(lengths: ArrayLike, correct: ArrayLike, *, target: float, weight: float = 2e-3) -> Floats:
    """Makes a correct rollout worth (clip(weight (target - length), -1, 1) + 1) / 2, so half at the target and less
    beyond; wrong ones are left. L1-Max as in its code (https://github.com/cmu-l3/l1); the paper's slope is twice it.
    """
    length, right = _columns(lengths, correct)
    worth = (np.clip(weight * (target - length), -1.0, 1.0) + 1) / 2
    return np.where(right, worth - 1, 0.0)


def limit_bonus(lengths: ArrayLike, correct: ArrayLike, *, limit: float, correct_reward: float = 1.0) -> Floats:
    """Takes a correct rollout's reward away beyond `limit` tokens; the limit is lowered from one stage to the next.
    ThinkPrune (arXiv 2504.01296), which cuts the rollout there: the same reward, with lengths still to be seen."""
    length, right = _columns(lengths, correct)
    return np.where(right & (length > limit), -correct_reward, 0.0)


def shortest_bonus(lengths: ArrayLike, correct: ArrayLike, *, weight: float = 1e-3) -> Floats:
    """-weight * |length - the shortest correct one's| (without any: the mean of all), right or wrong, on a base of 2
    for correct. ShorterBetter (arXiv 2504.21370)."""
    length, right = _columns(lengths, correct)
    optimum = float(length[right].min() if right.any() else length.mean())
    return -weight * np.abs(length - optimum)


def cosine_bonus(lengths: ArrayLike, correct: ArrayLike, *, budget: int, depth: float = 0.5) -> Floats:
    """Correct rollouts lose up to `depth` as they near the budget, wrong ones win as much back, along a half cosine;
    on a base of 1 and -1. Yeo et al. (arXiv 2502.03373)."""
    length, right = _columns(lengths, correct)
    share = (1 - np.cos(np.pi * length / budget)) / 2
    return np.where(right, -depth * share, depth * share)


def _columns(lengths: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    return np.asarray(lengths, dtype=np.float64), np.asarray(correct, dtype=bool)
