"""The gradient must be that of the formula, and depend on nothing but the rows. All in fp32, compared to 1e-6."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concisecli import collectives, logprobs, policy
from concisecli.backend_torch import TorchBackend
from concisecli.backends import FrozenModel
from concisecli.batching import Row, example_row
from concisecli.config import LossConfig, OptimiserConfig, SamplingConfig, SftConfig, TorchConfig, TrainConfig
from concisecli.trainer import NonFiniteError, Trainer, learning_rate

LIMIT = 16
TEMPERATURE = 0.7
LENGTHS = (1, 7, 3, 5)
OBJECTIVES: dict[str, LossConfig | None] = {
    "grpo": LossConfig(),
    "grpo++": LossConfig(eps_high=0.28, entropy_coef=0.01),
    "lgrpo": LossConfig(kl_coef=0.1),
    "lead": LossConfig(reduce="sequence"),
    "dr-grpo": LossConfig(reduce="sequence-sum-norm"),
    "gspo": LossConfig(reduce="sequence", ratio="sequence"),
    "own-old-logprobs": LossConfig(old_logprobs="trainer", entropy_coef=0.01),
    "tis": LossConfig(old_logprobs="trainer", correction="token", correction_cap=1.2),
    "tis-sequence": LossConfig(old_logprobs="trainer", correction="sequence", correction_cap=1.2),
    "sft": None,
}


class Recorded(TorchBackend):
    """The real backend, which also remembers the gradients that its step applied."""

    def step(self) -> float:
        self._total_norm()  # sums over ranks
        self.gradient = {name: p.grad.clone() for name, p in self.module.named_parameters() if p.grad is not None}
        return super().step()


def rollouts(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Row]:
    """Two rollouts a prompt; old log-probs are near a random model's, so ratios lie on both sides of the clip."""
    rng = random.Random(seed)
    return [
        Row(
            prompt_ids=tuple(range(40, 43 + i // 2)),
            response_ids=tuple(rng.randrange(40, 120) for _ in range(n)),
            old_logprobs=tuple(-5.65 + rng.uniform(-0.4, 0.4) for _ in range(n)),
            advantage=rng.choice([-1, 1]) * rng.uniform(0.5, 1.5),
        )
        for i, n in enumerate(lengths)
    ]


def examples() -> list[Row]:
    rng = random.Random(1)
    made = []
    for n in LENGTHS:
        ids = [rng.randrange(40, 120) for _ in range(n + 3)]
        made.append(example_row(ids, [i > 1 and i != 4 for i in range(n + 3)], weight=rng.choice([0.3, 1.0])))
    return made


def train_config(**fields: Any) -> TrainConfig:
    return TrainConfig(**({"steps": 10, "lr": 1e-3, "clip_norm": 100.0} | fields))


def trainer(model: Path, loss: LossConfig | None = None, **fields: Any) -> Trainer:
    """On a fresh copy of the model; the reference is another one, so that the KL is not zero."""
    config = train_config(**fields) if loss else SftConfig(**train_config(**fields).model_dump(include=_SHARED))
    module = policy.load_model(model)
    reference = None
    if loss and loss.kl_coef:
        reference = policy.load_model(model)
        with torch.no_grad():
            for p in reference.parameters():
                p.mul_(1.1)
        reference = FrozenModel(reference, "float32", torch.device("cpu"))
    backend = Recorded(TorchConfig(), module, config)
    made = Trainer(
        backend, config, 0, loss=loss, temperature=TEMPERATURE, reference=reference, max_response_tokens=LIMIT
    )
    return made


_SHARED = {*OptimiserConfig.model_fields, "steps"} - {"backend", "prompt"}


def gradient(model: Path, objective: str, rows: list[Row], **fields: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    made = trainer(model, OBJECTIVES[objective], **fields)
    metrics = made.update(rows, 0)
    return made.backend.gradient, metrics  # type: ignore[attr-defined]


def rows_for(objective: str) -> list[Row]:
    return examples() if objective == "sft" else rollouts()


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


@contextmanager
def overflow(module: Any) -> Iterator[None]:
    """Gradients overflow in the backward pass, behind a loss that is finite."""

    def forward_hook(layer: Any, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:  # it does not in the pass of a reference
            output.register_hook(lambda grad: grad * math.inf)

    handle = module.model.layers[1].mlp.register_forward_hook(forward_hook)
    yield
    handle.remove()


# --- the gradient -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_is_the_same_for_one_two_and_four_micro_batches_in_any_order(
    tiny_model: Path, objective: str
) -> None:
    rows = rows_for(objective)
    whole, whole_metrics = gradient(tiny_model, objective, rows)
    assert max(g.abs().max().item() for g in whole.values()) > 1e-3
    for max_tokens in (20, 1):  # two micro-batches, four
        for order in (rows, rows[::-1], [rows[2], rows[0], rows[3], rows[1]]):
            split, metrics = gradient(tiny_model, objective, order, micro_batch_tokens=max_tokens)
            assert apart(whole, split) < 1e-6
            assert metrics == pytest.approx(whole_metrics, abs=2e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_of_packed_rows_is_that_of_padded_ones(tiny_model: Path, objective: str) -> None:
    rows = rows_for(objective)
    padded, padded_metrics = gradient(tiny_model, objective, rows)
    for max_tokens in (16384, 20, 1):
        packed, metrics = gradient(tiny_model, objective, rows, packing="on", micro_batch_tokens=max_tokens)
        assert apart(padded, packed) < 1e-6
        assert metrics == pytest.approx(padded_metrics, abs=2e-5)


def by_hand(model: Path, rows: list[Row], weight: Any) -> dict[str, Tensor]:
    """The gradient of sum(weight(row) * -log-prob) over the masked tokens, from plain full logits row by row."""
    module = policy.load_model(model)
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.response_ids])
        logits = module(input_ids=ids, use_cache=False).logits / (TEMPERATURE if row.advantage else 1.0)
        start = len(row.prompt_ids)
        logprobs = torch.log_softmax(logits[0, start - 1 : -1], dim=-1)
        chosen = logprobs.gather(1, ids[0, start:, None])[:, 0]
        mask = torch.tensor(row.loss_mask or [True] * len(chosen))
        (-weight(row) * chosen[mask].sum()).backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("reduce", "weight"),
    [
        ("token", lambda row: row.advantage / 16),
        ("sequence", lambda row: row.advantage / (4 * row.tokens)),
        ("sequence-sum-norm", lambda row: row.advantage / (4 * LIMIT)),
    ],
)
def test_on_policy_the_gradient_is_that_of_advantage_times_logprob_over_the_denominator(
    tiny_model: Path, reduce: Any, weight: Any
) -> None:
    made = trainer(tiny_model, LossConfig(reduce=reduce, old_logprobs="trainer"))
    made.update(rollouts(), 0)
    assert apart(made.backend.gradient, by_hand(tiny_model, rollouts(), weight)) < 1e-6  # type: ignore[attr-defined]


def test_micro_token_is_leads_mean_over_each_micro_batch_whatever_was_dropped(tiny_model: Path) -> None:
    """Rows of 7 and 5 tokens in one micro-batch, of 3 and 1 in the other; 8 rows were planned, 4 are left."""
    sizes = {"batch_problems": 1, "sampling": SamplingConfig(group_size=8), "micro_batch_tokens": 20}
    loss = LossConfig(reduce="micro-token", old_logprobs="trainer")
    made = trainer(tiny_model, loss, **sizes)
    made.update(rollouts(), 0)

    def weight(row: Row) -> float:
        return row.advantage * 2 / 8 / (12 if row.tokens in (7, 5) else 4)

    assert apart(made.backend.gradient, by_hand(tiny_model, rollouts(), weight)) < 1e-6  # type: ignore[attr-defined]


def test_the_sft_gradient_is_that_of_the_weighted_mean_over_the_tokens_that_carry_loss(tiny_model: Path) -> None:
    rows = examples()
    tokens = sum(row.tokens for row in rows)
    found, metrics = gradient(tiny_model, "sft", rows)
    assert apart(found, by_hand(tiny_model, rows, lambda row: row.weight / tokens)) < 1e-6
    assert metrics["tokens"] == tokens


def test_tokens_and_rows_without_loss_leave_numerator_and_denominator(tiny_model: Path) -> None:
    rows = rollouts()
    silent = replace(rows[1], loss_mask=(False,) * 7)
    for objective in ("grpo", "lead", "dr-grpo"):
        with_silent, metrics = gradient(tiny_model, objective, [rows[0], silent, rows[2], rows[3]])
        without, _ = gradient(tiny_model, objective, [rows[0], rows[2], rows[3]])
        assert apart(with_silent, without) == 0.0
        assert (metrics["tokens"], metrics["rows"]) == (9, 3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_logits_of_an_update_are_made_once_unless_rows_hang_together(
    tiny_model: Path, objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of 3 tokens, so that every micro-batch has several. The reference makes logits of its own."""
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", {"cpu": 3 * 283})
    made: list[int] = []
    original = logprobs._Head.logits

    def noted(head: Any, piece: slice) -> Tensor:
        logits = original(head, piece)
        made.append(len(logits))
        return logits

    rows = rows_for(objective)
    expected, _ = gradient(tiny_model, objective, rows)
    monkeypatch.setattr(logprobs._Head, "logits", noted)
    found, _ = gradient(tiny_model, objective, rows, micro_batch_tokens=20)
    assert max(made) == 3
    assert sum(made) == (2 if objective in ("lgrpo", "gspo", "tis-sequence") else 1) * sum(row.tokens for row in rows)
    assert apart(expected, found) < 1e-6


# --- what an update is made of ----------------------------------------------------------------------------------------


def test_the_ratio_is_exactly_one_on_the_first_update_with_the_trainers_own_logprobs(tiny_model: Path) -> None:
    metrics = trainer(tiny_model, LossConfig(old_logprobs="trainer"), micro_batch_tokens=20).update(rollouts(), 0)
    assert (metrics["ratio"], metrics["ratio_min"], metrics["ratio_max"]) == (1.0, 1.0, 1.0)
    assert (metrics["clip_low"], metrics["clip_high"], metrics["approx_kl"]) == (0.0, 0.0, 0.0)
    assert 0.1 < metrics["mismatch"] < metrics["mismatch_max"] < 3  # still against the sampler's


def test_the_ratio_is_one_to_rounding_when_the_samplers_logprobs_are_right(tiny_model: Path) -> None:
    made = trainer(tiny_model, LossConfig())
    rows = [row for part in made._scored([rollouts()]) for row in part]
    metrics = made.update(rows, 0)
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["mismatch_max"] < 1e-5


def test_own_logprobs_are_those_of_the_policy_before_the_first_step(tiny_model: Path) -> None:
    """Two minibatches over two epochs: from the second step on the ratio is against the policy that came in."""
    made = trainer(tiny_model, LossConfig(old_logprobs="trainer"), updates_per_batch=2, epochs=2)
    right = [row for part in made._scored([rollouts()]) for row in part]
    other = trainer(tiny_model, LossConfig(), updates_per_batch=2, epochs=2)
    metrics, expected = made.update(rollouts(), 0), other.update(right, 0)
    assert metrics["optimiser_steps"] == 4
    assert metrics["tokens"] == 2 * sum(LENGTHS)
    assert metrics["ratio_max"] > 1.001
    for name in ("loss", "ratio", "ratio_max", "grad_norm", "entropy"):
        assert metrics[name] == pytest.approx(expected[name], abs=1e-5)


def forwards(trainer: Trainer) -> list[int]:
    """Rows of every forward pass of the policy from here on."""
    seen: list[int] = []
    trainer.backend.module.model.register_forward_hook(  # type: ignore[operator, union-attr]
        lambda _, args, kwargs, __: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return seen


def test_one_update_is_one_forward_pass_of_every_row(tiny_model: Path) -> None:
    """No pass for old log-probs before the first step, none of a reference without a KL; one more for each later."""
    for loss in (LossConfig(), LossConfig(old_logprobs="trainer")):
        made = trainer(tiny_model, loss, micro_batch_tokens=20)
        seen = forwards(made)
        made.update(rollouts(), 0)
        assert sum(seen) == 4
    made = trainer(tiny_model, LossConfig(old_logprobs="trainer"), updates_per_batch=2)
    seen = forwards(made)
    made.update(rollouts(), 0)
    assert sum(seen) == 4 + 2  # the second minibatch was scored before the first step


def test_updates_per_batch_makes_that_many_optimiser_steps(tiny_model: Path) -> None:
    split = trainer(tiny_model, LossConfig(), updates_per_batch=2)
    assert split.update(rollouts(), 0)["optimiser_steps"] == 2
    assert split.update(rollouts()[:2], 1)["optimiser_steps"] == 1  # one group: the other minibatch is empty


def test_an_empty_batch_changes_nothing(tiny_model: Path) -> None:
    made = trainer(tiny_model, LossConfig())
    made.update(rollouts(), 0)  # so that AdamW has momentum that a step would apply
    before = {name: p.clone() for name, p in made.backend.named_weights()}
    assert made.update([], 1) == {"tokens": 0.0, "rows": 0.0, "optimiser_steps": 0.0}
    assert apart(before, dict(made.backend.named_weights())) == 0.0


@pytest.mark.parametrize("spoil", ["old_logprobs", "advantage"])
def test_a_loss_that_is_not_finite_stops_before_the_step(tiny_model: Path, spoil: str) -> None:
    rows = rollouts()
    rows[2] = replace(rows[2], **{spoil: math.nan if spoil == "advantage" else (math.nan,) * 3})
    made = trainer(tiny_model, LossConfig(), micro_batch_tokens=1)
    before = {name: p.clone() for name, p in made.backend.named_weights()}
    with pytest.raises(NonFiniteError, match="step 4: the loss is nan"):
        made.update(rows, 4)
    assert apart(before, dict(made.backend.named_weights())) == 0.0


def test_a_gradient_that_is_not_finite_stops_before_the_step(tiny_model: Path) -> None:
    made = trainer(tiny_model, LossConfig())
    before = {name: p.clone() for name, p in made.backend.named_weights()}
    with overflow(made.backend.module), pytest.raises(NonFiniteError, match="step 0: a gradient"):
        made.update(rollouts(), 0)
    assert apart(before, dict(made.backend.named_weights())) == 0.0


def test_a_reference_is_needed_exactly_when_the_kl_is_on(tiny_model: Path) -> None:
    module = policy.load_model(tiny_model)
    backend = TorchBackend(TorchConfig(), module, train_config())
    with pytest.raises(ValueError, match="reference"):
        Trainer(backend, train_config(), 0, loss=LossConfig(kl_coef=0.1))
    with pytest.raises(ValueError, match="reference"):
        Trainer(backend, train_config(), 0, loss=LossConfig(), reference=FrozenModel(module, "float32", backend.device))


def test_sft_learns_a_sentence_by_heart(tiny_model: Path) -> None:
    rows = examples()
    made = trainer(tiny_model, None, lr=3e-3, steps=60)
    losses = [made.update(rows, step)["nll"] for step in range(60)]
    assert losses[0] > 4
    assert losses[-1] < 0.5


# --- the learning rate ------------------------------------------------------------------------------------------------


def test_the_rate_warms_up_and_ends_a_cosine_at_the_floor() -> None:
    config = OptimiserConfig(lr=1.0, warmup_steps=4, schedule="cosine", lr_floor=0.05)
    rates = [learning_rate(config, i, 15) for i in range(15)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.05 + 0.95 / 2)  # half way
    assert rates[14] == pytest.approx(0.05)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate(OptimiserConfig(lr=2.0, warmup_steps=2), 7, 10) == 2.0


def test_the_rate_counts_optimiser_steps_not_batches(tiny_model: Path) -> None:
    made = trainer(tiny_model, LossConfig(), updates_per_batch=2, lr=1.0, warmup_steps=100, steps=100)
    assert made.update(rollouts(), 3)["lr"] == pytest.approx((7 + 8) / 2 / 100)  # the mean of steps 7 and 8


# --- ranks ------------------------------------------------------------------------------------------------------------


def _on_two_ranks(rank: int, port: int, model: Path, out: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    collectives.init()
    found: dict[str, Any] = {}
    for objective in OBJECTIVES:
        rows = rows_for(objective)
        mine = rows[:3] if rank == 0 else rows[3:]
        found[objective] = gradient(model, objective, mine, micro_batch_tokens=20)
    found["one row"] = gradient(model, "grpo", rollouts()[:1] if rank == 1 else [])
    made = trainer(model, LossConfig(), updates_per_batch=2, epochs=2)
    found["minibatches"] = made.update(rollouts()[rank::2], 0)
    spoilt = [replace(rollouts()[0], advantage=math.nan)] if rank == 1 else rollouts()[1:]
    with pytest.raises(NonFiniteError):
        made.update(spoilt, 1)
    assert made.update([], 2)["tokens"] == 0
    weights = dict(made.backend.named_weights())
    torch.save({"found": found, "weights": weights}, out / f"{rank}.pt")
    collectives.close()


@pytest.mark.slow
def test_two_ranks_give_the_gradient_of_one(tiny_model: Path, tmp_path: Path, free_port: int) -> None:
    torch.multiprocessing.spawn(_on_two_ranks, (free_port, tiny_model, tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for objective in OBJECTIVES:
        expected, metrics = gradient(tiny_model, objective, rows_for(objective))
        assert apart(first["found"][objective][0], expected) < 1e-6
        assert apart(first["found"][objective][0], second["found"][objective][0]) == 0.0
        assert first["found"][objective][1] == pytest.approx(metrics, abs=2e-5)
    assert apart(first["found"]["one row"][0], gradient(tiny_model, "grpo", rollouts()[:1])[0]) < 1e-6
    alone = trainer(tiny_model, LossConfig(), updates_per_batch=2, epochs=2).update(rollouts(), 0)
    assert first["found"]["minibatches"] == pytest.approx(alone, abs=2e-5)
    assert apart(first["weights"], second["weights"]) == 0.0


@pytest.fixture
def free_port() -> int:
    return a_free_port()


def a_free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
