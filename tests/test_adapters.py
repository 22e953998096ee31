"""LoRA: the base never changes, engines and files get the merged weights, and only the adapter is stepped and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concisecli import adapters, checkpoints, policy
from concisecli.artifacts import sha256_path
from concisecli.backend_torch import TorchBackend
from concisecli.backends import make_backend, make_reference, sequence_logprobs, write_adapter, write_model
from concisecli.config import AdapterConfig, HfConfig, LossConfig, TorchConfig, TrainConfig
from concisecli.logprobs import sequence_logprobs as logprobs_of
from concisecli.records import ConciseError, Preempted
from concisecli.rollout import make_engine
from concisecli.stages import train
from concisecli.trainer import Trainer
from tests.test_train import stage
from tests.test_trainer import OBJECTIVES, apart, gradient, rollouts, rows_for, train_config, trainer

__all__ = ["stage"]  # a fixture

LORA = AdapterConfig(rank=4, alpha=8)
IDS = [40, 41, 42, 60, 61, 62, 63]


def settings(**fields: Any) -> TrainConfig:
    return train_config(**({"adapter": LORA, "lr": 1e-2, "seed": 3} | fields))


def start(model: Path, loss: LossConfig | None = None, **fields: Any) -> Trainer:
    config = settings(**fields)
    backend = make_backend(TorchConfig(), model, config)
    loss = loss or LossConfig()
    reference = make_reference(config, model, backend) if loss.kl_coef else None
    return Trainer(backend, config, 0, loss=loss, reference=reference)


def weights(made: Trainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in made.backend.named_weights()}


def plain(model: Path) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in policy.load_model(model).named_parameters()}


def test_an_adapter_begins_as_the_model_itself_under_the_models_own_names(tiny_model: Path) -> None:
    made = start(tiny_model)
    assert apart(weights(made), plain(tiny_model)) == 0.0
    trained = [name for name, _ in adapters.trainable(made.backend.module)]
    assert len(trained) == 2 * 2 * 7  # A and B of seven linear layers, twice
    assert all(".lora_" in name for name in trained)


def test_the_base_keeps_its_bits_while_the_merged_weights_are_those_of_the_live_model(tiny_model: Path) -> None:
    made = start(tiny_model, LossConfig(entropy_coef=0.01))
    for step in range(3):
        made.update(rollouts(seed=step), step)
        merged = weights(made)
    base = {
        name.replace(".base_layer.", "."): param.detach()
        for name, param in made.backend.module.named_parameters()
        if ".lora_" not in name
    }
    assert apart(base, plain(tiny_model)) == 0.0
    assert apart(merged, base) > 1e-3
    copy = policy.load_model(tiny_model)
    copy.load_state_dict(merged, strict=False)
    live = sequence_logprobs(made.backend, IDS)
    assert logprobs_of(copy, IDS) == pytest.approx(live, abs=1e-5)
    assert logprobs_of(policy.load_model(tiny_model), IDS) != pytest.approx(live, abs=1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_of_an_adapter_is_that_of_the_weights_through_it(tiny_model: Path, objective: str) -> None:
    """While B is zero the policy is the base, so d/dB = alpha / rank * d/dW A' and d/dA = 0, for every objective."""
    full, _ = gradient(tiny_model, objective, rows_for(objective))
    made = trainer(tiny_model, OBJECTIVES[objective])
    config = made._config.model_copy(update={"adapter": LORA})
    module = policy.load_model(tiny_model)
    adapters.attach(module, LORA, seed=0)
    made.backend = type(made.backend)(TorchConfig(), module, config)
    made.update(rows_for(objective), 0)
    found = made.backend.gradient
    for name, layer in adapters.layers(module).items():
        a = layer.lora_A["default"].weight.detach()
        expected = 8 / 4 * full[f"{name}.weight"] @ a.T
        assert (found[f"{name}.lora_B.default.weight"] - expected).abs().max() < 2e-6
        assert found[f"{name}.lora_A.default.weight"].abs().max() == 0.0
    assert all(".lora_" in name for name in found)


def test_the_reference_is_the_base_and_costs_no_second_model(tiny_model: Path) -> None:
    made = start(tiny_model, LossConfig(kl_coef=0.1))
    first, second = made.update(rollouts(), 0), made.update(rollouts(seed=1), 1)
    assert first["kl"] == 0.0  # the policy still is its reference
    assert second["kl"] > 1e-5
    with adapters.switched_off(made.backend.module):
        assert sequence_logprobs(made.backend, IDS) == pytest.approx(
            logprobs_of(policy.load_model(tiny_model), IDS), abs=1e-6
        )
    assert all(param.requires_grad for _, param in adapters.trainable(made.backend.module))


def test_a_checkpoint_holds_the_adapter_only_and_gives_back_its_bits(tiny_model: Path, tmp_path: Path) -> None:
    straight = start(tiny_model)
    expected = [straight.update(rollouts(seed=step), step) for step in range(3)]
    stopped = start(tiny_model)
    stopped.update(rollouts(seed=0), 0)
    stopped.backend.save(tmp_path, {"step": 1})
    held = torch.load(tmp_path / "torch.pt", weights_only=True)
    assert all(".lora_" in name for name in held["module"])
    resumed = start(tiny_model, seed=4)  # other A matrices, which the checkpoint replaces
    resumed.backend.load(tmp_path)
    assert [resumed.update(rollouts(seed=step), step) for step in (1, 2)] == expected[1:]
    assert apart(weights(resumed), weights(straight)) == 0.0


def test_an_engine_with_weights_of_its_own_gets_the_resumed_ones(tiny_model: Path, tmp_path: Path) -> None:
    stopped = start(tiny_model)
    stopped.update(rollouts(), 0)
    stopped.backend.save(tmp_path, {"step": 1})
    resumed = start(tiny_model)
    resumed.backend.load(tmp_path)
    engine = make_engine(HfConfig(dtype="float32"), tiny_model)
    before = engine.probe(IDS)
    engine.sync_weights(resumed.backend.named_weights())
    assert engine.probe(IDS) == pytest.approx(sequence_logprobs(stopped.backend, IDS), abs=1e-5)
    assert engine.probe(IDS) != pytest.approx(before, abs=1e-3)


def test_the_model_is_written_merged_and_the_adapter_as_pefts_folder(tiny_model: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    made = start(tiny_model)
    made.update(rollouts(), 0)
    write_model(made.backend, policy.load_tokenizer(tiny_model), tmp_path / "model")
    write_adapter(made.backend, tmp_path / "adapter")
    live = sequence_logprobs(made.backend, IDS)
    assert logprobs_of(policy.load_model(tmp_path / "model"), IDS) == pytest.approx(live, abs=1e-5)
    on_base = PeftModel.from_pretrained(policy.load_model(tiny_model), str(tmp_path / "adapter")).eval()
    assert logprobs_of(on_base.base_model.model, IDS) == pytest.approx(live, abs=1e-5)
    told = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], told["base_model_name_or_path"]) == (4, 8.0, None)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("q_projj",), "adapter: .*q_projj.*see adapter.target_modules"),
        (("lm_head",), "adapter: the output embedding is not adapted"),
        (("embed_tokens",), "adapter: model.embed_tokens is no linear layer"),
    ],
)
def test_modules_that_cannot_be_adapted_are_named(tiny_model: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConciseError, match=message):
        adapters.attach(policy.load_model(tiny_model), AdapterConfig(target_modules=names), seed=0)


def test_a_stage_with_an_adapter_samples_trains_resumes_and_writes_both(
    stage: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"adapter": {"rank": 4, "alpha": 8}, "lr": 1e-2, "loss": {"kl_coef": 0.01}}
    whole = stage("whole", **fields)
    assert {"model", "adapter"} <= set(train.run(whole).outputs)
    metrics = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    assert max(m["mismatch_max"] for m in metrics) < 1e-5  # sampled from the live module, adapter and all
    assert metrics[-1]["kl"] > 0
    parts = stage("parts", **fields)
    monkeypatch.setattr(checkpoints, "stop_signal", _stop_after(2))
    with pytest.raises(Preempted):
        train.run(parts)
    monkeypatch.undo()
    train.run(parts)
    for name in ("model", "adapter", "metrics.jsonl", "rollouts"):
        assert sha256_path(whole.folder / name) == sha256_path(parts.folder / name)


def _stop_after(steps: int) -> Any:
    import contextlib
    from itertools import count

    @contextlib.contextmanager
    def asked() -> Any:
        asks = count(1)
        yield lambda: next(asks) >= steps

    return asked


def test_the_backend_of_an_adapter_steps_nothing_else(tiny_model: Path) -> None:
    backend = start(tiny_model).backend
    assert isinstance(backend, TorchBackend)
    stepped = {id(p) for group in backend.optimiser.param_groups for p in group["params"]}
    assert stepped == {id(p) for name, p in backend.module.named_parameters() if ".lora_" in name}
