from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concisecli import collectives, policy
from concisecli.backends import Backend, make_backend, make_reference
from concisecli.config import AdapterConfig, DeepSpeedConfig, LossConfig, TorchConfig, TrainConfig
from concisecli.records import ConciseError
from concisecli.trainer import NonFiniteError, Trainer
from tests.test_trainer import a_free_port, apart, free_port, overflow, rollouts, train_config

__all__ = ["free_port"]  # a fixture

LENGTHS = (1, 7, 3, 5, 12, 9)
CLIP = 0.05  # below every norm here, so that clipping is part of what is compared


def config(**fields: Any) -> TrainConfig:
    return train_config(clip_norm=CLIP, micro_batch_tokens=20, warmup_steps=2, weight_decay=0.1, **fields)


def start(model: Path, backend: TorchConfig | DeepSpeedConfig, **fields: Any) -> Trainer:
    """A trainer of the model with entropy and, as the reference costs a pass of its own, KL where it is asked for."""
    loss = LossConfig(entropy_coef=0.01, kl_coef=fields.pop("kl_coef", 0.0))
    settings = config(backend=backend, **fields)
    made = make_backend(backend, model, settings)
    reference = make_reference(settings, model, made) if loss.kl_coef else None
    return Trainer(made, settings, 0, loss=loss, reference=reference)


def steps(trainer: Trainer, numbers: range) -> list[dict[str, float]]:
    """Updates on rollouts that follow from the step's number; over ranks, each rank gives every second one."""
    rank, world = collectives.rank(), collectives.world()
    return [trainer.update(rollouts(LENGTHS, seed=step)[rank::world], step) for step in numbers]


def weights(backend: Backend) -> dict[str, Tensor]:
    return {name: weight.float().clone() for name, weight in backend.named_weights()}


# --- plain torch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(tiny_model: Path, tmp_path: Path, dtype: Any) -> None:
    straight = start(tiny_model, TorchConfig(dtype=dtype))
    expected = steps(straight, range(5))
    stopped = start(tiny_model, TorchConfig(dtype=dtype))
    steps(stopped, range(2))
    stopped.backend.save(tmp_path / "checkpoint", {"step": 2, "cursor": [1, 2], "best": 0.1 + 0.2})
    resumed = start(tiny_model, TorchConfig(dtype=dtype))
    assert resumed.backend.load(tmp_path / "checkpoint") == {"step": 2, "cursor": [1, 2], "best": 0.1 + 0.2}
    assert steps(resumed, range(2, 5)) == expected[2:]
    assert apart(weights(straight.backend), weights(resumed.backend)) == 0.0


def test_bfloat16_keeps_fp32_weights_and_stays_near_the_fp32_run(tiny_model: Path) -> None:
    half, full = start(tiny_model, TorchConfig(dtype="bfloat16")), start(tiny_model, TorchConfig())
    first_half, first_full = steps(half, range(1))[0], steps(full, range(1))[0]
    assert {p.dtype for p in half.backend.module.parameters()} == {torch.float32}
    assert first_half["loss"] != first_full["loss"]
    assert first_half["loss"] == pytest.approx(first_full["loss"], rel=0.05)


def test_the_norm_is_that_before_clipping_and_the_step_is_clipped(tiny_model: Path) -> None:
    trainer = start(tiny_model, TorchConfig())
    norm = steps(trainer, range(1))[0]["grad_norm"]
    assert norm > 10 * CLIP
    moments = trainer.backend.optimiser.state.values()  # type: ignore[attr-defined]
    # After one step Adam's first moment is (1 - beta1) times the gradient that was applied.
    applied = math.sqrt(sum((m["exp_avg"] / (1 - 0.9)).square().sum().item() for m in moments))
    assert applied == pytest.approx(CLIP, rel=1e-4)


def test_tied_weights_come_once_and_by_the_names_of_the_model(tiny_model: Path) -> None:
    backend = start(tiny_model, TorchConfig()).backend
    names = [name for name, _ in backend.named_weights()]
    assert names == [name for name, _ in policy.load_model(tiny_model).named_parameters()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_state_that_json_would_change_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    backend = start(tiny_model, TorchConfig()).backend
    for state in ({"cursor": (1, 2)}, {1: "step"}):
        with pytest.raises(TypeError, match="JSON"):
            backend.save(tmp_path, state)  # type: ignore[arg-type]


# --- DeepSpeed, each in a process of its own: its process group and accelerator are global ----------------------------


def _child(rank: int, work: Callable[..., Any], world: int, port: int, model: Path, out: Path) -> None:
    if world > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    torch.set_num_threads(1)
    work(model, out)
    collectives.close()


def in_processes(work: Callable[[Path, Path], None], world: int, port: int, model: Path, out: Path) -> None:
    torch.multiprocessing.spawn(_child, (work, world, port, model, out), nprocs=world)


# Nothing is small enough to stay whole, so that ZeRO-3 gathers every weight, as it does in models of a real size.
NOTHING_STAYS = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


def zero(stage: int, **fields: Any) -> DeepSpeedConfig:
    fields = {"dtype": "float32", "raw": NOTHING_STAYS if stage == 3 else {}} | fields
    return DeepSpeedConfig(zero_stage=stage, **fields)  # type: ignore[arg-type]


LORA = AdapterConfig(rank=4, alpha=8)

# name -> how it differs from plain torch with the same settings
WAYS: dict[str, dict[str, Any]] = {
    "0": {"backend": zero(0)},
    "1": {"backend": zero(1)},
    "2": {"backend": zero(2)},
    "3": {"backend": zero(3)},
    "2, optimiser in host memory": {"backend": zero(2, offload_optimiser="cpu")},
    "3, all in host memory": {"backend": zero(3, offload_optimiser="cpu", offload_params="cpu")},
    "3, loaded whole": {"backend": zero(3, load_sharded=False)},
    "2, recomputing": {"backend": zero(2), "gradient_checkpointing": True},
    "3, recomputing": {"backend": zero(3), "gradient_checkpointing": True},
    "3, with a reference": {"backend": zero(3), "kl_coef": 0.1},
    "2, an adapter": {"backend": zero(2), "kl_coef": 0.1, "adapter": LORA},
    "3, an adapter": {"backend": zero(3), "kl_coef": 0.1, "adapter": LORA},
}


def _compare(model: Path, out: Path, names: Sequence[str], resumed: bool) -> None:
    """Each way beside plain torch in the same process (or the same two): three steps, a checkpoint after the first."""
    found = {}
    for name in names:
        way = WAYS[name]
        plain = start(model, **(way | {"backend": TorchConfig(), "gradient_checkpointing": False}))
        expected, expected_weights = steps(plain, range(3)), weights(plain.backend)
        trainer = start(model, **way)
        metrics = steps(trainer, range(1))
        if resumed:
            trainer.backend.save(out.parent / name, {"step": 1})
        metrics += steps(trainer, range(1, 3))
        found[name] = {
            "apart": {
                key: max(abs(a[key] - b[key]) / max(1, abs(b[key])) for a, b in zip(metrics, expected, strict=True))
                for key in expected[0]
                if key != "mismatch_max"
            },
            "weights": apart(weights(trainer.backend), expected_weights),
        }
        if resumed:
            again = start(model, **way)
            assert again.backend.load(out.parent / name) == {"step": 1}
            assert steps(again, range(1, 3)) == metrics[1:], name
            assert apart(weights(again.backend), weights(trainer.backend)) == 0.0, name
        _stays_put_when_not_finite(trainer)
    if collectives.rank() == 0:
        out.write_text(json.dumps(found))


def _stays_put_when_not_finite(trainer: Trainer) -> None:
    before = weights(trainer.backend)
    with overflow(trainer.backend.module), pytest.raises(NonFiniteError, match="gradient"):
        steps(trainer, range(3, 4))
    assert apart(before, weights(trainer.backend)) == 0.0


def _zero_2(model: Path, out: Path) -> None:
    _compare(model, out, ("2",), resumed=True)


BFLOAT16 = {"2": zero(2, dtype="bfloat16"), "0, autocast": zero(0, dtype="bfloat16")}


def _bfloat16_resumed(model: Path, out: Path) -> None:
    for name, backend in BFLOAT16.items():
        straight = start(model, backend)
        kept = torch.bfloat16 if backend.zero_stage else torch.float32
        assert {p.dtype for p in straight.backend.module.parameters()} == {kept}, name
        expected = steps(straight, range(2))
        straight.backend.save(out / name, {"step": 2})
        expected += steps(straight, range(2, 5))
        resumed = start(model, backend)
        assert resumed.backend.load(out / name) == {"step": 2}
        assert steps(resumed, range(2, 5)) == expected[2:], name
        assert apart(weights(resumed.backend), weights(straight.backend)) == 0.0, name
        assert apart(masters(resumed.backend), masters(straight.backend)) == 0.0, name
    (out / "done").write_text(" ".join(BFLOAT16))


def masters(backend: Any) -> dict[str, Tensor]:
    """The float32 weights that are stepped, and Adam's two moments."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found = {}
    for name, param in backend.module.named_parameters():
        if not backend.engine.zero_optimization():
            held = backend.engine.optimizer.state[param]
            found |= {f"{name} {key}": held[key] for key in ("exp_avg", "exp_avg_sq")} | {name: param.detach()}
            continue
        found[name] = safe_get_full_fp32_param(param)
        for key in ("exp_avg", "exp_avg_sq"):
            found[f"{name} {key}"] = safe_get_full_optimizer_state(param, key)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    return {name: tensor.clone() for name, tensor in found.items()}


def _every_way(model: Path, out: Path) -> None:
    _compare(model, out, tuple(WAYS), resumed=True)


def _check(found: dict[str, Any]) -> None:
    for name, way in found.items():
        assert max(way["apart"].values()) < 2e-6, name
        assert way["weights"] < 1e-5, name  # a hundredth of a step: Adam divides even the smallest gradient by its size


def test_three_steps_on_zero_2_are_those_on_torch_also_after_a_resume(tiny_model: Path, tmp_path: Path) -> None:
    in_processes(_zero_2, 1, 0, tiny_model, tmp_path / "found.json")
    _check(json.loads((tmp_path / "found.json").read_text()))


@pytest.mark.slow
def test_bfloat16_on_deepspeed_keeps_fp32_masters_and_resumes_bit_by_bit(tiny_model: Path, tmp_path: Path) -> None:
    in_processes(_bfloat16_resumed, 1, 0, tiny_model, tmp_path)
    assert (tmp_path / "done").exists()


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_every_way_to_use_deepspeed_trains_as_torch_does_and_resumes_bit_by_bit(
    tiny_model: Path, tmp_path: Path, world: int, free_port: int
) -> None:
    in_processes(_every_way, world, free_port, tiny_model, tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() == WAYS.keys()
    _check(found)


RESHAPED = {"0": zero(0), "1": zero(1), "2": zero(2), "3": zero(3), "2, bf16": zero(2, dtype="bfloat16")}


def _two_steps_then_save(model: Path, out: Path) -> None:
    for name, backend in RESHAPED.items():
        trainer = start(model, backend)
        steps(trainer, range(2))
        trainer.backend.save(out / name, {"step": 2, "world": collectives.world()})


def _load_and_two_more(model: Path, out: Path) -> None:
    found = {}
    for name, backend in RESHAPED.items():
        trainer = start(model, backend)
        assert trainer.backend.load(out / name)["step"] == 2
        more = steps(trainer, range(2, 4))
        straight = start(model, backend)
        expected = steps(straight, range(4))
        found[name] = {
            "weights": apart(weights(trainer.backend), weights(straight.backend)),
            "loss": max(abs(a["loss"] - b["loss"]) for a, b in zip(more, expected[2:], strict=True)),
            "grad_norm": max(abs(a["grad_norm"] - b["grad_norm"]) for a, b in zip(more, expected[2:], strict=True)),
        }
        assert not [*(out / name).glob("*universal*")]  # what was made to load it is gone
    if collectives.rank() == 0:
        (out / "found.json").write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize(("saved_by", "loaded_by"), [(2, 1), (1, 2)])
def test_a_checkpoint_is_taken_up_by_another_number_of_processes(
    tiny_model: Path, tmp_path: Path, saved_by: int, loaded_by: int
) -> None:
    """As good as bit by bit: ranks add gradients in another order, and Adam divides the smallest by their size."""
    in_processes(_two_steps_then_save, saved_by, a_free_port(), tiny_model, tmp_path)
    in_processes(_load_and_two_more, loaded_by, a_free_port(), tiny_model, tmp_path)
    for name, gap in json.loads((tmp_path / "found.json").read_text()).items():
        tolerance = 1e-2 if "bf16" in name else 1e-5
        assert max(gap.values()) < tolerance, name


def _load_broken(model: Path, out: Path) -> None:
    trainer = start(model, zero(2))
    with pytest.raises(
        ConciseError, match=r"made by 2 processes and cannot be converted for 1 .* go on with 2 processes"
    ):
        trainer.backend.load(out)


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_converted_says_who_made_it(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "state.json").write_text('{"world": 2}')
    in_processes(_load_broken, 1, 0, tiny_model, tmp_path)
