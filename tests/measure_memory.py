"""What training a model really takes: peaks of the resident memory of this process, as one line of JSON.

Run by tests/test_plan.py in a process of its own: python -m tests.measure_memory WIDTH LAYERS ROWS TOKENS
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from concisecli.backends import make_backend
from concisecli.batching import example_row
from concisecli.config import SftConfig
from concisecli.trainer import Trainer


def resident(field: str) -> int:
    """VmRSS, what is held now, or VmHWM, the most since `forget_peak`, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def settle() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident("VmRSS")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(width: int, layers: int, rows: int, tokens: int) -> None:
    shape = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "num_key_value_heads": max(1, width // 192),
        "intermediate_size": 8 * width // 3,
        "vocab_size": 32_000,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
    }
    torch.manual_seed(0)
    before = settle()
    model = Qwen2ForCausalLM(Qwen2Config(**shape))
    weights = settle() - before
    config = SftConfig(steps=2, micro_batch_tokens=rows * tokens, mix={"examples": 2 * rows})
    backend = make_backend(config.backend, model, config)
    trainer = Trainer(backend, config, 0)
    example = example_row(list(range(1, tokens + 1)), [False] + [True] * (tokens - 1), 1.0)
    trainer.update([example] * (2 * rows), 0)  # two micro-batches
    state = settle() - before
    forget_peak()
    trainer.update([example] * (2 * rows), 1)
    peak = resident("VmHWM") - before
    numbers = {"weights": weights, "state": state, "peak": peak}
    print(json.dumps(shape | numbers | {"parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
