"""Many of `concise` under torchrun, deepspeed or SLURM: the first rank decides, locks, writes and speaks.

Every command runs on the first rank alone. For a stage that shares its work it puts an order into the stage's folder,
and each rank starts a process of its own for its share (`rank`); at other stages the others sleep. So the processes
that stay hold no model and no process group, and every stage finds its ranks as fresh as the first one did.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from concisecli import launchers
from concisecli.launch import AGAIN, SHUTDOWN_SECONDS, made, new_box, waited_for, why_failed
from concisecli.rank import Order
from concisecli.records import ConciseError, StageResult
from concisecli.stopping import sigterm_as_preempted

ORDER_SECONDS = 0.5  # between two looks for an order
SEEN_SECONDS = 30.0  # network file systems show a new file late
GOODBYE_SECONDS = 10.0
WORD_SECONDS = 2.0

_current: Company | None = None


def current() -> Company | None:
    """The company that this process leads."""
    return _current


@contextlib.contextmanager
def in_company() -> Iterator[bool]:
    """Around a command: yields whether this process is to run it, as one that no launcher started or as the first rank.
    The other ranks do here what the first one orders, and end with its exit code where that is not 0."""
    global _current
    here = launchers.place()
    if _current is not None or here is None or here.world == 1:
        yield True
        return
    company = Company()
    if here.rank > 0:
        company.follow()
        yield False
        return
    from concisecli.lifeline import exit_code

    _current = company
    try:
        yield True
    except BaseException as error:
        company.dismiss(exit_code(error))
        raise
    else:
        company.dismiss(0)
    finally:
        _current = None


class Company:
    """The ranks that a launcher started, seen from one of them."""

    def __init__(self) -> None:
        from concisecli import collectives

        self.here = launchers.settle()
        self.store = collectives.store()
        # What runs in this process is no rank of anything: a library that read otherwise would wait for the others.
        self.of_a_rank = launchers.taken_out(os.environ)
        self.orders = 0

    # --- the first rank -----------------------------------------------------------------------------------------------

    def lead(self, order: Order) -> StageResult:
        """The stage on all ranks. Raises ConciseError as `launch.started` does."""
        from concisecli import collectives

        self.orders += 1
        new_box(order)
        token = f"seen-{os.getpid()}-{time.time_ns()}"
        (order.box / token).touch()
        self.store.set(self.key(), json.dumps([str(order.box / token), 0]))
        code, stopped = self.share(order.box)
        self.store.set(self.key(0), json.dumps([code, ""]))
        keys = {rank: self.key(rank) for rank in range(self.here.world)}
        late = collectives.wait_for(self.store, keys.values(), seconds=SHUTDOWN_SECONDS if code else None)
        ended = {rank: json.loads(self.store.get(key)) for rank, key in keys.items() if key not in late}
        for rank, (_, text) in ended.items():
            if text:
                raise ConciseError(f"rank {rank}: {text}")
        gone = [rank for rank in keys if rank not in ended]
        if gone:
            host = self.store.get(f"here/{gone[0]}").decode()
            raise ConciseError(f"rank {gone[0]} on {host} is gone (out of memory?); {AGAIN}")
        ends = {rank: code for rank, (code, _) in ended.items() if code}
        if ends:
            raise why_failed(order.box, ends, stopped=stopped)
        return made(order)

    def dismiss(self, code: int) -> None:
        """End the other ranks with this exit code."""
        from concisecli import collectives

        self.orders += 1
        self.store.set(self.key(), json.dumps(["", code]))
        # This process may hold the store: the others must have read it before it goes.
        others = (self.key(rank) for rank in range(1, self.here.world))
        collectives.wait_for(self.store, others, seconds=GOODBYE_SECONDS)

    # --- the others ---------------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Do what the first rank orders until it says that all is done. Raises SystemExit where that went wrong; only
        the first rank says why."""
        try:
            with sigterm_as_preempted():
                while self.followed():
                    pass
        except KeyboardInterrupt:
            quiet_end(130)
        except ConciseError as error:
            quiet_end(error.exit_code)
        except RuntimeError as error:  # of the store
            raise ConciseError(
                f"rank {self.here.rank} on {launchers.host()} has lost the connection to the first rank; {AGAIN}"
            ) from error

    def followed(self) -> bool:
        """Whether an order came and was carried out; False once there is nothing more to do."""
        from concisecli import collectives

        self.orders += 1
        collectives.wait_for(self.store, [self.key()], poll=ORDER_SECONDS)
        token, code = json.loads(self.store.get(self.key()))
        if not token:
            self.store.set(self.key(self.here.rank), "")
            if code:
                time.sleep(WORD_SECONDS)  # torchrun ends the first rank with the others, and it is about to say why
                quiet_end(code)
            return False
        text, ended = self.not_seen(Path(token)), 1
        if text:
            self.tell_of_failure(ended)
        else:
            ended, _ = self.share(Path(token).parent)
        self.store.set(self.key(self.here.rank), json.dumps([ended, text]))
        return True

    def not_seen(self, token: Path) -> str:
        """What is wrong where this rank does not see the files that the first one sees."""
        until = time.monotonic() + SEEN_SECONDS
        while not token.exists() and time.monotonic() < until:
            time.sleep(ORDER_SECONDS)
        if not token.exists():
            return (
                f"{launchers.host()} does not see {token.parent.parent}, which the first rank made on "
                f"{self.store.get('here/0').decode()}; --runs must lie on a file system that all machines share"
            )
        order = json.loads((token.parent / "order.json").read_text(encoding="utf-8"))
        for path in (path for paths in order["inputs"].values() for path in paths):
            if not Path(path).exists():
                return (
                    f"{launchers.host()} does not see {path}; inputs must lie on a file system that all machines share "
                    "(models of the hub are kept where HF_HOME says)"
                )
        return ""

    # --- every rank ---------------------------------------------------------------------------------------------------

    def share(self, box: Path) -> tuple[int, bool]:
        """This rank's process of a stage: its exit code, and whether SIGTERM came meanwhile."""
        from concisecli.collectives import ROOM

        command = [sys.executable, "-m", "concisecli.rank", str(box)]
        code, stopped = waited_for(
            command, os.environ | self.of_a_rank | {ROOM: self.room()}, lambda process: {process}
        )
        if code:
            self.tell_of_failure(code)
        return code, stopped

    def tell_of_failure(self, code: int) -> None:
        """So that the other ranks of the stage end, whatever they are waiting in."""
        from concisecli import collectives
        from concisecli.lifeline import post_failure

        post_failure(collectives.room(self.room()), self.here.rank, code)

    def room(self) -> str:
        return f"stage-{self.orders}"

    def key(self, rank: int | None = None) -> str:
        """Of the present order, or of how it ended on a rank."""
        return f"order/{self.orders}" if rank is None else f"ended/{self.orders}/{rank}"


def quiet_end(code: int) -> NoReturn:
    raise SystemExit(code)
