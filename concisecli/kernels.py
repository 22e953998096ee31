"""Faster kernels for a model that trains, where there is a GPU for them; the numbers stay the same to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import is_flash_attn_2_available, is_liger_kernel_available

from concisecli.config import OptimiserConfig
from concisecli.records import ConciseError

# Of Liger's kernels those that replace layers. Its losses stay out: log-probs are ours.
LIGER = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False, "fused_linear_cross_entropy": False}


def use(module: Any, config: OptimiserConfig) -> None:
    """Give `module` the kernels that `config` asks for and this machine has.

    Raises ConciseError for `liger` without a GPU, without the package or for a model that Liger does not know.
    """
    if config.liger:
        _use_liger(module)
    if config.packing != "off":
        use_flash_attention(module, config.backend.dtype)


def use_flash_attention(module: Any, dtype: str) -> None:
    """FlashAttention 2 where it is installed and the arithmetic is bfloat16, the only one here that it knows. It takes
    rows that lie end to end apart by their positions, so that packing pays."""
    if torch.cuda.is_available() and dtype == "bfloat16" and is_flash_attn_2_available():
        module.set_attn_implementation("flash_attention_2")


@contextmanager
def float32_attention(module: Any) -> Iterator[None]:
    """FlashAttention put aside while `module` computes in float32, as an engine may that shares it."""
    chosen = str(module.config.get_text_config()._attn_implementation)
    if "flash" not in chosen:
        yield
        return
    module.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        module.set_attn_implementation(chosen)


def _use_liger(module: Any) -> None:
    """https://github.com/linkedin/Liger-Kernel"""
    if not torch.cuda.is_available():
        raise ConciseError("liger: true needs a CUDA device, and there is none; set liger: false")
    if not is_liger_kernel_available():
        raise ConciseError("liger: true needs Liger's kernels; pip install 'concise[liger]', or set liger: false")
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN, _apply_liger_kernel_to_instance

    kind = module.config.get_text_config().model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ConciseError(f"liger: true, but Liger has no kernels for a model of type '{kind}'; set liger: false")
    _apply_liger_kernel_to_instance(model=module, **LIGER)
