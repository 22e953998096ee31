"""A recipe: sources, cleaning, agreement, duplicates, contamination, selection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from concisecli.config.base import Config, StageConfig, runtime
from concisecli.config.rollouts import GraderConfig


class ChainsSource(Config):
    """Synthetic +/- chains whose running totals stay within 0..`top`; see `chains`."""

    type: Literal["chains"] = "chains"  # the demo's task, made on the spot
    # Problems for RL, traces of a slipping teacher for SFT, or single equations
    rows: Literal["problems", "traces", "facts"] = "problems"
    split: Literal["train", "pool", "test"] = "train"  # disjoint by a hash of the problem's text
    count: int = Field(ge=1)  # rows to make
    operations: tuple[int, int] = (2, 6)  # fewest and most of a problem, drawn evenly
    top: int = 29  # largest running total
    max_words: int = 110  # traces longer than this many tokens of the demo's tokenizer are dropped
    slip_rate: float = Field(0.15, ge=0, le=1)  # first-pass errors per line of a teacher trace
    answer_only: float = Field(0.08, ge=0, le=1)  # share of traces that answer without a thought
    skipping: float = Field(0.25, ge=0, le=1)  # share of traces that join two operations in a line now and then
    check_rates: tuple[float, ...] = (0.1, 0.5, 0.9)  # each trace draws one: the chance that a line is checked
    facts_per_row: int = 10  # equations of one `facts` row
    weight: float = 1.0  # loss weight of these rows in SFT


class SelectConfig(Config):
    """Which rows stay. A bound on a field that a row lacks follows `missing`."""

    min_level: float | None = None  # of the field `level`, as MATH's 1 to 5
    max_level: float | None = None  # as MATH's 1 to 5
    min_difficulty: float | None = None  # of the field `difficulty`, in the source's own unit
    max_difficulty: float | None = None  # in the source's own unit
    min_pass_rate: float | None = None  # of the field `pass_rate`, 0 to 1
    max_pass_rate: float | None = None  # 0 to 1
    min_tokens: int | None = None  # of the prompt, counted with `tokenizer`
    max_tokens: int | None = None  # of the prompt
    tokenizer: str | None = None  # a folder or hub name
    languages: tuple[Literal["en", "zh"], ...] | None = None  # of the problem's text; null: all
    subjects: tuple[str, ...] | None = None  # values of the field `subject`; null: all
    answer_types: tuple[str, ...] | None = None  # names in `filters.ANSWER_TYPES`
    figures: Literal["keep", "drop"] = "keep"  # rows with [asy] code
    missing: Literal["keep", "drop", "stop"] = "drop"  # of rows without the field that is bounded; stop: an error


class RowSource(Config):
    """What every source of real rows has. `columns` maps our names (problem, answer, solution, level, difficulty,
    pass_rate, subject, source, response) to the file's, dots for nested ones; unmapped names are found by habit."""

    rows: Literal["problems", "examples"] = "problems"  # what each row becomes
    role: Literal["rows", "reference"] = "rows"  # reference: lends solutions and difficulty by key
    columns: dict[str, str] = Field(default_factory=dict)  # our name -> the file's column
    select: SelectConfig = SelectConfig()  # bounds on rows of this source
    weight: float | None = Field(None, gt=0)  # share in the mixture; None everywhere: all rows of every source
    licence: str | None = None  # for the data card
    note: str | None = None  # traps of this source, printed on the data card
    format: Literal["auto", "jsonl", "json", "parquet", "csv", "folder"] = "auto"  # auto: by the file's name


class FileSource(RowSource):
    """A local JSONL, JSON array, CSV or parquet file (.gz and .zst too), or a folder of one-problem JSON files."""

    type: Literal["file"] = "file"  # a file or folder of this machine
    path: Path  # relative to the file that says it


class HubSource(RowSource):
    """A data set of the Hugging Face hub; `path` reads a local copy instead."""

    type: Literal["hub"] = "hub"  # the hub's `datasets` files, through its cache
    name: str  # ORG/NAME
    subset: str | None = None  # the hub's configuration name
    split: str = "train"  # the hub's split
    revision: str | None = (
        None  # a branch, tag or commit; None: the newest. A run's lock.yaml keeps the commit it meant
    )
    verified: bool = False  # whether somebody looked the name up; shown when it cannot be read
    path: Path | None = None  # a local copy that is read instead


SourceConfig = Annotated[ChainsSource | FileSource | HubSource, Field(discriminator="type")]


class CleaningConfig(Config):
    strip_prefixes: tuple[str, ...] = ()  # instruction text around problems, beside the known ones; exact match
    strip_suffixes: tuple[str, ...] = ()  # the same, behind problems
    on_fault: Literal["drop", "flag"] = "drop"  # cut-off problems, proofs, lost pictures; flag: for evaluation sets
    control: Literal["repair", "drop"] = "repair"  # form feed + "rac" is \frac; what cannot be repaired is dropped
    max_characters: int = Field(20_000, ge=1)  # of a problem, an answer or, five times as many, a solution


class AgreementConfig(Config):
    """Re-extract the answer from the worked solution and keep a row where it matches the given one (ConciseR)."""

    check: Literal["drop", "flag"] = "drop"  # flag: answers are read, doubtful ones marked; nothing is dropped
    without_solution: Literal["pass-if-parses", "join", "drop"] = "pass-if-parses"  # join: else as pass-if-parses
    # Of a solution without a box: its last formula is the answer, or the row goes
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

    against: tuple[str, ...] = SUITES  # suites as in `SUITES`, or recipes of your own
    containment: float = Field(0.8, gt=0, le=1)  # share of the eval problem's shingles found in the row
    action: Literal["drop", "report"] = "drop"  # report: for sets used to select models; the card lists the pairs


class DataConfig(StageConfig):
    """A recipe. `recipe: FILE` takes the fields of that file, under what is said beside it."""

    recipe: str | None = None  # a file of data_recipes/, or a path
    sources: dict[str, SourceConfig]  # name -> where rows come from; see the source types
    local: Path | None = None  # YAML file: source name -> local copy, for this recipe's sources and the suites'
    on_bad_row: Literal["drop", "stop"] = "drop"  # a line that is no row of the format
    cleaning: CleaningConfig = CleaningConfig()  # what is mended in a row's text
    agreement: AgreementConfig | None = AgreementConfig()  # answer against worked solution; null: not compared
    dedup: DedupConfig | None = DedupConfig()  # repeats; null: kept
    # Evaluation problems in training rows; null: not looked for
    decontaminate: DecontaminateConfig | None = DecontaminateConfig()
    select: SelectConfig = SelectConfig()  # bounds on rows of all sources
    limit: int | None = Field(None, ge=1)  # rows kept in all, drawn with the seed
    to: tuple[Literal["verl", "trl", "conciser"], ...] = ()  # other tools' schemas, written beside ours
    grader: GraderConfig = GraderConfig()  # compares answers with solutions
    # Filled in by the run: `hf:datasets/org/name` -> the commit that is read; in the key beside the files' hashes.
    commits: dict[str, str] = runtime({})
    shard_rows: int = runtime(4096, ge=1)  # rows between two points from which a rerun goes on

    def files(self) -> dict[str, Path]:
        """Local files whose content belongs to the stage's key; `places.key_files` adds the suites'."""
        paths = {name: s.path for name, s in self.sources.items() if isinstance(s, FileSource | HubSource) and s.path}
        return paths | ({"local": self.local} if self.local else {})
