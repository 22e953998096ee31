"""Training kernels that need a GPU: packed rows, Liger, and how much of the card a step uses. `make test-gpu`, or
tests/gpu_day.sh on a bare machine with one."""

import math
import time

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import is_flash_attn_2_available, is_liger_kernel_available

from concisecli.backends import make_backend
from concisecli.batching import Row
from concisecli.config import LossConfig, TrainConfig
from concisecli.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def rollouts(count, prompt, response, vocabulary=280):
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        ids = torch.randint(0, vocabulary, (prompt + response - 7 * i % response,), generator=generator).tolist()
        size = len(ids) - prompt
        made.append(Row(tuple(ids[:prompt]), tuple(ids[prompt:]), (-5.0,) * size, advantage=1.0 if i % 2 else -1.0))
    return made


def first_gradient(model, rows, **fields):
    """Of every weight, and the metrics, of the first update."""
    config = TrainConfig(steps=10, lr=1e-6, clip_norm=1e9, micro_batch_tokens=2048, **fields)
    backend = make_backend(config.backend, model, config)
    kept = {}
    stepping = backend.step

    def step():
        kept.update({name: p.grad.clone() for name, p in backend.module.named_parameters()})
        return stepping()

    backend.step = step
    return kept, Trainer(backend, config, 0, loss=LossConfig(entropy_coef=0.01)).update(rows, 0)


def apart(a, b):
    """The largest difference of any two gradients, of the largest entry."""
    return max(((a[name] - b[name]).abs().max() / b[name].abs().max()).item() for name in a)


def test_packed_rows_give_the_gradient_of_padded_ones(tiny_model):
    rows = rollouts(12, 10, 100)
    padded, metrics = first_gradient(tiny_model, rows, packing="off")
    packed, packed_metrics = first_gradient(tiny_model, rows, packing="on")
    assert apart(packed, padded) < 1e-4
    assert packed_metrics["loss"] == pytest.approx(metrics["loss"], abs=1e-5)


def test_flash_attention_over_packed_rows_gives_the_gradient_of_padded_ones(tiny_model):
    if not is_flash_attn_2_available():
        pytest.skip("needs flash-attn")
    rows = rollouts(12, 10, 100)
    bfloat16 = {"backend": {"type": "torch", "dtype": "bfloat16"}}
    padded, metrics = first_gradient(tiny_model, rows, packing="off", **bfloat16)
    packed, packed_metrics = first_gradient(tiny_model, rows, **bfloat16)
    assert apart(packed, padded) < 0.05
    assert packed_metrics["entropy"] == pytest.approx(metrics["entropy"], rel=1e-2)


def test_ligers_kernels_give_the_gradient_of_the_plain_ones(tiny_model):
    if not is_liger_kernel_available():
        pytest.skip("needs liger-kernel")
    rows = rollouts(12, 10, 100)
    plain, metrics = first_gradient(tiny_model, rows)
    fused, fused_metrics = first_gradient(tiny_model, rows, liger=True)
    assert apart(fused, plain) < 1e-3
    assert fused_metrics["loss"] == pytest.approx(metrics["loss"], abs=1e-4)


def test_a_step_of_the_shape_of_a_1_5b_model_and_the_share_of_the_gpus_multiplications(capsys):
    torch.manual_seed(0)
    shape = Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        vocab_size=151936, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("cuda"):
        module = Qwen2ForCausalLM(shape)
    rows = rollouts(32, 128, 1024, vocabulary=shape.vocab_size)
    config = TrainConfig(steps=10, lr=1e-6, micro_batch_tokens=8192, backend={"type": "torch", "dtype": "bfloat16"})
    trainer = Trainer(make_backend(config.backend, module, config), config, 0, loss=LossConfig(entropy_coef=0.01))
    torch.cuda.reset_peak_memory_stats()
    metrics = trainer.update(rows, 0)
    seconds = min(timed(lambda step=step: trainer.update(rows, step)) for step in (1, 2))
    rate = operations(shape, rows) / seconds
    share = rate / multiply_rate()
    tokens = sum(row.length for row in rows)
    with capsys.disabled():
        print(
            f"\n1.5B-shaped step: {seconds:.2f} s, {tokens / seconds:.0f} tokens/s, {rate / 1e12:.0f} TFLOP/s = "
            f"{share:.0%} of this GPU's matrix multiplications, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, "
            f"packed: {trainer.backend.packed}"
        )
    assert math.isfinite(metrics["grad_norm"])
    assert share > 0.1


def timed(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def operations(shape, rows):
    """Of forward and backward, nothing recomputed: six a weight and token, causal attention, the head at response
    positions."""
    width = shape.hidden_size * shape.num_key_value_heads // shape.num_attention_heads
    layer = 2 * shape.hidden_size**2 + 2 * shape.hidden_size * width + 3 * shape.hidden_size * shape.intermediate_size
    attention = sum(6 * shape.hidden_size * row.length**2 for row in rows)
    tokens, responses = sum(row.length for row in rows), sum(row.tokens for row in rows)
    return (
        shape.num_hidden_layers * (6 * layer * tokens + attention)
        + 6 * shape.hidden_size * shape.vocab_size * responses
    )


def multiply_rate():
    """Operations a second of one large product in bfloat16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    timed(lambda: a @ b)
    return 2 * 8192**3 / min(timed(lambda: a @ b) for _ in range(10))
