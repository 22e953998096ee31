"""One rank's failure ends all of them, soon: those that hang in a collective, which no signal interrupts, too.

The first rank to fail leaves its exit code in the shared store; the others look there every second and end without a
word of their own, since what fails in them next is only the lost connection. Every rank also says there that it lives,
and the first rank ends the work when one has been silent for long.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from concisecli import collectives
from concisecli.records import ConciseError

if TYPE_CHECKING:
    from torch.distributed import Store

BEAT_SECONDS = 1.0
SILENT_SECONDS = 600.0  # long: a machine may swap, a library may hold the interpreter while it compiles
GRACE_SECONDS = 2.0  # from another rank's failure to the end of one that hangs
FAILED = "failed"


class Lifeline:
    """Held by every rank of a stage while it works.

    An exception on its way out is told to all ranks. Where another rank has failed before, SystemExit with that one's
    exit code takes its place. `tell` is given the message and the exit code of an end from outside the main thread.
    """

    def __init__(self, rank: int, world: int, tell: Callable[[str, int], None]) -> None:
        self.rank, self.world, self.tell = rank, world, tell
        self.store = collectives.store().clone()  # a client of the store serves one thread
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._live, name="lifeline", daemon=True)
        began = time.monotonic()
        self.heard = dict.fromkeys(range(world), (b"", began))  # a rank's last sign of life, and since when it is that

    def __enter__(self) -> Lifeline:
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ended.set()
        self.thread.join()
        if error is None:
            self.store.set(f"done/{self.rank}", "")
        elif not isinstance(error, ConciseError | KeyboardInterrupt | SystemExit):
            # Perhaps an echo: a library has lost another rank, whose reason may still be on its way here.
            collectives.wait_for(self.store, [FAILED], seconds=GRACE_SECONDS)
        if error is not None and not post_failure(self.store, self.rank, exit_code(error)):
            raise SystemExit(failure(self.store)[1]) from error

    def _live(self) -> None:
        try:
            while not self.ended.wait(BEAT_SECONDS):
                self.store.set(f"alive/{self.rank}", str(time.monotonic()))
                if self.store.check([FAILED]):
                    self._follow()
                if self.rank == 0:
                    self._listen()
        except Exception:  # of the store: rank 0, or the launcher that keeps it, is gone
            if not self.ended.wait(GRACE_SECONDS):
                self.tell("the connection to the first rank is lost", ConciseError.exit_code)
                os._exit(ConciseError.exit_code)

    def _follow(self) -> None:
        by, code = failure(self.store)
        if by != self.rank and not self.ended.wait(GRACE_SECONDS):
            self._end("", code)

    def _listen(self) -> None:
        now = time.monotonic()
        for r, (sign, since) in self.heard.items():
            key = f"alive/{r}"
            new = self.store.get(key) if self.store.check([key]) else b""
            if new != sign:
                self.heard[r] = (new, now)
            elif now - since > SILENT_SECONDS and not self.store.check([f"done/{r}"]):
                self._end(f"rank {r} has not been heard of for {SILENT_SECONDS:.0f} s", ConciseError.exit_code)

    def _end(self, text: str, code: int) -> None:
        if text and post_failure(self.store, self.rank, code):
            self.tell(text, code)
        os._exit(code)


def post_failure(store: Store, rank: int, code: int) -> bool:
    """Note that a rank has failed. Whether it is the first to: only the first failure is the reason."""
    mine = json.dumps([rank, code])
    return store.compare_set(FAILED, "", mine).decode() == mine


def failure(store: Store) -> tuple[int, int]:
    """(rank, exit code) of the first failure."""
    rank, code = json.loads(store.get(FAILED))
    return rank, code


def exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = error.code if isinstance(error, SystemExit) else getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1
