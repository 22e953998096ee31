"""Every objective under every reduction has one gradient: that of its formula, in whatever way it is computed.

The formula is written down here a second time, row by row from full float64 logits. The other side is what the
optimiser got: Adam's first moment, which with beta1 = 0 is the gradient of the step, on torch and under ZeRO alike.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from concisecli import collectives, logprobs, policy
from concisecli.algo.losses import Reduce
from concisecli.backends import make_backend, make_reference
from concisecli.batching import Row
from concisecli.config import DeepSpeedConfig, LossConfig, OptimiserConfig, SftConfig, TorchConfig, TrainConfig
from concisecli.trainer import Trainer
from tests.test_backends import NOTHING_STAYS, in_processes
from tests.test_trainer import LIMIT, TEMPERATURE, a_free_port, apart, examples, rollouts, train_config

LENGTHS = (1, 7, 3, 5, 12, 9)
LEAD = (2.4748267512215016, 2.360860383724158, *[-0.5129512532864676] * 4)  # its advantages do not sum to 0
Gradients = dict[str, dict[str, Tensor]]
REDUCTIONS: tuple[Reduce, ...] = ("token", "sequence", "sequence-sum-norm")
OBJECTIVES = {
    "grpo": LossConfig(),
    "grpo++": LossConfig(eps_high=0.28, entropy_coef=0.01),
    "lgrpo": LossConfig(kl_coef=0.1),
    "lead": LossConfig(),
    "gspo": LossConfig(ratio="sequence"),
}
CASES: dict[str, LossConfig | None] = {
    f"{name}, {reduce}": loss.model_copy(update={"reduce": reduce})
    for name, loss in OBJECTIVES.items()
    for reduce in REDUCTIONS
} | {"sft": None}


@dataclass(frozen=True)
class Way:
    """How rows are cut and laid out. 16 tokens: up to one row each; 40: two to four rows."""

    micro_batch_tokens: int = 10**6
    packed: bool = False
    order: int = 1


WAYS = (Way(), Way(16), Way(40, order=-1), Way(packed=True), Way(40, packed=True, order=-1))


def rows_of(case: str) -> list[Row]:
    if case == "sft":
        return examples()
    rows = rollouts(LENGTHS)
    return [replace(r, advantage=a) for r, a in zip(rows, LEAD, strict=True)] if case.startswith("lead") else rows


# --- the formula ------------------------------------------------------------------------------------------------------


def by_formula(case: str, model: Path, other: Path) -> dict[str, Tensor]:
    """The gradient of the case in float64. Sources of the formulas: see concisecli/algo/losses.py."""
    loss, rows = CASES[case], rows_of(case)
    module, reference = policy.load_model(model).double(), policy.load_model(other).double()
    tokens = sum(row.tokens for row in rows)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logp, entropy = of_row(module, row, 1.0 if loss is None else TEMPERATURE)
        if loss is None:
            total = total - row.weight * logp.sum() / tokens
            continue
        log_ratio = logp - torch.tensor(row.old_logprobs, dtype=torch.float32).double()
        if loss.ratio == "sequence":
            log_ratio = log_ratio.mean().expand_as(log_ratio)
        r, a = log_ratio.exp(), torch.tensor(row.advantage, dtype=torch.float32).double()
        surrogate = torch.minimum(r * a, r.clamp(1 - loss.eps_low, 1 + loss.eps_high) * a)
        denominator = {
            "token": tokens,
            "sequence": len(rows) * row.tokens,
            "sequence-sum-norm": len(rows) * LIMIT,
        }[loss.reduce]
        total = total - surrogate.sum() / denominator - loss.entropy_coef * entropy.sum() / tokens
        if loss.kl_coef:
            d = of_row(reference, row, TEMPERATURE)[0].detach() - logp
            total = total + loss.kl_coef * (d.exp() - d - 1).sum() / tokens
    total.backward()
    return {name: param.grad for name, param in module.named_parameters() if param.grad is not None}


def of_row(module: Any, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the tokens of a row that carry loss."""
    ids, start = torch.tensor([row.prompt_ids + row.response_ids]), len(row.prompt_ids)
    everything = torch.log_softmax(module(input_ids=ids, use_cache=False).logits[0, start - 1 : -1] / temperature, -1)
    mask = torch.tensor(row.loss_mask if row.loss_mask is not None else [True] * len(row.response_ids))
    chosen = everything.gather(1, ids[0, start:, None])[:, 0]
    return chosen[mask], -(everything.exp() * everything).sum(-1)[mask]


# --- what the optimiser got -------------------------------------------------------------------------------------------


class Steps:
    """One backend and a trainer a case. The learning rate is too small to move a weight, so cases do not meet."""

    def __init__(self, backend: TorchConfig | DeepSpeedConfig, model: Path, other: Path) -> None:
        self.config = settings(backend=backend)
        self.backend: Any = make_backend(backend, model, self.config)
        self.reference = make_reference(self.config, other, self.backend)
        self.zero_stage = backend.zero_stage if isinstance(backend, DeepSpeedConfig) else 0

    def gradient(self, case: str, way: Way) -> tuple[dict[str, Tensor], dict[str, float]]:
        loss = CASES[case]
        config: Any = self.config.model_copy(update={"micro_batch_tokens": way.micro_batch_tokens})
        if loss is None:
            shared = {*OptimiserConfig.model_fields, "steps"} - {"backend", "prompt", "adapter", "trackers"}
            config = SftConfig(**config.model_dump(include=shared))
        self.backend.packed = way.packed
        trainer = Trainer(
            self.backend,
            config,
            0,
            loss=loss,
            temperature=TEMPERATURE,
            reference=self.reference if loss and loss.kl_coef else None,
            max_response_tokens=LIMIT,
        )
        rows = rows_of(case)[:: way.order]
        # Ranks bring unequal numbers of rows, and of tokens.
        mine = rows if self.backend.world == 1 else (rows[:1] if self.backend.rank == 0 else rows[1:])
        metrics = trainer.update(mine, 0)
        return {name: self._moment(param) for name, param in self.backend.module.named_parameters()}, metrics

    def _moment(self, param: torch.nn.Parameter) -> Tensor:
        if self.zero_stage == 0:
            optimiser = self.backend.optimiser if hasattr(self.backend, "optimiser") else self.backend.engine.optimizer
            return optimiser.state[param]["exp_avg"].clone()
        from deepspeed.utils import safe_get_full_optimizer_state

        return safe_get_full_optimizer_state(param, "exp_avg").clone()


def settings(**fields: Any) -> TrainConfig:
    return train_config(lr=1e-30, adam_betas=(0.0, 0.9), clip_norm=1e9, **fields)


def check(name: str, expected: Gradients, whole: Gradients, steps: Steps, ways: Sequence[Way]) -> None:
    """`expected` by formula, in float64; `whole` in float32 by torch on one rank, all rows in one micro-batch.
    No entry is off by more than a millionth of the gradient's length."""
    before = {key: weight.clone() for key, weight in steps.backend.named_weights()}
    for case, wanted in expected.items():
        norm = math.sqrt(sum(g.square().sum().item() for g in wanted.values()))
        for way in ways:
            found, metrics = steps.gradient(case, way)
            where = f"{name}: {case}, {way}"
            assert apart(found, whole[case]) < 1e-6 * norm, where
            assert apart(found, wanted) < 1e-6 * norm, where
            assert (metrics["tokens"], metrics["rows"]) == (sum(r.tokens for r in rows_of(case)), len(rows_of(case))), (
                where
            )
            assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5), where
    assert apart(before, dict(steps.backend.named_weights())) < 1e-20


# --- the matrix -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference that is not the policy, or the KL and its gradient would be 0."""
    module = policy.load_model(tiny_model)
    with torch.no_grad():
        for param in module.parameters():
            param.mul_(1.1)
    folder = tmp_path_factory.mktemp("other") / "model"
    policy.save_model(module, policy.load_tokenizer(tiny_model), folder)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model: Path, other_model: Path) -> dict[str, dict[str, Tensor]]:
    found = {case: by_formula(case, tiny_model, other_model) for case in CASES}
    for case, gradient in found.items():
        assert max(g.abs().max().item() for g in gradient.values()) > 1e-2, case
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_the_formula_however_rows_are_cut_laid_out_and_ordered(
    tiny_model: Path, other_model: Path, expected: dict[str, dict[str, Tensor]], case: str
) -> None:
    steps = Steps(TorchConfig(), tiny_model, other_model)
    whole = {case: steps.gradient(case, Way())[0]}
    check("torch", {case: expected[case]}, whole, steps, WAYS)


def test_no_two_cases_share_a_gradient(expected: dict[str, dict[str, Tensor]]) -> None:
    """Or the matrix would not tell them apart."""
    cases = list(expected)
    for i, case in enumerate(cases):
        assert all(apart(expected[case], expected[another]) > 1e-5 for another in cases[:i]), case


def _all_backends(model: Path, out: Path) -> None:
    logprobs.CHUNK_LOGITS["cpu"] = 4 * 300  # four tokens a chunk: ranks have different numbers of chunks
    expected, whole = torch.load(out / "expected.pt")
    backends: dict[str, Any] = {
        f"ZeRO-{stage}": DeepSpeedConfig(zero_stage=stage, dtype="float32", raw=NOTHING_STAYS if stage == 3 else {})  # type: ignore[arg-type]
        for stage in (0, 2, 3)
    }
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        backends["torch"] = TorchConfig()
    for name, backend in backends.items():
        steps = Steps(backend, model, out / "other")
        check(f"{name}, {steps.backend.world} ranks", expected, whole, steps, (Way(40), Way(40, packed=True, order=-1)))
    if collectives.rank() == 0:
        (out / "done").write_text(" ".join(backends))


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_the_gradient_is_that_of_the_formula_on_every_backend_and_number_of_ranks(
    tiny_model: Path, other_model: Path, expected: dict[str, dict[str, Tensor]], tmp_path: Path, world: int
) -> None:
    steps = Steps(TorchConfig(), tiny_model, other_model)
    whole = {case: steps.gradient(case, Way())[0] for case in CASES}
    torch.save((expected, whole), tmp_path / "expected.pt")
    (tmp_path / "other").symlink_to(other_model)
    in_processes(_all_backends, world, a_free_port(), tiny_model, tmp_path)
    assert (tmp_path / "done").read_text().split() == ["ZeRO-0", "ZeRO-2", "ZeRO-3", *(["torch"] if world > 1 else [])]
