"""Log-probs, entropies and their gradients without full logits, against full logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from concisecli import logprobs as logprobs_module
from concisecli import policy
from concisecli.logprobs import packs, sequence_logprobs, token_logprobs


@pytest.fixture
def module(tiny_model: Path) -> Any:
    return policy.load_model(tiny_model)


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three rows of 12, 9 and 5 tokens padded on the right; responses start at 4, 2 and 4."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (3, 12), generator=generator)
    attention, response = torch.zeros(3, 12, dtype=torch.long), torch.zeros(3, 12, dtype=torch.long)
    for row, (start, end) in enumerate([(4, 12), (2, 9), (4, 5)]):
        attention[row, :end] = 1
        response[row, start:end] = 1
    return ids, attention, response


def full_path(module: Any, ids: torch.Tensor, attention: torch.Tensor, t: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies [B, T] through the model's own full logits and the mask as given."""
    logits = module(input_ids=ids, attention_mask=attention).logits[:, :-1].float() / t
    everything = torch.log_softmax(logits, -1)
    taken = everything.gather(-1, ids[:, 1:, None])[..., 0]
    entropy = -(everything.exp() * everything).sum(-1)
    pad = torch.zeros(len(ids), 1)
    return torch.cat([pad, taken], 1), torch.cat([pad, entropy], 1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [None, 1, 5, 100])
def test_chunked_logprobs_and_entropy_equal_the_full_path(module: Any, temperature: float, chunk: int | None) -> None:
    ids, attention, response = batch()
    logprobs, entropy = token_logprobs(
        module, ids, attention, response, temperature=temperature, chunk=chunk, with_entropy=True
    )
    expected, expected_entropy = full_path(module, ids, attention, temperature)
    assert (logprobs - expected * response).abs().max() < 1e-5
    assert entropy is not None
    assert (entropy - expected_entropy * response).abs().max() < 1e-5


@pytest.mark.parametrize("chunk", [None, 1, 5])
def test_chunked_gradients_equal_those_of_the_full_path(module: Any, chunk: int | None) -> None:
    ids, attention, response = batch()
    weight = torch.linspace(-1, 1, ids.numel()).view_as(ids) * response

    def gradients(logprobs: torch.Tensor, entropy: torch.Tensor) -> list[torch.Tensor]:
        module.zero_grad()
        (weight * logprobs + 0.3 * response * entropy).sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    logprobs, entropy = token_logprobs(
        module, ids, attention, response, temperature=0.7, chunk=chunk, with_entropy=True
    )
    assert entropy is not None
    ours = gradients(logprobs, entropy)
    for found, expected in zip(ours, gradients(*full_path(module, ids, attention, 0.7)), strict=True):
        assert (found - expected).abs().max() < 1e-5 * (1 + expected.abs().max())


def test_the_logprobs_of_one_sequence_come_without_dropout_and_leave_the_mode_alone(module: Any) -> None:
    ids = [20, 30, 40, 50]
    expected, _ = full_path(module, torch.tensor([ids]), torch.ones(1, 4, dtype=torch.long), 1.0)
    for layer in module.model.layers:
        layer.self_attn.attention_dropout = 0.5
    module.train()
    assert sequence_logprobs(module, ids) == pytest.approx(expected[0, 1:].tolist(), abs=1e-5)
    assert module.training


def test_entropy_is_left_out_unless_asked_for(module: Any) -> None:
    assert token_logprobs(module, *batch())[1] is None


def test_what_stands_in_the_padding_changes_nothing(module: Any) -> None:
    ids, attention, response = batch()
    other = torch.where(attention.bool(), ids, 99)
    assert torch.equal(
        token_logprobs(module, ids, attention, response)[0],
        token_logprobs(module, other, attention, response)[0],
    )


def test_padding_on_the_left_is_masked_too(module: Any) -> None:
    ids, attention, response = (x[1:2, :9] for x in batch())
    padded = [torch.cat([torch.full((1, 3), fill), x], 1) for fill, x in ((7, ids), (0, attention), (0, response))]
    left, _ = token_logprobs(module, *padded)
    alone, _ = token_logprobs(module, ids, attention, response)
    assert (left[:, 3:] - alone).abs().max() < 1e-5


def gradients_of(module: Any, weight: torch.Tensor, response: torch.Tensor, **settings: Any) -> list[torch.Tensor]:
    """Of sum(weight * log-prob) + 0.3 * sum(entropy) over batch()."""
    module.zero_grad()
    ids, attention, _ = batch()
    logprobs, entropy = token_logprobs(module, ids, attention, response, temperature=0.7, with_entropy=True, **settings)
    assert entropy is not None
    (weight * logprobs + 0.3 * response * entropy).sum().backward()
    return [p.grad.clone() for p in module.parameters()]


@pytest.fixture
def made_logits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens' logits were made, call by call."""
    sizes: list[int] = []
    original = logprobs_module._Head.logits

    def noted(head: Any, piece: slice) -> torch.Tensor:
        made = original(head, piece)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(logprobs_module._Head, "logits", noted)
    return sizes


def test_only_response_positions_reach_the_head_and_never_more_than_a_chunk(
    module: Any, made_logits: list[int]
) -> None:
    with torch.no_grad():
        token_logprobs(module, *batch(), chunk=5)
    assert made_logits == [5, 5, 5, 1]


def test_logits_of_many_chunks_are_made_again_in_the_backward_pass_and_those_of_one_are_kept(
    module: Any, made_logits: list[int]
) -> None:
    token_logprobs(module, *batch(), chunk=5)[0].sum().backward()
    assert made_logits == 2 * [5, 5, 5, 1]
    made_logits.clear()
    token_logprobs(module, *batch(), chunk=16)[0].sum().backward()
    assert made_logits == [16]


@pytest.mark.parametrize("factor", [1.0, 2.0, -0.25])
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_slopes_that_were_foretold_up_to_a_factor_save_the_second_look_and_change_no_gradient(
    module: Any, made_logits: list[int], factor: float, chunk: int
) -> None:
    _, _, response = batch()
    weight = torch.linspace(-1, 1, response.numel()).view_as(response) * response

    def slopes(logprobs: torch.Tensor, entropy: Any, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return weight.flatten()[places] / factor, torch.full_like(logprobs, 0.3 / factor)

    expected = gradients_of(module, weight, response, chunk=chunk)
    made_logits.clear()
    found = gradients_of(module, weight, response, chunk=chunk, slopes=slopes)
    assert sum(made_logits) == 16
    assert all((a - b).abs().max() < 1e-6 * (1 + b.abs().max()) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("wrong", ["one token", "entropy", "nan", "all zero"])
def test_slopes_that_were_foretold_wrongly_cost_time_and_change_no_gradient(
    module: Any, made_logits: list[int], wrong: str
) -> None:
    _, _, response = batch()
    weight = torch.linspace(-1, 1, response.numel()).view_as(response) * response

    def slopes(logprobs: torch.Tensor, entropy: Any, places: torch.Tensor) -> tuple[torch.Tensor, Any]:
        told, by_entropy = weight.flatten()[places], torch.full_like(logprobs, 0.3)
        if wrong == "one token":
            told[0] *= 1.001
        elif wrong == "nan":
            told[-1] = torch.nan
        elif wrong == "all zero":
            told, by_entropy = told * 0, by_entropy * 0
        return told, None if wrong == "entropy" else by_entropy

    expected = gradients_of(module, weight, response, chunk=5)
    made_logits.clear()
    found = gradients_of(module, weight, response, chunk=5, slopes=slopes)
    assert made_logits == 2 * [5, 5, 5, 1]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_head_that_is_more_than_a_matrix_goes_through_autograd(module: Any) -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return super().forward(2 * states)

    head = Doubled(64, module.config.vocab_size, bias=False)
    head.weight = module.lm_head.weight
    module.lm_head = head
    _, _, response = batch()
    weight = torch.linspace(-1, 1, response.numel()).view_as(response) * response
    ids, attention, _ = batch()
    logprobs, _ = full_path(module, ids, attention, 0.7)
    found = gradients_of(module, weight, response, chunk=5)
    whole = gradients_of(module, weight, response)
    assert (
        token_logprobs(module, ids, attention, response, temperature=0.7)[0] - logprobs * response
    ).abs().max() < 1e-5
    assert all((a - b).abs().max() < 1e-6 * (1 + b.abs().max()) for a, b in zip(found, whole, strict=True))


def test_a_frozen_head_gets_no_gradient_and_passes_the_right_one_on(module: Any) -> None:
    _, _, response = batch()
    weight = torch.linspace(-1, 1, response.numel()).view_as(response) * response
    module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.detach().clone())  # untied
    trained = gradients_of(module, weight, response, chunk=5)
    assert module.lm_head.weight.grad is not None
    names = [name for name, _ in module.named_parameters()]
    module.lm_head.weight.requires_grad_(False)
    module.lm_head.weight.grad = None
    module.zero_grad()
    ids, attention, _ = batch()
    logprobs, entropy = token_logprobs(module, ids, attention, response, temperature=0.7, chunk=5, with_entropy=True)
    assert entropy is not None
    (weight * logprobs + 0.3 * response * entropy).sum().backward()
    assert module.lm_head.weight.grad is None
    for name, expected in zip(names, trained, strict=True):
        if name != "lm_head.weight":
            assert torch.equal(module.get_parameter(name).grad, expected)


def test_bfloat16_autocast_gives_what_autocast_gives_on_the_full_path(module: Any) -> None:
    ids, attention, response = batch()
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = token_logprobs(module, ids, attention, response, chunk=5)
        expected, _ = full_path(module, ids, attention, 1.0)
    assert found.dtype == torch.float32
    assert (found - expected * response).abs().max() < 1e-5
    found.sum().backward()
    ours = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    (expected * response).sum().backward()
    theirs = [p.grad for p in module.parameters()]
    assert all((a - b).abs().max() < 0.02 * b.abs().max() for a, b in zip(ours, theirs, strict=True))


# --- packed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 5])
def test_rows_laid_end_to_end_give_the_logprobs_and_gradients_of_padded_ones(module: Any, chunk: int | None) -> None:
    ids, attention, response = batch()
    padded, padded_entropy = token_logprobs(module, ids, attention, response, chunk=chunk, with_entropy=True)
    packed, packed_entropy = token_logprobs(
        module, ids, attention, response, chunk=chunk, with_entropy=True, packed=True
    )
    assert (packed - padded).abs().max() < 2e-6
    assert padded_entropy is not None
    assert packed_entropy is not None
    assert (packed_entropy - padded_entropy).abs().max() < 2e-6
    weight = torch.linspace(-1, 1, response.numel()).view_as(response) * response
    ours = gradients_of(module, weight, response, chunk=chunk, packed=True)
    theirs = gradients_of(module, weight, response, chunk=chunk)
    assert all((a - b).abs().max() < 2e-6 * (1 + b.abs().max()) for a, b in zip(ours, theirs, strict=True))


def test_a_pack_holds_no_padding(module: Any) -> None:
    seen: list[tuple[int, ...]] = []
    module.model.layers[0].register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape[:2])))
    token_logprobs(module, *batch(), packed=True)
    assert seen == [(1, 12 + 9 + 5)]


def test_packing_is_chosen_where_attention_skips_other_rows(module: Any) -> None:
    assert [packs(module, setting) for setting in ("auto", "on", "off")] == [False, True, False]
    module.config._attn_implementation = "flash_attention_2"
    assert [packs(module, setting) for setting in ("auto", "on", "off")] == [True, True, False]


def test_no_response_at_all_gives_zeros_with_a_gradient(module: Any) -> None:
    ids, attention, response = batch()
    logprobs, entropy = token_logprobs(module, ids, attention, response * 0, with_entropy=True)
    assert not logprobs.any()
    assert entropy is not None
    assert not entropy.any()
    logprobs.sum().backward()


def test_a_response_that_starts_at_the_first_token_is_a_mistake(module: Any) -> None:
    ids, attention, response = batch()
    with pytest.raises(ValueError, match="first token of a row has no prediction"):
        token_logprobs(module, ids, attention, torch.ones_like(response))


def test_a_head_by_another_name_is_found() -> None:
    from transformers import BioGptConfig, BioGptForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    module = BioGptForCausalLM(BioGptConfig(vocab_size=260, max_position_embeddings=64, **sizes)).eval()
    assert not hasattr(module, "lm_head")
    ids, attention, response = batch()
    expected, _ = full_path(module, ids, attention, 1.0)
    assert (token_logprobs(module, ids, attention, response)[0] - expected * response).abs().max() < 1e-5
