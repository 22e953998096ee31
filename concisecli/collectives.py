"""Ranks: who am I, how many are we, and the few collectives the project needs.

A single process is the one-rank case of the same code: nothing is initialised and every collective is the identity.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as td

from concisecli import launchers
from concisecli.records import ConciseError

Item = TypeVar("Item")
ARRIVAL = timedelta(minutes=10)  # for all processes of all machines to start
# Ranks wait for the one with the longest rollouts, and for the first one's evaluation: libraries' ten minutes are too
# short. That a rank has died is noticed by the lifeline, not by this.
LONGEST_WAIT = timedelta(hours=6)
POLL_SECONDS = 0.1
ROOM = "CONCISE_ROOM"  # the variable that names a stage's part of the store


def rank() -> int:
    return td.get_rank() if _initialised() else 0


def world() -> int:
    return td.get_world_size() if _initialised() else 1


def local_rank() -> int:
    """The rank among the processes of this machine."""
    return launchers.number(os.environ, "LOCAL_RANK", "SLURM_LOCALID")


def device() -> torch.device:
    """Where this rank computes: its own GPU, the only one it sees where a launcher shows each rank just one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count, index = torch.cuda.device_count(), local_rank()
    if index >= count > 1:
        raise ConciseError(
            f"local rank {index} on a machine with {count} GPUs; start at most {count} processes on each"
        )
    return torch.device("cuda", index if count > 1 else 0)


def init(*, alone: bool = False) -> None:
    """Join the process group that torchrun, the deepspeed launcher or SLURM describes in the environment; without
    one, or when joined already, nothing happens. NCCL on GPUs, gloo on CPUs.

    `alone` makes a group of one where there is no launcher, for libraries that insist on having a group.
    Raises ConciseError when the environment names a world but not how to reach it, or when not everybody comes.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    here = launchers.place()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if _initialised() or ((here is None or here.world < 2) and not alone):
        return
    if here is None or here.world < 2:
        td.init_process_group(backend, store=td.HashStore(), rank=0, world_size=1)
        return
    group = td.PrefixStore("group", store())
    td.init_process_group(backend, store=group, rank=here.rank, world_size=here.world, timeout=LONGEST_WAIT)


@functools.cache
def store() -> td.Store:
    """Where the ranks of a launcher leave each other short texts: joined once, before and beside the process group,
    so that waiting there keeps no GPU busy. The ranks of one stage meet in a room of it, named by the environment.

    Raises ConciseError that names the ranks that have not come in time, SystemExit where one has failed before.
    """
    here = launchers.settle()
    joined = room(os.environ.get(ROOM, ""))
    joined.set(f"here/{here.rank}", launchers.host())
    everybody = [f"here/{r}" for r in range(here.world)]
    late = wait_for(joined, everybody, seconds=ARRIVAL.total_seconds(), unless="failed")
    if late and joined.check(["failed"]):
        raise SystemExit(1)
    if late:
        ranks = ", ".join(key.removeprefix("here/") for key in late)
        raise ConciseError(
            f"rank {ranks} of {here.world} has not come within {ARRIVAL.total_seconds() / 60:.0f} minutes; start every "
            "process: `srun concise run`, or torchrun on every machine"
        )
    return joined


def room(name: str) -> td.Store:
    """A part of the store with keys of its own."""
    return td.PrefixStore(f"concise/{name}", _tcp_store())


@functools.cache
def _tcp_store() -> td.Store:
    here = launchers.settle()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Held by torchrun itself, or by the process that has started this one; else by rank 0.
    held = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or ROOM in os.environ
    try:
        return td.TCPStore(
            address,
            port,
            is_master=here.rank == 0 and not held,
            timeout=ARRIVAL,
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ConciseError(
            f"rank {here.rank} of {here.world} on {launchers.host()} does not reach rank 0 at {address}:{port} "
            f"({first}); are all processes started, and may the machines talk to each other?"
        ) from error


def wait_for(
    store: td.Store,
    keys: Iterable[str],
    *,
    seconds: float | None = None,
    poll: float = POLL_SECONDS,
    unless: str | None = None,
) -> list[str]:
    """Sleep until every key is set, at most `seconds` (None: no limit), or until `unless` is; the keys that are not.
    Signals are heard meanwhile, which a wait inside the store would put off."""
    until = None if seconds is None else time.monotonic() + seconds
    missing = list(keys)
    while missing and (until is None or time.monotonic() < until):
        if store.check([missing[0]]):
            missing.pop(0)
        elif unless and store.check([unless]):
            break
        else:
            time.sleep(poll)
    return [key for key in missing if not store.check([key])]


def close() -> None:
    if _initialised():
        td.destroy_process_group()


def barrier() -> None:
    if _initialised():
        td.barrier()


def reduce(values: Sequence[float], op: Literal["sum", "max", "min"] = "sum") -> list[float]:
    """Each value over all ranks, in float64; counts stay exact up to 2**53."""
    if world() == 1:
        return list(values)
    tensor = torch.tensor(values, dtype=torch.float64, device=device())
    td.all_reduce(tensor, op={"sum": td.ReduceOp.SUM, "max": td.ReduceOp.MAX, "min": td.ReduceOp.MIN}[op])
    return tensor.tolist()


def gather(item: Any) -> list[Any]:
    """The picklable `item` of every rank, in the order of the ranks, on every rank."""
    if world() == 1:
        return [item]
    items: list[Any] = [None] * world()
    td.all_gather_object(items, item)
    return items


def broadcast(item: Item) -> Item:
    """The picklable `item` of rank 0, on every rank."""
    if world() == 1:
        return item
    items = [item]
    td.broadcast_object_list(items, src=0)
    return items[0]


def any_rank(asked: bool) -> bool:
    """Whether any rank says so: what only some have heard of, such as a signal, all must act on alike."""
    return bool(reduce([float(asked)], "max")[0])


def _initialised() -> bool:
    return td.is_available() and td.is_initialized()
