"""What several test files share. Nothing heavy is imported before a test asks for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A shell's background job ignores Ctrl-C, and its children inherit that: tests that send it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported anywhere: two threads on a busy machine are many times slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORDS = (
    *(str(n) for n in range(10, 30)),
    "wait check ",
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved random Qwen2 of two layers with a byte tokenizer that also knows WORDS. Treat it as read-only."""
    from concisecli.config import NewModelConfig
    from concisecli.policy import new_model

    # 32 a head: the least that vLLM knows on CPU.
    config = NewModelConfig(words=WORDS, hidden_size=64, layers=2, heads=2, intermediate_size=64, max_positions=256)
    return new_model(config, 0, tmp_path_factory.mktemp("tiny") / "model")
