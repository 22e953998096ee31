from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concisecli import collectives, policy
from concisecli.backends import Backend, make_backend
from concisecli.config import DeepSpeedConfig, LossConfig, TorchConfig, TrainConfig
from concisecli.trainer import NonFiniteError, Trainer
from tests.test_trainer import apart, free_port, overflow, rollouts, train_config

__all__ = ["free_port"]  # a fixture

LENGTHS = (1, 7, 3, 5, 12, 9)
CLIP = 0.05  # below every norm here, so that clipping is part of what is compared


def config(**fields: Any) -> TrainConfig:
    return train_config(clip_norm=CLIP, micro_batch_tokens=20, warmup_steps=2, weight_decay=0.1, **fields)


def start(model: Path, backend: TorchConfig | DeepSpeedConfig) -> Trainer:
    made = make_backend(backend, policy.load_model(model), config(backend=backend))
    return Trainer(made, config(backend=backend), 0, loss=LossConfig(entropy_coef=0.01))


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


def _compare_stages(model: Path, out: Path, stages: tuple[int, ...]) -> None:
    """Each ZeRO stage beside plain torch in the same process (or the same two)."""
    plain = start(model, TorchConfig())
    expected, expected_weights = steps(plain, range(3)), weights(plain.backend)
    found = {}
    for stage in stages:
        sharded = start(model, DeepSpeedConfig(zero_stage=stage, dtype="float32"))  # type: ignore[arg-type]
        metrics = steps(sharded, range(3))
        found[stage] = {
            "apart": {
                name: max(abs(a[name] - b[name]) / max(1, abs(b[name])) for a, b in zip(metrics, expected, strict=True))
                for name in ("loss", "grad_norm", "entropy", "ratio", "lr", "tokens")
            },
            "weights": apart(weights(sharded.backend), expected_weights),
        }
        _stays_put_when_not_finite(sharded)
    _bfloat16_trains(model, stages)
    if collectives.rank() == 0:
        out.write_text(json.dumps(found))


def _stays_put_when_not_finite(trainer: Trainer) -> None:
    before = weights(trainer.backend)
    with overflow(trainer.backend.module), pytest.raises(NonFiniteError, match="gradient"):
        steps(trainer, range(3, 4))
    assert apart(before, weights(trainer.backend)) == 0.0


def _bfloat16_trains(model: Path, stages: tuple[int, ...]) -> None:
    plain = steps(start(model, TorchConfig()), range(2))
    for stage in stages:
        metrics = steps(start(model, DeepSpeedConfig(zero_stage=stage)), range(2))  # type: ignore[arg-type]
        assert metrics[1]["entropy"] == pytest.approx(plain[1]["entropy"], rel=1e-2)
        assert metrics[1]["grad_norm"] == pytest.approx(plain[1]["grad_norm"], rel=0.1)


def _stages_0_and_2(model: Path, out: Path) -> None:
    _compare_stages(model, out, (0, 2))


def _all_stages(model: Path, out: Path) -> None:
    _compare_stages(model, out, (0, 1, 2, 3))


def _check(found: dict[str, Any], stages: tuple[int, ...]) -> None:
    assert sorted(found) == [str(stage) for stage in stages]
    for stage in found.values():
        assert max(stage["apart"].values()) < 1e-6
        assert stage["weights"] < 1e-5  # a hundredth of a step: Adam divides even the smallest gradient by its size


def test_three_steps_on_deepspeed_are_those_on_torch(tiny_model: Path, tmp_path: Path) -> None:
    in_processes(_stages_0_and_2, 1, 0, tiny_model, tmp_path / "found.json")
    _check(json.loads((tmp_path / "found.json").read_text()), (0, 2))


@pytest.mark.slow
def test_every_zero_stage_trains_on_two_ranks_as_torch_does(tiny_model: Path, tmp_path: Path, free_port: int) -> None:
    in_processes(_all_stages, 2, free_port, tiny_model, tmp_path / "found.json")
    _check(json.loads((tmp_path / "found.json").read_text()), (0, 1, 2, 3))


def _resume_every_stage(model: Path, out: Path) -> None:
    for stage in (0, 2, 3):
        settings = DeepSpeedConfig(zero_stage=stage, dtype="bfloat16" if stage == 2 else "float32")  # type: ignore[arg-type]
        straight = start(model, settings)
        expected = steps(straight, range(4))
        stopped = start(model, settings)
        steps(stopped, range(2))
        stopped.backend.save(out / str(stage), {"step": 2})
        resumed = start(model, settings)
        assert resumed.backend.load(out / str(stage)) == {"step": 2}
        assert steps(resumed, range(2, 4)) == expected[2:], stage
        assert apart(weights(straight.backend), weights(resumed.backend)) == 0.0, stage


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_deepspeed_resumes_bit_by_bit(tiny_model: Path, tmp_path: Path, world: int, free_port: int) -> None:
    in_processes(_resume_every_stage, world, free_port, tiny_model, tmp_path)
