"""What a running stage says: metrics to a file, and one line of progress on stderr.

`metrics.jsonl` holds what was computed and nothing of when; seconds go to `timings.jsonl`, so that two equal runs
leave equal metrics files.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from pydantic import BaseModel

from concisecli.artifacts import json_line, unwritable
from concisecli.heartbeat import Heartbeat
from concisecli.records import ConciseError
from concisecli.trackers import Tracked, Trackers

Item = TypeVar("Item")
METRICS = "metrics.jsonl"
TIMINGS = "timings.jsonl"
# In this order on the progress line, those that a stage logs.
SHOWN = ("accuracy", "length", "loss", "surrogate", "entropy", "grad_norm", "signal_share")
PLAIN_SECONDS = 10.0  # between two lines where there is no terminal
PLAIN_STEPS = 10
LIVE_SECONDS = 0.1


class Stopwatch:
    """Seconds spent a phase, added up until `reset`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.tell: Callable[[str], None] = lambda phase: None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        self.tell(phase)
        begun = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - begun)

    def add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def read(self) -> dict[str, float]:
        return dict(self._seconds)

    def reset(self) -> None:
        self._seconds.clear()


class Monitor:
    """Appends one row of metrics a step and shows the last one.

    `offsets`, as `offsets()` gave them for a checkpoint, cut the files back to that checkpoint; without them the
    metrics start anew. `resume_from` is the number of steps done before. `enabled=False` writes and shows nothing
    (ranks other than the first). `trackers` get every row too, and are told the `config` of the stage.
    `clock` has its phases told to whoever looks from outside.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stage: str,
        total: int,
        unit: str = "step",
        resume_from: int | None = None,
        offsets: Mapping[str, int] | None = None,
        enabled: bool = True,
        clock: Stopwatch | None = None,
        trackers: Sequence[str] = (),
        config: BaseModel | None = None,
    ) -> None:
        self.folder, self.enabled = folder, enabled
        settings = config.model_dump(mode="json") if config is not None else {}
        self.tracked = Tracked(folder, settings, start=resume_from or 0)
        self.names, self.trackers = trackers, Trackers((), self.tracked)
        self.line = Line(stage, total, unit, done=resume_from or 0)
        self.heart, self.clock = Heartbeat(folder, total, unit, resume_from or 0), clock
        self.offset = (offsets or {}).get(METRICS, 0)
        self.metrics: IO[str] | None = None
        self.timings: IO[str] | None = None

    def __enter__(self) -> Monitor:
        if not self.enabled:
            return self
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.metrics = (self.folder / METRICS).open("a", encoding="utf-8")
            self.timings = (self.folder / TIMINGS).open("a", encoding="utf-8")
        except OSError as error:
            raise unwritable(self.folder / METRICS, error) from error
        length = self.metrics.tell()
        if length < self.offset:
            raise ConciseError(
                f"{self.folder / METRICS} is shorter ({length} bytes) than at its checkpoint ({self.offset}); "
                f"it was edited or cut off: run this stage again with --force"
            )
        self.metrics.truncate(self.offset)
        self.metrics.seek(0, os.SEEK_END)
        self.trackers = Trackers(self.names, self.tracked)
        self.line.start()
        self.heart.beat("")
        if self.clock is not None:
            self.clock.tell = self.heart.beat
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in (self.metrics, self.timings):
            if file is not None:
                file.close()
        self.trackers.close()
        if self.enabled:
            self.heart.end()
            self.line.stop()

    def log(self, step: int, metrics: Mapping[str, float], *, seconds: Mapping[str, float] | None = None) -> None:
        """One row for `step` (counted from 0): numbers to the metrics file, seconds to the timings file. What is not
        finite is written as null."""
        if self.metrics is None or self.timings is None:
            return
        row = {name: jsonable(value) for name, value in sorted(metrics.items())}
        spent = {name: round(float(value), 4) for name, value in sorted((seconds or {}).items())}
        try:
            self.metrics.write(json_line({"step": step} | row))
            self.metrics.flush()
            self.timings.write(json_line({"step": step, "time": round(time.time(), 3)} | spent))
            self.timings.flush()
        except OSError as error:
            raise unwritable(self.folder / METRICS, error) from error
        self.trackers.log(step, row)
        self.heart.beat("", step + 1)
        self.line.show(step + 1, row)

    def offsets(self) -> dict[str, int]:
        """Bytes of the files that a checkpoint taken now belongs to, made durable."""
        if self.metrics is None:
            return {}
        self.metrics.flush()
        os.fsync(self.metrics.fileno())
        return {METRICS: self.metrics.tell()}


def note(text: str) -> None:
    """Something worth saying once, on stderr."""
    print(text, file=sys.stderr, flush=True)


def jsonable(value: Any) -> Any:
    """A number as JSON has it: numpy's become Python's, what is not finite becomes null."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def progress(
    items: Iterable[Item],
    total: int | None = None,
    what: str = "",
    unit: str = "rows",
    share: Callable[[], float] | None = None,
) -> Iterator[Item]:
    """The items, with count, rate and time left on stderr while they are consumed. Where their number is not known,
    `share` tells how much of them is done, from 0 to 1."""
    size = total if total is not None else (len(items) if isinstance(items, Sized) else 0)
    line = Line(what, size, unit, share=share)
    line.start()
    try:
        for count, item in enumerate(items, 1):
            yield item
            line.show(count, {})
    finally:
        line.stop()


class Line:
    """One line about work under way: rewritten in place on a terminal, now and then a new one elsewhere."""

    def __init__(
        self, what: str, total: int, unit: str, done: int = 0, share: Callable[[], float] | None = None
    ) -> None:
        self.what, self.total, self.unit, self.share = what, total, unit, share
        self.first = self.done = done
        self.began = self.said = time.monotonic()
        self.live: Any = None
        self.last = ""

    def start(self) -> None:
        self.began = self.said = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self.live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self.live.start()

    def show(self, done: int, metrics: Mapping[str, Any]) -> None:
        self.done = done
        now = time.monotonic()
        waited = now - self.said
        if self.live is not None:
            due = waited >= LIVE_SECONDS or done == self.total
        elif metrics:
            due = waited >= PLAIN_SECONDS or (done % PLAIN_STEPS == 0 and waited >= 1)
            due = due or done in (self.first + 1, self.total)
        else:
            due = waited >= PLAIN_SECONDS or (done == self.total and now - self.began >= 1)
        if due:
            self.said = now
            self.say(self.describe(metrics))

    def say(self, text: str) -> None:
        self.last = text
        if self.live is not None:
            from rich.text import Text

            self.live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Leave the last line standing, with a terminal's moving one gone."""
        if self.live is not None:
            self.live.stop()
            if self.last:
                print(self.last, file=sys.stderr, flush=True)

    def describe(self, metrics: Mapping[str, Any]) -> str:
        """`rl1  step 12/60  1.9 step/s  accuracy 0.81  length 73.1  0:25 left`"""
        spent = time.monotonic() - self.began
        rate = (self.done - self.first) / spent if spent > 0 else 0.0
        count = f"{self.unit} {self.done}/{self.total}" if self.total else f"{self.done} {self.unit}"
        parts = [self.what, count, speed(rate, self.unit)]
        parts += [f"{name} {metrics[name]:.4g}" for name in SHOWN if isinstance(metrics.get(name), int | float)]
        share = self.share() if self.share is not None and not self.total else 0.0
        if 0 < share < 1:
            parts.append(f"{share:.0%}  {clock(spent * (1 - share) / share)} left")
        elif self.total and rate > 0 and self.done < self.total:
            parts.append(f"{clock((self.total - self.done) / rate)} left")
        elif self.done:
            parts.append(f"took {clock(spent)}")
        return "  ".join(part for part in parts if part)


def speed(rate: float, unit: str) -> str:
    if rate <= 0:
        return ""
    return f"{rate:.3g} {unit}/s" if rate >= 1 else f"{1 / rate:.3g} s/{unit}"


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
