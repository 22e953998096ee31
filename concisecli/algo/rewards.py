"""What each rollout of a group earns. Float64 throughout: L-GRPO's rewards differ by 1e-4 of their size.

Shapes: [G] the rollouts of one group. Leaf functions take bare arrays and keyword numbers; `score_group` composes them
by the settings. Sources: ConciseR (arXiv 2505.21178), GRPO-LEAD (arXiv 2504.09696) and its code
(https://github.com/aeroplanepaper/GRPO-LEAD), DAPO (arXiv 2503.14476) for the soft overlong penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from concisecli.algo.moments import mean_and_std
from concisecli.algo.relatives import relative_of
from concisecli.algo.repetition import is_repetitive
from concisecli.config import RewardConfig, StdKind
from concisecli.records import Bools, Floats, Group, Outcome, RewardBreakdown


def score_group(group: Group, cfg: RewardConfig, budget: int, custom: Floats | None = None) -> RewardBreakdown:
    """The rewards of a group sampled with at most `budget` response tokens. `custom` [G] is what `reward.custom` said
    of it; NaN for a rollout of which it said nothing."""
    return score_rollouts(
        [verdict.outcome for verdict in group.verdicts],
        group.lengths,
        group.finished,
        [f"{group.problem.prompt} {completion.text}" for completion in group.completions],
        cfg,
        budget,
        custom,
    )


def score_rollouts(
    outcomes: Sequence[Outcome],
    lengths: ArrayLike,
    finished: ArrayLike,
    texts: Sequence[str],
    cfg: RewardConfig,
    budget: int,
    custom: Floats | None = None,
) -> RewardBreakdown:
    """The same from bare columns, [G] each. `texts` (prompt and response) are read for repetition only.

    A rollout the grader found correct is correct even if it was cut off. Rollouts without a verdict (`error`; `timeout`
    with on_timeout: leave-out; a NaN in `custom`) are as if they had not been sampled: not usable, and no part of any
    length statistic. Truncated rollouts under overlong: mask do not train either, but were judged and count as attempts
    that failed.
    """
    length, done = np.asarray(lengths, dtype=np.float64), np.asarray(finished, dtype=bool)
    judged = np.array([_is_judged(outcome, cfg) for outcome in outcomes], dtype=bool)
    if custom is not None:
        judged &= np.isfinite(custom)
    correct = np.array([outcome == "match" for outcome in outcomes], dtype=bool)

    accuracy = base_rewards(outcomes, done, cfg)
    repeated = _repeated(texts, done, cfg)
    bonus = np.zeros(len(length))
    bonus[judged] = length_bonus(length[judged], correct[judged], cfg, budget)
    if cfg.overlong == "soft":
        bonus += soft_overlong(
            length, budget=budget, overlong_window=cfg.overlong_window, overlong_factor=cfg.overlong_factor
        )
    bonus[repeated | ~judged] = 0.0
    total = accuracy + bonus
    if custom is not None:
        total[judged] += custom[judged]
    if cfg.repetition is not None:
        total[repeated] = cfg.repetition

    usable = judged & (done | (cfg.overlong != "mask"))
    return RewardBreakdown(
        accuracy=accuracy, length=bonus, repeated=repeated, usable=usable, total=total, custom=custom
    )


def base_rewards(outcomes: Sequence[Outcome], finished: Bools, cfg: RewardConfig) -> Floats:
    """[G] by verdict alone: correct, else cut off, else without an answer, else wrong (late answers included)."""
    no_answer = cfg.wrong if cfg.no_answer is None else cfg.no_answer
    unfinished = cfg.wrong if cfg.unfinished is None else cfg.unfinished

    def value(outcome: Outcome, done: bool) -> float:
        if outcome == "match":
            return cfg.correct
        if not done:
            return unfinished
        return no_answer if outcome == "no_answer" else cfg.wrong

    return np.array([value(o, bool(d)) for o, d in zip(outcomes, finished, strict=True)], dtype=np.float64)


def length_bonus(lengths: Floats, correct: Bools, cfg: RewardConfig, budget: int) -> Floats:
    """[G] what `cfg.length` adds on top."""
    if cfg.length == "zscore" and length_gate_is_open(lengths, length_gate_tokens=cfg.length_gate_tokens):
        return zscore_bonus(lengths, correct, alpha=cfg.alpha, std=cfg.std, std_eps=cfg.std_eps)
    if cfg.length == "remaining":
        return remaining_bonus(lengths, correct, lam=cfg.lam, budget=budget)
    if cfg.length == "relative":
        return relative_bonus(lengths, relative_weight=cfg.relative_weight)
    if cfg.length in ("off", "zscore"):
        return np.zeros(len(lengths))
    return relative_of(lengths, correct, cfg, budget)


def zscore_bonus(
    lengths: ArrayLike, correct: ArrayLike, *, alpha: float, std: StdKind = "sample", std_eps: float = 1e-6
) -> Floats:
    """[G] exp(-alpha z) - 1 on correct rollouts, z their length standardised over the correct ones of the group.

    On top of a reward of 1 this is LEAD's exp(-alpha z). One correct rollout, or several of one length: 0.
    """
    length, right = np.asarray(lengths, dtype=np.float64), np.asarray(correct, dtype=bool)
    bonus = np.zeros(len(length))
    among = length[right]
    if len(among) > 1 and among.max() != among.min():
        mean, spread = mean_and_std(among, std)
        bonus[right] = np.expm1(-alpha * (among - mean) / (spread + std_eps))
    return bonus


def length_gate_is_open(lengths: ArrayLike, *, length_gate_tokens: float) -> bool:
    """Whether lengths are shaped: LEAD's code leaves a group alone while its three shortest rollouts, right or wrong,
    average this many tokens or fewer. Groups of fewer than three are always shaped, as there."""
    shortest = np.sort(np.asarray(lengths, dtype=np.float64))[:3]
    return len(shortest) < 3 or bool(shortest.mean() > length_gate_tokens)


def remaining_bonus(lengths: ArrayLike, correct: ArrayLike, *, lam: float, budget: int) -> Floats:
    """[G] lam * (budget - length) once every rollout of the group is correct, else 0 everywhere (L-GRPO).

    The printed equation was not at hand: this is the reading that its published ingredients allow (remaining tokens,
    lam = 2e-6, active only in all-correct groups).
    """
    length = np.asarray(lengths, dtype=np.float64)
    if not np.all(correct):
        return np.zeros(len(length))
    return lam * (budget - length)


def relative_bonus(lengths: ArrayLike, *, relative_weight: float) -> Floats:
    """[G] relative_weight for the group's shortest rollout, 0 for its longest, linear between, right or wrong.

    The design that failed in ConciseR (empty thoughts, guessed answers); kept to show it failing.
    """
    length = np.asarray(lengths, dtype=np.float64)
    if len(length) == 0 or length.max() == length.min():
        return np.zeros(len(length))
    share: Floats = (length.max() - length) / (length.max() - length.min())
    return relative_weight * share


def soft_overlong(lengths: ArrayLike, *, budget: int, overlong_window: int, overlong_factor: float = 1.0) -> Floats:
    """[G] 0 up to budget - overlong_window tokens, falling to -overlong_factor at the budget and beyond (DAPO)."""
    over = np.asarray(lengths, dtype=np.float64) - (budget - overlong_window)
    return -overlong_factor * np.clip(over / max(overlong_window, 1), 0.0, 1.0)


def _is_judged(outcome: Outcome, cfg: RewardConfig) -> bool:
    return outcome != "error" and not (outcome == "timeout" and cfg.on_timeout == "leave-out")


def _repeated(texts: Sequence[str], finished: Bools, cfg: RewardConfig) -> Bools:
    """[G] rollouts whose reward is replaced; none while `cfg.repetition` is unset."""
    looked_at = np.full(len(texts), cfg.repetition is not None)
    if cfg.repetition_scope == "unfinished":
        looked_at &= ~finished
    return np.array(
        [
            bool(look)
            and is_repetitive(
                text,
                repetition_run=cfg.repetition_run,
                repetition_word=cfg.repetition_word,
                repetition_offsets=cfg.repetition_offsets,
            )
            for look, text in zip(looked_at, texts, strict=True)
        ],
        dtype=bool,
    )
