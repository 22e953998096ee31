"""What a rollout earns, what becomes of it in its group, and the loss. Sources: ConciseR, GRPO-LEAD, DAPO."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from concisecli.config.base import Config

StdKind = Literal["sample", "population"]


# Off | LEAD | L-GRPO | ConciseR's failed design | related work, in algo/relatives.
LengthReward = Literal[
    "off",
    "zscore",
    "remaining",
    "relative",
    "kimi",
    "l1-exact",
    "l1-max",
    "cosine",
    "shorterbetter",
    "arora-zanette",
    "thinkprune",
]


class RewardConfig(Config):
    """What one rollout earns. Sources: ConciseR (arXiv 2505.21178), GRPO-LEAD (arXiv 2504.09696)."""

    correct: float = 1.0  # reward of a right answer; both papers: 1
    wrong: float = 0.0  # finished with a wrong answer; LEAD: -1
    no_answer: float | None = None  # finished without an answer; None: the value of `wrong`
    unfinished: float | None = None  # cut off at the limit; None: the value of `wrong`; LEAD's code: 0
    on_timeout: Literal["wrong", "leave-out"] = "wrong"  # an answer that could not be judged in time
    overlong: Literal["penalise", "mask", "soft"] = "penalise"  # earn `unfinished` | do not train | DAPO
    overlong_window: int = Field(0, ge=0)  # soft: tokens before the limit in which the penalty grows
    overlong_factor: float = Field(1.0, ge=0)  # soft: the penalty at the limit

    custom: str | None = None  # "module:function": one group -> a number for each rollout, added to its reward
    # Off, LEAD, L-GRPO, ConciseR's failed design, or one of related work; see docs/methods.md
    length: LengthReward = "off"
    alpha: float = Field(0.05, ge=0)  # zscore: LEAD's length decay
    lam: float = Field(2e-6, ge=0)  # remaining: reward per token left, once every rollout is correct
    relative_weight: float = Field(0.5, ge=0)  # relative: bonus of the shortest rollout of the group over the longest
    length_weight: float | None = Field(None, ge=0)  # of the length rewards of related work; None: their authors'
    target_tokens: int = Field(0, ge=0)  # l1-exact, l1-max: the length aimed at; thinkprune: the limit
    std: StdKind = "sample"  # of the lengths in zscore
    std_eps: float = Field(1e-6, ge=0)  # added to the deviation in zscore
    length_gate_tokens: int = Field(0, ge=0)  # zscore: off while the 3 shortest average this or less; LEAD's code: 4000

    repetition: float | None = None  # value that replaces the reward of a repetitive rollout; LEAD: -1.5, its code: -2
    repetition_scope: Literal["any", "unfinished"] = "any"  # which rollouts are looked at; LEAD's code: unfinished
    repetition_offsets: Literal["aligned", "all"] = "aligned"  # LEAD's code: n-grams from word 0 on; or any start
    repetition_run: int = Field(10, ge=2)  # equal n-grams in a row
    repetition_word: int = Field(120, ge=1)  # characters of one unbroken word


class LogisticDifficulty(Config):
    """LEAD: w(rho) = low + (high - low) / (1 + exp(slope (rho - midpoint))), w(1 - rho) for negative advantages."""

    kind: Literal["logistic"] = "logistic"  # a smooth weight
    low: float = 0.4  # A: weight of problems always solved; LEAD: 0.4
    high: float = 1.5  # B: weight of problems never solved; LEAD: 1.5
    midpoint: float = 0.75  # rho_0, the pass rate between the two; LEAD: 0.75
    slope: float = 10.0  # k; LEAD: 10
    score_threshold: float | None = None  # rho from scores in [0, 1] at least this; None: from correct


class StepDifficulty(Config):
    """`high` below a pass rate of `below`, else `low`, whatever the sign of the advantage."""

    kind: Literal["step"] = "step"  # two weights
    below: float = 0.3  # pass rate
    high: float = 1.5  # weight of hard problems
    low: float = 1.0  # weight of the others
    score_threshold: float | None = None  # rho from scores in [0, 1] at least this; None: from correct


DifficultyConfig = Annotated[LogisticDifficulty | StepDifficulty, Field(discriminator="kind")]


class AdvantageConfig(Config):
    """How the rewards of a group become advantages, and which groups train."""

    normalize: Literal["std", "mean"] = "std"  # mean: Dr. GRPO, no division
    std: StdKind = "sample"  # divides by n - 1 (torch's std, LEAD's code) or n
    std_eps: float = Field(1e-6, ge=0)  # L-GRPO's rewards differ by 1e-4: 1e-4 here would damp them by a fifth
    keep: Literal["mixed", "some_right", "nonzero", "all"] = "all"  # mixed: ConciseR's dynamic sampling
    difficulty: DifficultyConfig | None = None  # weights by how hard the problem is (LEAD); null: none


class LossConfig(Config):
    eps_low: float = Field(0.2, ge=0, le=1)  # the ratio is clipped below 1 - eps_low
    eps_high: float = Field(0.2, ge=0)  # GRPO++: 0.28 (clip-higher)
    entropy_coef: float = Field(0.0, ge=0)  # ConciseR's alpha
    kl_coef: float = Field(0.0, ge=0)  # ConciseR's beta; 0: no reference model is loaded
    # The mean over all tokens of the batch, over rows of their means (GRPO), over rows of sums over max_response_tokens
    # (Dr. GRPO), or over each micro-batch as LEAD's code takes it, which alone depends on micro_batch_tokens.
    reduce: Literal["token", "sequence", "sequence-sum-norm", "micro-token"] = "token"
    ratio: Literal["token", "sequence"] = "token"  # sequence: GSPO's length-normalised ratio
    # Of the ratio's denominator: as sampled, or computed anew by the trainer before the first update
    old_logprobs: Literal["sampler", "trainer"] = "sampler"
    # Of the difference between sampler and trainer, by importance weights; needs old_logprobs: trainer.
    correction: Literal["none", "token", "sequence"] = "none"
    correction_mode: Literal["truncate", "mask"] = "truncate"  # mask: weights outside [1/cap, cap] do not train
    correction_cap: float = Field(2.0, gt=1)  # largest importance weight
