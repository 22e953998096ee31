"""Where metrics are shown besides metrics.jsonl: TensorBoard, Weights & Biases, trackio.

metrics.jsonl is the record and a tracker is a comfort, so each tracker works in a daemon thread behind a queue: one
that fails or hangs, at its import, at its start, in mid-run or at its end, costs one warning and no more.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

WAITING_ROWS = 1000  # a tracker this far behind is given up
CLOSE_SECONDS = 15.0  # for the rows still waiting when a stage ends


@dataclass(frozen=True, slots=True)
class Tracked:
    """A stage as a tracker is told of it: its folder lends the names, `start` is the step it (re)starts at, `config`
    holds its settings."""

    folder: Path
    config: Mapping[str, Any]
    start: int = 0

    @property
    def project(self) -> str:
        return self.folder.resolve().parent.name

    @property
    def name(self) -> str:
        return self.folder.name


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the stage's folder: `tensorboard --logdir runs`. A resumed stage marks what came after its
    checkpoint as void, so that no step is drawn twice."""

    def __init__(self, stage: Tracked) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # The writer's own thread dies of a failure that `log` then does not hear of, unless its queue is this short.
        self.writer = SummaryWriter(
            str(stage.folder / "tensorboard"), purge_step=stage.start, max_queue=1, flush_secs=10
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """One run of W&B a stage folder; a resumed stage goes on with it, and W&B ignores steps that it has. `WANDB_MODE`,
    `WANDB_PROJECT` and `WANDB_ENTITY` are heeded."""

    def __init__(self, stage: Tracked) -> None:
        import wandb

        if not os.environ.get("WANDB_MODE") and not wandb.login(prompt=False):
            raise RuntimeError("there is no key; `wandb login`, or set WANDB_MODE=offline")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or stage.project,
            id=f"{stage.project}-{stage.name}",
            name=stage.name,
            dir=stage.folder,
            resume="allow",
            config=dict(stage.config),
            settings=wandb.Settings(console="off", quiet=True),  # leaves stdout and stderr to concise
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """One run of trackio a stage folder, in trackio's own store (`trackio show`); steps that it has are left out."""

    def __init__(self, stage: Tracked) -> None:
        import trackio

        for name, module in list(sys.modules.items()):  # stdout is for results: what trackio says goes to stderr
            if name.split(".")[0] == "trackio":
                module.print = functools.partial(print, file=sys.stderr)  # type: ignore[attr-defined]
        self.run = trackio.init(
            project=stage.project,
            name=stage.name,
            resume="allow",
            config=dict(stage.config),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.next = int(getattr(self.run, "_next_step", 0))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self.next:
            self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


TRACKERS: dict[str, Callable[[Tracked], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}


class Trackers:
    """The trackers of a running stage; none of these methods raises, and none waits for a tracker but `close`, which
    gives up after CLOSE_SECONDS."""

    def __init__(self, names: Sequence[str], stage: Tracked) -> None:
        self.all = [Behind(name, stage) for name in dict.fromkeys(names)]

    def log(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """One row for `step`, counted as in metrics.jsonl; what is null there is left out."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        for tracker in self.all:
            tracker.log(step, numbers)

    def close(self) -> None:
        for tracker in self.all:
            tracker.finish()
        for tracker in self.all:
            tracker.wait()


class Behind:
    """One tracker in its thread."""

    def __init__(self, name: str, stage: Tracked) -> None:
        self.name, self.stage = name, stage
        self.rows: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(WAITING_ROWS)
        self.given_up = threading.Event()
        self.thread = threading.Thread(target=self.work, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def work(self) -> None:
        try:
            tracker = TRACKERS[self.name](self.stage)
            while (row := self.rows.get()) is not None:
                tracker.log(*row)
            tracker.close()
        except ImportError as error:
            self.give_up(f"{error}; install it with: pip install 'concise[{self.name}]'")
        except BaseException as error:  # whatever a library of others may throw, SystemExit included
            self.give_up(f"{type(error).__name__}: {error}")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.put((step, numbers))

    def finish(self) -> None:
        self.put(None)

    def put(self, row: tuple[int, dict[str, float]] | None) -> None:
        if self.given_up.is_set():
            return
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            self.give_up(f"it is {WAITING_ROWS} rows behind")

    def wait(self) -> None:
        if not self.given_up.is_set():
            self.thread.join(CLOSE_SECONDS)
            if self.thread.is_alive():
                self.give_up(f"it does not end within {CLOSE_SECONDS:.0f} s")

    def give_up(self, why: str) -> None:
        """Warn once and take no more rows."""
        if not self.given_up.is_set():
            self.given_up.set()
            first = why.strip().splitlines()[0]
            print(f"warning: tracker {self.name} is given up: {first}; metrics.jsonl has everything", file=sys.stderr)


def log_once(names: Sequence[str], stage: Tracked, metrics: Mapping[str, float]) -> None:
    """The results of a stage that has no steps."""
    trackers = Trackers(names, stage)
    trackers.log(0, metrics)
    trackers.close()
