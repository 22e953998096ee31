"""Prompts as ids, one BOS, one eos, loss where it belongs. The tokenizer is the tiny model's, with templates put on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from concisecli import prompts
from concisecli.config import PromptConfig
from concisecli.policy import load_tokenizer
from concisecli.records import ConciseError, Example

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like DeepSeek-R1-Distill's: prints the BOS, opens <think> for the model, drops the reasoning of what was said.
DISTILL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|Assistant|>{{ m['content'].split('</think>')[-1] }}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
RAW = PromptConfig(template="raw", chat=False)
CHAT = PromptConfig(template="raw")


@pytest.fixture
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def chatml(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer


def with_bos(tokenizer: Any, *, added: bool) -> Any:
    """`added`: the tokenizer puts its BOS before every text, as Llama's does."""
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    if added:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )
    return tokenizer


def example(response: str, spans: tuple[tuple[int, int], ...] | None = None) -> Example:
    return Example("p1", "1+1=", response, loss_spans=spans)


def trained(tokenizer: Any, ids: list[int], mask: list[bool]) -> str:
    return str(tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m]))


def test_every_named_template_holds_the_problem_once() -> None:
    assert set(prompts.TEMPLATES) == {"raw", "math", "conciser", "lead"}
    assert all(text.count("{problem}") == 1 for text in prompts.TEMPLATES.values())


@pytest.mark.parametrize("name", ["math", "conciser", "lead"])
def test_the_papers_templates_ask_for_a_box_and_keep_the_braces_of_the_problem(tokenizer: Any, name: str) -> None:
    text = prompts.render(tokenizer, r"\frac{1}{2}{x}", PromptConfig(template=name, chat=False))
    assert r"\boxed{}" in text
    assert r"\frac{1}{2}{x}" in text


def test_concisers_prompt_ends_where_the_assistant_starts(tokenizer: Any) -> None:
    text = prompts.render(tokenizer, "1+1", PromptConfig(template="conciser", chat=False))
    assert text.endswith("\nUser:\n1+1\n\nAssistant:\n")
    assert "<think>" in text
    assert "<answer>" in text


def test_a_raw_prompt_is_the_problem_alone(tokenizer: Any) -> None:
    ids = prompts.prompt_ids(tokenizer, "20A-6B=", RAW)
    assert tokenizer.convert_ids_to_tokens(ids) == ["20", "A", "-", "6", "B", "="]


def test_a_template_may_be_written_out(tokenizer: Any) -> None:
    assert prompts.render(tokenizer, "x", PromptConfig(template="Q: {problem}\nA:", chat=False)) == "Q: x\nA:"


def test_a_template_that_is_neither_name_nor_text_is_refused(tokenizer: Any) -> None:
    with pytest.raises(ConciseError, match="'maths' is no template: use raw, math"):
        prompts.prompt_ids(tokenizer, "x", PromptConfig(template="maths"))


def test_a_chat_template_wraps_system_and_user(tokenizer: Any) -> None:
    config = PromptConfig(template="raw", system="Be brief.")
    assert prompts.render(chatml(tokenizer), "1+1", config) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_chat_template_that_refuses_a_system_message_says_what_to_do(tokenizer: Any) -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    chatml(tokenizer).chat_template = refusing + CHATML
    assert prompts.render(tokenizer, "1+1", CHAT)
    with pytest.raises(ConciseError, match=r"refuses the prompt \(no system role\); leave prompt\.system out"):
        prompts.render(tokenizer, "1+1", PromptConfig(system="Be brief."))


def test_without_a_chat_template_the_system_text_stands_before(tokenizer: Any) -> None:
    assert prompts.render(tokenizer, "1+1", PromptConfig(template="raw", system="Be brief.")) == "Be brief.\n\n1+1"


def test_chat_off_leaves_the_chat_template_out(tokenizer: Any) -> None:
    assert prompts.render(chatml(tokenizer), "1+1", RAW) == "1+1"


def test_the_template_and_the_tokenizer_together_give_one_bos(tokenizer: Any) -> None:
    with_bos(tokenizer, added=True).chat_template = DISTILL
    ids = prompts.prompt_ids(tokenizer, "1+1", CHAT)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_raw_prompt_has_the_bos_that_the_tokenizer_adds(tokenizer: Any) -> None:
    ids = prompts.prompt_ids(with_bos(tokenizer, added=True), "1+1", RAW)
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_raw_template_that_writes_the_bos_gets_no_second_one(tokenizer: Any) -> None:
    config = PromptConfig(template="<bos>{problem}", chat=False)
    ids = prompts.prompt_ids(with_bos(tokenizer, added=True), "1+1", config)
    assert ids.count(tokenizer.bos_token_id) == 1


def test_no_bos_where_neither_gives_one(tokenizer: Any) -> None:
    assert tokenizer.bos_token_id is None or tokenizer.bos_token_id not in prompts.prompt_ids(tokenizer, "1", RAW)
    with_bos(tokenizer, added=False)
    assert tokenizer.bos_token_id not in prompts.prompt_ids(tokenizer, "1", RAW)


def test_the_eos_that_a_tokenizer_appends_is_taken_off_a_prompt(tokenizer: Any) -> None:
    eos = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, tokenizer.eos_token_id)]
    )
    assert tokenizer.encode("1+1")[-1] == tokenizer.eos_token_id
    assert prompts.prompt_ids(tokenizer, "1+1", RAW)[-1] != tokenizer.eos_token_id


def test_a_prompt_that_opens_think_is_seen_in_what_is_rendered(tokenizer: Any) -> None:
    assert not prompts.opens_think(chatml(tokenizer), CHAT)
    with_bos(tokenizer, added=False).chat_template = DISTILL
    assert prompts.opens_think(tokenizer, CHAT)
    assert not prompts.opens_think(tokenizer, RAW)
    assert prompts.opens_think(tokenizer, PromptConfig(template="{problem}<think>", chat=False))
    assert not prompts.opens_think(tokenizer, PromptConfig(template="raw", think_prefilled=False))


def test_conciser_only_speaks_of_think_and_does_not_open_it(tokenizer: Any) -> None:
    assert not prompts.opens_think(tokenizer, PromptConfig(template="conciser", chat=False))


def test_an_example_is_prompt_response_and_one_eos_that_carries_loss(tokenizer: Any) -> None:
    ids, mask = prompts.example_ids(tokenizer, example("<think></think>"), RAW)
    assert tokenizer.convert_ids_to_tokens(ids) == ["1", "+", "1", "=", "<think>", "</think>", "<|endoftext|>"]
    assert mask == [False] * 4 + [True] * 3


def test_where_pad_is_eos_the_last_target_still_carries_loss(tokenizer: Any) -> None:
    tokenizer.pad_token = tokenizer.eos_token
    ids, mask = prompts.example_ids(tokenizer, example("2"), RAW)
    assert ids[-1] == tokenizer.pad_token_id == tokenizer.eos_token_id
    assert mask[-1] is True


@pytest.mark.parametrize("tail", ["<|endoftext|>", "<|endoftext|><|endoftext|>", "<|im_end|>"])
def test_a_response_that_already_ends_in_eos_gets_no_second_one(tokenizer: Any, tail: str) -> None:
    ids, mask = prompts.example_ids(chatml(tokenizer), example("2" + tail), CHAT)
    ends = {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    response = [i for i, m in zip(ids, mask, strict=True) if m]
    assert tokenizer.convert_ids_to_tokens(response) == ["2", "<|im_end|>"]
    assert len([i for i in response if i in ends]) == 1


def test_a_chat_row_starts_with_the_very_prompt_that_rollouts_start_with(tokenizer: Any) -> None:
    chatml(tokenizer)
    ids, mask = prompts.example_ids(tokenizer, example("<think>a</think>2"), CHAT)
    prompt = prompts.prompt_ids(tokenizer, "1+1=", CHAT)
    assert ids[: len(prompt)] == prompt
    assert not any(mask[: len(prompt)])


def test_loss_spans_pick_tokens_by_the_characters_they_touch(tokenizer: Any) -> None:
    ids, mask = prompts.example_ids(tokenizer, example("6+14=20;1+2=3;", ((5, 8), (12, 14))), RAW)
    assert trained(tokenizer, ids, mask) == "20;3;<|endoftext|>"


def test_a_span_over_half_a_word_trains_the_whole_token(tokenizer: Any) -> None:
    ids, mask = prompts.example_ids(tokenizer, example("wait check 5", ((0, 3),)), RAW)
    assert trained(tokenizer, ids, mask) == "wait check <|endoftext|>"


def test_spans_count_characters_not_bytes(tokenizer: Any) -> None:
    ids, mask = prompts.example_ids(tokenizer, example("é日=7", ((3, 4),)), RAW)
    assert trained(tokenizer, ids, mask) == "7<|endoftext|>"


def test_a_template_that_drops_the_reasoning_cannot_drop_it_from_a_row(tokenizer: Any) -> None:
    with_bos(tokenizer, added=False).chat_template = DISTILL
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "<think>\none</think>2"}], tokenize=False
    )
    assert "one" not in rendered  # what rendering the answer would have trained
    ids, mask = prompts.example_ids(tokenizer, example("<think>\none</think>2"), CHAT)
    assert trained(tokenizer, ids, mask) == "one</think>2<|endoftext|>"
    assert tokenizer.decode(ids).count("<think>") == 1


def test_spans_move_with_the_opening_that_the_prompt_already_wrote(tokenizer: Any) -> None:
    with_bos(tokenizer, added=False).chat_template = DISTILL
    response = "<think>\none</think>2"
    ids, mask = prompts.example_ids(tokenizer, example(response, ((len(response) - 1, len(response)),)), CHAT)
    assert trained(tokenizer, ids, mask) == "2<|endoftext|>"


def test_a_response_without_its_reasoning_is_refused_where_the_prompt_opens_think(tokenizer: Any) -> None:
    with_bos(tokenizer, added=False).chat_template = DISTILL
    with pytest.raises(ConciseError, match="problem p1: the prompt opens <think> and the response never closes it"):
        prompts.example_ids(tokenizer, example("The answer is 2."), CHAT)


def test_a_tokenizer_without_an_eos_is_refused(tokenizer: Any) -> None:
    tokenizer.eos_token = None
    with pytest.raises(ConciseError, match="no eos token"):
        prompts.example_ids(tokenizer, example("2"), RAW)
