"""What a stage is doing right now, for another shell: a small file that is rewritten while it runs and then removed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

HEARTBEAT = "heartbeat.json"


@dataclass(frozen=True, slots=True)
class Beat:
    phase: str  # generate, grade, train, sync, save ...; "" before the first
    done: int
    total: int
    unit: str
    time: float  # seconds since 1970
    pid: int
    host: str


class Heartbeat:
    """Says nothing when its file cannot be written: a look from outside is no reason to stop."""

    def __init__(self, folder: Path, total: int, unit: str, done: int) -> None:
        self.file, self.total, self.unit, self.done = folder / HEARTBEAT, total, unit, done

    def beat(self, phase: str, done: int | None = None) -> None:
        self.done = self.done if done is None else done
        now = Beat(phase, self.done, self.total, self.unit, round(time.time(), 3), os.getpid(), socket.gethostname())
        fresh = self.file.with_name(f".{HEARTBEAT}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(asdict(now)), encoding="utf-8")
            fresh.replace(self.file)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)


def read_beat(folder: Path) -> Beat | None:
    """The last sign of life of a stage that runs, or was killed while it ran."""
    try:
        return Beat(**json.loads((folder / HEARTBEAT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
