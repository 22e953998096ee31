"""`data build`: a recipe becomes problems and examples, with every dropped row accounted for."""

from __future__ import annotations

from concisecli import recipes
from concisecli.artifacts import write_examples, write_problems
from concisecli.config import DataConfig
from concisecli.records import StageResult, StageRun


def run(stage: StageRun) -> StageResult:
    config: DataConfig = stage.config
    problems, examples = recipes.synthetic(config)
    outputs, rows = {}, {}
    if problems:
        outputs["problems"] = "problems.parquet"
        rows["problems"] = write_problems(stage.folder / "problems.parquet", problems)
    if examples:
        outputs["examples"] = "examples.parquet"
        rows["examples"] = write_examples(stage.folder / "examples.parquet", examples)
    return StageResult(outputs, dict(rows), rows)
