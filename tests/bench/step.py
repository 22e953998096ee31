"""A GRPO step of the demo's size: what each phase takes, and training against a plain loop on the same module.

128 rollouts of a random 0.16 M Qwen2, one thread, float32. The baseline of `update` pads the rows in the order sampled
to one batch, takes the log-probs from full logits and steps the same AdamW: what a loop without length buckets,
response-only logits and micro-batches does. `fixed` rollouts all have the limit's length, `mixed` a third on average.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from concisecli import groups, policy
from concisecli.backends import Backend, make_backend
from concisecli.batching import Row, collate
from concisecli.config import HfConfig, LossConfig, NewModelConfig, PromptConfig, TorchConfig, TrainConfig
from concisecli.grader.grading import GraderPool
from concisecli.records import Problem
from concisecli.rollout import sample_groups
from concisecli.rollout_hf import HfEngine
from concisecli.trainer import Trainer

PROBLEMS, ROLLOUTS, LIMIT, REPEATS = 16, 8, 120, 5
WORDS = tuple(map(str, range(10, 30)))


def run() -> list[dict[str, Any]]:
    """Rows {name, value, unit, baseline, ratio, note}: medians of runs taken in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = policy.new_model(NewModelConfig(words=WORDS), 0, Path(folder) / "model")
        return [_update(model, "fixed"), _update(model, "mixed"), *_phases(model)]


def _update(model: Path, lengths: str) -> dict[str, Any]:
    rows = _rows(lengths)
    ours, theirs = _trainer(model), make_backend(TorchConfig(), policy.load_model(model), _config())
    fast, plain = _in_turn(lambda: ours.update(rows, 0), lambda: _plain_step(theirs, rows))
    tokens = sum(row.tokens for row in rows)
    padded = len(rows) * max(row.length for row in rows)
    return {
        "name": f"update, {lengths} lengths",
        "value": tokens / fast,
        "unit": "response tokens/s",
        "baseline": tokens / plain,
        "ratio": plain / fast,
        "note": f"one padded batch, full logits; {len(rows)} rows, {padded} padded tokens there, 1 thread",
    }


def _phases(model: Path) -> list[dict[str, Any]]:
    config = _config()
    trainer = _trainer(model)
    engine = HfEngine(HfConfig(), model, module=trainer.backend.module)
    problems = [Problem(f"p{i}", f"{10 + i}A+{1 + i % 9}B-4C=", str(7 + i + i % 9), "bench") for i in range(PROBLEMS)]
    seconds: dict[str, list[float]] = {"generate": [], "grade": [], "score": [], "update": []}
    with GraderPool(config.grader) as grader:
        for step in range(REPEATS):
            clock = _Clock(seconds)
            sampled = sample_groups(
                engine, engine.tokenizer, problems, config.sampling, config.prompt, seed=0, step=step
            )
            clock.stop("generate")
            graded = groups.grade(grader, sampled, think_open=False, policy_step=step)
            clock.stop("grade")
            rows = [row for i, group in enumerate(graded) for row in groups.rows(groups.score(i, group, config))]
            clock.stop("score")
            # A random model is never right: give the rows advantages, so that the update has all its work.
            trainer.update([_with_advantage(row, i) for i, row in enumerate(rows)], step)
            clock.stop("update")
    medians = {phase: statistics.median(taken[1:]) for phase, taken in seconds.items()}
    whole = sum(medians.values())
    return [
        {
            "name": f"step, {phase}",
            "value": taken,
            "unit": "s",
            "note": f"{taken / whole:.0%} of a step of {whole:.2f} s",
        }
        for phase, taken in medians.items()
    ]


def _config() -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "steps": 100,
            "lr": 1e-4,
            "micro_batch_tokens": 8192,
            "prompt": PromptConfig(template="{problem}", chat=False),
            "sampling": {"group_size": ROLLOUTS, "max_response_tokens": LIMIT},
        }
    )


def _trainer(model: Path) -> Trainer:
    config = _config()
    return Trainer(make_backend(TorchConfig(), policy.load_model(model), config), config, 0, loss=LossConfig())


def _rows(lengths: str) -> list[Row]:
    rng = np.random.default_rng(0)
    drawn = np.full(PROBLEMS * ROLLOUTS, LIMIT) if lengths == "fixed" else rng.geometric(3 / LIMIT, PROBLEMS * ROLLOUTS)
    return [
        Row(
            prompt_ids=tuple(rng.integers(0, 200, 12).tolist()),
            response_ids=tuple(rng.integers(0, 200, n).tolist()),
            old_logprobs=(-5.6,) * n,
            advantage=float(rng.normal()),
        )
        for n in np.minimum(drawn, LIMIT).tolist()
    ]


def _with_advantage(row: Row, index: int) -> Row:
    return Row(row.prompt_ids, row.response_ids, row.old_logprobs, advantage=1.0 if index % 2 else -1.0)


def _plain_step(backend: Backend, rows: list[Row]) -> None:
    batch = collate(rows, 0)
    logits = backend.module(batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
    logprobs = torch.log_softmax(logits[:, :-1], -1).gather(-1, batch.input_ids[:, 1:, None])[..., 0]
    ratio = (logprobs - batch.old_logprobs[:, 1:]).exp()
    advantage = batch.advantages[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    mask = batch.response_mask[:, 1:]
    backend.backward(-(surrogate * mask).sum() / mask.sum())
    backend.step()


def _in_turn(*calls: Callable[[], Any]) -> list[float]:
    """The median seconds of each call, after one to warm up."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS + 1):
        for taken, call in zip(seconds, calls, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


class _Clock:
    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self._seconds = seconds
        self._since = time.perf_counter()

    def stop(self, phase: str) -> None:
        now = time.perf_counter()
        self._seconds[phase].append(now - self._since)
        self._since = now
