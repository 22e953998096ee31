"""Which kernels a model gets where. What they do on a GPU is in test_gpu.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from concisecli import kernels, policy
from concisecli.config import OptimiserConfig
from concisecli.logprobs import packs
from concisecli.records import ConciseError

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")


@pytest.fixture
def module(tiny_model: Path) -> Any:
    return policy.load_model(tiny_model)


@without_gpu
def test_liger_without_a_gpu_is_refused_with_what_to_do(module: Any) -> None:
    with pytest.raises(ConciseError, match="liger: true needs a CUDA device, and there is none; set liger: false"):
        kernels.use(module, OptimiserConfig(liger=True))


def test_liger_that_is_not_installed_is_refused_with_what_to_do(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "is_liger_kernel_available", lambda: False)
    with pytest.raises(ConciseError, match=r"pip install 'concise\[liger\]'"):
        kernels.use(module, OptimiserConfig(liger=True))


@without_gpu
@pytest.mark.parametrize("packing", ["auto", "on", "off"])
def test_on_a_cpu_attention_stays_as_it_is_and_rows_are_packed_only_on_request(module: Any, packing: Any) -> None:
    config = OptimiserConfig(packing=packing, backend={"type": "torch", "dtype": "bfloat16"})
    kernels.use(module, config)
    assert module.config._attn_implementation == "sdpa"
    assert packs(module, packing) == (packing == "on")


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", ["flash_attention_2"]), ("float32", [])])
def test_flash_attention_is_asked_for_where_it_can_be_had(
    module: Any, monkeypatch: pytest.MonkeyPatch, dtype: str, expected: list[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(module, "set_attn_implementation", asked.append)
    kernels.use_flash_attention(module, dtype)
    assert asked == expected


def test_flash_attention_is_put_aside_for_float32_and_taken_up_again(module: Any) -> None:
    module.config._attn_implementation = "flash_attention_2"
    taken: list[str] = []
    module.set_attn_implementation = taken.append
    with kernels.float32_attention(module):
        assert taken == ["sdpa"]
    assert taken == ["sdpa", "flash_attention_2"]
    module.config._attn_implementation = "sdpa"
    with kernels.float32_attention(module):
        pass
    assert taken == ["sdpa", "flash_attention_2"]
