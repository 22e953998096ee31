"""How the rewards of a group become advantages, which groups train, and what a problem's difficulty weighs.

Shapes: [G] the rollouts of one group; `usable` marks the rows that may train (None: all). Sources: GRPO (arXiv
2402.03300), Dr. GRPO (arXiv 2503.20783) for normalize: mean, GRPO-LEAD (arXiv 2504.09696) for the difficulty weight,
DAPO (arXiv 2503.14476) for the mixed filter.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo.moments import mean_and_std
from concisecli.config import AdvantageConfig, LogisticDifficulty, StdKind, StepDifficulty
from concisecli.records import Bools, Floats


def of_group(total: ArrayLike, pass_rate: float, cfg: AdvantageConfig, usable: ArrayLike | None = None) -> Floats:
    """[G] what the policy gradient of each rollout is multiplied with; 0 for rows that are not usable."""
    advantages = group_advantages(total, usable, normalize=cfg.normalize, std=cfg.std, std_eps=cfg.std_eps)
    return advantages * difficulty_weights(advantages, pass_rate, cfg.difficulty)


def group_advantages(
    rewards: ArrayLike,
    usable: ArrayLike | None = None,
    *,
    normalize: Literal["std", "mean"] = "std",
    std: StdKind = "sample",
    std_eps: float = 1e-6,
) -> Floats:
    """[G] (reward - mean) / (std + std_eps) over the usable rows; normalize: mean leaves the division out.

    Exactly 0 where all usable rewards are equal, which is asked before any arithmetic: the mean of seven equal floats
    may be off by an ulp, and a tiny std would make that a large advantage. 0 as well with fewer than two usable rows.
    """
    reward = np.asarray(rewards, dtype=np.float64)
    rows = usable_rows(reward, usable)
    advantages = np.zeros(len(reward))
    among = reward[rows]
    if len(among) < 2 or among.max() == among.min():
        return advantages
    mean, spread = mean_and_std(among, std)
    advantages[rows] = (among - mean) / (spread + std_eps) if normalize == "std" else among - mean
    return advantages


def pass_rate(correct: ArrayLike, scores: ArrayLike | None = None, *, score_threshold: float | None = None) -> float:
    """Share of right rollouts: `correct`, or scores in [0, 1] of at least `score_threshold` where one is set."""
    if score_threshold is None:
        return float(np.mean(np.asarray(correct, dtype=bool)))
    if scores is None:
        raise ValueError("score_threshold needs scores")
    return float(np.mean(np.asarray(scores, dtype=np.float64) >= score_threshold))


def difficulty_weights(advantages: Floats, pass_rate: float, cfg: LogisticDifficulty | StepDifficulty | None) -> Floats:
    """[G] the factor on each advantage; 1 without a rule. LEAD weighs what pulls down by the mirrored pass rate, so
    a slip on an easy problem costs as much as a success on a hard one earns."""
    if cfg is None:
        return np.ones(len(advantages))
    if isinstance(cfg, StepDifficulty):
        return np.full(len(advantages), cfg.high if pass_rate < cfg.below else cfg.low)
    shape = {"low": cfg.low, "high": cfg.high, "midpoint": cfg.midpoint, "slope": cfg.slope}
    return np.where(advantages > 0, difficulty_weight(pass_rate, **shape), difficulty_weight(1 - pass_rate, **shape))


def difficulty_weight(pass_rate: ArrayLike, *, low: float, high: float, midpoint: float, slope: float) -> Floats:
    """Logistic from `high` (hard problems) down to `low` (easy ones)."""
    rate = np.asarray(pass_rate, dtype=np.float64)
    weight: Floats = low + (high - low) / (1 + np.exp(slope * (rate - midpoint)))
    return weight


def usable_rows(reward: Floats, usable: ArrayLike | None) -> Bools:
    return np.ones(len(reward), dtype=bool) if usable is None else np.asarray(usable, dtype=bool)
