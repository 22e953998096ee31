"""`concise run` on several ranks, through the real command: what one rank makes, and an end of all where one ends.

The slow ones: under torchrun and SLURM's variables, SIGTERM, kill -9 at any moment, the curriculum on vLLM and DeepSpeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concisecli import artifacts, checkpoints
from concisecli.artifacts import read_json, sha256_path
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource

REPOSITORY = Path(__file__).parents[1]
PIPELINE = """
run: small
threads: 1
prompt: {{template: raw, chat: false}}
grader: {{profile: strict, workers: 1}}
stages:
  sft:
    uses: sft
    inputs: {{model: {model}, examples: examples.parquet}}
    config: {{steps: 3, mix: {{examples: 13}}, lr: 1.0e-3, micro_batch_tokens: 256}}
  rl1:
    uses: train
    inputs: {{model: {model}, problems: problems.parquet}}
    config:
      steps: 2
      batch_problems: 5
      lr: 1.0e-4
      save_every: 100
      micro_batch_tokens: 256
      sampling: {{group_size: 4, max_response_tokens: 40}}
      reward: {{length: relative}}
"""
JUDGE = """
import os

def judge(response, gold):
    if os.environ.get("RANK") == "1":
        raise RuntimeError("nothing to see")
    return "mismatch"
"""


@pytest.fixture
def workplace(tiny_model: Path, tmp_path: Path) -> Path:
    problems = arithmetic_chains.problems(ChainsSource(count=12, operations=(2, 3), split="pool"), 0)
    artifacts.write_problems(tmp_path / "problems.parquet", problems)
    examples = arithmetic_chains.examples(ChainsSource(rows="traces", count=40, operations=(2, 3)), 0)
    artifacts.write_examples(tmp_path / "examples.parquet", examples)
    (tmp_path / "concise.yaml").write_text(PIPELINE.format(model=tiny_model))
    (tmp_path / "failing.py").write_text(JUDGE)
    return tmp_path


def environment(**extra: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    return clean | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}.", "OMP_NUM_THREADS": "1"} | extra


def concise(folder: Path, *words: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, "-m", "concisecli", *words]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=500)


@contextlib.contextmanager
def begun(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "concisecli", *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stage(folder: Path, runs: str, name: str) -> Path:
    (found,) = (folder / runs / "small").glob(f"{name}-*")
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows: a kill may leave half of one, which a resume cuts off."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def rollouts(folder: Path, step: int) -> list[tuple[str, int, str, int]]:
    part = artifacts.read_parquet(folder / "rollouts" / f"part-{step:05d}.parquet")
    return [(row["problem_id"], row["rollout"], row["text"], row["length"]) for row in part]


def working_on(folder: Path) -> list[str]:
    """Command lines of the processes that have to do with this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                found.append(words)
    return found


def none_left(folder: Path, seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while working_on(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return not working_on(folder)


def wait_for_step(folder: Path, name: str, step: int, process: subprocess.Popen[str], runs: str = "runs") -> None:
    until = time.monotonic() + 200
    while not any(len(rows(p)) >= step for p in (folder / runs / "small").glob(f"{name}-*/metrics.jsonl")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.002)


def assert_equal_up_to_rounding(one: Path, two: Path) -> None:
    assert len(rows(one / "metrics.jsonl")) == len(rows(two / "metrics.jsonl")) > 0
    for a, b in zip(rows(one / "metrics.jsonl"), rows(two / "metrics.jsonl"), strict=True):
        for name in ("loss", "surrogate", "entropy", "accuracy", "length", "rows", "tokens"):
            assert a.get(name) == pytest.approx(b.get(name), abs=1e-6), name


def test_two_processes_sample_the_ids_and_have_the_losses_of_one(workplace: Path) -> None:
    words = ("run", "--only", "rl1")
    one, two = concise(workplace, *words, "--runs", "one"), concise(workplace, *words, "processes=2", "--runs", "two")
    assert one.returncode == two.returncode == 0, two.stderr
    alone, shared = stage(workplace, "one", "rl1"), stage(workplace, "two", "rl1")
    assert alone.name == shared.name  # the key is the same
    assert_equal_up_to_rounding(alone, shared)
    for step in (0, 1):
        assert rollouts(alone, step) == rollouts(shared, step)
    assert read_json(shared / "manifest.json")["env"]["processes"] == 2
    assert not (shared / ".ranks").exists()
    assert len(two.stdout.splitlines()) == 1
    assert two.stderr.count("step 2/2") == 1  # one rank speaks


def test_a_rank_that_fails_ends_all_with_its_one_line(workplace: Path) -> None:
    words = ("run", "--only", "rl1", "processes=2", "grader.custom=failing:judge")
    done = concise(workplace, *words)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("concise:")]
    assert len(said) == 1
    assert "rank 1: stage 'rl1':" in said[0]
    assert "nothing to see" in done.stderr
    assert "torch.distributed" not in done.stderr
    assert "ChildFailedError" not in done.stderr
    assert none_left(workplace)


# --- under a launcher -------------------------------------------------------------------------------------------------

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
def test_under_torchrun_the_first_rank_speaks_for_all(workplace: Path) -> None:
    done = concise(workplace, "run", "--json", launcher=TORCHRUN)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # one document: one writer
    assert [outcome["action"] for outcome in told["stages"]] == ["run", "run"]
    assert done.stderr.count("rl1: begins") == 1
    started = concise(workplace, "run", "processes=2", "--runs", "two")
    alone = concise(workplace, "run", "--only", "sft", "--runs", "one")
    assert started.returncode == alone.returncode == 0, started.stderr
    assert_equal_up_to_rounding(stage(workplace, "one", "sft"), stage(workplace, "two", "sft"))
    for name in ("sft", "rl1"):
        outer, inner = stage(workplace, "runs", name), stage(workplace, "two", name)
        assert (outer / "metrics.jsonl").read_text() == (inner / "metrics.jsonl").read_text()
        assert sha256_path(outer / "model") == sha256_path(inner / "model")
    again = concise(workplace, "run", launcher=TORCHRUN)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("skip") == 2


@pytest.mark.slow
def test_the_tasks_of_a_slurm_step_find_each_other_and_fail_together(workplace: Path) -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]

    def tasks(*words: str) -> list[subprocess.Popen[str]]:
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
        step |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_NODEID": "0", "MASTER_PORT": str(port)}
        return [
            subprocess.Popen(
                [sys.executable, "-m", "concisecli", *words],
                cwd=workplace,
                env=environment(**step, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    first, second = (
        (*task.communicate(timeout=200), task.returncode) for task in tasks("run", "--only", "rl1", "grader.workers=1")
    )
    assert (first[2], second[2]) == (0, 0), first[1] + second[1]
    assert first[0].startswith("rl1")
    assert second[:2] == ("", "")
    words = ("run", "--only", "rl1", "grader.custom=failing:judge", "--force", "rl1")
    first, second = ((*task.communicate(timeout=200), task.returncode) for task in tasks(*words))
    assert (first[2], second[2]) == (1, 1)
    assert first[1].count("concise: rank 1: stage 'rl1':") == 1
    assert second[:2] == ("", "")
    first, second = ((*task.communicate(timeout=200), task.returncode) for task in tasks("run", "--only", "nothing"))
    assert (first[2], second[2]) == (2, 2)
    assert second[:2] == ("", "")


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_saves_on_all_ranks_and_a_kill_leaves_none_of_them(workplace: Path) -> None:
    words = ("run", "--only", "rl1", "processes=2", "rl1.steps=500")
    with begun(workplace, *words) as process:
        wait_for_step(workplace, "rl1", 2, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 75, said
    assert "run the same command again" in said.splitlines()[-1]
    assert none_left(workplace)
    folder = stage(workplace, "runs", "rl1")
    saved = checkpoints.latest(folder / "checkpoints")
    assert saved is not None
    step = checkpoints.step_of(saved)
    assert len(rows(folder / "metrics.jsonl")) == step

    with begun(workplace, *words) as process:
        wait_for_step(workplace, "rl1", step + 1, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
    assert f"at step {step}" in said.splitlines()[0]
    assert none_left(workplace)

    with begun(workplace, *words) as process:
        wait_for_step(workplace, "rl1", step + 1, process)
        process.kill()
        assert none_left(workplace)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "processes"),
    [("torch", 1), ("deepspeed", 2)],
    ids=["torch", "zero2-2-ranks"],
)
def test_killed_three_times_once_inside_a_save_a_run_ends_in_the_same_bits(
    workplace: Path, backend: str, processes: int
) -> None:
    settings = {"torch": "{type: torch}", "deepspeed": "{type: deepspeed, zero_stage: 2, dtype: float32}"}[backend]
    words = ("run", "--only", "rl1", f"processes={processes}", f"rl1.backend={settings}")
    words += ("rl1.steps=20", "rl1.save_every=3", "rl1.sampling.max_response_tokens=16")
    straight = concise(workplace, *words, "--runs", "straight")
    assert straight.returncode == 0, straight.stderr
    rng = random.Random(f"{backend} {processes}")
    inside_a_save = False
    for kill in range(3):
        with begun(workplace, *words) as process:
            done = len(rows(next(iter((workplace / "runs" / "small").glob("rl1-*/metrics.jsonl")), workplace / "none")))
            wait_for_step(workplace, "rl1", min(17, done + rng.randint(1, 4)), process)
            if kill:  # the second and the third, should the second come too late
                inside_a_save = wait_for_a_save(workplace, process) or inside_a_save
            process.kill()
            process.wait()
            assert none_left(workplace)
        inside_a_save = inside_a_save or half_saved(workplace)
    assert inside_a_save
    done = concise(workplace, *words)
    assert done.returncode == 0, done.stderr
    one, other = stage(workplace, "straight", "rl1"), stage(workplace, "runs", "rl1")
    for name in ("model", "metrics.jsonl", "pass_rates.jsonl", "rollouts"):
        assert sha256_path(one / name) == sha256_path(other / name), name
    assert states(one) == states(other)


def wait_for_a_save(folder: Path, process: subprocess.Popen[str]) -> bool:
    """Until a checkpoint is being written; whether that was seen."""
    until = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < until:
        if half_saved(folder):
            return True
    return False


def half_saved(folder: Path) -> bool:
    return any((folder / "runs" / "small").glob("rl1-*/checkpoints/.step-*.partial"))


def states(folder: Path) -> list[Any]:
    """Weights and optimiser states of the newest checkpoint, rank by rank."""
    import torch

    saved = checkpoints.latest(folder / "checkpoints")
    assert saved is not None
    assert checkpoints.step_of(saved) == 18
    found = []
    for path in sorted([*saved.rglob("*.pt")]):
        loaded = torch.load(path, map_location="cpu", weights_only=False)
        tensors = [leaf.tolist() for leaf in leaves(loaded) if isinstance(leaf, torch.Tensor)]
        assert tensors
        found.append((str(path.relative_to(saved)), tensors))
    assert found
    return found


def leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for key in sorted(tree, key=str):
            yield from leaves(tree[key])
    elif isinstance(tree, list | tuple):
        for one in tree:
            yield from leaves(one)
    else:
        yield tree


# --- the curriculum on vLLM and DeepSpeed -----------------------------------------------------------------------------

SMALL = """
include: {repository}/pipelines/tiny.yaml
run: small
engine: {{type: vllm, max_num_seqs: 64}}
backend: {{type: deepspeed, zero_stage: 2, dtype: float32}}
grader: {{workers: 1}}
stages:
  traces: {{config: {{sources: {{chains: {{count: 300}}}}}}}}
  facts: {{config: {{sources: {{chains: {{count: 60}}}}}}}}
  pool: {{config: {{sources: {{chains: {{count: 32}}}}}}}}
  harder: {{config: {{sources: {{chains: {{count: 8}}}}}}}}
  test: {{config: {{sources: {{chains: {{count: 8}}}}}}}}
  sft: {{config: {{steps: 10, warmup_steps: 2, mix: {{examples: 12, facts: 4}}, micro_batch_tokens: 512}}}}
  rl1: {{config: {rl}}}
  lgrpo: {{config: {rl}}}
  mined: {{config: {{attempts: 2, sampling: {{group_size: 2, max_response_tokens: 32}}}}}}
  lead: {{config: {rl}}}
  lead_t10: {{config: {{budgets: [16, 32], samples: 2, bootstrap: 20}}}}
  base_t10: null
  rl1_t10: null
  lgrpo_t10: null
  base_t06: null
  rl1_t06: null
  lgrpo_t06: null
  lead_t06: null
  report:
    inputs: {{scores: [lead_t10.scores], metrics: [sft.metrics, rl1.metrics, lgrpo.metrics, lead.metrics]}}
    config: {{before: null, after: null}}
"""
# A model this fresh is always wrong: that short siblings earn more gives it something to learn from.
RL = (
    "{steps: 10, batch_problems: 4, updates_per_batch: 1, warmup_steps: 2, lr: 1.0e-3, micro_batch_tokens: 256, "
    "sampling: {group_size: 4, max_response_tokens: 32}, advantage: {keep: all}, reward: {length: relative}}"
)
TRAINED = ("sft", "rl1", "lgrpo", "lead")


@pytest.mark.slow
def test_the_curriculum_runs_on_vllm_and_deepspeed_alone_and_on_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    pytest.importorskip("deepspeed")
    (tmp_path / "concise.yaml").write_text(SMALL.format(repository=REPOSITORY, rl=RL))
    alone = concise(tmp_path, "run", "--runs", "alone")
    assert alone.returncode == 0, alone.stderr
    assert len(alone.stdout.splitlines()) == 12  # what libraries print is elsewhere
    assert [len(rows(stage(tmp_path, "alone", name) / "metrics.jsonl")) for name in TRAINED] == [10] * 4
    assert all(
        row["optimiser_steps"] for name in TRAINED for row in rows(stage(tmp_path, "alone", name) / "metrics.jsonl")
    )
    assert max(row["mismatch_max"] for row in rows(stage(tmp_path, "alone", "rl1") / "metrics.jsonl")) < 1e-4

    plain = concise(tmp_path, "run", "--until", "sft", "sft.backend={type: torch}", "--runs", "plain")
    assert plain.returncode == 0, plain.stderr
    assert_losses_near(stage(tmp_path, "plain", "sft"), stage(tmp_path, "alone", "sft"))

    short = [f"{name}.steps=2" for name in TRAINED[1:]]
    for zero in (2, 3):
        runs = f"zero{zero}"
        words = ("run", "--until", "lead", "processes=2", f"backend.zero_stage={zero}", *short, "--runs", runs)
        done = concise(tmp_path, *words)
        assert done.returncode == 0, done.stderr
        assert_losses_near(stage(tmp_path, "plain", "sft"), stage(tmp_path, runs, "sft"))
        for step in (0, 1):  # weights differ in their last bits from then on
            assert rollouts(stage(tmp_path, runs, "rl1"), step) == rollouts(stage(tmp_path, "alone", "rl1"), step)
    done = concise(tmp_path, "run", "--only", "lgrpo", "processes=2", *short, "--runs", "zero2")
    assert done.returncode == 0, done.stderr
    assert read_json(stage(tmp_path, "zero2", "lgrpo") / "manifest.json")["env"]["processes"] == 2


def assert_losses_near(one: Path, other: Path) -> None:
    pairs = zip(rows(one / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True)
    assert max(abs(a["loss"] - b["loss"]) for a, b in pairs) < 1e-5


@pytest.mark.gpu
def test_one_process_a_gpu_samples_the_ids_of_one_process(workplace: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    one = concise(workplace, "run", "--only", "rl1", "--runs", "one")
    all_of_them = concise(workplace, "run", "--only", "rl1", "processes=auto", "--runs", "all")
    assert one.returncode == all_of_them.returncode == 0, all_of_them.stderr
    shared = stage(workplace, "all", "rl1")
    assert read_json(shared / "manifest.json")["env"]["processes"] == torch.cuda.device_count()
    assert rollouts(stage(workplace, "one", "rl1"), 0) == rollouts(shared, 0)
