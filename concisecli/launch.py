"""A stage on many ranks: `concise` starts torchrun for it, unless a launcher has started many of `concise`.

The process that waits here holds the stage's lock, passes signals on, tells which rank failed and why in one line, and
leaves no process behind, however it ends. `python -m concisecli.launch N BOX` is torchrun without its own account of a
failure. What the ranks do is in `rank`, the case of a launcher outside in `company`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from concisecli import launchers
from concisecli.artifacts import unwritable, write_json
from concisecli.monitor import note
from concisecli.rank import PARENT, Order, die_with_parent, perform
from concisecli.records import ConciseError, Preempted, StageResult, StageRun, UsageError
from concisecli.stages import STAGES

LOOK_SECONDS = 0.1
LAST_WORDS_SECONDS = 5.0  # for ranks to end after Ctrl-C, before they are killed
SHUTDOWN_SECONDS = 30  # for the others to end after one has failed, before torchrun kills them
AGAIN = "run the same command again to go on"


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """stdout carries the command's result. Libraries that a stage loads print there, from C++ too."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def carry_out(run: StageRun, kind: str, threads: int, processes: int) -> StageResult:
    """Do the stage: in this process, or on as many ranks as `processes_of` says."""
    from concisecli.company import current

    company = current()
    if processes == 1:
        return perform(run, STAGES[kind].entry, threads)
    order = Order.of(run, kind, threads_of_each(threads, processes))
    try:
        return company.lead(order) if company else started(order, processes)
    except OSError as error:
        raise unwritable(run.folder, error) from error


def threads_of_each(threads: int, processes: int) -> int:
    """The threads of each rank, where `threads` is what the pipeline says: ranks of one machine share its cores."""
    from concisecli.company import current

    company = current()
    return launchers.threads(threads, company.here.local_world if company and processes > 1 else processes)


def processes_of(config: Any, kind: str) -> int:
    """The ranks that a stage runs on: those that a launcher started, else what its `processes` says."""
    from concisecli.company import current

    if not STAGES[kind].ranks:
        return 1
    company = current()
    here = company.here if company else launchers.place()
    asked = getattr(config, "processes", 1)
    if here is None:
        return gpus() if asked == "auto" else int(asked)
    if asked not in (1, "auto", here.world):
        note(f"warning: processes is {asked}, and the launcher started {here.world}, which do the work")
    return here.world


def gpus() -> int:
    """GPUs of this machine; 1 where there is none."""
    import torch

    return max(1, torch.cuda.device_count())


def started(order: Order, processes: int) -> StageResult:
    """The stage on ranks of this machine that torchrun starts.

    Raises ConciseError with the message of the rank that failed first, Preempted after a SIGTERM.
    """
    new_box(order)
    command = [sys.executable, "-m", "concisecli.launch", str(processes), str(order.box)]
    environment = os.environ | {"OMP_NUM_THREADS": str(order.threads)}
    code, stopped = waited_for(command, environment, lambda process: ranks_of(order.box))
    if code == 0:
        return made(order)
    ends = order.box / "ends.json"
    known = json.loads(ends.read_text(encoding="utf-8")) if ends.is_file() else {}
    raise why_failed(order.box, {int(rank): code for rank, code in known.items()}, stopped=stopped)


def new_box(order: Order) -> None:
    shutil.rmtree(order.box, ignore_errors=True)
    order.box.mkdir(parents=True)
    write_json(order.box / "order.json", asdict(order))


def made(order: Order) -> StageResult:
    """What the first rank left, once every rank has ended well."""
    result = StageResult(**json.loads((order.box / "result.json").read_text(encoding="utf-8")))
    shutil.rmtree(order.box, ignore_errors=True)
    return result


# --- waiting for ranks ------------------------------------------------------------------------------------------------


def waited_for(
    command: list[str], environment: Mapping[str, str], ranks_of: Callable[[int], set[int]]
) -> tuple[int, bool]:
    """Run the command, which is a rank or starts ranks: `ranks_of` its process are those of this machine. Its exit
    code, and whether SIGTERM came meanwhile: each rank is sent it once, so that it saves. A second SIGTERM, Ctrl-C and
    any error here end all of them."""
    # stdout carries the result of `concise` alone. A session of its own: Ctrl-C on the terminal is for us to answer.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        env={**environment, PARENT: str(os.getpid())},
        start_new_session=True,
    )
    told: set[int] = set()
    try:
        with sigterm_heard() as asked:
            while process.poll() is None:
                if asked():
                    new = ranks_of(process.pid) - told
                    send(signal.SIGTERM, new)
                    told |= new
                time.sleep(LOOK_SECONDS)
            return process.returncode, asked()
    except KeyboardInterrupt:
        send(signal.SIGINT, ranks_of(process.pid))
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(LAST_WORDS_SECONDS)
        raise
    finally:
        if process.poll() is None:
            end_all({process.pid} | ranks_of(process.pid))
            process.wait()


def ranks_of(box: Path) -> set[int]:
    """The processes that have begun to work on a box."""
    return {int(path.name.split(".")[2]) for path in box.glob("rank-*.pid.*")}


def send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end_all(leaders: set[int]) -> None:
    """Kill processes together with their sessions: torchrun gives each rank one."""
    for process in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)


@contextlib.contextmanager
def sigterm_heard() -> Iterator[Callable[[], bool]]:
    """Yields a question that SIGTERM turns to True; a second one raises Preempted. Other threads hear none."""
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)
        if len(heard) > 1:
            raise Preempted(f"stopped at once by a second SIGTERM; {AGAIN}")

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield lambda: bool(heard)
    finally:
        signal.signal(signal.SIGTERM, before)


# --- why they failed --------------------------------------------------------------------------------------------------


def why_failed(box: Path, ends: Mapping[int, int], *, stopped: bool) -> ConciseError:
    """In the words of the rank that failed first; for one that could leave none, how it ended. `ends` holds the exit
    codes of the ranks that failed, minus the signal where one ended them."""
    left = [json.loads(path.read_text(encoding="utf-8")) for path in box.glob("rank-*.error")]
    left.sort(key=lambda error: (error["bug"], error["time"]))  # what looks like a bug may be the echo of another end
    saved = [error["text"] for error in left if error["code"] == Preempted.exit_code]
    failed = [error for error in left if error["code"] not in (Preempted.exit_code, 130)]
    killed = [rank for rank, code in ends.items() if code < 0 and code not in (-signal.SIGTERM, -signal.SIGINT)]
    if failed and not failed[0]["bug"]:
        kind = UsageError if failed[0]["code"] == UsageError.exit_code else ConciseError
        return kind(f"rank {failed[0]['rank']}: {failed[0]['text']}")
    if killed:
        return silent_end(box, min(killed), ends)
    if failed:
        return ConciseError(f"rank {failed[0]['rank']}: {failed[0]['text']}")
    if saved or stopped:
        return Preempted(saved[0] if saved else f"stopped by SIGTERM; {AGAIN}")
    if ends:
        return silent_end(box, min(ends), ends)
    return ConciseError(f"torchrun ended before the stage was done; {AGAIN}")


def silent_end(box: Path, rank: int, ends: Mapping[int, int]) -> ConciseError:
    code, log = ends[rank], box / f"rank-{rank}.log"
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
    said = f"; what it said is in {log}" if log.is_file() and log.stat().st_size else ""
    return ConciseError(f"rank {rank} {how}{said}; {AGAIN}")


# --- torchrun ---------------------------------------------------------------------------------------------------------


def torchrun(processes: int, box: Path) -> int:
    """Start the ranks of `box` and wait for them; what became of each is left in ends.json where one failed."""
    die_with_parent()
    import logging

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    logging.disable(logging.CRITICAL)
    os.environ[PARENT] = str(os.getpid())  # of the ranks
    words = ["--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", str(SHUTDOWN_SECONDS)]
    try:
        main([*words, "-m", "concisecli.rank", str(box)])
    except ChildFailedError as error:
        write_json(box / "ends.json", {str(rank): failure.exitcode for rank, failure in error.failures.items()})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(torchrun(int(sys.argv[1]), Path(sys.argv[2])))
