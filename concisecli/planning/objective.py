"""What the settings of a train stage mean in numbers: computed by the formulas that train, not by a second copy."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from concisecli.algo.advantages import difficulty_weight, group_advantages
from concisecli.algo.rewards import remaining_bonus, zscore_bonus
from concisecli.config import LogisticDifficulty, TrainConfig

SPREADS = (10, 100)  # tokens: standard deviations of lengths within a group, to show what is left of L-GRPO's signal


def meaning(config: TrainConfig) -> dict[str, str]:
    """A name and a sentence for each thing worth knowing; numbers in the sentence are computed from the settings."""
    parts = (_batch, _break_even, _unfinished, _remaining, _zscore, _difficulty, _groups)
    return {name: text for part in parts for name, text in part(config)}


def break_even(right: float, wrong: float, otherwise: float = 0.0) -> float:
    """The chance of being right from which answering earns more than `otherwise`: p / (1 + p) for a penalty of p
    against a reward of 1 and nothing for silence."""
    return (otherwise - wrong) / (right - wrong)


def effective_scale(lam: float, spread: float, eps: float) -> float:
    """What std_eps leaves of an advantage when lengths spread by `spread` tokens: lam s / (lam s + eps)."""
    return lam * spread / (lam * spread + eps) if lam * spread + eps > 0 else 0.0


Said = Iterator[tuple[str, str]]


def _batch(config: TrainConfig) -> Said:
    updates = config.updates_per_batch * config.epochs
    rollouts = config.batch_problems * config.sampling.group_size
    split = f"{config.updates_per_batch} minibatches of {rollouts // config.updates_per_batch:,} rollouts"
    text = f"{config.batch_problems} problems x {config.sampling.group_size} rollouts = {rollouts:,} a step; "
    if updates == 1:
        text += "one optimiser step each, on-policy: the ratio is 1 and no clip acts, but for what the engines differ"
    else:
        text += f"{updates} optimiser steps each ({split}{f', {config.epochs} passes' if config.epochs > 1 else ''})"
    yield "batch", text
    if config.refill_rounds:
        yield "refill", f"up to {1 + config.refill_rounds} times the rollouts in a step that needs every refill"


def _break_even(config: TrainConfig) -> Said:
    reward = config.reward
    if reward.wrong < 0 < reward.correct:
        chance = break_even(reward.correct, reward.wrong)
        yield (
            "penalty",
            f"a wrong answer earns {reward.wrong:g}: answering pays (against 0) from a chance of being right of "
            f"{chance:.3f}",
        )


def _unfinished(config: TrainConfig) -> Said:
    reward = config.reward
    other = reward.unfinished
    if other is not None and reward.wrong < other < reward.correct:
        chance = break_even(reward.correct, reward.wrong, other)
        yield (
            "unfinished",
            f"running into the limit earns {other:g}, more than a wrong answer: below a chance of {chance:.3f} not to "
            "finish pays",
        )


def _remaining(config: TrainConfig) -> Said:
    reward, advantage = config.reward, config.advantage
    if reward.length != "remaining":
        return
    limit, group = config.sampling.max_response_tokens, config.sampling.group_size
    if advantage.normalize == "mean":
        yield (
            "length reward",
            f"without division by the std an advantage is lam x tokens: {reward.lam * 100:.1e} for 100 tokens, too "
            "little to act unless lam is raised",
        )
        return
    shares = [f"{100 * effective_scale(reward.lam, s, advantage.std_eps):.1f} % at {s} tokens" for s in SPREADS]
    lengths = np.linspace(limit / 4, limit / 2, group)
    rewards = 1 + remaining_bonus(lengths, np.ones(group, dtype=bool), lam=reward.lam, budget=limit)
    top = group_advantages(rewards, normalize="std", std=advantage.std, std_eps=advantage.std_eps).max()
    yield (
        "length reward",
        f"lam {reward.lam:g} against std_eps {advantage.std_eps:g}: what is left of an all-right group's advantages "
        f"for lengths that spread by a std of 10 and 100: {', '.join(shares)}; lam itself cancels. Lengths from "
        f"{limit // 4} to {limit // 2} give at most ±{top:.3f}",
    )


def _zscore(config: TrainConfig) -> Said:
    reward, group = config.reward, config.sampling.group_size
    if reward.length != "zscore":
        return
    # The largest z that n values allow: one apart from all others.
    lengths = np.array([1.0] + [2.0] * (group - 1))
    right = np.ones(group, dtype=bool)
    bonus = functools.partial(zscore_bonus, correct=right, alpha=reward.alpha, std=reward.std, std_eps=reward.std_eps)
    best = reward.correct + float(bonus(lengths).max())
    worst = reward.correct + float(bonus(3 - lengths).min())
    text = f"alpha {reward.alpha:g}: a right rollout earns {worst:.4f} to {best:.4f} in a group of {group}"
    if reward.length_gate_tokens:
        text += f"; only where the three shortest average over {reward.length_gate_tokens:,} tokens"
    yield "length reward", text


def _difficulty(config: TrainConfig) -> Said:
    rule, group = config.advantage.difficulty, config.sampling.group_size
    if not isinstance(rule, LogisticDifficulty):
        return
    shape = {"low": rule.low, "high": rule.high, "midpoint": rule.midpoint, "slope": rule.slope}
    rates = sorted({1, group // 2, group - 1})
    weights = [f"{float(difficulty_weight(r / group, **shape)):.3f} at {r}/{group}" for r in rates]
    yield "difficulty", f"weight of a right rollout {', '.join(weights)}; of a wrong one by the mirrored pass rate"


def _groups(config: TrainConfig) -> Said:
    keep, group = config.advantage.keep, config.sampling.group_size
    if keep != "mixed":
        return
    shares = [f"{100 * (1 - rate**group - (1 - rate) ** group):.0f} % at {rate:g}" for rate in (0.05, 0.5, 0.95)]
    needed = 1 / (1 - 0.95**group - 0.05**group)
    yield (
        "groups",
        f"only groups with right and wrong rollouts train: by pass rate {', '.join(shares)}"
        + f"; at 0.95 a full batch needs {needed:.2f} times the rollouts",
    )
