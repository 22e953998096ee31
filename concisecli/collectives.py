"""Ranks: who am I, how many are we, and the few collectives the project needs.

A single process is the one-rank case of the same code: nothing is initialised and every collective is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.distributed as td

from concisecli.records import ConciseError


def rank() -> int:
    return td.get_rank() if _initialised() else 0


def world() -> int:
    return td.get_world_size() if _initialised() else 1


def local_rank() -> int:
    """The rank among the processes of this machine: the index of the device to use."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def device() -> torch.device:
    """Where this rank computes."""
    return torch.device("cuda", local_rank()) if torch.cuda.is_available() else torch.device("cpu")


def init(*, alone: bool = False) -> None:
    """Join the process group that torchrun, the deepspeed launcher or SLURM (with `MASTER_ADDR`) describes in the
    environment; without one, or when joined already, nothing happens. NCCL on GPUs, gloo on CPUs.

    `alone` makes a group of one where there is no launcher, for libraries that insist on having a group.
    Raises ConciseError when the environment names a world but not how to reach it.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    env = os.environ
    size = int(env.get("WORLD_SIZE") or env.get("SLURM_NTASKS") or 1)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if _initialised() or (size < 2 and not alone):
        return
    if size < 2:
        td.init_process_group(backend, store=td.HashStore(), rank=0, world_size=1)
        return
    env.setdefault("WORLD_SIZE", str(size))
    env.setdefault("RANK", env.get("SLURM_PROCID", ""))
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise ConciseError(f"{size} processes but {', '.join(missing)} is not set; start them with torchrun")
    td.init_process_group(backend)


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


def _initialised() -> bool:
    return td.is_available() and td.is_initialized()
