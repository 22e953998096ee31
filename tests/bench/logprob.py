"""Log-probs and entropies of response tokens at Qwen2's vocabulary: memory and time of the chunked path.

One layer of hidden size 512 under a tied head, so that what is compared is most of the pass: 4 rows of 512 response
tokens, forward and backward of clipped surrogate and entropy bonus, one thread, float32. The baseline
takes both from full logits, as a plain loop does. Each path runs in processes of its own; memory is the highest
resident size over that before the pass, with the gradient of the head in it, which no path can do without.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from concisecli.algo import losses
from concisecli.logprobs import Slopes, token_logprobs

ROWS, PROMPT, RESPONSE, REPEATS = 4, 32, 512, 2
PATHS = ("full", "foretold", "recomputed")
LOSS = {"eps_low": 0.2, "eps_high": 0.28, "entropy_coef": 0.01}


def run() -> list[dict[str, Any]]:
    found: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
    for _ in range(REPEATS):
        for path in PATHS:
            found[path].append(_in_a_process(path))
    memory = {path: statistics.median(x["peak_mb"] for x in runs) for path, runs in found.items()}
    seconds = {path: min(x["seconds"] for x in runs) for path, runs in found.items()}
    apart = max(abs(x["loss"] - found["full"][0]["loss"]) for runs in found.values() for x in runs)
    note = f"full logits; {ROWS * RESPONSE} response tokens, vocabulary 151936, hidden 512, losses within {apart:.1e}"
    names = {"foretold": "gradient taken in the forward pass", "recomputed": "logits made again in the backward pass"}
    return [
        row
        for path, name in names.items()
        for row in (
            _row(f"peak memory, {name}", memory[path], "MB", memory["full"], note),
            _row(f"forward and backward, {name}", seconds[path], "CPU-s", seconds["full"], note),
        )
    ]


def _row(name: str, value: float, unit: str, baseline: float, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": baseline / value, "note": note}


def _in_a_process(path: str) -> dict[str, float]:
    code = f"import json, tests.bench.logprob as b; print(json.dumps(b.measure({path!r})))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(path: str) -> dict[str, float]:
    """Memory of a first pass and CPU-seconds of a second, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=512, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2, intermediate_size=1024,
        vocab_size=151936, tie_word_embeddings=True,
    )  # fmt: skip
    module = Qwen2ForCausalLM(config)
    ids = torch.randint(0, config.vocab_size, (ROWS, PROMPT + RESPONSE))
    batch = _Batch(ids, torch.randn(ROWS))
    batch.old[:] = -torch.tensor(float(config.vocab_size)).log()
    small = _Batch(ids[:1, : PROMPT + 2], batch.advantages[:1])
    work = {"full": _full, "foretold": _foretold, "recomputed": _recomputed}[path]
    _pass(work, module, small)  # what torch allocates once
    module.zero_grad(set_to_none=True)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    loss = _pass(work, module, batch)
    peak = _resident("VmHWM") - before
    module.zero_grad(set_to_none=True)
    start = time.process_time()
    _pass(work, module, batch)
    return {"peak_mb": peak, "seconds": time.process_time() - start, "loss": loss}


def _resident(field: str) -> float:
    """A field of /proc/self/status in MB: VmRSS now, VmHWM the most since the mark was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


class _Batch:
    def __init__(self, ids: Tensor, advantages: Tensor) -> None:
        self.ids, self.advantages = ids, advantages
        self.attention = torch.ones_like(ids)
        self.response = torch.zeros_like(ids, dtype=torch.bool)
        self.response[:, PROMPT:] = True
        self.old = torch.zeros(ids.shape)
        self.weights = torch.full((len(ids),), 1.0 / int(self.response.sum()))


def _pass(work: Callable[..., Tensor], module: Any, batch: _Batch) -> float:
    loss = work(module, batch)
    loss.backward()
    return loss.item()


def _loss(batch: _Batch, logprobs: Tensor, entropy: Tensor | None) -> Tensor:
    return losses.policy_loss(
        logprobs, batch.old, batch.advantages, batch.response, batch.weights, entropy=entropy,
        total_tokens=float(batch.response.sum()), **LOSS,
    )[0]  # fmt: skip


def _full(module: Any, batch: _Batch) -> Tensor:
    logits = module(input_ids=batch.ids, use_cache=False, logits_to_keep=batch.ids.shape[1] - PROMPT + 1).logits[:, :-1]
    everything = logits.float().log_softmax(-1)
    logprobs = everything.gather(-1, batch.ids[:, PROMPT:, None])[..., 0]
    entropy = -(everything.exp() * everything).sum(-1)
    pad = torch.zeros(len(logprobs), PROMPT)
    return _loss(batch, torch.cat([pad, logprobs], 1), torch.cat([pad, entropy], 1))


def _recomputed(module: Any, batch: _Batch, slopes: Slopes | None = None) -> Tensor:
    scores = token_logprobs(module, batch.ids, batch.attention, batch.response, with_entropy=True, slopes=slopes)
    return _loss(batch, *scores)


def _foretold(module: Any, batch: _Batch) -> Tensor:
    def slopes(logprobs: Tensor, entropy: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor | None]:
        rows = places // batch.ids.shape[1]
        old = batch.old.flatten()[places]
        tokens = float(batch.response.sum())
        return losses.token_slopes(
            logprobs, old, batch.advantages[rows], batch.weights[rows], entropy=entropy, total_tokens=tokens, **LOSS
        )

    return _recomputed(module, batch, slopes)
