"""The stage folders of a run, finished or not, and the names by which commands are told of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from concisecli.did_you_mean import nearest
from concisecli.records import ConciseError, UsageError
from concisecli.store import MANIFEST, RunManifest, read_manifest

FOLDER = re.compile(r"(.+)-([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class StageFolder:
    """`manifest` is None where the stage is unfinished or where the manifest cannot be read, which `trouble` says."""

    path: Path
    stage: str
    manifest: RunManifest | None
    trouble: str | None = None

    @property
    def finished(self) -> bool:
        return self.manifest is not None

    @property
    def changed(self) -> float:
        """When something in it was last written, seconds since 1970."""
        files = [p.stat().st_mtime for p in self.path.iterdir() if p.is_file()]
        return max([self.path.stat().st_mtime, *files])


def stage_folders(run: Path) -> list[StageFolder]:
    """All of a run, the newest of each stage last."""
    found = []
    for path in run.iterdir():
        matched = FOLDER.fullmatch(path.name)
        if matched and path.is_dir() and not (path / "config.json").is_file():  # a new model is no stage
            found.append(_read(path, matched[1]))
    return sorted(found, key=lambda folder: (folder.changed, folder.path.name))


def _read(path: Path, stage: str) -> StageFolder:
    if not (path / MANIFEST).is_file():
        return StageFolder(path, stage, None)
    try:
        return StageFolder(path, stage, read_manifest(path / MANIFEST))
    except ConciseError as error:
        return StageFolder(path, stage, None, str(error))


def newest(folders: list[StageFolder]) -> dict[str, StageFolder]:
    """By stage: the folder written to last."""
    return {folder.stage: folder for folder in folders}


def run_folder(given: str | None, runs: Path, expected: str | None = None) -> Path:
    """The folder of a run that was named by its path or its name; unnamed, the run `expected` of the pipeline here, or
    the one last written to. Raises UsageError."""
    if given is not None:
        for path in (Path(given), runs / given):
            if path.is_dir() and any(FOLDER.fullmatch(p.name) for p in path.iterdir()):
                return path
        raise UsageError(f"there is no run {given}{_known(given, runs)}")
    known = _runs_below(runs)
    if expected and runs / expected in known:
        return runs / expected
    if not known:
        raise UsageError(f"there are no runs below {runs}; give the folder of one, or make one: concise run")
    return max(known, key=lambda run: max(p.stat().st_mtime for p in run.iterdir()))


def finished_stage(given: str, runs: Path) -> StageFolder:
    """A finished stage named as RUN/STAGE, RUN/STAGE-KEY or by its folder's path. Raises UsageError."""
    path = Path(given)
    matched = FOLDER.fullmatch(path.name)
    if matched and path.is_dir():
        return _finished(_read(path, matched[1]))
    for run, stage in ((path.parent, path.name), (runs / path.parent, path.name)):
        if not run.is_dir() or run in (Path("."), runs):
            continue
        folders = stage_folders(run)
        if any(stage in (f.stage, f.path.name) for f in folders):
            named = [f for f in folders if stage in (f.stage, f.path.name)]
            return _finished(next((f for f in reversed(named) if f.finished), named[-1]))
        if folders:
            near = nearest(stage, {f.stage for f in folders})
            hint = f"did you mean {run / near}?" if near else f"its stages are {', '.join(newest(folders))}"
            raise UsageError(f"{run} has no stage {stage}; {hint}")
    raise UsageError(f"there is no stage {given}; name one as RUN/STAGE{_known(str(path.parent), runs)}")


def _finished(folder: StageFolder) -> StageFolder:
    if folder.trouble:
        raise ConciseError(folder.trouble)
    if not folder.finished:
        raise UsageError(f"{folder.path} is unfinished; run its pipeline again, which goes on where it stopped")
    return folder


def _runs_below(runs: Path) -> list[Path]:
    if not runs.is_dir():
        return []
    return [
        run
        for run in sorted(runs.iterdir())
        if run.is_dir() and any(FOLDER.fullmatch(p.name) for p in run.iterdir() if p.is_dir())
    ]


def _known(given: str, runs: Path) -> str:
    names = [run.name for run in _runs_below(runs)]
    near = nearest(Path(given).name, names)
    if near:
        return f"; did you mean {near}?"
    return f"; there are: {', '.join(names)}" if names else f"; there are none below {runs}"
