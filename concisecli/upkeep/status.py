"""How a run stands, from its files alone: which stages are finished or under way, how fast, and how healthy."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from concisecli.heartbeat import HEARTBEAT, Beat, read_beat
from concisecli.monitor import METRICS, SHOWN, TIMINGS
from concisecli.upkeep.runs import StageFolder, newest, stage_folders

State = Literal["finished", "running", "unfinished", "broken", "waiting"]
RECENT = 10  # steps that the rate is taken over
TAIL = 65_536  # bytes read from the end of a log: enough for RECENT rows and a few


@dataclass(frozen=True, slots=True)
class StageStatus:
    stage: str
    state: State
    folder: str | None = None
    kind: str | None = None
    phase: str = ""
    done: int | None = None
    total: int | None = None
    unit: str = "step"
    seconds_per_step: float | None = None
    seconds_left: float | None = None
    heartbeat_age: float | None = None  # seconds since anything was written, of a stage that is not finished
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last step
    health: Mapping[str, float] = field(default_factory=dict)
    alarms: tuple[str, ...] = ()
    note: str = ""

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def status(run: Path, stages: Sequence[str] = (), now: float | None = None) -> list[StageStatus]:
    """Of every stage of a run; those of `stages` (a pipeline's) that have no folder yet are waiting."""
    folders = newest(stage_folders(run))
    now = time.time() if now is None else now
    names = [*stages, *(name for name in folders if name not in stages)]
    return [of_folder(folders[name], now) if name in folders else StageStatus(name, "waiting") for name in names]


def of_folder(folder: StageFolder, now: float) -> StageStatus:
    metrics = tail(folder.path / METRICS)
    last = metrics[-1] if metrics else {}
    found = StageStatus(
        folder.stage,
        "unfinished",
        str(folder.path),
        metrics={name: last[name] for name in SHOWN if is_number(last.get(name))},
        health=health(last),
        alarms=alarms(metrics),
    )
    if folder.manifest is not None:
        return replace(found, state="finished", kind=folder.manifest.kind, done=_steps(last))
    if folder.trouble is not None:
        return replace(found, state="broken", note=folder.trouble)
    beat = read_beat(folder.path)
    running = holder_lives(folder.path, beat)
    done = beat.done if beat else _steps(last)
    seconds = seconds_per_step(tail(folder.path / TIMINGS))
    total = beat.total if beat else None
    left = (total - done) * seconds if running and seconds and total and done is not None else None
    return replace(
        found,
        state="running" if running else "unfinished",
        phase=beat.phase if beat and running else "",
        done=done,
        total=total,
        unit=beat.unit if beat else "step",
        seconds_per_step=seconds,
        seconds_left=left,
        heartbeat_age=max(0.0, now - last_sign(folder, beat)),
    )


def last_sign(folder: StageFolder, beat: Beat | None) -> float:
    return max(folder.changed, beat.time if beat else 0.0)


def holder_lives(folder: Path, beat: Beat | None) -> bool:
    """Whether the process that holds the stage's lock still runs. One on another machine lives while it beats."""
    holder = lock_holder(folder)
    if holder is None:
        return False
    pid, host = holder
    if host != socket.gethostname():
        return beat is not None and time.time() - (folder / HEARTBEAT).stat().st_mtime < 600
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as somebody else's
        return True
    return True


def lock_holder(folder: Path) -> tuple[int, str] | None:
    """(process, machine) as the lock file of a stage folder says; a killed process leaves it there."""
    try:
        text = (folder.parent / ".locks" / folder.name).read_text(encoding="utf-8")
    except OSError:
        return None
    said = re.match(r"process (\d+) on (\S+)", text)
    return (int(said[1]), said[2]) if said else None


# --- what the logs say ------------------------------------------------------------------------------------------------


def tail(path: Path) -> list[dict[str, Any]]:
    """The last rows of a JSONL log; a row that is just being written is left out."""
    try:
        with path.open("rb") as file:
            start = max(0, path.stat().st_size - TAIL)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines[1 if start else 0 : -1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def seconds_per_step(timings: Sequence[Mapping[str, Any]]) -> float | None:
    """From the times of the last steps, within what was run in one go."""
    times: list[float] = []
    for row in reversed(timings):
        if "event" in row or not is_number(row.get("time")) or "step" not in row:
            break
        times.append(float(row["time"]))
        if len(times) > RECENT:
            break
    return (times[0] - times[-1]) / (len(times) - 1) if len(times) > 1 else None


def health(last: Mapping[str, Any]) -> dict[str, float]:
    """Truncation, entropy, the share of groups that are all right, and how far sampler and trainer are apart."""
    found = {name: float(last[name]) for name in ("truncated", "entropy", "mismatch") if is_number(last.get(name))}
    kinds = [last.get(f"groups/{kind}") for kind in ("all_right", "mixed", "all_wrong")]
    if all(is_number(k) for k in kinds) and sum(kinds) > 0:  # type: ignore[arg-type]
        found["all_right"] = float(kinds[0]) / float(sum(kinds))  # type: ignore[arg-type]
    return found


def alarms(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those that stand in the last row."""
    return tuple(
        sorted(name.removeprefix("alarm/") for name in (rows[-1] if rows else {}) if name.startswith("alarm/"))
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _steps(last: Mapping[str, Any]) -> int | None:
    return int(last["step"]) + 1 if is_number(last.get("step")) else None
