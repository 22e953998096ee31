from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from concisecli.algo.losses import (
    Sums,
    clipped_surrogate,
    k3_kl,
    log_ratios,
    merge,
    policy_loss,
    row_weights,
    sft_nll,
    summary,
)

REDUCES = ["token", "sequence", "sequence-sum-norm"]
DAPO = {"eps_low": 0.2, "eps_high": 0.28}


def close(got: Tensor, expected: object, atol: float = 1e-14) -> None:
    torch.testing.assert_close(got.detach(), torch.as_tensor(expected, dtype=got.dtype), rtol=1e-12, atol=atol)


def mask_of(lengths: Sequence[int], width: int | None = None) -> Tensor:
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def weights_of(reduce: str, mask: Tensor, budget: int) -> Tensor:
    lengths = mask.sum(-1)
    return row_weights(
        reduce,  # type: ignore[arg-type]
        lengths.double(),
        total_tokens=int(lengths.sum()),
        total_rows=int((lengths > 0).sum()),
        max_response_tokens=budget,
    )


# --- the pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "up", "down", "symmetric_up", "symmetric_down"),
    [
        (0.5, 0.5, -0.8, 0.5, -0.8),
        (0.79, 0.79, -0.8, 0.79, -0.8),
        (0.81, 0.81, -0.81, 0.81, -0.81),
        (1.0, 1.0, -1.0, 1.0, -1.0),
        (1.25, 1.25, -1.25, 1.2, -1.25),
        (1.28, 1.28, -1.28, 1.2, -1.28),
        (1.3, 1.28, -1.3, 1.2, -1.3),
        (1.5, 1.28, -1.5, 1.2, -1.5),
        (2.0, 1.28, -2.0, 1.2, -2.0),
        (5.0, 1.28, -5.0, 1.2, -5.0),
    ],
)
def test_the_surrogate_is_clipped_higher_above_than_below(
    ratio: float, up: float, down: float, symmetric_up: float, symmetric_down: float
) -> None:
    ratios, advantages = torch.full((2,), ratio, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    close(clipped_surrogate(ratios, advantages, eps_low=0.2, eps_high=0.28), [up, down])
    close(clipped_surrogate(ratios, advantages, eps_low=0.2, eps_high=0.2), [symmetric_up, symmetric_down])


def test_micro_token_is_the_mean_over_each_micro_batch_times_its_share_of_the_planned_rows() -> None:
    """Eight rows were planned; groups were dropped, and two micro-batches of 12 and 4 tokens are left."""

    def weights(*lengths: int) -> Tensor:
        counts = torch.tensor(lengths)
        return row_weights("micro-token", counts, total_tokens=99, total_rows=8, max_response_tokens=99)

    close(weights(7, 5), [2 / 8 / 12] * 2, atol=1e-8)
    close(weights(3, 1), [2 / 8 / 4] * 2, atol=1e-8)
    close(weights(3, 0, 1), [2 / 8 / 4] * 3, atol=1e-8)  # a row that trains nothing counts for nothing
    close(weights(0), [0.0])


@pytest.mark.parametrize(
    ("d", "kl"),
    [
        (0.1, 0.005170918075647624),
        (-0.1, 0.004837418035959606),
        (1.0, 0.7182818284590451),
        (-1.0, 0.36787944117144233),
        (math.log(0.5), 0.1931471805599453),
        (0.0, 0.0),
    ],
)
def test_k3_estimates_the_divergence_from_the_reference(d: float, kl: float) -> None:
    logprobs = torch.tensor([-2.0], dtype=torch.float64)
    close(k3_kl(logprobs, logprobs + d), [kl], atol=1e-15)


def test_the_sequence_ratio_is_length_normalised() -> None:
    differences = torch.tensor([[0.1, -0.05, 0.2, 9.0]], dtype=torch.float64)
    keep = mask_of([3], 4)
    logs = log_ratios(differences, torch.zeros_like(differences), keep, ratio="sequence")
    close(logs.exp(), [[1.086904049521229] * 3 + [1.0]])
    tokens = log_ratios(differences, torch.zeros_like(differences), keep, ratio="token")
    close(tokens.sum().exp(), 1.2840254166877414)


# --- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduce", "loss", "short", "long"),
    [
        ("token", 0.6, -0.1, 0.1),  # -(2 - 8) / 10
        ("sequence", 0.0, -0.25, 0.0625),  # -(1 - 1) / 2
        ("sequence-sum-norm", 0.3, -0.05, 0.05),  # -(2 - 8) / (2 * 10)
    ],
)
def test_reductions_by_hand_for_a_right_short_and_a_wrong_long_rollout(
    reduce: str, loss: float, short: float, long: float
) -> None:
    mask = mask_of([2, 8])
    logprobs = torch.full((2, 8), -0.5, dtype=torch.float64, requires_grad=True)
    total, _ = policy_loss(
        logprobs,
        logprobs.detach(),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        mask,
        weights_of(reduce, mask, 10),
        total_tokens=10,
        **DAPO,
    )
    total.backward()
    close(total, loss)
    assert logprobs.grad is not None
    close(logprobs.grad, [[short] * 2 + [0.0] * 6, [long] * 8])


@pytest.mark.parametrize(("reduce", "mean"), [("token", 1.4), ("sequence", 2.0)])
def test_means_over_tokens_and_over_sequences_differ(reduce: str, mean: float) -> None:
    mask = mask_of([4, 1])
    logprobs = -torch.tensor([[1.0, 1, 1, 1], [3, 0, 0, 0]], dtype=torch.float64)
    close(sft_nll(logprobs, mask, weights_of(reduce, mask, 4))[0], mean)


@pytest.mark.parametrize("reduce", REDUCES)
def test_a_masked_row_leaves_numerator_and_denominator_alike(reduce: str) -> None:
    mask = mask_of([4, 0], 4)
    logprobs = torch.zeros((2, 4), dtype=torch.float64)
    advantages = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    loss, _ = policy_loss(logprobs, logprobs, advantages, mask, weights_of(reduce, mask, 4), total_tokens=4, **DAPO)
    close(loss, 1.0)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_a_batch_masked_whole_loses_nothing_and_pulls_nowhere(reduce: str, ratio: str) -> None:
    mask = mask_of([0, 0], 4)
    logprobs = torch.randn((2, 4), dtype=torch.float64, requires_grad=True)
    loss, sums = policy_loss(
        logprobs,
        torch.zeros(2, 4, dtype=torch.float64),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        mask,
        weights_of(reduce, mask, 4),
        total_tokens=0,
        ratio=ratio,  # type: ignore[arg-type]
        kl_coef=0.1,
        ref_logprobs=torch.zeros(2, 4, dtype=torch.float64),
        entropy_coef=0.1,
        entropy=logprobs.square(),
        **DAPO,
    )
    loss.backward()
    assert bool(torch.isfinite(weights_of(reduce, mask, 4)).all())
    assert loss.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0] * 4] * 2
    assert all(math.isfinite(value) for value in summary(sums).values())


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_what_stands_in_the_padding_is_never_looked_at(garbage: float, ratio: str) -> None:
    def run(padding: float) -> tuple[Tensor, Tensor]:
        logprobs = torch.tensor([[-1.0, -0.5, padding], [-0.2, padding, padding]], dtype=torch.float64)
        logprobs.requires_grad_()
        mask = mask_of([2, 1], 3)
        loss, _ = policy_loss(
            logprobs,
            torch.tensor([[-1.1, -0.7, padding], [-0.1, padding, padding]], dtype=torch.float64),
            torch.tensor([1.0, -1.0], dtype=torch.float64),
            mask,
            weights_of("sequence", mask, 3),
            total_tokens=3,
            ratio=ratio,  # type: ignore[arg-type]
            kl_coef=0.1,
            ref_logprobs=torch.full((2, 3), padding, dtype=torch.float64).where(~mask, torch.tensor(-1.0).double()),
            entropy_coef=0.1,
            entropy=logprobs * 0.5,
            **DAPO,
        )
        loss.backward()
        assert logprobs.grad is not None
        return loss, logprobs.grad

    clean, dirty = run(0.0), run(garbage)
    assert dirty[0].item() == clean[0].item()
    assert torch.equal(dirty[1], clean[1])


def test_a_ratio_that_overflows_keeps_a_finite_gradient() -> None:
    logprobs = torch.tensor([[0.0, 0.0]], requires_grad=True)
    mask = mask_of([2])
    loss, _ = policy_loss(
        logprobs, torch.tensor([[-200.0, -1.0]]), torch.tensor([1.0]), mask, torch.tensor([0.5]), total_tokens=2, **DAPO
    )
    loss.backward()
    assert logprobs.grad is not None
    assert bool(torch.isfinite(logprobs.grad).all())


# --- micro-batches ----------------------------------------------------------------------------------------------------

LENGTHS = [1, 7, 3, 5]
VOCABULARY = 11


def losses_of_a_small_policy(
    parts: list[list[int]], reduce: str, ratio: str, **coefficients: float
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Loss, gradient and metrics of one batch of four rollouts taken in the micro-batches `parts`."""
    make = torch.Generator().manual_seed(3)
    table = torch.randn(VOCABULARY, VOCABULARY, generator=make, dtype=torch.float64)
    tokens = torch.randint(VOCABULARY, (4, 8), generator=make)
    old = torch.randn(4, 7, generator=make, dtype=torch.float64) * 0.2
    reference = torch.randn(4, 7, generator=make, dtype=torch.float64) * 0.2
    advantages = torch.tensor([1.5, -0.5, 0.7, -1.2], dtype=torch.float64)
    table.requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    sums: list[Sums] = []
    for rows in parts:
        width = max(LENGTHS[row] for row in rows)
        logits = table[tokens[rows, :width]].log_softmax(-1)
        logprobs = logits.gather(-1, tokens[rows, 1 : width + 1, None])[..., 0]
        mask = mask_of([LENGTHS[row] for row in rows], width)
        weights = row_weights(
            reduce,  # type: ignore[arg-type]
            mask.sum(-1).double(),
            total_tokens=sum(LENGTHS),
            total_rows=len(LENGTHS),
            max_response_tokens=8,
        )
        loss, part = policy_loss(
            logprobs,
            logprobs.detach() + old[rows, :width],
            advantages[rows],
            mask,
            weights,
            total_tokens=sum(LENGTHS),
            ratio=ratio,  # type: ignore[arg-type]
            ref_logprobs=logprobs.detach() + reference[rows, :width],
            entropy=-(logits.exp() * logits).sum(-1),
            **DAPO,
            **coefficients,
        )
        loss.backward()
        total += loss.detach()
        sums.append(part)
    assert table.grad is not None
    return total, table.grad, summary(merge(sums))


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[3, 1], [0, 2]], [[2, 0, 3], [1]], [[3, 2, 1, 0]]])
def test_loss_gradient_and_metrics_do_not_depend_on_the_micro_batches(
    reduce: str, ratio: str, parts: list[list[int]]
) -> None:
    coefficients = {"kl_coef": 0.3, "entropy_coef": 0.05}
    whole, whole_gradient, whole_metrics = losses_of_a_small_policy([[0, 1, 2, 3]], reduce, ratio, **coefficients)
    loss, gradient, metrics = losses_of_a_small_policy(parts, reduce, ratio, **coefficients)
    close(loss, whole)
    close(gradient, whole_gradient)
    assert metrics == pytest.approx(whole_metrics, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("reduce", REDUCES)
def test_the_loss_of_examples_adds_up_over_micro_batches_too(reduce: str) -> None:
    logprobs = -torch.rand(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = mask_of(LENGTHS)
    weights = weights_of(reduce, mask, 8) * torch.tensor([1.0, 0.3, 1.0, 0.3])
    whole, sums = sft_nll(logprobs, mask, weights)
    parts = [sft_nll(logprobs[rows], mask[rows], weights[rows]) for rows in ([2], [0, 3], [1])]
    close(whole, sum(float(loss) for loss, _ in parts))
    assert summary(merge([s for _, s in parts])) == pytest.approx(summary(sums))
    assert summary(sums)["nll"] == pytest.approx(float(-logprobs[mask].mean()))


def test_entropy_and_kl_leave_the_policy_term_as_it_is() -> None:
    _, plain, metrics = losses_of_a_small_policy([[0, 1, 2, 3]], "sequence", "token")
    _, pulled, pulled_metrics = losses_of_a_small_policy(
        [[0, 1, 2, 3]], "sequence", "token", kl_coef=0.3, entropy_coef=0.05
    )
    assert pulled_metrics["policy_loss"] == metrics["policy_loss"]
    expected = metrics["policy_loss"] + 0.3 * metrics["kl"] - 0.05 * metrics["entropy"]
    assert pulled_metrics["loss"] == pytest.approx(expected)
    assert metrics["loss"] == metrics["policy_loss"]
    assert not torch.equal(plain, pulled)


def test_the_entropy_bonus_raises_entropy_and_kl_pulls_to_the_reference() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1, keepdim=True)
    chosen, mask, one = logprobs[:, :1], mask_of([1]), torch.ones(1, dtype=torch.float64)
    still = {"old_logprobs": chosen.detach(), "advantages": 0 * one, "mask": mask, "weights": one, "total_tokens": 1}
    loss, _ = policy_loss(chosen, **still, **DAPO, entropy_coef=1.0, entropy=entropy)  # type: ignore[arg-type]
    (uphill,) = torch.autograd.grad(loss, logits, retain_graph=True)
    lower = logits - 0.1 * uphill
    assert -(lower.softmax(-1) * lower.log_softmax(-1)).sum() > entropy.sum()

    loss, _ = policy_loss(chosen, **still, **DAPO, kl_coef=1.0, ref_logprobs=chosen.detach() + 0.5)  # type: ignore[arg-type]
    (pull,) = torch.autograd.grad(loss, logits)
    assert pull[0, 0] < 0  # the reference likes the token better, so descent raises its logit


def test_a_coefficient_without_its_tensor_is_refused() -> None:
    one = torch.zeros(1, 1)
    args = (one, one, torch.ones(1), mask_of([1]), torch.ones(1))
    with pytest.raises(ValueError, match="ref_logprobs"):
        policy_loss(*args, total_tokens=1, kl_coef=0.1, **DAPO)
    with pytest.raises(ValueError, match="entropy"):
        policy_loss(*args, total_tokens=1, entropy_coef=0.1, **DAPO)


# --- the clip and the ratio -------------------------------------------------------------------------------------------


def test_clipped_tokens_have_no_gradient_and_are_counted_by_side() -> None:
    log_ratio = torch.tensor([[1.5, 1.1, 0.5, 9.9], [1.5, 0.9, 0.5, 0.7]], dtype=torch.float64).log().requires_grad_()
    mask = mask_of([3, 4])
    loss, sums = policy_loss(
        log_ratio,
        torch.zeros(2, 4, dtype=torch.float64),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        mask,
        weights_of("token", mask, 4),
        total_tokens=7,
        **DAPO,
    )
    loss.backward()
    assert log_ratio.grad is not None
    close(log_ratio.grad * 7, [[0.0, -1.1, -0.5, 0.0], [1.5, 0.9, 0.0, 0.0]])
    metrics = summary(sums)
    assert metrics["clip_high"] == pytest.approx(1 / 7)
    assert metrics["clip_low"] == pytest.approx(2 / 7)
    assert metrics["ratio_min"] == pytest.approx(0.5)
    assert metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["ratio"] == pytest.approx((1.5 + 1.1 + 0.5 + 1.5 + 0.9 + 0.5 + 0.7) / 7)


def test_the_sequence_ratio_reaches_every_token_of_the_row_alike() -> None:
    log_ratio = torch.tensor([[0.1, -0.05, 0.2]], dtype=torch.float64, requires_grad=True)
    mask, advantage = mask_of([3]), torch.tensor([2.0], dtype=torch.float64)
    loss, _ = policy_loss(
        log_ratio,
        torch.zeros(1, 3, dtype=torch.float64),
        advantage,
        mask,
        weights_of("sequence", mask, 3),
        total_tokens=3,
        ratio="sequence",
        **DAPO,
    )
    loss.backward()
    s = 1.086904049521229
    close(loss, -2 * s)
    assert log_ratio.grad is not None
    close(log_ratio.grad, [[-2 * s / 3] * 3])


def test_at_the_old_policy_the_ratio_is_one_and_nothing_is_clipped() -> None:
    logprobs = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    mask = mask_of([5, 2, 4])
    _, sums = policy_loss(
        logprobs, logprobs, torch.tensor([1.0, -1.0, 0.0]), mask, torch.ones(3), total_tokens=11, **DAPO
    )
    metrics = summary(sums)
    assert (metrics["ratio_min"], metrics["ratio_max"], metrics["approx_kl"]) == (1.0, 1.0, 0.0)
    assert (metrics["clip_low"], metrics["clip_high"]) == (0.0, 0.0)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="mean-of-means"):
        row_weights("mean-of-means", torch.ones(1), total_tokens=1, total_rows=1, max_response_tokens=1)  # type: ignore[arg-type]


def test_a_kept_group_without_signal_dilutes_the_mean_and_is_pulled_by_kl() -> None:
    logprobs = torch.full((2, 4), -1.0, dtype=torch.float64)

    def loss(rows: list[int]) -> float:
        mask = mask_of([4] * len(rows))
        total, _ = policy_loss(
            logprobs[rows],
            logprobs[rows],
            torch.tensor([-1.0, 0.0], dtype=torch.float64)[rows],
            mask,
            weights_of("token", mask, 4),
            total_tokens=4 * len(rows),
            kl_coef=1.0,
            ref_logprobs=(logprobs + torch.tensor([[0.0], [1.0]]))[rows],
            **DAPO,
        )
        return total.item()

    assert loss([0]) == pytest.approx(1.0)  # advantage.keep: nonzero
    assert loss([0, 1]) == pytest.approx((4 * 1.0 + 4 * (math.e - 2)) / 8)  # advantage.keep: all
