"""The graph: stages by name, and what each is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from concisecli.config.base import Config, StageConfig
from concisecli.config.data import DataConfig
from concisecli.config.stages import DistillConfig, EvalConfig, MineConfig, ReportConfig, SftConfig, TrainConfig
from concisecli.config.training import NewModelConfig

KINDS: dict[str, type[StageConfig]] = {
    "data": DataConfig,
    "distill": DistillConfig,
    "sft": SftConfig,
    "train": TrainConfig,
    "mine": MineConfig,
    "eval": EvalConfig,
    "report": ReportConfig,
}
# Said once at the top, inherited by every stage that has it.
SHARED = ("seed", "prompt", "grader", "engine", "backend", "processes", "trackers")


class NewModel(Config):
    """A model input that is made, not loaded: `{new: {...}}`."""

    new: NewModelConfig  # its shape


Reference = str | NewModel  # "stage.output" | "hf:org/name@revision" | a path | {new: {...}}


class StageSpec(Config):
    """One node of the graph. `inputs` gives each role one reference or a list of them."""

    name: str  # unique in the graph
    uses: str  # a kind of stage
    config: Any  # an instance of KINDS[uses]
    # Role -> reference or references
    inputs: dict[str, Reference | tuple[Reference, ...]] = Field(default_factory=dict)


class Pipeline(Config):
    """A whole curriculum: stages by name, in the order written; `path` is the file it came from."""

    run: str  # artifacts go to runs/<run>/
    path: Path  # the file
    seed: int = 0  # of every stage that says none
    threads: int = 0  # 0: OMP_NUM_THREADS, else every core
    stages: dict[str, StageSpec]  # name -> uses, inputs, config

    @model_validator(mode="after")
    def _names_are_folders(self) -> Pipeline:
        for name in (self.run, *self.stages):
            if not name or any(c in name for c in "/. \\"):
                raise ValueError(f"'{name}' cannot be a folder name; use letters, digits, '_' and '-'")
        return self
