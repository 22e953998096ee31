"""A GRPO step: CPU-seconds and response tokens a second of both engines and of TRL's GRPOTrainer, and where they go.

16 prompts x 8 rollouts x up to 64 tokens of a random Qwen2 of 1.6 M parameters, one thread, float32, no KL, the
sampler's log-probs, one optimiser step. `fixed`: every rollout has 64 tokens. `mixed`: 0.35 of that on average, the
same lengths for all, by making each rollout end at its own. A step of ours has its rollouts graded by the worker pool
and, with vLLM, the new weights loaded and probed; TRL's has a reward of one line. TRL runs in `.venv-trl`, made by
`make bench`; each runs in a process of its own, one after the other; the fastest of 7 steps, in seconds of
its CPU, so that a busy machine counts for less (of grading: of the clock).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concisecli import groups, policy
from concisecli.backends import make_backend
from concisecli.config import HfConfig, LossConfig, NewModelConfig, PromptConfig, TorchConfig, TrainConfig, VllmConfig
from concisecli.grader.grading import GraderPool
from concisecli.logprobs import sequence_logprobs
from concisecli.records import Problem
from concisecli.rollout import RolloutEngine, check_probe, sample_groups
from concisecli.rollout_hf import HfEngine
from concisecli.trainer import Trainer

PROMPTS, ROLLOUTS, LIMIT, STEPS = 16, 8, 64, 8
MODEL = NewModelConfig(words=tuple(map(str, range(10, 30))), hidden_size=128, layers=6, heads=4, intermediate_size=512)
PEER = Path(__file__).parents[2] / ".venv-trl/bin/python"
PEER_MICRO_BATCH = 128  # its fastest of 32, 64 and 128
MICRO_BATCH_TOKENS = 2048


def run() -> list[dict[str, Any]]:
    """Rows {name, value, unit, baseline, ratio, note}."""
    with tempfile.TemporaryDirectory() as folder:
        model = policy.new_model(MODEL, 0, Path(folder) / "model")
        limit = _multiply_limit()
        return [row for kind in ("fixed", "mixed") for row in _compared(model, kind, limit)]


def _compared(model: Path, kind: str, limit: float) -> Iterator[dict[str, Any]]:
    lengths = lengths_of(kind)
    names = ("trl", "transformers", "vllm") if PEER.exists() else ("transformers", "vllm")
    runs = {name: _in_a_process(name, model, kind) for name in names}
    trl = runs.pop("trl", {}).get("seconds")
    for name, found in runs.items():
        seconds, phases = found["seconds"], found["phases"]
        shares = ", ".join(f"{phase} {taken / sum(phases.values()):.0%}" for phase, taken in phases.items())
        yield {
            "name": f"{kind} lengths, {name}",
            "value": seconds,
            "unit": "CPU-s/step",
            "baseline": trl,
            "ratio": trl / seconds if trl else None,
            "note": f"TRL 1.16; {sum(lengths) / seconds:.0f} response tokens/s; {shares}; "
            f"its multiplications alone at this CPU's rate: {_operations(lengths) / limit:.2f} s",
        }


def lengths_of(kind: str) -> list[int]:
    """Of the rollouts of a step, prompt by prompt."""
    count = PROMPTS * ROLLOUTS
    if kind == "fixed":
        return [LIMIT] * count
    drawn = np.random.default_rng(0).geometric(1 / 21, size=count)
    return np.minimum(drawn, LIMIT).tolist()


def _in_a_process(name: str, model: Path, kind: str) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    if name == "trl":
        job = {"prompts": [p.prompt for p in problems()], "lengths": lengths_of(kind), "limit": LIMIT, "steps": STEPS}
        job["micro_batch"] = PEER_MICRO_BATCH
        command = [str(PEER), str(Path(__file__).with_name("_trl_steps.py")), str(model), json.dumps(job)]
        env.pop("PYTHONPATH", None)
    else:
        code = "import sys, json, tests.bench.step as b; print('@' + json.dumps(b.measure(*sys.argv[1:])))"
        command = [sys.executable, "-c", code, name, str(model), kind]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("@"))[1:])
    return {"seconds": min(found[1:])} if name == "trl" else found


def problems() -> list[Problem]:
    return [Problem(f"p{i}", f"{10 + i}A+{1 + i % 9}B-4C=", str(7 + i + i % 9), "bench") for i in range(PROMPTS)]


def measure(name: str, model: str, kind: str) -> dict[str, Any]:
    """CPU-seconds of the fastest step after the first, and of its phases, in this process."""
    torch.set_num_threads(1)
    config = _config()
    trainer = Trainer(make_backend(TorchConfig(), policy.load_model(model), config), config, 0, loss=LossConfig())
    engine = _engine(name, Path(model), trainer.backend.module, lengths_of(kind))
    phases: dict[str, list[float]] = {}
    whole = []
    with GraderPool(config.grader) as grader:
        for step in range(STEPS):
            _step(trainer, engine, grader, config, step, phases)
            whole.append(sum(taken[-1] for taken in phases.values()))
    engine.close()
    fastest = whole.index(min(whole[1:]))
    return {"seconds": whole[fastest], "phases": {phase: taken[fastest] for phase, taken in phases.items()}}


def _step(
    trainer: Trainer,
    engine: RolloutEngine,
    grader: GraderPool,
    config: TrainConfig,
    step: int,
    phases: dict[str, list[float]],
) -> None:
    tokenizer = engine.tokenizer  # type: ignore[attr-defined]
    with _timed(phases, "generate"):
        sampled = sample_groups(engine, tokenizer, problems(), config.sampling, config.prompt, seed=0, step=step)
    with _timed(phases, "grade"):
        graded = groups.grade(grader, sampled, think_open=False, policy_step=step)
        rows = [row for i, group in enumerate(graded) for row in groups.rows(groups.score(i, group, config))]
        # A random model is never right: give the rows advantages, so that the update has all its work.
        rows = [replace(row, advantage=1.0 if i % 2 else -1.0) for i, row in enumerate(rows)]
    with _timed(phases, "train"):
        engine.sleep()
        trainer.update(rows, step)
    with _timed(phases, "sync"):
        engine.wake("weights")
        engine.sync_weights(trainer.backend.named_weights())
        engine.wake("kv_cache")
        if isinstance(engine, HfEngine):
            return
        ids = sampled[0][1]
        check_probe(engine, ids, sequence_logprobs(trainer.backend.module, ids), tolerance=1e-4)


def _config() -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "steps": 100,
            "lr": 1e-5,
            "micro_batch_tokens": MICRO_BATCH_TOKENS,
            "prompt": PromptConfig(template="{problem}", chat=False),
            "sampling": {"group_size": ROLLOUTS, "max_response_tokens": LIMIT},
        }
    )


def _engine(name: str, model: Path, module: Any, lengths: Sequence[int]) -> RolloutEngine:
    """The engine, with rollouts that end at `lengths` and nowhere else."""
    engine: Any
    if name == "transformers":
        engine = HfEngine(HfConfig(), model, module=module)
        requests = engine._requests

        def limited(*args: Any) -> list[Any]:
            return [replace(r, limit=lengths[r.place[0] * ROLLOUTS + r.place[1]]) for r in requests(*args)]

        engine._requests = limited
    else:
        from concisecli.rollout_vllm import VllmEngine

        engine = VllmEngine(VllmConfig(dtype="float32", enforce_eager=True), model)
        answer = engine._run

        def ending(prompts: list[Any], settings: list[Any]) -> list[Any]:
            if len(settings) == len(lengths):  # not a probe
                for setting, length in zip(settings, lengths, strict=True):
                    setting.max_tokens = length
            return answer(prompts, settings)

        engine._run = ending
    engine.stop = ()
    return engine


def _operations(lengths: Sequence[int]) -> float:
    """Multiplications and additions of a step: two a weight and token to generate, six to train, attention left out."""
    weights = MODEL.layers * (4 * MODEL.hidden_size**2 + 3 * MODEL.hidden_size * MODEL.intermediate_size)
    head = MODEL.hidden_size * 278
    prompts = sum(len(p.prompt) for p in problems())
    generated, trained = sum(lengths) + prompts, sum(lengths) + ROLLOUTS * prompts
    return 2.0 * (weights + head) * generated + 6.0 * (weights * trained + head * sum(lengths))


def _multiply_limit() -> float:
    """Operations a second of the model's own largest product, on one thread."""
    torch.set_num_threads(1)
    a, b = torch.randn(4096, MODEL.hidden_size), torch.randn(MODEL.intermediate_size, MODEL.hidden_size)
    seconds = min(_seconds(lambda: torch.nn.functional.linear(a, b)) for _ in range(20))
    return 2.0 * a.numel() * MODEL.intermediate_size / seconds


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def _timed(phases: dict[str, list[float]], name: str) -> Iterator[None]:
    clock = time.perf_counter if name == "grade" else time.process_time  # grading is the work of other processes
    start = clock()
    yield
    phases.setdefault(name, []).append(clock() - start)
