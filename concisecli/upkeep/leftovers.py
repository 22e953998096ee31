"""What a run keeps and nothing needs any more: found, listed with its size, and removed when that is asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from concisecli.heartbeat import HEARTBEAT
from concisecli.loading import find_pipeline, load_pipeline_with_origins
from concisecli.pipeline import foresee
from concisecli.records import ConciseError
from concisecli.store import MANIFEST, Store
from concisecli.upkeep.lineage import everything, lineage
from concisecli.upkeep.runs import StageFolder, newest, stage_folders

Why = Literal["superseded", "unfinished", "checkpoints of a finished stage", "left by a killed process"]
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Leftover:
    path: Path
    why: Why
    bytes: int
    stage_folder: str  # whose lock is held while it is removed; "" for what belongs to none


def leftovers(run: Path, current: Sequence[Path] | None = None) -> list[Leftover]:
    """Of one run. `current` are the stage folders that its pipeline, as it is now, would use or go on with; without
    them the newest of each stage and all that it was made from stay."""
    folders = stage_folders(run)
    kept = {path.resolve() for path in current} if current is not None else set()
    kept |= _ancestors([f for f in folders if f.path.resolve() in kept] if current is not None else _latest(folders))
    found = []
    for folder in folders:
        if folder.path.resolve() not in kept:
            why: Why = "superseded" if folder.finished else "unfinished"
            found.append(_leftover(folder.path, why, folder.path.name))
            continue
        if folder.finished and (folder.path / CHECKPOINTS).is_dir():
            found.append(_leftover(folder.path / CHECKPOINTS, "checkpoints of a finished stage", folder.path.name))
        found += [_leftover(path, "left by a killed process", folder.path.name) for path in _temporary(folder.path)]
    # What was to become `rl1-0123` is guarded by the lock of that name.
    return found + [
        _leftover(path, "left by a killed process", path.name.lstrip(".").partition(".")[0]) for path in _temporary(run)
    ]


def current_folders(pipeline: Path | None, runs: Path) -> list[Path]:
    """The stage folders that a pipeline, as it is now, would skip or go on with. What it cannot say yet, of stages
    whose inputs are to be made again, is not among them, so their newest are kept beside these."""
    loaded, origins = load_pipeline_with_origins(find_pipeline(pipeline))
    outcomes, _ = foresee(loaded, runs, origins)
    named = {outcome.stage: outcome.folder for outcome in outcomes if outcome.folder is not None}
    unknown = [outcome.stage for outcome in outcomes if outcome.action in ("waits", "blocked", "run")]
    there = {folder.stage: folder for folder in _latest(stage_folders(runs / loaded.run))}
    return [*named.values(), *(there[stage].path for stage in unknown if stage in there)]


def _latest(folders: Sequence[StageFolder]) -> list[StageFolder]:
    """The folder last written of each stage, and where that is unfinished the last finished one as well."""
    finished = newest([f for f in folders if f.finished])
    return [*newest(list(folders)).values(), *finished.values()]


def _ancestors(folders: Sequence[StageFolder]) -> set[Path]:
    """These folders and those of every stage that they were made from."""
    kept = {folder.path.resolve() for folder in folders}
    for folder in folders:
        if folder.finished:
            kept |= {Path(made.folder).resolve() for made in everything(lineage(folder)) if made.folder}
    return kept


def _temporary(folder: Path) -> list[Path]:
    """Files and folders that are renamed into place when they are whole, and were not."""
    return sorted(p for p in folder.iterdir() if p.name.startswith(".") and p.suffix in (".tmp", ".partial", ".old"))


def _leftover(path: Path, why: Why, stage_folder: str) -> Leftover:
    return Leftover(path, why, size(path), stage_folder)


def amount(size: float) -> str:
    """1536 -> 1.5 KiB"""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def size(path: Path) -> int:
    """Bytes on disk; a file that is linked twice below `path` is counted once."""
    if not path.is_dir():
        return path.lstat().st_size
    seen: dict[tuple[int, int], int] = {}
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            stat = file.lstat()
            if not file.is_dir():
                seen[(stat.st_dev, stat.st_ino)] = stat.st_size
    return sum(seen.values())


# --- removing ---------------------------------------------------------------------------------------------------------


def remove(run: Path, found: Sequence[Leftover]) -> tuple[list[Leftover], list[tuple[Leftover, str]]]:
    """(what was removed, what was not and why): a stage that a process works on is left alone."""
    store = Store(run)
    done: list[Leftover] = []
    left: list[tuple[Leftover, str]] = []
    for leftover in found:
        try:
            with store.lock(leftover.stage_folder) if leftover.stage_folder else contextlib.nullcontext():
                _remove(leftover.path)
            done.append(leftover)
        except (ConciseError, OSError) as error:
            left.append((leftover, str(error)))
    for leftover in done:
        if leftover.path.name == leftover.stage_folder:
            with contextlib.suppress(OSError):
                (run / ".locks" / leftover.stage_folder).unlink(missing_ok=True)
    return done, left


def _remove(path: Path) -> None:
    """A folder loses its manifest first and then its name, so that half of one never looks whole."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for name in (MANIFEST, HEARTBEAT):
        (path / name).unlink(missing_ok=True)
    going = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(going)
    shutil.rmtree(going)
