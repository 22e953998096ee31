"""The settings of each kind of stage but `data`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from concisecli.config.base import Config, Processes, StageConfig, Trackers, runtime
from concisecli.config.objective import AdvantageConfig, LossConfig, RewardConfig
from concisecli.config.rollouts import EngineConfig, GraderConfig, HfConfig, PromptConfig, SamplingConfig, StopStrings
from concisecli.config.training import OptimiserConfig


class SftConfig(OptimiserConfig):
    steps: int = Field(ge=1)  # optimiser steps
    mix: dict[str, int] = Field({"examples": 32})  # rows of each input in every batch
    short_first: float = Field(0.0, ge=0, le=1)  # share of the steps over which longer examples are let in
    max_tokens: int = Field(4096, ge=2)  # longer examples are left out and counted


class HeldOutConfig(Config):
    """How the policy is evaluated while it trains; what is not here is as in training."""

    budgets: tuple[int, ...] = ()  # (): sampling.max_response_tokens
    samples: int = Field(4, ge=1)  # rollouts a problem
    temperature: float = Field(0.6, ge=0)  # 0: greedy
    top_p: float = Field(0.95, gt=0, le=1)  # share of probability that is drawn from
    min_p: float = Field(0.0, ge=0, lt=1)  # tokens below this share of the likeliest are not drawn; 0: off
    tie: Literal["first", "expected", "pessimistic"] = "first"  # of Cons@k; see EvalConfig
    bootstrap: int = Field(200, ge=0)  # resamples behind each interval; 0: none


class AlarmConfig(Config):
    """When a warning is due: means over `window` steps against the best window before, or an evaluation against the
    best one. A change counts when it is larger than its limit here and than `errors` standard errors."""

    window: int = Field(5, ge=1)  # steps
    errors: float = Field(3.0, ge=0)  # standard errors, of as many independent draws as there are problems
    accuracy_drop: float = Field(0.05, ge=0, le=1)  # collapse: accuracy falls by this ...
    length_drop: float = Field(0.1, ge=0, le=1)  # ... while length falls by this share of itself
    empty_think_rise: float = Field(0.1, ge=0, le=1)  # thoughts without content, or an answer and nothing else
    repetition_rise: float = Field(0.05, ge=0, le=1)  # share of repetitive rollouts
    truncation_rise: float = Field(0.1, ge=0, le=1)  # share of rollouts cut off at the limit


class TrainConfig(OptimiserConfig):
    stage: int = Field(1, ge=1)  # its number, for `concise train --stage N`
    steps: int = Field(ge=1)  # rollout batches; each takes updates_per_batch x epochs optimiser steps
    batch_problems: int = Field(128, ge=1)  # groups in a rollout batch
    updates_per_batch: int = Field(1, ge=1)  # minibatches a rollout batch is split into
    epochs: int = Field(1, ge=1)  # passes over a rollout batch
    refill_rounds: int = Field(0, ge=0)  # more rounds of sampling to fill the batch with kept groups; 0: no refill
    # Batch still short after refill_rounds: train on it, skip the step, or stop
    refill_at_cap: Literal["partial", "skip", "stop"] = "partial"
    # Problems sampled a round for every group still missing; adaptive: from the recent share of groups that may train.
    oversample: Annotated[float, Field(ge=1)] | Literal["adaptive"] = 1.0
    oversample_cap: float = Field(4.0, ge=1)  # adaptive: never more than this
    overlap_grading: bool = runtime(True)  # groups are graded while others are still being sampled; the same results
    # Updates between sampling and use: 1 samples the next batch while this one trains (with engine.placement: split),
    # from weights one step old; needs loss.correction
    async_steps: Literal[0, 1] = 0
    evaluate_every: int = Field(0, ge=0)  # steps; needs the input `evaluation`; 0: off
    evaluation: HeldOutConfig = HeldOutConfig()  # how held-out problems are judged meanwhile
    best_by: Literal["pass_at_1", "accuracy_per_token"] = "pass_at_1"  # which evaluated weights become best/
    best_on: tuple[str, ...] = ()  # suites that best_by looks at; (): all, each alike
    alarms: AlarmConfig = AlarmConfig()  # when a warning is due
    on_alarm: Literal["warn", "stop", "rollback"] = "warn"  # stop: exit code 1; rollback: model/ is best/
    weights_every: int = runtime(0, ge=0)  # steps between two weights/step-N, each a model folder; 0: off
    weights_keep: int = runtime(0, ge=0)  # of them, the newest so many; 0: all
    reward: RewardConfig = RewardConfig()  # what a rollout earns
    advantage: AdvantageConfig = AdvantageConfig()  # what becomes of it in its group
    loss: LossConfig = LossConfig()  # what is minimised
    sampling: SamplingConfig = SamplingConfig()  # how rollouts are drawn; lengths in tokens
    engine: EngineConfig = HfConfig()  # what generates
    grader: GraderConfig = GraderConfig()  # what judges answers


class MineConfig(StageConfig):
    # Sample anew with a model, or read the pass rates that a training logged
    source: Literal["resample", "log"] = "resample"
    max_pass_rate: float = Field(0.75, ge=0, le=1)  # problems above are left out; LEAD: 0.75
    min_pass_rate: float | None = None  # LEAD's released set holds no problem that was never solved
    attempts: int = Field(16, ge=1)  # resample; LEAD's released pass rates are sixteenths
    window: Literal["all", "last"] = "all"  # log: every visit, or a problem's last one
    min_attempts: int = Field(1, ge=1)  # log: visits count only from this many rollouts
    limit: int | None = None  # problems looked at, the first so many
    sampling: SamplingConfig = SamplingConfig()  # how attempts are drawn; lengths in tokens
    processes: Processes = runtime(1)  # ranks; auto: one a GPU, 1 on a CPU
    engine: EngineConfig = HfConfig()  # what generates
    grader: GraderConfig = GraderConfig()  # what judges attempts
    prompt: PromptConfig = PromptConfig()  # how a problem is put to the model


class DistillConfig(StageConfig):
    """SFT examples by a teacher: `sampling.group_size` solutions a problem, of which correct ones are kept."""

    keep: Literal["shortest", "random"] = "shortest"  # which of a problem's correct solutions
    per_problem: int = Field(1, ge=1)  # examples kept of one problem
    max_tokens: int | None = Field(None, ge=1)  # longer solutions are not kept; None: any that ended by itself
    limit: int | None = Field(None, ge=1)  # problems asked, the first so many
    chunk_problems: int = runtime(64, ge=1)  # problems between two points from which a rerun goes on
    sampling: SamplingConfig = SamplingConfig()  # how the teacher is asked; lengths in tokens
    processes: Processes = runtime(1)  # ranks; auto: one a GPU, 1 on a CPU
    engine: EngineConfig = HfConfig()  # what generates
    grader: GraderConfig = GraderConfig()  # decides which solutions are correct
    prompt: PromptConfig = PromptConfig()  # how a problem is put to the teacher


class EvalConfig(StageConfig):
    budgets: tuple[int, ...] = (4096,)  # tokens; one pass at the largest gives every smaller one
    samples: int = Field(32, ge=1)  # rollouts a problem
    temperature: float = Field(0.6, ge=0)  # 0: greedy; both papers evaluate at 0.6
    top_p: float = Field(0.95, gt=0, le=1)  # share of probability that is drawn from; both papers: 0.95
    min_p: float = Field(0.0, ge=0, lt=1)  # tokens below this share of the likeliest are not drawn; LEAD: 0.01
    max_prompt_tokens: int = Field(1024, ge=1)  # longer prompts are left out and counted
    stop: StopStrings = ()  # see `SamplingConfig.stop`
    tie: Literal["first", "expected", "pessimistic"] = "first"  # of Cons@k
    bootstrap: int = Field(1000, ge=0)  # resamples behind each interval
    trackers: Trackers = runtime(())  # where scores are shown besides scores.json
    processes: Processes = runtime(1)  # ranks; auto: one a GPU, 1 on a CPU
    engine: EngineConfig = HfConfig()  # what generates
    grader: GraderConfig = GraderConfig()  # what judges answers
    prompt: PromptConfig = PromptConfig()  # how a problem is put to the model


class Variant(Config):
    """One stage of a sweep: what it was called before, and the values it was given."""

    stage: str  # the stage's name before the sweep
    values: dict[str, Any]  # field -> the value of this variant


class ReportConfig(StageConfig):
    title: str = "concise report"  # of the page
    before: str | None = None  # eval stages shown side by side on the same problem
    after: str | None = None  # the later of the two
    examples: int = Field(4, ge=0)  # problems shown of each pair
    variants: dict[str, Variant] = Field(default_factory=dict)  # filled from `sweep`
