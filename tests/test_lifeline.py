"""Ranks that hang where no signal reaches them end with the one that failed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from concisecli.lifeline import Lifeline
from concisecli.records import Preempted

rank, how = int(sys.argv[1]), sys.argv[2]

def tell(text, code):
    print(f"told: {text}", flush=True)

try:
    with Lifeline(rank, 2, tell):
        if rank == 1 and how == "fails":
            raise Preempted("saved")
        if rank == 1 and how == "breaks":
            raise RuntimeError("connection closed by peer")  # as a library says it once the other rank has failed
        if rank == 0 and how == "breaks":
            time.sleep(1)
            raise Preempted("saved")
        time.sleep(60 if how == "fails" else 0)
except Preempted as error:
    print(f"rank {rank}: {error}", flush=True)
    time.sleep(1)  # the first rank holds the store
    sys.exit(error.exit_code)
print(f"rank {rank} done", flush=True)
time.sleep(1 if rank == 0 else 0)
"""


def two_ranks(how: str) -> tuple[list[str], list[int], float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    began = time.monotonic()
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    world |= {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), how],
            env=os.environ | world | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in ranks]
    return said, [process.returncode for process in ranks], time.monotonic() - began


@pytest.mark.slow
def test_a_rank_that_hangs_ends_with_the_exit_code_of_the_one_that_failed() -> None:
    said, codes, seconds = two_ranks("fails")
    assert codes == [75, 75]
    assert said == ["", "rank 1: saved"]
    assert seconds < 55


@pytest.mark.slow
def test_the_echo_of_a_failure_is_no_failure_of_its_own() -> None:
    said, codes, _ = two_ranks("breaks")
    assert codes == [75, 75]
    assert said == ["rank 0: saved", ""]


@pytest.mark.slow
def test_ranks_that_end_well_say_nothing() -> None:
    said, codes, _ = two_ranks("well")
    assert codes == [0, 0]
    assert said == ["rank 0 done", "rank 1 done"]
