"""Which rank this process is: what torchrun, the deepspeed launcher or SLURM say in the environment. Loads no torch."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass

from concisecli.records import ConciseError

Environment = MutableMapping[str, str]
RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Rank `rank` of `world`; `local` is the rank among the `local_world` processes of this machine."""

    rank: int
    world: int
    local: int
    local_world: int


def place(env: Environment = os.environ) -> Place | None:
    """Where a launcher put this process; None where none did, as in a SLURM step of one task.

    What torchrun and the deepspeed launcher say comes before SLURM, under which they may run.
    Raises ConciseError where a world is named and the rank is not.
    """
    if "WORLD_SIZE" in env:
        world, rank = number(env, "WORLD_SIZE"), env.get("RANK") or env.get("SLURM_PROCID")
    else:
        world, rank = number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), env.get("SLURM_PROCID")
        if world < 2:
            return None
    if not rank:
        raise ConciseError(f"{world} processes but RANK is not set; start them with torchrun, deepspeed or srun")
    local_world = number(env, "LOCAL_WORLD_SIZE") or slurm_tasks_here(env) or 1
    return Place(int(rank), world, number(env, "LOCAL_RANK", "SLURM_LOCALID"), local_world)


def settle(env: Environment = os.environ) -> Place:
    """Complete the environment as torch and DeepSpeed read it; under SLURM the first machine of the step is where
    rank 0 is reached. Raises ConciseError when that cannot be known."""
    here = place(env)
    if here is None:
        raise ConciseError("no launcher started this process: neither RANK and WORLD_SIZE nor SLURM's are set")
    env["RANK"], env["WORLD_SIZE"] = str(here.rank), str(here.world)
    env.setdefault("LOCAL_RANK", str(here.local))
    env.setdefault("LOCAL_WORLD_SIZE", str(here.local_world))
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST")
    if nodes:
        env.setdefault("MASTER_ADDR", first_host(nodes))
        # The same on every rank, and another one for every job and step on a shared machine.
        env.setdefault(
            "MASTER_PORT", str(20000 + (number(env, "SLURM_JOB_ID") * 7 + number(env, "SLURM_STEP_ID")) % 20000)
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise ConciseError(
            f"{here.world} processes but {', '.join(missing)} is not set; start them with torchrun, deepspeed or srun"
        )
    return here


def taken_out(env: Environment = os.environ) -> dict[str, str]:
    """Take out, and return, what makes libraries believe that they are a rank among others."""
    return {name: env.pop(name) for name in list(env) if name in RANK_VARIABLES or name.startswith("TORCHELASTIC_")}


def host() -> str:
    return socket.gethostname()


def threads(said: int, processes_here: int = 1) -> int:
    """Threads of one process: what the pipeline says, else OMP_NUM_THREADS, else its share of the cores."""
    given = number(os.environ, "OMP_NUM_THREADS")
    return said or given or max(1, (os.cpu_count() or 1) // max(1, processes_here))


def cores_of_a_rank() -> int:
    """The cores that this process may use: those it is bound to, else its share of the machine's."""
    here, cores = place(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    bound = cores < (os.cpu_count() or 1)
    return cores if bound or here is None else max(1, cores // here.local_world)


def first_host(nodes: str) -> str:
    """`gpu[03-07,12],cpu1` -> gpu03; asks scontrol where it is installed."""
    if shutil.which("scontrol"):
        said = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=60, check=False
        )
        if said.returncode == 0 and said.stdout.split():
            return said.stdout.split()[0]
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def slurm_tasks_here(env: Environment) -> int:
    """Tasks on this machine, from `4(x2),3`: counts of machines in order, repeats folded."""
    counts = [
        int(tasks)
        for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
        for _ in range(int(times or 1))
    ]
    node = number(env, "SLURM_NODEID")
    return counts[node] if node < len(counts) else 0


def number(env: Environment, *names: str) -> int:
    """The first of these variables that is a number; 0 where none is."""
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), 0)
