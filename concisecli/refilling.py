"""How many problems a round samples so that enough groups may train, and what happens when the rounds run out.

A function of what all ranks gathered, so every rank decides alike; the estimate is part of a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from concisecli.config import TrainConfig
from concisecli.records import ConciseError

MEMORY = 0.8  # weight of the steps before in the estimate: about the last five count
MARGIN = 1.0  # standard errors beyond the expected number, else half of all first rounds would fall short


@dataclass
class Yield:
    """The recent share of sampled groups that may train, as two sums in which older steps fade."""

    kept: float = 0.0
    sampled: float = 0.0

    def begin_step(self) -> None:
        self.kept *= MEMORY
        self.sampled *= MEMORY

    def add(self, kept: int, sampled: int) -> None:
        self.kept += kept
        self.sampled += sampled

    @property
    def share(self) -> float:
        """1 before anything was seen; never 0: half a group stands for none."""
        return max(self.kept, 0.5) / max(self.sampled, 0.5) if self.sampled else 1.0


def round_size(missing: int, config: TrainConfig, recent: Yield) -> int:
    """Problems to sample where `missing` groups are still needed.

    adaptive: n with n p - MARGIN sqrt(n p (1 - p)) about `missing`, the normal approximation of the binomial for a
    recent share p, and at most `oversample_cap` times `missing`.
    """
    if config.oversample != "adaptive":
        return math.ceil(missing * config.oversample - 1e-9)
    p = min(recent.share, 1.0)
    wanted = (missing + MARGIN * math.sqrt(missing * (1 - p))) / p
    return min(math.ceil(wanted - 1e-9), math.floor(missing * config.oversample_cap))


def most_problems(config: TrainConfig) -> int:
    """More problems than these no step samples: they are all different."""
    factor = config.oversample_cap if config.oversample == "adaptive" else config.oversample
    return math.ceil(config.batch_problems * factor) * (1 + config.refill_rounds)


def decide(config: TrainConfig, chosen: set[int], step: int) -> set[int]:
    """What `refill_at_cap` says when the rounds ran out before the batch was full."""
    if not config.refill_rounds or len(chosen) == config.batch_problems or config.refill_at_cap == "partial":
        return chosen
    if config.refill_at_cap == "skip":
        return set()
    raise ConciseError(
        f"step {step}: {1 + config.refill_rounds} rounds gave {len(chosen)} of {config.batch_problems} groups that may "
        "train; raise refill_rounds, set refill_at_cap: partial, or choose harder problems"
    )
