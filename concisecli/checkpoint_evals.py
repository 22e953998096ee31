"""`concise eval RUN --checkpoints all`: the weights that trainings left on the way, evaluated afterwards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concisecli.artifacts import read_json
from concisecli.records import UsageError
from concisecli.standalone import problem_stages
from concisecli.store import MANIFEST
from concisecli.weights import FOLDER, TRAINED_WITH, kept

if TYPE_CHECKING:
    from concisecli.pipeline import Outcome

KEY = re.compile(r"-[0-9a-f]{12}$")
EVERY, LAST = "all", "last"


@dataclass(frozen=True, slots=True)
class Weights:
    """One model folder that a training wrote, after so many updates."""

    stage: str
    step: int
    path: Path

    @property
    def name(self) -> str:
        return f"{self.stage}_{self.step:06}"


def eval_pipeline(run: Path, which: str, data: Sequence[str]) -> dict[str, Any]:
    """A pipeline that evaluates the chosen weights of a run, or of one stage's folder, on each of some problem sets,
    asked and graded as they were trained; without a budget of its own, under the one they were trained with."""
    if not data:
        raise UsageError("which problems? give --suite aime24,math500 or --data FILE")
    stages, problems = problem_stages(data)
    for weights in chosen(run, which):
        config = trained_with(weights)
        for name, reference in problems.items():
            inputs = {"model": str(weights.path.resolve()), "problems": reference}
            stages[f"{weights.name}_{name}"] = {"uses": "eval", "inputs": inputs, "config": config}
    return {"run": "eval", "stages": stages}


def chosen(run: Path, which: str) -> list[Weights]:
    """The weights that `which` names, "all", "last" or "50,100". Raises UsageError naming those that there are."""
    found = [weights_of(folder) for folder in trainings(run)]
    if which == LAST:
        return [each[-1] for each in found]
    everything = [weights for each in found for weights in each]
    if which == EVERY:
        return everything
    there = {weights.step for weights in everything}
    known = ", ".join(str(step) for step in sorted(there))
    try:
        steps = {int(word) for word in which.split(",")}
    except ValueError:
        raise UsageError(f"--checkpoints {which}: give all, last, or numbers of updates such as 50,100") from None
    if missing := sorted(steps - there):
        raise UsageError(f"{run} has no weights after {missing[0]} updates; it has those after {known}")
    return [weights for weights in everything if weights.step in steps]


def trainings(run: Path) -> list[Path]:
    """The folders that hold weights: `run` itself where it is a stage's, else its stages, of each the newest folder."""
    if not run.is_dir():
        raise UsageError(f"there is no folder {run}; give that of a run, such as runs/tiny, or of one of its stages")
    if weights_of(run):
        return [run]
    newest: dict[str, Path] = {}
    for folder in sorted(run.iterdir(), key=lambda path: path.stat().st_mtime_ns):
        if folder.is_dir() and weights_of(folder):
            newest[KEY.sub("", folder.name)] = folder
    if not newest:
        raise UsageError(f"{run} holds no weights; set weights_every in a train stage, or finish one")
    return list(newest.values())


def weights_of(folder: Path) -> list[Weights]:
    """The weights of one training in the order of their updates, the finished model last."""
    stage = KEY.sub("", folder.resolve().name)
    found = kept(folder)
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    if manifest.get("kind") == "train" and (folder / "model").is_dir():
        metrics = manifest["metrics"]
        found[metrics.get("rolled_back_to", manifest["config"]["steps"])] = folder / "model"
    return [Weights(stage, step, path) for step, path in sorted(found.items())]


def trained_with(weights: Weights) -> dict[str, Any]:
    """The settings of an eval that asks and grades as the training did."""
    folder = weights.path.parent if weights.path.name == "model" else weights.path.parent.parent
    manifest = folder / MANIFEST
    config = read_json(manifest)["config"] if manifest.is_file() else read_json(folder / FOLDER / TRAINED_WITH)
    sampling = config["sampling"]
    return {
        "prompt": config["prompt"],
        "grader": config["grader"],
        "stop": sampling.get("stop", []),
        "max_prompt_tokens": sampling["max_prompt_tokens"],
        "budgets": [sampling["max_response_tokens"]],
    }


# --- the table --------------------------------------------------------------------------------------------------------


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """One line a model and problem set, in the order in which they were evaluated."""
    rows = [
        (stage, problems, int(step), outcome.metrics)
        for outcome in outcomes
        if outcome.kind == "eval"
        for stage, step, problems in re.findall(r"^(.+)_(\d{6})_(.+)$", outcome.stage)
    ]
    if not rows:
        return []
    names = list(rows[0][3])
    head = ["stage", "problems", "updates", *names]
    cells = [
        [stage, problems, str(step), *(_number(metrics, name) for name in names)]
        for stage, problems, step, metrics in sorted(rows, key=lambda row: row[:3])
    ]
    widths = [max(len(row[i]) for row in (head, *cells)) for i in range(len(head))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *cells)]


def _number(metrics: Mapping[str, Any], name: str) -> str:
    return f"{metrics[name]:.4g}" if name in metrics else "-"
