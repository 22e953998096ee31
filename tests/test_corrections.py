"""Importance weights between sampler and trainer: golden numbers by hand, and what must not depend on the batching."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.corrections import importance_weights, mismatch_metrics, mismatch_sums
from concisecli.algo.losses import merge, policy_loss, row_weights
from concisecli.batching import Row
from concisecli.config import LossConfig
from tests.test_trainer import OBJECTIVES, apart, gradient, rollouts

# Ratios e^0, e^1, e^-1 | e^0.5, e^0.3; the last position of the second row is padding.
LOG_RATIO = torch.tensor([[0.0, 1.0, -1.0], [0.5, 0.3, 99.0]], dtype=torch.float64)
KEEP = torch.tensor([[True, True, True], [True, True, False]])
E = math.e


@pytest.mark.parametrize(
    ("level", "mode", "weights", "keep"),
    [
        ("token", "truncate", [[1, 2, 1 / E], [1.6487212707001282, 1.3498588075760032, 1]], KEEP.tolist()),
        ("token", "mask", [[1, 1, 1], [1.6487212707001282, 1.3498588075760032, 1]], [[1, 0, 0], [1, 1, 0]]),
        # products: e^0 = 1 and e^0.8 = 2.2255, above the cap of 2
        ("sequence", "truncate", [[1, 1, 1], [2, 2, 1]], KEEP.tolist()),
        ("sequence", "mask", [[1, 1, 1], [1, 1, 1]], [[1, 1, 1], [0, 0, 0]]),
    ],
)
def test_weights_and_masks_by_hand(level, mode, weights, keep):
    log_ratio = LOG_RATIO.clone().requires_grad_()
    found, kept = importance_weights(log_ratio, KEEP, level=level, mode=mode, cap=2.0)
    assert torch.allclose(found, torch.tensor(weights, dtype=torch.float64), atol=1e-12)
    assert kept.tolist() == torch.tensor(keep, dtype=torch.bool).tolist()
    assert not found.requires_grad


def test_a_ratio_at_the_cap_itself_stays():
    at_the_cap = torch.tensor([[math.log(2.0), -math.log(2.0)]], dtype=torch.float64)
    _, kept = importance_weights(at_the_cap, torch.ones(1, 2, dtype=torch.bool), level="token", mode="mask", cap=2.0)
    assert kept.all()


def test_the_loss_by_hand_with_truncated_token_weights():
    """Ratio 1, advantages 1 and -1, token mean: -((1 + 2 + 1/e) - (e^0.5 + e^0.3)) / 5 = -0.0738...."""
    weights, _ = importance_weights(LOG_RATIO, KEEP, level="token", mode="truncate", cap=2.0)
    loss, _ = corrected_loss(weights, KEEP, tokens=5)
    assert loss.item() == pytest.approx(-(3 + 1 / E - E**0.5 - E**0.3) / 5, abs=1e-12)


def test_the_loss_by_hand_with_masked_tokens_divides_by_those_that_are_left():
    """Of five tokens three are left: -(1 - (e^0.5 + e^0.3)) / 3."""
    weights, kept = importance_weights(LOG_RATIO, KEEP, level="token", mode="mask", cap=2.0)
    loss, sums = corrected_loss(weights, kept, tokens=3)
    assert loss.item() == pytest.approx(-(1 - E**0.5 - E**0.3) / 3, abs=1e-12)
    assert sums["tokens"].item() == 3


def corrected_loss(weights, keep, *, tokens):
    logprobs = torch.full(LOG_RATIO.shape, -1.0, dtype=torch.float64)
    lengths = keep.sum(-1).double()
    return policy_loss(
        logprobs,
        logprobs,
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        keep,
        row_weights("token", lengths, total_tokens=tokens, total_rows=2, max_response_tokens=8),
        eps_low=0.2,
        eps_high=0.2,
        total_tokens=tokens,
        correction=weights,
    )


def test_the_mismatch_by_hand():
    metrics = mismatch_metrics(mismatch_sums(LOG_RATIO, KEEP))
    assert metrics["mismatch"] == pytest.approx(2.8 / 5)
    assert metrics["mismatch_max"] == 1.0
    assert metrics["mismatch/outside"] == pytest.approx(2 / 5)  # e and 1/e
    k3 = [0, E - 2, 1 / E, E**0.5 - 1.5, E**0.3 - 1.3]
    assert metrics["mismatch/kl"] == pytest.approx(sum(k3) / 5)


def test_the_mismatch_of_parts_is_that_of_the_whole():
    whole = mismatch_metrics(mismatch_sums(LOG_RATIO, KEEP))
    parts = merge(mismatch_sums(LOG_RATIO[i : i + 1], KEEP[i : i + 1]) for i in range(2))
    assert mismatch_metrics(parts) == pytest.approx(whole)


ratios = st.lists(st.floats(-3, 3), min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(ratios, min_size=1, max_size=5), st.floats(1.01, 10), st.sampled_from(["token", "sequence"]))
def test_no_weight_ever_passes_the_cap_and_a_mask_takes_rows_or_tokens(rows, cap, level):
    width = max(map(len, rows))
    log_ratio = torch.tensor([[*row, *[50.0] * (width - len(row))] for row in rows], dtype=torch.float64)
    keep = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    truncated, same = importance_weights(log_ratio, keep, level=level, mode="truncate", cap=cap)
    masked, kept = importance_weights(log_ratio, keep, level=level, mode="mask", cap=cap)
    assert (same == keep).all()
    assert (truncated <= cap * (1 + 1e-12)).all()
    assert (masked <= cap * (1 + 1e-12)).all()
    assert (masked >= (1 - 1e-12) / cap).all()
    assert (kept <= keep).all()
    assert torch.equal(masked[kept], truncated[kept])
    if level == "sequence":
        assert all(row_kept[row_keep].unique().numel() == 1 for row_kept, row_keep in zip(kept, keep, strict=True))


MODES = [
    LossConfig(old_logprobs="trainer", correction=level, correction_mode=mode, correction_cap=1.3, reduce=reduce)
    for level in ("token", "sequence")
    for mode in ("truncate", "mask")
    for reduce in ("token", "sequence")
]


@pytest.mark.parametrize("loss", MODES, ids=lambda loss: f"{loss.correction}-{loss.correction_mode}-{loss.reduce}")
def test_the_corrected_gradient_does_not_depend_on_micro_batches_or_order(tiny_model, loss, monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "corrected", loss)
    rows = near_the_cap(tiny_model)
    whole, metrics = gradient(tiny_model, "corrected", rows)
    small, small_metrics = gradient(tiny_model, "corrected", rows[::-1], micro_batch_tokens=1)
    assert apart(whole, small) < 1e-6 * max(1.0, *(float(g.abs().max()) for g in whole.values()))
    assert metrics == pytest.approx(small_metrics, abs=1e-5)
    if loss.correction_mode == "mask":
        assert 0 < metrics["tokens"] < sum(len(row.response_ids) for row in rows)


def test_masked_tokens_are_as_if_they_carried_no_loss(tiny_model, monkeypatch):
    """Token mask with a cap that only rows of ratio 1 meet: the gradient of those rows alone."""
    loss = LossConfig(old_logprobs="trainer", correction="token", correction_mode="mask", correction_cap=1.01)
    monkeypatch.setitem(OBJECTIVES, "masked", loss)
    rows = exact(tiny_model)
    far = [replace(row, old_logprobs=tuple(x - 1 for x in row.old_logprobs)) for row in rows[2:]]
    masked, metrics = gradient(tiny_model, "masked", [*rows[:2], *far])
    alone, alone_metrics = gradient(tiny_model, "masked", rows[:2])
    assert apart(masked, alone) < 1e-6
    assert metrics["tokens"] == alone_metrics["tokens"]
    assert metrics["mismatch_max"] == pytest.approx(1.0, abs=1e-4)  # measured over all tokens, before the mask


def exact(model) -> list[Row]:
    """Rollouts whose sampler log-probs are the trainer's own."""
    from tests.test_trainer import trainer

    made = trainer(model, LossConfig(old_logprobs="trainer"))
    return made._scored([rollouts()])[0]


def near_the_cap(model) -> list[Row]:
    """Ratios on both sides of 1.3 and of 1/1.3, none so near that rounding could move it over."""
    shifts = (0.0, 0.1, 0.9, -0.1, -0.6)
    return [
        replace(row, old_logprobs=tuple(x - shifts[(i + j) % 5] for j, x in enumerate(row.old_logprobs)))
        for i, row in enumerate(exact(model))
    ]
