from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from concisecli import collectives
from concisecli.records import ConciseError

TWO_RANKS = """
import sys
from concisecli import collectives

assert (collectives.rank(), collectives.world()) == (0, 1)
collectives.init()
collectives.init()  # joined already: nothing happens
rank = collectives.rank()
assert (collectives.world(), collectives.local_rank()) == (2, rank)
assert collectives.reduce([2**52 - rank, rank]) == [2**53 - 1, 1]  # exact, unlike in float32
assert collectives.reduce([rank, -rank], "max") == [1.0, 0.0]
assert collectives.reduce([rank, -rank], "min") == [0.0, -1.0]
assert collectives.gather({"rank": rank, "rows": "x" * rank}) == [{"rank": 0, "rows": ""}, {"rank": 1, "rows": "x"}]
collectives.barrier()
assert collectives.broadcast(f"from {rank}") == "from 0"
assert collectives.any_rank(rank == 1)
assert not collectives.any_rank(False)
store = collectives.store()
assert collectives.wait_for(store, ["never", "here/0"], seconds=0.2) == ["never"]
collectives.room("of one stage").set("key", "")
assert not store.check(["key"])
collectives.close()
assert collectives.world() == 1
sys.stdout.write(f"rank {rank} done\\n")  # one write: torchrun gives both ranks one unbuffered stdout
"""


def test_one_process_is_the_one_rank_case_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "SLURM_NTASKS", "LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    collectives.init()
    collectives.barrier()
    assert (collectives.rank(), collectives.world(), collectives.local_rank()) == (0, 1, 0)
    assert collectives.reduce([1.5, 2.0], "max") == [1.5, 2.0]
    assert collectives.gather("mine") == ["mine"]
    collectives.close()


def test_a_world_without_a_rank_or_an_address_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConciseError, match="2 processes but RANK is not set"):
        collectives.init()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConciseError, match="2 processes but MASTER_ADDR, MASTER_PORT is not set"):
        collectives.init()


def test_the_rank_on_a_machine_is_the_launchers_or_slurms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert collectives.local_rank() == 3
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert collectives.local_rank() == 1


def test_collectives_agree_on_two_ranks_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS)
    here = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert {"rank 0 done", "rank 1 done"} <= set(run.stdout.splitlines())
