"""What commands do beside running a pipeline's stages: make a pipeline for one recipe or one model, write a method's
files, judge again what was sampled."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from concisecli.artifacts import read_json, unwritable
from concisecli.building.suites import preset_named
from concisecli.chosen_stages import Selection, select
from concisecli.config import EvalConfig, GraderConfig, Pipeline, PromptConfig, TrainConfig
from concisecli.includes import included, read_pipeline
from concisecli.loading import (
    PIPELINE_FILE,
    TOP,
    find_pipeline,
    find_recipe,
    load_pipeline_with_origins,
    packaged,
    packaged_folder,
    pipeline_of,
)
from concisecli.marked import Marked
from concisecli.monitor import note
from concisecli.records import ConciseError, UsageError
from concisecli.store import MANIFEST, read_manifest

# --- --set on a stage command -----------------------------------------------------------------------------------------


def named_sets(sets: Sequence[str], load: Callable[[Sequence[str]], Pipeline], selection: Selection) -> list[str]:
    """Overrides with the stage's name put before those that lack it: on a stage command `reward.alpha=0.1` is meant
    for every chosen stage. "seed", "threads" and "run" stay the pipeline's."""
    pipeline = load(())
    of_pipeline = {*pipeline.stages, "seed", "threads", "run"}
    relative = [text for text in sets if text.partition("=")[0].split(".")[0] not in of_pipeline]
    if not relative:
        return list(sets)
    chosen = [name for name in pipeline.stages if name in select(pipeline, selection)]
    kept = [text for text in sets if text not in relative]
    return [*kept, *(f"{name}.{text}" for text in relative for name in chosen)]


# --- pipelines of one command -----------------------------------------------------------------------------------------


def recipe_pipeline(recipe: str) -> dict[str, Any]:
    """A pipeline with one data stage, named after the recipe."""
    return {"run": "data", "stages": {stage_name(recipe): data_stage(recipe)}}


def data_stage(recipe: str) -> dict[str, Any]:
    if find_recipe(recipe, Path.cwd(), Path()) is None:
        known = sorted(p.stem for p in packaged_folder("data_recipes").glob("*.yaml"))
        raise UsageError(f"there is no recipe {recipe}; give a YAML file or one of: {', '.join(known)}")
    return {"uses": "data", "config": {"recipe": recipe}}


def eval_pipeline(model: str | None, data: Sequence[str]) -> dict[str, Any]:
    """A pipeline that evaluates one model on each of some problem sets."""
    if model is None or not data:
        raise UsageError("an evaluation without a pipeline needs both --model and --data")
    if not model.startswith("hf:") and not Path(model).exists():
        hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@\w+)?", model)
        hint = f"; a model of the Hugging Face hub is written hf:{model}" if hub else ""
        raise UsageError(f"there is no model folder {model}{hint}")
    stages, problems = problem_stages(data)
    where = model if model.startswith("hf:") else str(model_folder(Path(model)).resolve())
    for name, reference in problems.items():
        stages[f"eval_{name}"] = {"uses": "eval", "inputs": {"model": where, "problems": reference}}
    return {"run": "eval", "stages": stages} | trained_with(Path(where))


def problem_stages(data: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(the data stages that some problem sets need, name -> reference of each set): parquet of `data build` as it is,
    other files and recipes through a data stage."""
    stages: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for source in data:
        name = stage_name(source)
        problems[name] = str(Path(source).resolve())
        if not source.endswith(".parquet") or not Path(source).is_file():
            stages[name] = file_stage(source) if Path(source).exists() and not is_yaml(source) else data_stage(source)
            problems[name] = f"{name}.problems"
    return stages, problems


def model_folder(given: Path) -> Path:
    """The model that is meant: that of a stage where the stage's folder is given."""
    inside = given / "model"
    return inside if not (given / "config.json").exists() and (inside / "config.json").exists() else given


def trained_with(model: Path) -> dict[str, Any]:
    """The prompt and grader of the stage that made a model folder: asked otherwise, a model looks worse than it is."""
    manifest = model.resolve().parent / MANIFEST
    if not manifest.is_file():
        return {}
    config = read_json(manifest).get("config", {})
    found = {name: config[name] for name in ("prompt", "grader") if name in config}
    if found:
        note(f"{' and '.join(found)} as in {manifest}; others: --set prompt.template=... --set grader.profile=...")
    return found


def file_stage(path: str) -> dict[str, Any]:
    """The rows of an evaluation set as they are: neither merged nor compared with the suites."""
    source = {"type": "file", "path": str(Path(path).resolve())}
    return {"uses": "data", "config": {"sources": {"rows": source}, "dedup": None, "decontaminate": None}}


def is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def preset_sets(name: str) -> list[str]:
    """The settings of a preset as overrides."""
    values = {key: list(v) if isinstance(v, tuple) else v for key, v in preset_named(name).items()}
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def stage_name(source: str) -> str:
    """A name for a folder out of a file's name."""
    name = re.sub(r"[^\w-]+", "_", Path(source).stem.partition(".")[0]).strip("_") or "data"
    return f"{name}_" if name in TOP else name


def train_config(method: str | None, pipeline: Path | None, only: str | None, sets: Sequence[str]) -> TrainConfig:
    """The settings of one train stage of a shipped or given pipeline."""
    if method and pipeline:
        raise UsageError("give either --method or -p, not both")
    path = packaged("pipelines", method) if method else find_pipeline(pipeline)
    selection = Selection(kinds=("train",), only=(only,) if only else ())
    named = named_sets(sets, lambda some: load_pipeline_with_origins(path, some)[0], selection)
    loaded = load_pipeline_with_origins(path, named)[0]
    chosen = select(loaded, selection)
    if len(chosen) > 1:
        names = ", ".join(name for name in loaded.stages if name in chosen)
        raise UsageError(f"{path} has several train stages; choose one with --only: {names}")
    config = loaded.stages[chosen.pop()].config
    assert isinstance(config, TrainConfig)
    return config


# --- grading ----------------------------------------------------------------------------------------------------------


def grader_config(sets: Sequence[str], base: Mapping[str, Any] | None = None) -> GraderConfig:
    """The settings of a grader with overrides such as "profile=strict"."""
    return part_of_eval("grader", sets, base).grader


def prompt_config(sets: Sequence[str]) -> PromptConfig:
    """The settings of a prompt with overrides such as "chat=false"."""
    return part_of_eval("prompt", sets).prompt


def part_of_eval(part: str, sets: Sequence[str], base: Mapping[str, Any] | None = None) -> EvalConfig:
    tree = {"run": "part", "stages": {"eval": {"uses": "eval", "config": {part: dict(base or {})}}}}
    pipeline, _ = pipeline_of(tree, [f"eval.{part}.{text.removeprefix(f'{part}.')}" for text in sets])
    config = pipeline.stages["eval"].config
    assert isinstance(config, EvalConfig)
    return config


def regraded(folder: Path, out: Path | None, sets: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Judge what a finished eval sampled with the grader of today, under the settings of then and `sets`
    ("grader.profile=strict"); where it was written, and the metrics."""
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} is not the folder of a finished eval; give one such as runs/NAME/STAGE-KEY")
    manifest = read_manifest(folder / MANIFEST)
    if manifest.kind != "eval":
        raise UsageError(f"{folder} was made by a stage of kind {manifest.kind}, not by eval")
    from concisecli.stages.evaluate import headline, regrade

    config = grader_config(sets, manifest.config["grader"])
    target = out or folder.with_name(f"{folder.name}-regraded")
    return target, headline(regrade(folder, config, target))


# --- init -------------------------------------------------------------------------------------------------------------


def write_method(method: str, folder: Path, *, force: bool) -> list[Path]:
    """Copy a shipped pipeline to `folder`/concise.yaml, and what it includes and the recipes it names beside it; the
    paths."""
    source = packaged("pipelines", method)
    copies = {folder / PIPELINE_FILE: source} | {folder / file.name: file for file in included(source)}
    for recipe in recipes_named(read_pipeline(source)):
        found = find_recipe(recipe, source.parent, source)
        if found is None:
            raise ConciseError(f"{source} names the recipe {recipe}, which does not ship with concise")
        copies[folder / "data_recipes" / found.name] = found
    as_shipped = {path for path, file in copies.items() if path.is_file() and path.read_bytes() == file.read_bytes()}
    as_shipped.discard(folder / PIPELINE_FILE)  # somebody's own by its name
    there = [str(path) for path in copies if path.exists() and path not in as_shipped]
    if there and not force:
        raise UsageError(f"{', '.join(there)} exists already; use another --dir, or --force to overwrite")
    for path, original in copies.items():
        if path in as_shipped:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, path)
        except OSError as error:
            raise unwritable(path, error) from error
    return list(copies)


def recipes_named(pipeline: Marked) -> list[str]:
    """The recipes that the stages of a pipeline file include, each once, in their order."""
    stages = pipeline.plain().get("stages") or {}
    found = [(stage.get("config") or {}).get("recipe") for stage in stages.values()]
    return list(dict.fromkeys(str(name) for name in found if name))
