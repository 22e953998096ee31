"""The transformers engine: ids that depend on nothing but their seed, and log-probs of what was sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from concisecli import rollout_hf
from concisecli.config import HfConfig, SamplingConfig
from concisecli.logprobs import token_logprobs
from concisecli.policy import load_model
from concisecli.records import Completion, ConciseError
from concisecli.rollout import Sampling
from concisecli.rollout_hf import HfEngine, draw, truncate

LIMIT = Sampling(max_response_tokens=96)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> HfEngine:
    return made(tiny_model)


def made(tiny_model: Path, batch_rollouts: int = 64) -> HfEngine:
    """An engine that also stops at fourteen common bytes, so that rollouts end at many different lengths."""
    engine = HfEngine(HfConfig(batch_rollouts=batch_rollouts), tiny_model)
    engine.stop = (*range(0, 140, 10), 256)
    return engine


def requests(count: int = 16, samples: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of 3 to 12 tokens, some equal, and a seed a rollout."""
    prompts = [[(7 * i + j) % 250 for j in range(3 + i % 10)] for i in range(count)]
    return prompts, [[1000 * i + j for j in range(samples)] for i in range(count)]


def ids_of(groups: Sequence[Sequence[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


def plain_logprobs(module: Any, prompt: Sequence[int], completion: Completion, temperature: float) -> torch.Tensor:
    """Of the completion's tokens by one forward over prompt and completion together."""
    row = torch.tensor([[*prompt, *completion.token_ids]])
    logits = module(input_ids=row).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, row[0, len(prompt) :, None])[:, 0]


# --- what the ids may depend on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rollouts", [1, 5, 64])
def test_ids_do_not_depend_on_the_batch_size(engine: HfEngine, tiny_model: Path, batch_rollouts: int) -> None:
    prompts, seeds = requests()
    expected = ids_of(engine.generate(prompts, LIMIT, seeds))
    assert ids_of(made(tiny_model, batch_rollouts).generate(prompts, LIMIT, seeds)) == expected
    lengths = {len(row) for group in expected for row in group}
    assert len(lengths) > 20  # they really end at many places


def test_ids_do_not_depend_on_the_order(engine: HfEngine) -> None:
    prompts, seeds = requests()
    expected = ids_of(engine.generate(prompts, LIMIT, seeds))
    order = list(np.random.default_rng(0).permutation(len(prompts)))
    found = ids_of(engine.generate([prompts[i] for i in order], LIMIT, [seeds[i] for i in order]))
    assert found == [expected[i] for i in order]


def test_a_limit_of_40_gives_the_first_40_tokens_of_a_limit_of_96(engine: HfEngine) -> None:
    prompts, seeds = requests()
    long = engine.generate(prompts, LIMIT, seeds)
    short = engine.generate(prompts, Sampling(max_response_tokens=40), seeds)
    assert ids_of(short) == [[ids[:40] for ids in group] for group in ids_of(long)]
    assert {c.finish_reason for group in short for c in group} == {"stop", "length"}


def test_a_rollout_that_the_limit_cuts_on_its_stop_token_is_finished(engine: HfEngine) -> None:
    prompts, seeds = requests()
    whole = next(c for group in engine.generate(prompts, LIMIT, seeds) for c in group if 5 < len(c.token_ids) < 40)
    cut = Sampling(max_response_tokens=len(whole.token_ids))
    found = [c for group in engine.generate(prompts, cut, seeds) for c in group if c.token_ids == whole.token_ids]
    assert [c.finish_reason for c in found] == ["stop"]


def test_two_calls_give_the_same_bits(engine: HfEngine) -> None:
    prompts, seeds = requests()
    assert engine.generate(prompts, LIMIT, seeds) == engine.generate(prompts, LIMIT, seeds)


def test_other_seeds_give_other_rollouts_and_equal_seeds_equal_ones(engine: HfEngine) -> None:
    prompts = [[1, 2, 3]]
    ((a, b, c),) = engine.generate(prompts, LIMIT, [[5, 5, 6]])
    assert a.token_ids == b.token_ids != c.token_ids


def test_the_global_generator_is_neither_asked_nor_moved(engine: HfEngine) -> None:
    prompts, seeds = requests(4)
    torch.manual_seed(1)
    first = ids_of(engine.generate(prompts, LIMIT, seeds))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert ids_of(engine.generate(prompts, LIMIT, seeds)) == first
    assert torch.equal(torch.get_rng_state(), before)


# --- log-probs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_forward_at_the_temperature(engine: HfEngine, temperature: float) -> None:
    prompts, seeds = requests()
    groups = engine.generate(prompts, SamplingConfig(temperature=temperature, max_response_tokens=96), seeds)
    with torch.no_grad():
        for prompt, group in zip(prompts, groups, strict=True):
            for completion in group:
                expected = plain_logprobs(engine.module, prompt, completion, temperature)
                assert (torch.tensor(completion.logprobs) - expected).abs().max() < 1e-5


def test_the_ratio_on_the_first_update_is_one_against_the_samplers_logprobs(engine: HfEngine) -> None:
    prompts, seeds = requests(6, 2)
    groups = engine.generate(prompts, SamplingConfig(temperature=0.6, max_response_tokens=48), seeds)
    rows = [(p, c) for p, group in zip(prompts, groups, strict=True) for c in group]
    width = max(len(p) + len(c.token_ids) for p, c in rows)
    ids, attention, response = (torch.zeros(len(rows), width, dtype=torch.long) for _ in range(3))
    old = torch.zeros(len(rows), width, dtype=torch.float64)
    for i, (p, c) in enumerate(rows):
        end = len(p) + len(c.token_ids)
        ids[i, :end] = torch.tensor([*p, *c.token_ids])
        attention[i, :end] = 1
        response[i, len(p) : end] = 1
        old[i, len(p) : end] = torch.tensor(c.logprobs, dtype=torch.float64)
    logprobs, _ = token_logprobs(engine.module, ids, attention, response, temperature=0.6)
    assert ((logprobs - old).exp() - 1).abs().max() < 1e-5


def test_truncated_sampling_gives_the_renormalised_logprobs(engine: HfEngine) -> None:
    prompts, seeds = requests(4)
    for group, prompt in zip(engine.generate(prompts, Sampling(0.6, 0.8, 0.0, 48), seeds), prompts, strict=True):
        for completion in group:
            row = torch.tensor([[*prompt, *completion.token_ids]])
            with torch.no_grad():
                logits = engine.module(input_ids=row).logits[0, len(prompt) - 1 : -1].double() / 0.6
            ranked, order = logits.softmax(-1).sort(descending=True)
            kept = (ranked.cumsum(-1) - ranked) < 0.8
            renormalised = torch.zeros_like(ranked).scatter(-1, order, ranked * kept)
            renormalised /= renormalised.sum(-1, keepdim=True)
            expected = renormalised.gather(-1, row[0, len(prompt) :, None])[:, 0].log()
            assert (torch.tensor(completion.logprobs, dtype=torch.float64) - expected).abs().max() < 1e-5


def test_the_probe_gives_the_logprobs_of_its_own_tokens(engine: HfEngine) -> None:
    ids = [20, 30, 40, 50]
    expected = plain_logprobs(engine.module, ids[:1], Completion(tuple(ids[1:]), (), "", "length"), 1.0)
    assert engine.probe(ids) == pytest.approx(expected.tolist(), abs=1e-5)


# --- drawing one token --------------------------------------------------------------------------------------------


def test_noise_is_turned_into_tokens_by_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().repeat(5, 1)
    noise = torch.tensor([0.0, 0.0999, 0.1001, 0.5999, 0.6001], dtype=torch.float64)
    tokens, logprobs = draw(logits, noise, Sampling())
    assert tokens.tolist() == [0, 0, 1, 2, 3]
    assert logprobs.exp().tolist() == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4])


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.1])
    noise = torch.from_numpy(np.random.Generator(np.random.Philox(key=1)).random(200_000))
    tokens, _ = draw(probabilities.log().expand(200_000, 4), noise, Sampling())
    assert (tokens.bincount(minlength=4) / 200_000).tolist() == pytest.approx(probabilities.tolist(), abs=0.005)


def test_a_large_vocabulary_is_drawn_from_as_its_float64_distribution_says() -> None:
    """Over several blocks, the last one not full, with empty ones between and tokens that cannot come."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 3 * rollout_hf.DRAW_BLOCK + 17, generator=generator)
    logits[100:, rollout_hf.DRAW_BLOCK : 2 * rollout_hf.DRAW_BLOCK] = -torch.inf
    logits[200:, 5:] = -torch.inf
    logits[300:, :] = -torch.inf
    logits[300:, -1] = 0.0
    noise = torch.from_numpy(np.random.Generator(np.random.Philox(key=1)).random(400))
    noise[::10], noise[5::10] = 0.0, 1 - 2**-53
    tokens, logprobs = draw(logits, noise, Sampling(temperature=0.7))
    expected = (logits.double() / 0.7).log_softmax(-1)
    assert (logprobs - expected.gather(-1, tokens[:, None])[:, 0]).abs().max() < 1e-6
    assert bool(logprobs.isfinite().all())
    ends = expected.exp().cumsum(-1)
    end = ends.gather(-1, tokens[:, None])[:, 0]
    begin = torch.where(tokens > 0, ends.gather(-1, (tokens - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    assert bool(((begin - 1e-6 <= noise) & (noise <= end + 1e-6)).all())


def test_logits_that_are_no_numbers_give_a_logprob_that_says_so() -> None:
    for size in (10, 2 * rollout_hf.DRAW_BLOCK):
        tokens, logprobs = draw(torch.full((2, size), torch.nan), torch.tensor([0.2, 0.9]).double(), Sampling())
        assert bool((tokens < size).all())
        assert bool(logprobs.isnan().all())


def test_temperature_sharpens_what_is_drawn_and_what_is_recorded() -> None:
    # 0.2 and 0.8 at temperature 0.5 are 0.04 and 0.64, that is 1/17 and 16/17
    logits = torch.tensor([[0.2, 0.8]]).log().repeat(2, 1)
    tokens, logprobs = draw(logits, torch.tensor([0.058, 0.06], dtype=torch.float64), Sampling(temperature=0.5))
    assert tokens.tolist() == [0, 1]
    assert logprobs.exp().tolist() == pytest.approx([1 / 17, 16 / 17])


def test_top_p_keeps_the_fewest_tokens_that_hold_the_mass() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.3, 0.2]], dtype=torch.float64)
    assert truncate(probabilities, top_p=0.8, min_p=0).tolist() == [[0.0, 0.4, 0.3, 0.2]]
    assert truncate(probabilities, top_p=0.6, min_p=0).tolist() == [[0.0, 0.4, 0.3, 0.0]]
    assert truncate(probabilities, top_p=0.01, min_p=0).tolist() == [[0.0, 0.4, 0.0, 0.0]]


def test_a_dropped_token_is_never_drawn_and_the_rest_is_renormalised() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.3, 0.2]]).log().repeat(3, 1)
    noise = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    tokens, logprobs = draw(logits, noise, Sampling(top_p=0.6))
    assert tokens.tolist() == [1, 1, 2]
    assert logprobs.exp().tolist() == pytest.approx([4 / 7, 4 / 7, 3 / 7])


def test_equal_probabilities_at_the_edge_of_top_p_are_kept_by_lower_id() -> None:
    probabilities = torch.full((1, 5), 0.2, dtype=torch.float64)
    assert (truncate(probabilities, top_p=0.5, min_p=0) > 0).tolist() == [[True, True, True, False, False]]


def test_min_p_is_relative_to_the_likeliest_token_and_comes_before_top_p() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    assert (truncate(probabilities, top_p=1.0, min_p=0.3) > 0).tolist() == [[True, True, True, False]]
    # of the 0.95 that min-p leaves, 0.8 x 0.95 = 0.76 is held by two tokens; of the whole, 0.8 by two as well
    assert (truncate(probabilities, top_p=0.84, min_p=0.3) > 0).tolist() == [[True, True, False, False]]
    assert (truncate(probabilities, top_p=0.84, min_p=0.0) > 0).tolist() == [[True, True, True, False]]


def test_temperature_zero_takes_the_likeliest_token(engine: HfEngine) -> None:
    prompts, seeds = requests(4, 2)
    groups = engine.generate(prompts, Sampling(temperature=0.0, max_response_tokens=12), seeds)
    for prompt, (a, b) in zip(prompts, groups, strict=True):
        assert a.token_ids == b.token_ids
        row = torch.tensor([[*prompt, *a.token_ids]])
        with torch.no_grad():
            best = engine.module(input_ids=row).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert tuple(best.tolist()) == a.token_ids


# --- text, limits, weights ----------------------------------------------------------------------------------------


def test_text_keeps_the_tags_and_leaves_out_the_stop_token_and_specials(tiny_model: Path) -> None:
    engine = HfEngine(HfConfig(), tiny_model)
    words = engine.tokenizer.encode("<think>a</think>12")
    row = torch.full((len(engine.tokenizer),), -50.0)
    script = iter([*words, engine.tokenizer.pad_token_id, engine.tokenizer.eos_token_id, 0, 0])

    def write(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        wanted = row.clone()
        wanted[next(script)] = 50.0
        return wanted.expand_as(logits)

    hook = engine.module.lm_head.register_forward_hook(write)
    ((completion,),) = engine.generate([[1, 2]], Sampling(max_response_tokens=30), [[0]])
    hook.remove()
    assert completion.text == "<think>a</think>12"
    assert completion.finish_reason == "stop"
    assert len(completion.token_ids) == len(completion.logprobs) == len(words) + 2


def test_text_leaves_out_a_stop_token_that_is_no_special_one(engine: HfEngine) -> None:
    prompts, seeds = requests(4)
    completions = [c for group in engine.generate(prompts, LIMIT, seeds) for c in group]
    assert any(c.token_ids[-1] < 256 for c in completions if c.finished)
    for c in completions:
        said = c.token_ids[:-1] if c.finished else c.token_ids
        assert c.text == engine.tokenizer.decode(said, skip_special_tokens=True)


def test_a_rollout_ends_where_the_models_positions_end(engine: HfEngine) -> None:
    prompts = [[5] * 250, [6] * 3]
    ((near,), (far,)) = engine.generate(prompts, Sampling(max_response_tokens=20), [[3], [3]])
    assert len(near.token_ids) <= 6
    assert near.finish_reason == "length" or near.token_ids[-1] in engine.stop
    assert len(far.token_ids) <= 20


def test_a_prompt_that_fills_the_models_positions_is_named(engine: HfEngine) -> None:
    with pytest.raises(ConciseError, match="prompt 1 has 256 tokens and the model's longest sequence is 256"):
        engine.generate([[1], [5] * 256], LIMIT, [[0], [0]])


def test_an_empty_prompt_is_named(engine: HfEngine) -> None:
    with pytest.raises(ConciseError, match="prompt 0 is empty"):
        engine.generate([[]], LIMIT, [[0]])


def test_nothing_asked_nothing_given(engine: HfEngine) -> None:
    assert engine.generate([], LIMIT, []) == []
    assert engine.generate([[1, 2]], LIMIT, [[]]) == [[]]


def test_a_shared_module_is_trained_through_after_sampling_and_keeps_its_mode(tiny_model: Path) -> None:
    module = load_model(tiny_model).train()
    engine = HfEngine(HfConfig(), tiny_model, module=module)
    before = engine.generate([[1, 2, 3]], LIMIT, [[0]])
    assert module.training
    logits = module(input_ids=torch.tensor([[1, 2, 3]])).logits
    logits.sum().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.sub_(0.05 * parameter.grad.sign())
    engine.sync_weights(module.named_parameters())  # nothing: it is the same memory
    assert engine.generate([[1, 2, 3]], LIMIT, [[0]]) != before


@pytest.mark.parametrize(("dtype", "found"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_a_shared_module_computes_in_the_engines_dtype_and_keeps_its_weights(
    tiny_model: Path, dtype: Any, found: torch.dtype
) -> None:
    module = load_model(tiny_model)
    seen: set[torch.dtype] = set()
    module.model.layers[0].mlp.down_proj.register_forward_hook(lambda _, __, states: seen.add(states.dtype))
    engine = HfEngine(HfConfig(dtype=dtype), tiny_model, module=module)
    engine.generate([[1, 2, 3]], Sampling(max_response_tokens=4), [[0]])
    engine.probe([1, 2, 3])
    assert seen == {found}
    assert module.dtype == torch.float32


def test_synced_weights_are_the_ones_sampled_from(tiny_model: Path) -> None:
    trained, engine = load_model(tiny_model), made(tiny_model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    engine.sync_weights(trained.state_dict().items())
    prompts, seeds = requests(4)
    with torch.no_grad():
        for prompt, group in zip(prompts, engine.generate(prompts, LIMIT, seeds), strict=True):
            for completion in group:
                expected = plain_logprobs(trained, prompt, completion, 1.0)
                assert (torch.tensor(completion.logprobs) - expected).abs().max() < 1e-5


def test_a_sync_with_wrong_names_says_which(tiny_model: Path) -> None:
    engine = made(tiny_model)
    weights = dict(engine.module.named_parameters())
    with pytest.raises(ConciseError, match=r"the rollout model has no weight 'model\.nrom\.weight'"):
        engine.sync_weights([("model.nrom.weight", weights["model.norm.weight"])])
    with pytest.raises(ConciseError, match=r"nothing came for 'model\.embed_tokens\.weight'"):
        engine.sync_weights([("model.norm.weight", weights["model.norm.weight"])])


def test_finished_rows_leave_the_batch(engine: HfEngine) -> None:
    sizes: list[int] = []
    hook = engine.module.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[0]))
    prompts, seeds = requests()
    groups = engine.generate(prompts, LIMIT, seeds)
    hook.remove()
    tokens = sum(len(c.token_ids) for group in groups for c in group)
    assert sizes == sorted(sizes, reverse=True)
    assert tokens > 0.7 * (sum(sizes) - 64 * 9)  # 9 steps force the longer prompts


def test_prompts_are_prefilled_once_for_all_rollouts_of_a_group(engine: HfEngine) -> None:
    rows: list[tuple[int, ...]] = []
    embedding = engine.module.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _, inputs, __: rows.append(tuple(inputs[0].shape)))
    engine.generate([[1, 2, 3, 4], [4, 3, 2, 1]], Sampling(max_response_tokens=2), [[1, 2, 3], [4, 5, 6]])
    hook.remove()
    assert rows[0] == (2, 4)
    assert [positions for _, positions in rows[1:]] == [1]


def test_prompts_of_one_length_share_a_batch(tiny_model: Path) -> None:
    engine = HfEngine(HfConfig(batch_rollouts=2), tiny_model)
    engine.stop = ()
    steps: list[int] = []
    hook = engine.module.lm_head.register_forward_hook(lambda _, inputs, __: steps.append(inputs[0].shape[0]))
    engine.generate([[1, 2], [3] * 9, [4, 5], [6] * 9], Sampling(max_response_tokens=5), [[0]] * 4)
    hook.remove()
    assert steps == [2] * 10  # mixed, each of the two batches would force seven tokens first


def test_layers_that_keep_no_keys_are_refused_by_name(tiny_model: Path) -> None:
    module = load_model(tiny_model)
    module.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConciseError, match="layers of type linear_attention are not for the transformers engine"):
        HfEngine(HfConfig(), tiny_model, module=module)


def test_the_cache_grows_without_losing_what_it_holds() -> None:
    layer = rollout_hf._GrowingLayer()
    parts = [torch.randn(2, 1, n, 4) for n in (3, 1, 70, 1, 200)]
    for part in parts:
        keys, values = layer.update(part, part * 2)
    assert torch.equal(keys, torch.cat(parts, 2))
    assert torch.equal(values, 2 * torch.cat(parts, 2))
    assert layer.get_seq_length() == 275


def test_rows_that_ended_give_their_places_to_the_last_that_go_on() -> None:
    layer = rollout_hf._GrowingLayer()
    layer.update(torch.arange(5.0).view(5, 1, 1, 1), -torch.arange(5.0).view(5, 1, 1, 1))
    layer.fill(torch.tensor([0, 2]), torch.tensor([3, 4]), 3)
    more = torch.full((3, 1, 1, 1), 9.0)
    keys, values = layer.update(more, more)
    assert keys[:, 0, :, 0].tolist() == [[3, 9], [1, 9], [4, 9]]
    assert values[:, 0, :, 0].tolist() == [[-3, 9], [-1, 9], [-4, 9]]
