"""Rollout tokens a second of the transformers engine against `generate` on the same module, in one process.

The demo's shape: 32 prompts of different lengths x 8 rollouts x up to 120 tokens, one thread, float32. `fixed` lets no
rollout end early; `mixed` ends rollouts at a set of ids chosen so that they are about a third of the limit long.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from concisecli.config import HfConfig, NewModelConfig
from concisecli.policy import new_model
from concisecli.rollout import Sampling, rollout_seed
from concisecli.rollout_hf import HfEngine, draw

PROMPTS, ROLLOUTS, LIMIT, REPEATS = 32, 8, 120, 5
WORDS = (*map(str, range(10, 30)), "wait check ", " ok ", " no ", "<think>", "</think>", "<answer>", "</answer>")
NEVER: tuple[int, ...] = ()
SOON = tuple(range(0, 280, 40))  # seven ids of a flat distribution: rollouts of about 0.35 of the limit
TRAINING = Sampling(max_response_tokens=LIMIT)
EVALUATION = Sampling(temperature=0.6, top_p=0.95, max_response_tokens=LIMIT)
CASES = (("fixed lengths", NEVER, TRAINING), ("mixed lengths", SOON, TRAINING), ("top-p 0.95", SOON, EVALUATION))


def run() -> list[dict[str, Any]]:
    """Rows {name, value, unit, baseline, ratio, note}: medians of runs taken in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        engine = HfEngine(HfConfig(), new_model(NewModelConfig(words=WORDS), 0, Path(folder) / "model"))
    prompts = [engine.tokenizer.encode(_chain(i)) for i in range(PROMPTS)]
    return [_draws(), *(_row(engine, prompts, *case) for case in CASES)]


def _draws() -> dict[str, Any]:
    """One token for each of 64 rows of a vocabulary of Qwen2's size."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 151936, generator=generator)
    noise = torch.rand(64, generator=generator, dtype=torch.float64)

    def in_float64() -> int:
        weights = (logits.double() - logits.double().amax(-1, keepdim=True)).exp()
        cumulative = weights.cumsum(-1)
        tokens = torch.searchsorted(cumulative, noise[:, None] * cumulative[:, -1:], right=True)
        return len((weights.gather(-1, tokens) / cumulative[:, -1:]).log())

    ours, theirs = _in_turn(lambda: len(draw(logits, noise, TRAINING)[0]), in_float64)
    note = "the whole distribution in float64; 64 rows, vocabulary 151936, 1 thread"
    return {
        "name": "drawing",
        "value": ours,
        "unit": "tokens/CPU-s",
        "baseline": theirs,
        "ratio": ours / theirs,
        "note": note,
    }


def _row(
    engine: HfEngine, prompts: list[list[int]], name: str, stop: tuple[int, ...], sampling: Sampling
) -> dict[str, Any]:
    engine.stop = stop
    engine.module.generation_config.eos_token_id = list(stop) or None
    ours, theirs = _in_turn(lambda: _ours(engine, prompts, sampling), lambda: _generate(engine, prompts, sampling))
    return {
        "name": f"rollouts, {name}",
        "value": ours,
        "unit": "tokens/CPU-s",
        "baseline": theirs,
        "ratio": ours / theirs,
        "note": f"transformers' generate on the same module: {PROMPTS * ROLLOUTS} rollouts, limit {LIMIT}, 1 thread",
    }


def _chain(index: int) -> str:
    steps = "".join(f"{'+-'[k % 2]}{1 + (index + k) % 9}{'BCDEFG'[k]}" for k in range(1 + index % 5))
    return f"{10 + index % 20}A{steps}="


def _in_turn(*runs: Callable[[], int]) -> list[float]:
    """Tokens a CPU-second of each, in alternation so that both meet the same machine; the median of REPEATS."""
    rates: list[list[float]] = [[] for _ in runs]
    for repeat in range(REPEATS + 1):
        for found, measured in zip(rates, runs, strict=True):
            start = time.process_time()
            tokens = measured()
            if repeat:  # the first of each warms up
                found.append(tokens / (time.process_time() - start))
    return [statistics.median(found) for found in rates]


def _ours(engine: HfEngine, prompts: list[list[int]], sampling: Sampling) -> int:
    seeds = [[rollout_seed(0, 0, str(i), j) for j in range(ROLLOUTS)] for i in range(len(prompts))]
    groups = engine.generate(prompts, sampling, seeds)
    return sum(len(completion.token_ids) for group in groups for completion in group)


@torch.no_grad()
def _generate(engine: HfEngine, prompts: list[list[int]], sampling: Sampling) -> int:
    pad, longest = engine.tokenizer.pad_token_id, max(map(len, prompts))
    rows = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts for _ in range(ROLLOUTS)])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts for _ in range(ROLLOUTS)])
    out = engine.module.generate(
        rows,
        attention_mask=mask,
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        max_new_tokens=LIMIT,
        pad_token_id=pad,
    )[:, longest:]
    ends = torch.isin(out, torch.tensor(engine.stop, dtype=torch.long))
    return int((ends.cumsum(1) - ends.long() == 0).sum())  # up to the first stop id, itself included
