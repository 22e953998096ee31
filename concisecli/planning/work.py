"""How much a stage has to do: steps, rollouts, tokens. What is not known before other stages have run is None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concisecli.checks import maker, references
from concisecli.config import (
    ChainsSource,
    DataConfig,
    DistillConfig,
    EvalConfig,
    MineConfig,
    Pipeline,
    SftConfig,
    StageSpec,
    TrainConfig,
)
from concisecli.store import RunManifest

Range = tuple[float, float]

# Mean length of a response as a share of the limit: the papers report 0.4 (ConciseR) and 0.6 (GRPO-LEAD).
MEAN_LENGTH: Range = (0.30, 0.65)
MEAN_PROMPT = 150  # tokens of a competition problem with its instruction

# Rows of what a recipe gives, where a paper or its publisher counted them.
PUBLISHED_ROWS = {
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "math500": 500,
    "minerva": 272,
    "olympiadbench": 675,
    "validation27": 27,
    "gsm8k": 1319,
    "conciser_59k": 59_000,
    "math_l3_5": 8_000,
    "lead_stage1": 9_000,
    "lead_sft": 12_153,
    "light_r1_hard": 3_000,
    "deepscaler_hard": 3_453,
}


@dataclass(frozen=True, slots=True)
class Work:
    """Of one whole stage. Ranges are (short, long) by MEAN_LENGTH; `worst` has every rollout at the limit and every
    refill used."""

    steps: int | None = None
    optimiser_steps: int | None = None
    rows: int | None = None  # problems or examples it reads
    passes: float | None = None  # over those rows
    rollouts: int | None = None
    worst_rollouts: int | None = None
    generated: Range | None = None  # tokens sampled
    worst_generated: float | None = None
    trained: Range | None = None  # tokens through forward and backward
    trained_rows: int | None = None  # sequences through forward and backward
    longest: int | None = None  # prompt and response of one rollout


def work_of(spec: StageSpec, rows: Callable[[str], int | None]) -> Work | None:
    """None for stages that neither sample nor train. `rows(role)` says how many rows an input has, None: not known."""
    config = spec.config
    if isinstance(config, TrainConfig):
        return train_work(config, rows("problems"), rows("evaluation"))
    if isinstance(config, SftConfig):
        return sft_work(config, [rows(name) for name in config.mix])
    if isinstance(config, MineConfig):
        known = rows("problems")
        problems = min(known, config.limit) if known is not None and config.limit else known
        sampled = config.source == "resample"
        return sampling_work(config.sampling, problems, config.attempts) if sampled else Work(rows=problems)
    if isinstance(config, DistillConfig):
        known = rows("problems")
        problems = min(known, config.limit) if known is not None and config.limit else known or config.limit
        return sampling_work(config.sampling, problems, config.sampling.group_size)
    if isinstance(config, EvalConfig):
        return _sampled(rows("problems"), config.samples, config.max_prompt_tokens, max(config.budgets, default=1))
    return None


def train_work(config: TrainConfig, problems: int | None, held_out: int | None) -> Work:
    sampling = config.sampling
    group, limit = sampling.group_size, sampling.max_response_tokens
    rollouts = config.steps * config.batch_problems * group
    worst = rollouts * (1 + config.refill_rounds)
    evaluated = evaluations(config) * config.evaluation.samples * (held_out or 0)
    return Work(
        steps=config.steps,
        optimiser_steps=config.steps * config.updates_per_batch * config.epochs,
        rows=problems,
        passes=config.steps * config.batch_problems / problems if problems else None,
        rollouts=rollouts + evaluated,
        worst_rollouts=worst + evaluated,
        generated=_lengths(rollouts + evaluated, limit),
        worst_generated=float((worst + evaluated) * limit),
        trained=(
            config.epochs * rollouts * (MEAN_PROMPT + MEAN_LENGTH[0] * limit),
            config.epochs * rollouts * (MEAN_PROMPT + MEAN_LENGTH[1] * limit),
        ),
        trained_rows=config.epochs * rollouts,
        longest=sampling.max_prompt_tokens + limit,
    )


def evaluations(config: TrainConfig) -> int:
    """Of the policy while it trains, the untrained one included."""
    return 1 + config.steps // config.evaluate_every if config.evaluate_every else 0


def sft_work(config: SftConfig, rows: list[int | None]) -> Work:
    batch = sum(config.mix.values())
    known = sum(r for r in rows if r is not None) if all(r is not None for r in rows) else None
    taken = config.steps * batch
    return Work(
        steps=config.steps,
        optimiser_steps=config.steps,
        rows=known,
        passes=taken / known if known else None,
        trained=(taken * MEAN_LENGTH[0] * config.max_tokens, taken * MEAN_LENGTH[1] * config.max_tokens),
        trained_rows=taken,
        longest=config.max_tokens,
    )


def sampling_work(sampling: Any, problems: int | None, attempts: int) -> Work:
    return _sampled(problems, attempts, sampling.max_prompt_tokens, sampling.max_response_tokens)


def _sampled(problems: int | None, attempts: int, prompt: int, limit: int) -> Work:
    if problems is None:
        return Work(longest=prompt + limit)
    rollouts = problems * attempts
    return Work(
        rows=problems,
        rollouts=rollouts,
        worst_rollouts=rollouts,
        generated=_lengths(rollouts, limit),
        worst_generated=float(rollouts * limit),
        longest=prompt + limit,
    )


def _lengths(rollouts: int, limit: int) -> Range:
    return rollouts * MEAN_LENGTH[0] * limit, rollouts * MEAN_LENGTH[1] * limit


# --- how many rows an input has ---------------------------------------------------------------------------------------


def rows_of(pipeline: Pipeline, spec: StageSpec, role: str, finished: Mapping[str, RunManifest]) -> int | None:
    """Rows of an input: as its manifest counted them, else as its recipe will give them, None where nobody knows."""
    given = spec.inputs.get(role)
    if given is None:
        return None
    counts = [_rows_behind(pipeline, one, finished) for one in references(given) if isinstance(one, str)]
    return sum(c for c in counts if c is not None) if counts and None not in counts else None


def _rows_behind(pipeline: Pipeline, reference: str, finished: Mapping[str, RunManifest]) -> int | None:
    name = maker(pipeline, reference)
    if name is None:
        return _rows_in_file(Path(reference))
    output = reference.partition(".")[2]
    if name in finished and output in finished[name].outputs:
        return finished[name].outputs[output].rows
    config = pipeline.stages[name].config
    return recipe_rows(config) if isinstance(config, DataConfig) else None


def _rows_in_file(path: Path) -> int | None:
    if path.suffix != ".parquet" or not path.is_file():
        return None
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)


def recipe_rows(config: DataConfig) -> int | None:
    """At most this many: what a generator is asked for, or what was published of a recipe."""
    sources = config.sources.values()
    if all(isinstance(s, ChainsSource) for s in sources):
        asked: int | None = sum(s.count for s in sources if isinstance(s, ChainsSource))
    else:
        asked = PUBLISHED_ROWS.get(Path(config.recipe or "").stem)
    return min(asked, config.limit) if asked is not None and config.limit else asked or config.limit
