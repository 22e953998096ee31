"""Every setting of the project, one class per noun. A value keeps its name from YAML to formula to metric.

All classes are frozen and refuse unknown keys. A field marked `runtime` changes speed or comfort only and stays out of
a stage's key. Reading YAML, `--set` and errors with file and line live in `loading`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

StdKind = Literal["sample", "population"]


def runtime(default: Any, **constraints: Any) -> Any:
    """A field that changes speed or comfort only: it is left out of the stage's key."""
    return Field(default, json_schema_extra={"runtime": True}, **constraints)


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- the objective ----------------------------------------------------------------------------------------------------


class RewardConfig(Config):
    """What one rollout earns. Sources: ConciseR (arXiv 2505.21178), GRPO-LEAD (arXiv 2504.09696)."""

    correct: float = 1.0
    wrong: float = 0.0  # finished with a wrong answer; LEAD: -1
    no_answer: float | None = None  # finished without an answer; None: the value of `wrong`
    unfinished: float | None = None  # cut off at the limit; None: the value of `wrong`; LEAD's code: 0
    on_timeout: Literal["wrong", "leave-out"] = "wrong"  # an answer that could not be judged in time
    overlong: Literal["penalise", "mask", "soft"] = "penalise"  # earn `unfinished` | do not train | DAPO
    overlong_window: int = Field(0, ge=0)  # soft: tokens before the limit in which the penalty grows
    overlong_factor: float = Field(1.0, ge=0)  # soft: the penalty at the limit

    length: Literal["off", "zscore", "remaining", "relative"] = "off"  # LEAD | L-GRPO | ConciseR's failed design
    alpha: float = Field(0.05, ge=0)  # zscore: LEAD's length decay
    lam: float = Field(2e-6, ge=0)  # remaining: reward per token left, once every rollout is correct
    relative_weight: float = Field(0.5, ge=0)  # relative: bonus of the shortest rollout of the group over the longest
    std: StdKind = "sample"  # of the lengths in zscore
    std_eps: float = Field(1e-6, ge=0)
    length_gate_tokens: int = Field(0, ge=0)  # zscore: off while the 3 shortest average this or less; LEAD's code: 4000

    repetition: float | None = None  # value that replaces the reward of a repetitive rollout; LEAD: -1.5, its code: -2
    repetition_scope: Literal["any", "unfinished"] = "any"  # which rollouts are looked at; LEAD's code: unfinished
    repetition_offsets: Literal["aligned", "all"] = "aligned"  # LEAD's code: n-grams from word 0 on; or any start
    repetition_run: int = Field(10, ge=2)  # equal n-grams in a row
    repetition_word: int = Field(120, ge=1)  # characters of one unbroken word


class LogisticDifficulty(Config):
    """LEAD: w(rho) = low + (high - low) / (1 + exp(slope (rho - midpoint))), w(1 - rho) for negative advantages."""

    kind: Literal["logistic"] = "logistic"
    low: float = 0.4
    high: float = 1.5
    midpoint: float = 0.75
    slope: float = 10.0
    score_threshold: float | None = None  # rho from scores in [0, 1] at least this; None: from correct


class StepDifficulty(Config):
    """`high` below a pass rate of `below`, else `low`, whatever the sign of the advantage."""

    kind: Literal["step"] = "step"
    below: float = 0.3
    high: float = 1.5
    low: float = 1.0
    score_threshold: float | None = None


DifficultyConfig = Annotated[LogisticDifficulty | StepDifficulty, Field(discriminator="kind")]


class AdvantageConfig(Config):
    """How the rewards of a group become advantages, and which groups train."""

    normalize: Literal["std", "mean"] = "std"  # mean: Dr. GRPO, no division
    std: StdKind = "sample"
    std_eps: float = Field(1e-6, ge=0)  # L-GRPO's rewards differ by 1e-4: 1e-4 here would damp them by a fifth
    keep: Literal["mixed", "some_right", "nonzero", "all"] = "all"  # mixed: ConciseR's dynamic sampling
    difficulty: DifficultyConfig | None = None


class LossConfig(Config):
    eps_low: float = Field(0.2, ge=0, le=1)
    eps_high: float = Field(0.2, ge=0)  # GRPO++: 0.28 (clip-higher)
    entropy_coef: float = Field(0.0, ge=0)  # ConciseR's alpha
    kl_coef: float = Field(0.0, ge=0)  # ConciseR's beta; 0: no reference model is loaded
    reduce: Literal["token", "sequence", "sequence-sum-norm"] = "token"
    ratio: Literal["token", "sequence"] = "token"  # sequence: GSPO's length-normalised ratio
    old_logprobs: Literal["sampler", "trainer"] = "sampler"


# --- text, grading, sampling ------------------------------------------------------------------------------------------


class PromptConfig(Config):
    template: str = "math"  # a name in `prompts.TEMPLATES`, or a text that holds {problem}
    chat: bool = True  # wrap in the tokenizer's chat template where it has one; base models: false
    system: str | None = None
    think_prefilled: bool | None = None  # the prompt itself opens <think>; None: looked up in the rendered prompt


class GraderConfig(Config):
    profile: Literal["strict", "lenient", "inside-think"] = "lenient"
    deadline_s: float = Field(5.0, gt=0)
    workers: int = runtime(0, ge=0)  # 0: one per core
    memory_mb: int = runtime(2048, ge=256)
    gold_list: Literal["any", "set"] = "any"
    max_error_share: float = Field(0.05, ge=0, le=1)
    custom: str | None = None  # "module:function" (response, gold) -> outcome


class SamplingConfig(Config):
    group_size: int = Field(8, ge=2)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)
    max_prompt_tokens: int = Field(1024, ge=1)  # longer prompts are left out and counted, never cut
    max_response_tokens: int = Field(3072, ge=1)


# --- engines and backends ---------------------------------------------------------------------------------------------


class HfConfig(Config):
    type: Literal["transformers"] = "transformers"
    batch_rollouts: int = Field(256, ge=1)
    dtype: Literal["float32", "bfloat16"] = "float32"


class VllmConfig(Config):
    type: Literal["vllm"] = "vllm"
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    tensor_parallel_size: int = Field(1, ge=1)
    gpu_memory_utilization: float = runtime(0.5, gt=0, le=1)
    max_model_len: int | None = None
    max_num_seqs: int = Field(256, ge=1)
    enforce_eager: bool = runtime(False)


EngineConfig = Annotated[HfConfig | VllmConfig, Field(discriminator="type")]


class TorchConfig(Config):
    type: Literal["torch"] = "torch"
    dtype: Literal["float32", "bfloat16"] = "float32"


class DeepSpeedConfig(Config):
    type: Literal["deepspeed"] = "deepspeed"
    zero_stage: Literal[0, 1, 2, 3] = 2
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


BackendConfig = Annotated[TorchConfig | DeepSpeedConfig, Field(discriminator="type")]


class NewModelConfig(Config):
    """A model made from nothing: a byte tokenizer with whole `words` added, and a small Qwen2."""

    words: tuple[str, ...] = ()
    hidden_size: int = 64
    layers: int = 3
    heads: int = 2
    intermediate_size: int = 192
    max_positions: int = 512
    initializer_range: float = 0.08  # transformers' 0.02 doubles the training a model this small needs
    seed: int | None = None  # None: the pipeline's seed


# --- stages -----------------------------------------------------------------------------------------------------------


class StageConfig(Config):
    seed: int = 0  # unset in a stage: the pipeline's


class ChainsSource(Config):
    """Synthetic +/- chains whose running totals stay within 0..`top`; see `chains`."""

    type: Literal["chains"] = "chains"
    rows: Literal["problems", "traces", "facts"] = "problems"
    split: Literal["train", "pool", "test"] = "train"  # disjoint by a hash of the problem's text
    count: int = Field(ge=1)
    operations: tuple[int, int] = (2, 6)
    top: int = 29
    max_words: int = 110  # traces longer than this many tokens of the demo's tokenizer are dropped
    slip_rate: float = Field(0.15, ge=0, le=1)  # first-pass errors per line of a teacher trace
    answer_only: float = Field(0.08, ge=0, le=1)
    skipping: float = Field(0.25, ge=0, le=1)
    check_rates: tuple[float, ...] = (0.1, 0.5, 0.9)
    facts_per_row: int = 10
    weight: float = 1.0


class SelectConfig(Config):
    """Which rows stay. A bound on a field that a row lacks follows `missing`."""

    min_level: float | None = None
    max_level: float | None = None
    min_difficulty: float | None = None
    max_difficulty: float | None = None
    min_pass_rate: float | None = None
    max_pass_rate: float | None = None
    min_tokens: int | None = None  # of the prompt, counted with `tokenizer`
    max_tokens: int | None = None
    tokenizer: str | None = None  # a folder or hub name
    languages: tuple[Literal["en", "zh"], ...] | None = None
    subjects: tuple[str, ...] | None = None
    answer_types: tuple[str, ...] | None = None  # names in `filters.ANSWER_TYPES`
    figures: Literal["keep", "drop"] = "keep"  # rows with [asy] code
    missing: Literal["keep", "drop", "stop"] = "drop"


class RowSource(Config):
    """What every source of real rows has. `columns` maps our names (problem, answer, solution, level, difficulty,
    pass_rate, subject, source, response) to the file's, dots for nested ones; unmapped names are found by habit."""

    rows: Literal["problems", "examples"] = "problems"
    role: Literal["rows", "reference"] = (
        "rows"  # reference: lends solutions and difficulty by problem key, adds no rows
    )
    columns: dict[str, str] = {}
    select: SelectConfig = SelectConfig()
    weight: float | None = Field(None, gt=0)  # share in the mixture; None everywhere: all rows of every source
    licence: str | None = None
    note: str | None = None  # traps of this source, printed on the data card
    format: Literal["auto", "jsonl", "json", "parquet", "csv", "folder"] = "auto"  # auto: by the file's name


class FileSource(RowSource):
    """A local JSONL, JSON array, CSV or parquet file (.gz and .zst too), or a folder of one-problem JSON files."""

    type: Literal["file"] = "file"
    path: Path


class HubSource(RowSource):
    """A data set of the Hugging Face hub; `path` reads a local copy instead."""

    type: Literal["hub"] = "hub"
    name: str
    subset: str | None = None
    split: str = "train"
    revision: str | None = None  # None: the newest; the commit that was read is in the manifest
    verified: bool = False  # whether somebody looked the name up; shown when it cannot be read
    path: Path | None = None


SourceConfig = Annotated[ChainsSource | FileSource | HubSource, Field(discriminator="type")]


class CleaningConfig(Config):
    strip_prefixes: tuple[str, ...] = ()  # instruction text around problems, beside the known ones; exact match
    strip_suffixes: tuple[str, ...] = ()
    on_fault: Literal["drop", "flag"] = "drop"  # cut-off problems, proofs, lost pictures; flag: for evaluation sets
    control: Literal["repair", "drop"] = "repair"  # form feed + "rac" is \frac; what cannot be repaired is dropped
    max_characters: int = Field(20_000, ge=1)  # of a problem, an answer or, five times as many, a solution


class AgreementConfig(Config):
    """Re-extract the answer from the worked solution and keep a row where it matches the given one (ConciseR)."""

    check: Literal["drop", "flag"] = "drop"  # flag: answers are read, doubtful ones marked; nothing is dropped
    without_solution: Literal["pass-if-parses", "join", "drop"] = "pass-if-parses"  # join: else as pass-if-parses
    without_box: Literal["last-formula", "drop"] = "last-formula"
    choice_letters: Literal["drop", "keep", "value"] = "value"  # value: the text behind the letter is the answer
    several_boxes: Literal["gather", "last", "drop"] = "gather"  # gather: all are the answer where all were asked for


class DedupConfig(Config):
    near: bool = True  # beside the exact key
    similarity: float = Field(0.4, gt=0, le=1)  # Jaccard of content-word shingles from which two problems are compared
    conflicts: Literal["drop", "verified"] = "verified"  # different answers: drop all, or keep the verified one
    prefer: tuple[str, ...] = ()  # sources in order of trust, after verified solutions


SUITES = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


class DecontaminateConfig(Config):
    """Training rows that hold a problem of an evaluation suite. `against` names recipes of suites."""

    against: tuple[str, ...] = SUITES
    containment: float = Field(0.8, gt=0, le=1)  # share of the eval problem's shingles found in the row
    action: Literal["drop", "report"] = "drop"  # report: for sets used to select models; the card lists the pairs


class DataConfig(StageConfig):
    """A recipe. `recipe: FILE` takes the fields of that file, under what is said beside it."""

    recipe: str | None = None
    sources: dict[str, SourceConfig]
    local: Path | None = None  # YAML file: source name -> local copy, for this recipe's sources and the suites'
    on_bad_row: Literal["drop", "stop"] = "drop"  # a line that is no row of the format
    cleaning: CleaningConfig = CleaningConfig()
    agreement: AgreementConfig | None = AgreementConfig()
    dedup: DedupConfig | None = DedupConfig()
    decontaminate: DecontaminateConfig | None = DecontaminateConfig()
    select: SelectConfig = SelectConfig()
    limit: int | None = Field(None, ge=1)  # rows kept in all, drawn with the seed
    to: tuple[Literal["verl", "trl", "conciser"], ...] = ()  # other tools' schemas, written beside ours
    grader: GraderConfig = GraderConfig()
    shard_rows: int = runtime(4096, ge=1)  # rows between two points from which a rerun goes on

    def files(self) -> dict[str, Path]:
        """Local files whose content belongs to the stage's key; `recipes.key_files` adds the suites'."""
        paths = {name: s.path for name, s in self.sources.items() if isinstance(s, FileSource | HubSource) and s.path}
        return paths | ({"local": self.local} if self.local else {})


class OptimiserConfig(StageConfig):
    """AdamW and its schedule, counted in optimiser steps. Shared by `sft` and `train`."""

    lr: float = Field(1e-6, gt=0)
    adam_betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    lr_floor: float = Field(0.0, ge=0, le=1)  # cosine ends at this share of lr
    clip_norm: float = Field(1.0, gt=0)
    micro_batch_tokens: int = Field(16384, ge=1)
    save_every: int = runtime(50, ge=1)
    backend: BackendConfig = TorchConfig()
    prompt: PromptConfig = PromptConfig()


class SftConfig(OptimiserConfig):
    steps: int = Field(ge=1)
    mix: dict[str, int] = {"examples": 32}  # rows of each input in every batch
    short_first: float = Field(0.0, ge=0, le=1)  # share of the steps over which longer examples are let in
    max_tokens: int = Field(4096, ge=2)


class TrainConfig(OptimiserConfig):
    stage: int = Field(1, ge=1)
    steps: int = Field(ge=1)
    batch_problems: int = Field(128, ge=1)
    updates_per_batch: int = Field(1, ge=1)  # minibatches a rollout batch is split into
    epochs: int = Field(1, ge=1)  # passes over a rollout batch
    refill_rounds: int = Field(0, ge=0)  # more rounds of sampling to fill the batch with kept groups; 0: no refill
    refill_at_cap: Literal["partial", "skip", "stop"] = "partial"
    validate_every: int = Field(0, ge=0)  # needs the input `validation`; 0: off
    validate_samples: int = Field(4, ge=1)
    best_by: Literal["pass_at_1", "accuracy_per_token"] = "pass_at_1"
    reward: RewardConfig = RewardConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = HfConfig()
    grader: GraderConfig = GraderConfig()


class MineConfig(StageConfig):
    source: Literal["resample", "log"] = "resample"
    max_pass_rate: float = Field(0.75, ge=0, le=1)
    min_pass_rate: float | None = None  # LEAD's released set holds no problem that was never solved
    attempts: int = Field(16, ge=1)  # resample; LEAD's released pass rates are sixteenths
    window: Literal["all", "last"] = "all"  # log: every visit, or a problem's last one
    min_attempts: int = Field(1, ge=1)  # log: visits count only from this many rollouts
    limit: int | None = None  # problems looked at, the first so many
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = HfConfig()
    grader: GraderConfig = GraderConfig()
    prompt: PromptConfig = PromptConfig()


class DistillConfig(StageConfig):
    """SFT examples by a teacher: `sampling.group_size` solutions a problem, of which correct ones are kept."""

    keep: Literal["shortest", "random"] = "shortest"
    per_problem: int = Field(1, ge=1)  # examples kept of one problem
    max_tokens: int | None = Field(None, ge=1)  # longer solutions are not kept; None: any that ended by itself
    limit: int | None = Field(None, ge=1)  # problems asked, the first so many
    chunk_problems: int = runtime(64, ge=1)  # problems between two points from which a rerun goes on
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = HfConfig()
    grader: GraderConfig = GraderConfig()
    prompt: PromptConfig = PromptConfig()


class EvalConfig(StageConfig):
    budgets: tuple[int, ...] = (4096,)
    samples: int = Field(32, ge=1)
    temperature: float = Field(0.6, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, lt=1)
    max_prompt_tokens: int = Field(1024, ge=1)
    tie: Literal["first", "expected", "pessimistic"] = "first"  # of Cons@k
    bootstrap: int = Field(1000, ge=0)  # resamples behind each interval
    engine: EngineConfig = HfConfig()
    grader: GraderConfig = GraderConfig()
    prompt: PromptConfig = PromptConfig()


class ReportConfig(StageConfig):
    title: str = "concise report"
    before: str | None = None  # eval stages shown side by side on the same problem
    after: str | None = None
    examples: int = Field(4, ge=0)


# --- the pipeline -----------------------------------------------------------------------------------------------------

KINDS: dict[str, type[StageConfig]] = {
    "data": DataConfig,
    "distill": DistillConfig,
    "sft": SftConfig,
    "train": TrainConfig,
    "mine": MineConfig,
    "eval": EvalConfig,
    "report": ReportConfig,
}
SHARED = ("seed", "prompt", "grader", "engine", "backend")  # said once at the top, inherited by every stage that has it


class NewModel(Config):
    """A model input that is made, not loaded: `{new: {...}}`."""

    new: NewModelConfig


Reference = str | NewModel  # "stage.output" | "hf:org/name@revision" | a path | {new: {...}}


class StageSpec(Config):
    """One node of the graph. `inputs` gives each role one reference or a list of them."""

    name: str
    uses: str
    config: Any  # an instance of KINDS[uses]
    inputs: dict[str, Reference | tuple[Reference, ...]] = {}


class Pipeline(Config):
    """A whole curriculum: stages by name, in the order written; `path` is the file it came from."""

    run: str
    path: Path
    seed: int = 0
    threads: int = 0  # 0: OMP_NUM_THREADS, else every core
    stages: dict[str, StageSpec]

    @model_validator(mode="after")
    def _names_are_folders(self) -> Pipeline:
        for name in (self.run, *self.stages):
            if not name or any(c in name for c in "/. \\"):
                raise ValueError(f"'{name}' cannot be a folder name; use letters, digits, '_' and '-'")
        return self
