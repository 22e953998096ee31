"""Two ranks share the work of `mine` and `distill` and write what one writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from concisecli import artifacts
from concisecli.artifacts import sha256_file
from concisecli.config import DistillConfig, MineConfig
from concisecli.records import Problem, StageRun
from concisecli.stages import distill, mine

ASKED = {
    "sampling": {"group_size": 4, "max_response_tokens": 60},
    "prompt": {"template": "raw", "chat": False},
    "grader": {"custom": "fnmatch:fnmatchcase", "workers": 1},
}
SOME_RIGHT = "[!0-9<]*"


def work(folder: Path, model: Path) -> None:
    """Both stages, each in its own folder below `folder`."""
    inputs = {"model": (model,), "problems": (folder.parent / "problems.parquet",)}
    for name in ("mine", "distill"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    mine.run(StageRun("mine", folder / "mine", MineConfig.model_validate(ASKED | {"attempts": 4}), inputs))
    settings = DistillConfig.model_validate(ASKED | {"chunk_problems": 2})
    distill.run(StageRun("distill", folder / "distill", settings, inputs))


ON_ONE_OF_TWO_RANKS = """
import sys
from pathlib import Path
from concisecli import collectives
from tests.test_shared_work import work

collectives.init()
work(*map(Path, sys.argv[1:]))
collectives.close()
"""


@pytest.mark.slow
def test_two_ranks_write_what_one_does(tiny_model: Path, tmp_path: Path) -> None:
    rows = [Problem(f"p{i}", f"{20 + i}A-6B+{i}=", SOME_RIGHT, "chains") for i in range(7)]
    artifacts.write_problems(tmp_path / "problems.parquet", rows)
    work(tmp_path / "one", tiny_model)
    script = tmp_path / "rank.py"
    script.write_text(ON_ONE_OF_TWO_RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*launch, str(tmp_path / "two"), str(tiny_model)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in (
        "mine/problems.parquet",
        "mine/pass_rates.jsonl",
        "distill/examples.parquet",
        "distill/dropped.jsonl.zst",
    ):
        assert sha256_file(tmp_path / "two" / name) == sha256_file(tmp_path / "one" / name)
