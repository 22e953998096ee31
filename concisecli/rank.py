"""One rank of a stage: what it is ordered to do, how it does it, and what it leaves for those who wait.

`python -m concisecli.rank BOX`, started by torchrun or by a waiting `concise` in the environment of a launcher. The box
is the folder .ranks in the stage's folder, there as long as the stage runs and after a failure:

    order.json       what is to be done
    rank-1.log       what a rank other than the first said: only one speaks
    rank-1.error     why it failed
    rank-1.pid.123   its process on its machine
    result.json      what the stage made, left by the first rank
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from concisecli import launchers
from concisecli.artifacts import unwritable, write_json
from concisecli.config import KINDS
from concisecli.records import ConciseError, StageResult, StageRun
from concisecli.stages import STAGES
from concisecli.stopping import sigterm_as_preempted

BOX = ".ranks"
PARENT = "CONCISE_PARENT"  # the process without which this one has no reason to live


@dataclass(frozen=True, slots=True)
class Order:
    """One stage to be done, as JSON carries it from process to process. Paths are absolute."""

    kind: str
    entry: str  # "module:function"
    name: str
    folder: str
    config: Mapping[str, Any]
    inputs: Mapping[str, list[str]]
    sources: Mapping[str, list[Any]]
    threads: int

    @classmethod
    def of(cls, run: StageRun, kind: str, threads: int) -> Order:
        return cls(
            kind=kind,
            entry=STAGES[kind].entry,
            name=run.name,
            folder=str(run.folder.absolute()),
            config=run.config.model_dump(mode="json"),
            inputs={role: [str(path.absolute()) for path in paths] for role, paths in run.inputs.items()},
            sources={role: list(given) for role, given in run.sources.items()},
            threads=threads,
        )

    @property
    def box(self) -> Path:
        return Path(self.folder) / BOX

    def run(self) -> StageRun:
        return StageRun(
            self.name,
            Path(self.folder),
            KINDS[self.kind].model_validate(self.config),
            {role: tuple(map(Path, paths)) for role, paths in self.inputs.items()},
            {role: tuple(given) for role, given in self.sources.items()},
        )


def perform(run: StageRun, entry: str, threads: int) -> StageResult:
    """The stage itself, in this process. Raises ConciseError that names the stage."""
    set_threads(threads)
    module, _, function = entry.partition(":")
    try:
        result: StageResult = getattr(importlib.import_module(module), function)(run)
    except ConciseError as error:
        error.args = (f"stage '{run.name}': {error}",)
        raise
    except OSError as error:
        raise unwritable(run.folder, error) from error
    return result


def set_threads(threads: int) -> None:
    """Tell torch, loaded or yet to be loaded, how many threads to use; 0 leaves it to OMP_NUM_THREADS or the cores."""
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)


# --- this process -----------------------------------------------------------------------------------------------------


def main(box: Path) -> int:
    """Do what the box orders as the rank that the environment says; the exit code."""
    die_with_parent()
    here = launchers.settle()
    (box / f"rank-{here.rank}.pid.{os.getpid()}").touch()
    order = Order(**json.loads((box / "order.json").read_text(encoding="utf-8")))
    log = box / f"rank-{here.rank}.log"

    def complain(text: str, code: int, bug: bool = False) -> None:
        left = {"rank": here.rank, "text": text, "code": code, "bug": bug, "time": time.time()}
        write_json(box / f"rank-{here.rank}.error", left)

    try:
        with unheard(log) if here.rank else contextlib.nullcontext(), sigterm_as_preempted():
            result = as_one_of_many(order, here, complain)
        if here.rank == 0:
            write_json(box / "result.json", asdict(result))
    except KeyboardInterrupt:
        complain("stopped", 130)
        return 130
    except ConciseError as error:
        complain(str(error), error.exit_code)
        return error.exit_code
    except Exception as error:
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        complain(f"{type(error).__name__}: {error}; its traceback is in {log}", 1, bug=True)
        return 1
    return 0


def as_one_of_many(order: Order, here: launchers.Place, complain: Callable[[str, int], None]) -> StageResult:
    set_threads(order.threads)
    from concisecli.lifeline import Lifeline  # loads torch

    if not sys.modules["torch"].cuda.is_available():
        # Where there is a group, libraries load DeepSpeed, which guesses aloud.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with Lifeline(here.rank, here.world, complain):
        return perform(order.run(), order.entry, order.threads)


@contextlib.contextmanager
def unheard(log: Path) -> Iterator[None]:
    """What this process and its libraries print goes to a file."""
    kept = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, before in enumerate(kept, 1):
            os.dup2(before, number)
            os.close(before)


def die_with_parent() -> None:
    """Linux ends this process when the one that started it is gone, however it went: a rank must not outlive the lock
    that its stage is held by."""
    parent = os.environ.get(PARENT)
    if parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):  # it went before
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
