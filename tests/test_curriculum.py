"""The whole curriculum through the command line, small: skips, kills and two processes (a chain of commands: test_scripts)."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from concisecli.artifacts import files_below, sha256_file

PIPELINE = """
run: small
threads: 1
prompt: {template: raw, chat: false}
grader: {profile: strict}
stages:
  traces:
    uses: data
    config: {sources: {chains: {type: chains, rows: traces, count: 200, operations: [2, 3]}}, dedup: null}
  pool:
    uses: data
    config: {sources: {chains: {type: chains, split: pool, count: 40, operations: [2, 3]}}}
  test:
    uses: data
    config: {sources: {chains: {type: chains, split: test, count: 10, operations: [2, 3]}}}
  sft:
    uses: sft
    inputs: {model: {new: {words: ["<think>", "</think>", "<answer>", "</answer>"]}}, examples: traces.examples}
    config: {steps: 12, mix: {examples: 16}, lr: 4.0e-3, save_every: 3}
  rl1:
    uses: train
    inputs: {model: sft.model, problems: pool.problems}
    config: &rl
      steps: 8
      batch_problems: 8
      lr: 1.0e-4
      save_every: 2
      sampling: {group_size: 4, max_response_tokens: 40}
      reward: {length: relative}
  mined:
    uses: mine
    inputs: {problems: pool.problems, model: rl1.model}
    config: {attempts: 4, sampling: {max_response_tokens: 40}}
  rl2:
    uses: train
    inputs: {model: rl1.model, problems: mined.problems}
    config: {<<: *rl, stage: 2, steps: 4, reward: {length: zscore, wrong: -1}, loss: {kl_coef: 0.01}}
  scored:
    uses: eval
    inputs: {model: rl2.model, problems: test.problems}
    config: {budgets: [20, 40], samples: 4, bootstrap: 50}
  report:
    uses: report
    inputs: {scores: scored.scores, metrics: [sft.metrics, rl1.metrics, rl2.metrics]}
"""
TIME_OF_DAY = {"timings.jsonl"}


def concise(folder: Path, *words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "concisecli", *words], cwd=folder, capture_output=True, text=True, **options
    )


@pytest.fixture
def workplace(tmp_path):
    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "concise.yaml").write_text(PIPELINE)
        return folder

    return make


def outputs(folder: Path) -> dict[str, str]:
    """Every file of the finished stages by its hash, without what tells the time."""
    runs = folder / "runs" / "small"
    return {
        str(path.relative_to(runs)): sha256_file(path)
        for path in files_below(runs)
        if path.name not in TIME_OF_DAY and not path.name.startswith(".") and "report" not in path.parts[-2]
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    (folder / "concise.yaml").write_text(PIPELINE)
    done = concise(folder, "run")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_a_second_run_skips_everything_and_says_so(straight):
    done = concise(straight, "run")
    assert done.returncode == 0
    lines = done.stdout.strip().splitlines()
    assert len(lines) >= 9
    assert sum("skip" in line for line in lines) == 9


@pytest.mark.slow
def test_one_changed_value_runs_the_stages_below_it_and_no_other(straight):
    done = concise(straight, "run", "--dry-run", "--set", "rl2.reward.alpha=0.1")
    assert done.returncode == 0
    said = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "reward.alpha 0.05 -> 0.1" in said["rl2"]
    assert "skip" in said["rl1"]
    assert "skip" not in said["scored"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_killed_at_a_random_moment_a_run_goes_on_to_the_same_bits(straight, workplace, seed):
    folder = workplace(f"killed-{seed}")
    rng = random.Random(seed)
    stage, wanted = rng.choice([("sft", rng.randint(1, 11)), ("rl1", rng.randint(1, 7)), ("rl2", rng.randint(1, 3))])
    process = subprocess.Popen(
        [sys.executable, "-m", "concisecli", "run"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while steps_done(folder, stage) < wanted and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = concise(folder, "run")
    assert done.returncode == 0, done.stderr
    assert outputs(folder) == outputs(straight)


def steps_done(folder: Path, stage: str) -> int:
    for metrics in (folder / "runs" / "small").glob(f"{stage}-*/metrics.jsonl"):
        return len(metrics.read_bytes().splitlines())
    return 0


@pytest.mark.slow
def test_a_second_process_on_the_same_stage_is_told_who_holds_it(workplace):
    folder = workplace("two")
    first = subprocess.Popen(
        [sys.executable, "-m", "concisecli", "run", "--until", "sft"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while steps_done(folder, "sft") < 1:
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.002)
    first.send_signal(signal.SIGSTOP)
    second = concise(folder, "run", "--until", "sft")
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 1
    assert str(first.pid) in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1
    assert first.wait(timeout=300) == 0


@pytest.mark.slow
def test_sigterm_saves_and_exits_75_and_ctrl_c_130(straight, workplace):
    folder = workplace("asked")
    for number, code in ((signal.SIGTERM, 75), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, "-m", "concisecli", "run"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wanted = steps_done(folder, "rl1") + 1
        deadline = time.monotonic() + 300
        while steps_done(folder, "rl1") < wanted:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        assert process.returncode == code, said
        assert "again" in said
    done = concise(folder, "run")
    assert done.returncode == 0, done.stderr
    assert outputs(folder) == outputs(straight)
