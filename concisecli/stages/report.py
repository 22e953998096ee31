"""`report`: scores and training logs -> report.html (one file, no network), report.md, tables.json, figures/.

Everything shown is in tables.json. Names and lineage come from the manifests of the inputs, and from the manifests of
the stages that made what those read, found by their content hashes beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from concisecli.artifacts import iter_jsonl, read_json, read_parquet, write_bytes, write_json, write_text
from concisecli.config import ReportConfig
from concisecli.records import ConciseError, StageResult, StageRun
from concisecli.reports import before_after, curves, drawing, figures, markdown, page, reporting
from concisecli.reports.reporting import Evaluation, Json, Training
from concisecli.reports.scores import SCHEMA

KEY = re.compile(r"-[0-9a-f]{12}$")  # what a stage's folder has behind the stage's name


def run(stage: StageRun) -> StageResult:
    """Raises ConciseError when there is neither a score nor a metric to report, or one cannot be read."""
    config: ReportConfig = stage.config
    scored = _sources(stage, "scores")
    logged = _sources(stage, "metrics")
    evaluations, trainings = reporting.told_apart(
        [load_evaluation(path, manifest) for path, manifest in scored],
        [load_training(path, manifest) for path, manifest in logged],
    )
    if not evaluations and not trainings:
        raise ConciseError("there is nothing to report; give it `scores` or `metrics` as inputs")
    runs = dict.fromkeys(path.parent.parent for path, _ in scored + logged)
    slots = reporting.Slots(evaluations, trainings).of
    groups = reporting.by_settings(evaluations)
    parents = reporting.parents_of(trainings)
    drawn = figures.evaluation_figures(groups, slots, parents) + curves.training_figures(trainings, slots)
    made = [*(t.stage for t in trainings), *(e.stage for e in evaluations)]
    timings = {name: _timings(path) for name, (path, _) in zip(made, logged + scored, strict=True)}
    tables = {
        "title": config.title,
        "headline": reporting.headline(groups),
        "breakdowns": reporting.breakdowns(groups),
        "ablation": reporting.ablation(trainings, groups),
        "differences": reporting.differences(groups, parents),
        "figures": [asdict(figure) for figure in drawn],
        "examples": _examples(config, evaluations, [path for path, _ in scored]),
        "lineage": reporting.lineage(_ancestors(runs, [m for _, m in scored + logged if m])),
        "cost": reporting.cost(timings, trainings, evaluations),
    }
    pictures = {figure.name: drawing.draw(figure) for figure in drawn}
    for name, picture in pictures.items():
        write_text(stage.folder / "figures" / f"{name}.svg", drawing.standalone(picture.svg))
        write_bytes(stage.folder / "figures" / f"{name}.png", picture.png)
    write_json(stage.folder / "tables.json", tables)
    write_text(stage.folder / "report.md", markdown.render(tables))
    write_text(
        stage.folder / "report.html", page.html(tables, {name: picture.svg for name, picture in pictures.items()})
    )
    return StageResult(
        {"report": "report.md", "page": "report.html", "tables": "tables.json"},
        {"figures": len(drawn), "evaluations": len(evaluations), "trainings": len(trainings)},
    )


def of_runs(runs: Sequence[Path], out: Path, config: ReportConfig) -> StageResult:
    """A report of everything in the folders of one or several runs, finished or under way, written to `out`: of each
    stage its newest folder, in the order in which they were finished. Raises ConciseError for a folder without any."""
    scores: list[Path] = []
    metrics: list[Path] = []
    for folder in runs:
        found = _newest(folder)
        if not found:
            if not folder.exists():
                raise ConciseError(f"there is no folder {folder}; name that of a run, such as runs/tiny")
            inside = sorted(str(run) for run in folder.glob("*") if run.is_dir() and _newest(run))
            hint = f"; did you mean {' or '.join(inside)}?" if inside else "; make one with: concise run"
            raise ConciseError(f"{folder} holds no evaluation and no training log{hint}")
        scores += [stage / "scores.json" for stage in found if (stage / "scores.json").is_file()]
        metrics += [
            stage / "metrics.jsonl" for stage in found if (stage / "metrics.jsonl").is_file() and _trains(stage)
        ]
    out.mkdir(parents=True, exist_ok=True)
    return run(StageRun("report", out, config, {"scores": tuple(scores), "metrics": tuple(metrics)}))


def _trains(stage: Path) -> bool:
    """Whether a stage's log is one of training; that of a stage under way is taken for one."""
    return _manifest_beside(stage / "metrics.jsonl").get("kind", "train") in ("sft", "train")


def _newest(run: Path) -> list[Path]:
    """The folders of a run that hold scores or metrics, one a stage, oldest first."""
    written = sorted([*run.glob("*/scores.json"), *run.glob("*/metrics.jsonl")], key=lambda p: p.stat().st_mtime_ns)
    newest: dict[str, Path] = {}
    for folder in (path.parent for path in written):
        stage = KEY.sub("", folder.name)
        newest.pop(stage, None)
        newest[stage] = folder
    return list(newest.values())


Source = tuple[Path, Json]


def _sources(stage: StageRun, role: str) -> list[Source]:
    """The files of a role, each with the manifest of the stage that made it ({} for a file from outside)."""
    paths = stage.inputs.get(role, ())
    given = stage.sources.get(role, ()) or (None,) * len(paths)
    return [(path, dict(m) if m else _manifest_beside(path)) for path, m in zip(paths, given, strict=True)]


def _manifest_beside(path: Path) -> Json:
    manifest = path.parent / "manifest.json"
    return read_json(manifest) if manifest.is_file() else {}


def load_evaluation(path: Path, manifest: Json) -> Evaluation:
    """A scores.json under the name of the model that it is about."""
    scores = read_json(path)
    if not isinstance(scores, dict) or scores.get("schema") != SCHEMA:
        raise ConciseError(f"{path} is not a scores.json of this version of concise; run the eval stage again")
    stage = _stage_name(path, manifest)
    return Evaluation(stage, _made_by(manifest) or stage, scores, manifest, path.parent.parent.name)


def load_training(path: Path, manifest: Json) -> Training:
    stage = _stage_name(path, manifest)
    rows, run = list(iter_jsonl(path)), path.parent.parent.name
    return Training(stage, manifest.get("kind", "train"), _made_by(manifest), rows, manifest, run)


def _stage_name(path: Path, manifest: Json) -> str:
    return str(manifest.get("stage") or KEY.sub("", path.parent.name))


def _made_by(manifest: Json) -> str:
    """The stage that made the model a stage read, or the model's own name."""
    reference = next(iter(manifest.get("sources", {}).get("model", [])), "")
    if reference.startswith("hf:"):
        return str(reference[3:].split("@")[0].split("/")[-1])
    if "/" in reference:
        return Path(reference).name
    return str(reference.split(".")[0])


def _ancestors(runs: Iterable[Path], manifests: Sequence[Json]) -> list[Json]:
    """The manifests and those of the stages that made what they read, by the hash of what was read."""
    beside = [read_json(path) for run in runs for path in sorted(run.glob("*/manifest.json"))]
    makers = {output["sha256"]: m for m in beside for output in m.get("outputs", {}).values()}
    found: dict[str, Json] = {}
    waiting = list(manifests)
    while waiting:
        manifest = waiting.pop()
        if manifest["key"] not in found:
            found[manifest["key"]] = manifest
            waiting += [makers[digest] for digest in reporting.read_by(manifest) if digest in makers]
    return sorted(found.values(), key=lambda m: (m["stage"], m["key"]))


def _examples(config: ReportConfig, evaluations: Sequence[Evaluation], paths: Sequence[Path]) -> Json | None:
    """The same problems before and after, from the completions beside the two scores."""
    chosen = _before_and_after(config, evaluations)
    if not chosen or not config.examples:
        return None
    texts = [paths[i].parent / "completions.parquet" for i in chosen]
    if not all(path.is_file() for path in texts):
        return None
    before, after = (evaluations[i] for i in chosen)
    rows: list[list[dict[str, Any]]] = [read_parquet(path) for path in texts]
    return {
        "before": before.model,
        "after": after.model,
        **before_after.choose(before.scores, rows[0], after.scores, rows[1], number=config.examples, seed=config.seed),
    }


def _before_and_after(config: ReportConfig, evaluations: Sequence[Evaluation]) -> tuple[int, int] | None:
    names = [e.stage for e in evaluations]
    for wanted in (config.before, config.after):
        if wanted is not None and wanted not in names:
            raise ConciseError(
                f"there is no evaluation named '{wanted}' to show; there are: {', '.join(names) or 'none'}"
            )
    if config.before and config.after:
        return names.index(config.before), names.index(config.after)
    alike = [i for i, e in enumerate(evaluations) if e.scores["settings"] == evaluations[0].scores["settings"]]
    return (alike[0], alike[-1]) if len(alike) > 1 else None


def _timings(path: Path) -> list[Json]:
    timings = path.parent / "timings.jsonl"
    return list(iter_jsonl(timings)) if timings.is_file() else []
