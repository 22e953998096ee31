"""`report`: scores and training logs -> report.html (one file, no network), report.md, tables.json, figures/.

Everything shown is in tables.json. Names and lineage come from the manifests of the inputs, and from the manifests of
the stages that made what those read, found by their content hashes beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from concisecli.artifacts import iter_jsonl, read_json, read_parquet, write_bytes, write_json, write_text
from concisecli.config import ReportConfig, Variant
from concisecli.records import ConciseError, StageResult, StageRun, UsageError
from concisecli.reports import before_after, cost, curves, drawing, figures, lineage, markdown, page, reporting, swept
from concisecli.reports.reporting import Evaluation, Json, Training
from concisecli.reports.scores import read as read_scores
from concisecli.reports.variants import model_read, named

KEY = re.compile(r"-[0-9a-f]{12}$")  # what a stage's folder has behind the stage's name


def run(stage: StageRun) -> StageResult:
    """Raises ConciseError when there is neither a score nor a metric to report, or one cannot be read."""
    tables, drawn = gather(stage)
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
        {"figures": len(drawn), **{name: len(stage.inputs.get(role, ())) for name, role in INPUTS.items()}},
    )


INPUTS = {"evaluations": "scores", "trainings": "metrics"}


def gather(stage: StageRun) -> tuple[Json, list[drawing.Figure]]:
    """Everything that a report shows, and the figures that stand in it as data; nothing is drawn or written."""
    config: ReportConfig = stage.config
    scored = _sources(stage, "scores")
    logged = _sources(stage, "metrics")
    if not scored and not logged:
        raise ConciseError("there is nothing to report; give it `scores` or `metrics` as inputs")
    folders = Folders(dict.fromkeys(path.parent.parent for path, _ in scored + logged))
    evaluations, trainings, variants, labels = named(
        [load_evaluation(path, manifest, folders.label(path)) for path, manifest in scored],
        [load_training(path, manifest, folders.label(path)) for path, manifest in logged],
        folders.makers,
        {name: (one.stage, one.values) for name, one in config.variants.items()},
    )
    slots = reporting.Slots(evaluations, trainings).of
    groups = reporting.by_settings(evaluations)
    parents = reporting.parents_of(trainings)
    drawn = figures.evaluation_figures(groups, slots, parents) + curves.training_figures(trainings, slots)
    ancestors = folders.ancestors([m for _, m in scored + logged if m])
    tables = {
        "title": config.title,
        "headline": reporting.headline(groups),
        "breakdowns": reporting.breakdowns(groups),
        "ablation": reporting.ablation(trainings, groups, variants),
        "variants": reporting.variants_table(variants, groups),
        "sweeps": swept.sweeps(variants, groups),
        "differences": reporting.differences(groups, parents),
        "against_the_whole": reporting.against_the_whole(groups, config.after),
        "alarms": curves.alarms(trainings),
        "figures": [asdict(figure) for figure in drawn],
        "examples": _examples(config, evaluations),
        "lineage": lineage.lineage(ancestors, labels),
        "cost": cost.cost(list(_spent(folders, ancestors, scored + logged, labels))),
    }
    return tables, drawn


def of_runs(runs: Sequence[Path], out: Path, config: ReportConfig, *, every: bool = False) -> StageResult:
    """A report of everything in the folders of one or several runs, finished or under way, written to `out`: of each
    stage its newest folder, makers before users. With `every`, of all that is finished: seeds of the same settings are
    averaged, changed settings stand side by side. Raises ConciseError for a folder without any."""
    return run(in_runs(runs, out, config, every=every))


def in_runs(runs: Sequence[Path], out: Path, config: ReportConfig, *, every: bool = False) -> StageRun:
    """The report stage that reads everything in the folders of some runs; the values of a sweep are those that the
    run's own report was told."""
    found: list[Path] = []
    for folder in dict.fromkeys(runs):
        inside = _every(folder) if every else _newest(folder)
        if not inside:
            if not folder.exists():
                raise UsageError(f"there is no folder {folder}; name that of a run, such as runs/tiny")
            near = sorted(str(run) for run in folder.glob("*") if run.is_dir() and _newest(run))
            hint = f"; did you mean {' or '.join(near)}?" if near else "; make one with: concise run"
            raise ConciseError(f"{folder} holds no evaluation and no training log{hint}")
        found += _makers_first(inside, folder)
    scores = tuple(stage / "scores.json" for stage in found if (stage / "scores.json").is_file())
    metrics = tuple(stage / "metrics.jsonl" for stage in found if _trains(stage))
    out.mkdir(parents=True, exist_ok=True)
    told = {name: one for folder in runs for name, one in _variants_told(folder).items()}
    config = config.model_copy(update={"variants": told | config.variants})
    return StageRun("report", out, config, {"scores": scores, "metrics": metrics})


def _variants_told(run: Path) -> dict[str, Variant]:
    """The stages of a sweep as the manifests of the run's reports have them."""
    reports = sorted(run.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    configs = [m["config"] for m in map(read_json, reports) if m.get("kind") == "report"]
    return {name: Variant(**one) for config in configs for name, one in config.get("variants", {}).items()}


# --- folders ----------------------------------------------------------------------------------------------------------


class Folders:
    """The stage folders of some runs: what made what, by the hashes of the contents."""

    def __init__(self, runs: Iterable[Path]) -> None:
        self.runs = list(runs)
        self.of: dict[str, Path] = {}  # key -> folder
        self.makers: dict[str, Json] = {}  # hash of an output -> manifest of the stage that made it
        for run in self.runs:
            for path in sorted(run.glob("*/manifest.json")):
                manifest = read_json(path)
                self.of.setdefault(manifest["key"], path.parent)
                for output in manifest.get("outputs", {}).values():
                    self.makers.setdefault(output["sha256"], manifest)

    def label(self, path: Path) -> str:
        """What the run of a file in a stage's folder is called: its name, with as many of the folders above it as it
        takes to tell it from the others."""
        run = path.parent.parent
        others = [other for other in self.runs if other != run]
        for count in range(1, len(run.parts)):
            if all(other.parts[-count:] != run.parts[-count:] for other in others):
                return "/".join(run.parts[-count:])
        return str(run)

    def ancestors(self, manifests: Sequence[Json]) -> list[Json]:
        """The manifests and those of the stages that made what they read."""
        found: dict[str, Json] = {}
        waiting = list(manifests)
        while waiting:
            manifest = waiting.pop()
            if manifest["key"] not in found:
                found[manifest["key"]] = manifest
                read = lineage.read_by(manifest)
                waiting += [self.makers[digest] for digest in read if digest in self.makers]
        return sorted(found.values(), key=lambda m: (m["stage"], m["key"]))


def _makers_first(inside: Sequence[Path], run: Path) -> list[Path]:
    """Stage folders with makers before users, else in the order given; what is under way comes last."""
    folders = Folders([run])
    rows = lineage.lineage(folders.ancestors([m for f in inside if (m := _manifest_beside(f / "manifest.json"))]))
    columns = {(row["stage"], row["key"]): row["column"] for row in rows}

    def column(folder: Path) -> int:
        manifest = _manifest_beside(folder / "manifest.json")
        return columns[manifest["stage"], manifest["key"][:12]] if manifest else len(rows)

    return sorted(inside, key=column)


def _trains(stage: Path) -> bool:
    """Whether a stage has a log of training; that of a stage under way is taken for one."""
    log = stage / "metrics.jsonl"
    return log.is_file() and _manifest_beside(log).get("kind", "train") in ("sft", "train")


def _every(run: Path) -> list[Path]:
    """The finished stages of a run that have scores or metrics, oldest first."""
    return [folder for folder in _written(run) if (folder / "manifest.json").is_file()]


def _newest(run: Path) -> list[Path]:
    """The folders of a run that hold scores or metrics, one a stage, oldest first."""
    newest: dict[str, Path] = {}
    for folder in _written(run):
        stage = KEY.sub("", folder.name)
        newest.pop(stage, None)
        newest[stage] = folder
    return list(newest.values())


def _written(run: Path) -> list[Path]:
    files = sorted([*run.glob("*/scores.json"), *run.glob("*/metrics.jsonl")], key=lambda p: p.stat().st_mtime_ns)
    return list(dict.fromkeys(path.parent for path in files))


Source = tuple[Path, Json]


def _sources(stage: StageRun, role: str) -> list[Source]:
    """The files of a role, each with the manifest of the stage that made it ({} for a file from outside)."""
    paths = stage.inputs.get(role, ())
    given = stage.sources.get(role, ()) or (None,) * len(paths)
    return [(path, dict(m) if m else _manifest_beside(path)) for path, m in zip(paths, given, strict=True)]


def _manifest_beside(path: Path) -> Json:
    manifest = path.parent / "manifest.json"
    return read_json(manifest) if manifest.is_file() else {}


def load_evaluation(path: Path, manifest: Json, run: str) -> Evaluation:
    """A scores.json under the name of the model that it is about."""
    scores = read_scores(path)
    stage = _stage_name(path, manifest)
    return Evaluation(stage, model_read(manifest) or stage, scores, manifest, run, path)


def load_training(path: Path, manifest: Json, run: str) -> Training:
    stage = _stage_name(path, manifest)
    return Training(
        stage, manifest.get("kind", "train"), model_read(manifest), list(iter_jsonl(path, whole=False)), manifest, run
    )


def _stage_name(path: Path, manifest: Json) -> str:
    return str(manifest.get("stage") or KEY.sub("", path.parent.name))


def _examples(config: ReportConfig, evaluations: Sequence[Evaluation]) -> Json | None:
    """The same problems before and after, from the completions beside the two scores."""
    chosen = _before_and_after(config, evaluations)
    if not chosen or not config.examples:
        return None
    before, after = (evaluations[i] for i in chosen)
    texts = [e.path.parent / "completions.parquet" for e in (before, after) if e.path is not None]
    if not all(path.is_file() for path in texts):
        return None
    first, second = (read_parquet(path) for path in texts)
    return {
        "before": before.model,
        "after": after.model,
        **before_after.choose(before.scores, first, after.scores, second, number=config.examples, seed=config.seed),
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


# --- cost -------------------------------------------------------------------------------------------------------------


def _spent(
    folders: Folders, ancestors: Sequence[Json], read: Sequence[Source], labels: Mapping[str, str]
) -> Iterator[cost.Spent]:
    """Of every stage behind the report what its folder tells of time and tokens, makers first; then of stages that are
    under way."""
    rows = lineage.lineage(ancestors)
    by_key = {m["key"][:12]: m for m in ancestors}
    told = {m["key"]: path.parent for path, m in read if m}
    for manifest in (by_key[row["key"]] for row in rows):
        folder = told.get(manifest["key"]) or folders.of.get(manifest["key"])
        if folder is not None:
            name = (
                labels.get(manifest["key"], manifest["stage"]) if "model" in manifest["outputs"] else manifest["stage"]
            )
            yield _spent_in(folder, name, manifest)
    for folder in dict.fromkeys(path.parent for path, m in read if not m):
        yield _spent_in(folder, KEY.sub("", folder.name), {})


def _spent_in(folder: Path, name: str, manifest: Json) -> cost.Spent:
    def rows(file: str) -> list[Json]:
        return list(iter_jsonl(folder / file, whole=False)) if (folder / file).is_file() else []

    timings, log = rows("timings.jsonl"), rows("metrics.jsonl")
    sampled = sum(line.get("tokens", 0) for line in timings if line.get("phase") == "generate")
    return cost.Spent(name, manifest.get("kind", ""), timings, log, sampled, manifest.get("env", {}).get("gpus"))
