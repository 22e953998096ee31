"""When a training goes wrong: accuracy that falls while lengths shrink, empty thoughts, repetition, truncation.

ConciseR's first design, a reward for being shorter than one's siblings, ended in empty thoughts and guessed answers
(arXiv 2505.21178); GRPO-LEAD met repetition and truncation late in its second stage and answered with the length
reward off and a penalty on repetition (arXiv 2504.09696). Neither gives a rule for telling it early: the rule here is
ours. A change counts when it exceeds both a limit and the noise of two samples of so many problems.

Shapes: [N] steps of a training, [P] problems of an evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from concisecli.config import AlarmConfig
from concisecli.records import Floats

Kind = Literal["collapse", "empty_think", "repetition", "truncation"]
Alarms = dict[Kind, str]  # what was seen, in words
REMEDY: dict[Kind, str] = {
    "collapse": "the length reward pays for guessing: lower it, or set reward.length to remaining or zscore",
    "empty_think": "the length reward pays for guessing: lower it, or set reward.length to remaining or zscore",
    "repetition": "GRPO-LEAD's late stage is the remedy: reward.length off and reward.repetition -1.5",
    "truncation": "GRPO-LEAD's late stage is the remedy: reward.length off and reward.repetition -1.5",
}


@dataclass(frozen=True, slots=True)
class Step:
    """Means over the rollouts of one training step. Rollouts of one problem go together, so `problems` is taken as the
    number of independent draws; `empty_think` counts answers without any reasoning too."""

    accuracy: float
    length: float
    truncated: float
    repetition: float
    empty_think: float
    problems: float


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation of a fixed set of problems: [P] means over the samples of each, and shares of all rollouts."""

    accuracy: tuple[float, ...]
    length: tuple[float, ...]
    truncated: tuple[float, ...]
    repetition: float
    empty_think: float


# --- from training steps ----------------------------------------------------------------------------------------------


def of_steps(steps: Sequence[Step], config: AlarmConfig) -> Alarms:
    """What the last `window` steps show against the best window that ended before them; nothing in the first ones."""
    reach = config.window
    if len(steps) < 2 * reach:
        return {}
    means = _windows(steps, reach)
    now, before = means[-1], means[:-reach]
    found: Alarms = {}
    best = before[int(before[:, 0].argmax())]
    if _fell(now, best, config) and now[1] <= (1 - config.length_drop) * best[1]:
        found["collapse"] = _collapse_text(best[0], now[0], best[1], now[1])
    rises: tuple[tuple[Kind, int, float], ...] = (
        ("empty_think", 4, config.empty_think_rise),
        ("repetition", 3, config.repetition_rise),
        ("truncation", 2, config.truncation_rise),
    )
    for kind, column, limit in rises:
        least = before[int(before[:, column].argmin())]
        noise = config.errors * standard_error(now[column], now[5] * reach, least[column], least[5] * reach)
        if now[column] - least[column] > max(limit, noise):
            found[kind] = _rise_text(kind, least[column], now[column])
    return found


def _windows(steps: Sequence[Step], reach: int) -> Floats:
    """[N - reach + 1, 6] means over every `reach` steps in a row, in the order of the fields of `Step`."""
    table = np.array([(s.accuracy, s.length, s.truncated, s.repetition, s.empty_think, s.problems) for s in steps])
    windows: Floats = np.lib.stride_tricks.sliding_window_view(table, reach, axis=0).mean(axis=-1)
    return windows


def _fell(now: Floats, best: Floats, config: AlarmConfig) -> bool:
    noise = config.errors * standard_error(now[0], now[5] * config.window, best[0], best[5] * config.window)
    return bool(best[0] - now[0] > max(config.accuracy_drop, noise))


def standard_error(p: float, n: float, q: float, m: float) -> float:
    """Standard error of the difference of two shares p of n and q of m draws, each with one success and one failure
    added, so that a share of 0 or 1 is not taken for certain (Agresti and Caffo 2000, doi:10.2307/2685779)."""

    def variance(share: float, draws: float) -> float:
        adjusted = (share * draws + 1) / (draws + 2)
        return adjusted * (1 - adjusted) / (draws + 2)

    return math.sqrt(variance(p, n) + variance(q, m))


# --- from evaluations -------------------------------------------------------------------------------------------------


def of_evaluations(evaluations: Sequence[Evaluated], config: AlarmConfig) -> Alarms:
    """What the last evaluation shows against the best one before it, paired by problem, so that how hard each problem
    is cancels. Nothing from a single one."""
    if len(evaluations) < 2:
        return {}
    now, before = evaluations[-1], evaluations[:-1]
    found: Alarms = {}
    best = max(before, key=lambda e: float(np.mean(e.accuracy)))
    lengths = float(np.mean(best.length)), float(np.mean(now.length))
    fell = _beyond_noise(best.accuracy, now.accuracy, config.accuracy_drop, config)
    if fell and lengths[1] <= (1 - config.length_drop) * lengths[0]:
        found["collapse"] = _collapse_text(float(np.mean(best.accuracy)), float(np.mean(now.accuracy)), *lengths)
    least = min(before, key=lambda e: float(np.mean(e.truncated)))
    if _beyond_noise(now.truncated, least.truncated, config.truncation_rise, config):
        found["truncation"] = _rise_text("truncation", float(np.mean(least.truncated)), float(np.mean(now.truncated)))
    problems = len(now.accuracy)
    rises: tuple[tuple[Kind, Callable[[Evaluated], float], float], ...] = (
        ("empty_think", lambda e: e.empty_think, config.empty_think_rise),
        ("repetition", lambda e: e.repetition, config.repetition_rise),
    )
    for kind, share, limit in rises:
        low, high = min(share(e) for e in before), share(now)
        if high - low > max(limit, config.errors * standard_error(high, problems, low, problems)):
            found[kind] = _rise_text(kind, low, high)
    return found


def _beyond_noise(more: Sequence[float], less: Sequence[float], limit: float, config: AlarmConfig) -> bool:
    """Whether the mean over problems of `more` - `less` exceeds the limit and its own standard error so many times."""
    gap = np.asarray(more, dtype=np.float64) - np.asarray(less, dtype=np.float64)
    if len(gap) < 2:
        return False
    return bool(gap.mean() > max(limit, config.errors * gap.std(ddof=1) / math.sqrt(len(gap))))


# --- words ------------------------------------------------------------------------------------------------------------


def _collapse_text(accuracy: float, accuracy_now: float, length: float, length_now: float) -> str:
    return (
        f"accuracy fell from {accuracy:.3f} to {accuracy_now:.3f} while responses shrank from {length:.0f} to "
        f"{length_now:.0f} tokens"
    )


def _rise_text(kind: Kind, low: float, high: float) -> str:
    what = {
        "empty_think": "answers without reasoning",
        "repetition": "repetitive rollouts",
        "truncation": "rollouts cut off at the limit",
        "collapse": "",
    }[kind]
    return f"{what} rose from {low:.1%} to {high:.1%}"
