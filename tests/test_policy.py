"""Making, loading and saving the policy, where its rollouts end, and log-probs without full logits."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from concisecli import artifacts, policy
from concisecli.config import NewModelConfig
from concisecli.records import ConciseError
from tests.conftest import WORDS

SMALL = NewModelConfig(words=WORDS, hidden_size=32, layers=2, heads=2, intermediate_size=64, max_positions=256)
TEXTS = [
    "20A-6B+4C-5=",
    "<think>A20-6=14;B14+4=16; wait check B14+4=18 no ;</think><answer>13</answer>",
    "  two  spaces\n\ttab, CRLF\r\n and a trailing space ",
    "é 日本語 🙂 ∑ \\frac{1}{2}",
    "\x00\x7f don't I'll 1234567890",
]


@pytest.fixture
def tokenizer(tiny_model: Path) -> Any:
    return policy.load_tokenizer(tiny_model)


@pytest.fixture
def module(tiny_model: Path) -> Any:
    return policy.load_model(tiny_model)


# --- made from nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip_through_autotokenizer(tiny_model: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.batch_decode([tokenizer.encode(text)], skip_special_tokens=True) == [text]


def test_any_composed_text_survives_the_round_trip(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    @given(st.lists(st.one_of(st.text(max_size=8), st.sampled_from([*WORDS, " ", "\n", "\t"])), max_size=6))
    @settings(max_examples=200, deadline=None)
    def survives(parts: list[str]) -> None:
        text = unicodedata.normalize("NFC", "".join(parts))  # Qwen2's tokenizer composes characters
        assert tokenizer.decode(tokenizer.encode(text)) == text

    survives()


def test_every_byte_is_one_token_and_every_word_is_one_token(tokenizer: Any) -> None:
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("20A-6B")) == ["20", "A", "-", "6", "B"]
    assert len(tokenizer.encode("é")) == 2
    assert [len(tokenizer.encode(word)) for word in WORDS] == [1] * len(WORDS)
    assert len(tokenizer) == 256 + 2 + len(WORDS)


def test_eos_and_pad_differ_and_only_they_are_skipped_as_special(tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|endoftext|>", "<pad>")
    ids = [*tokenizer.encode("<think>a</think><answer>12</answer>"), tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>a</think><answer>12</answer>"


def test_the_folder_is_an_ordinary_one_with_tied_embeddings(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == model.config.eos_token_id == 256
    assert model.generation_config.pad_token_id == 257
    assert {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } == {file.name for file in tiny_model.iterdir()}


def test_one_seed_gives_one_model_and_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        policy.new_model(SMALL, seed, tmp_path / name)
    assert torch.rand(1) == expected
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_a_seed_in_the_config_wins_over_the_pipelines(tmp_path: Path) -> None:
    policy.new_model(SMALL.model_copy(update={"seed": 7}), 1, tmp_path / "a")
    policy.new_model(SMALL, 7, tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_initializer_range_is_the_spread_of_the_weights(module: Any) -> None:
    assert module.model.layers[0].mlp.up_proj.weight.std().item() == pytest.approx(0.08, rel=0.05)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConciseError, match=f"{tmp_path}: no tokenizer loads"):
        policy.load_tokenizer(tmp_path)
    with pytest.raises(ConciseError, match=f"{tmp_path}: no causal language model loads"):
        policy.load_model(tmp_path)


def test_bfloat16_is_loaded_when_asked_for(tiny_model: Path) -> None:
    assert {p.dtype for p in policy.load_model(tiny_model, "bfloat16").parameters()} == {torch.bfloat16}


# --- where a rollout ends -----------------------------------------------------------------------------------------


def test_the_stop_set_is_the_union_of_all_four_sources(tokenizer: Any, module: Any, tmp_path: Path) -> None:
    module.config.eos_token_id = 10
    module.generation_config = GenerationConfig(eos_token_id=[11, 12])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<|im_end|>\n{% endfor %}"
    turn_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    expected = tuple(sorted({256, 10, 11, 12, turn_end}))
    assert policy.stop_ids(tokenizer, module) == expected
    policy.save_model(module, tokenizer, tmp_path / "m")
    assert policy.stop_ids(policy.load_tokenizer(tmp_path / "m"), tmp_path / "m") == expected


def test_plain_text_after_the_answer_is_no_end_of_turn(tokenizer: Any) -> None:
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n\n{% endfor %}"
    assert policy.turn_end_id(tokenizer) is None


def test_without_a_generation_config_there_is_still_a_stop_set(tokenizer: Any, module: Any, tmp_path: Path) -> None:
    policy.save_model(module, tokenizer, tmp_path / "m")
    (tmp_path / "m/generation_config.json").unlink()
    assert policy.stop_ids(tokenizer, tmp_path / "m") == (256,)


def test_a_model_that_caps_its_logits_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = Gemma2Config(vocab_size=260, head_dim=16, num_key_value_heads=2, final_logit_softcapping=0.5, **sizes)
    module = Gemma2ForCausalLM(config)
    with torch.no_grad():
        module.model.embed_tokens.weight.mul_(20)
    policy.save_model(module, tokenizer, tmp_path / "m")
    with pytest.raises(ConciseError, match="changes its logits after the output embedding"):
        policy.load_model(tmp_path / "m")


# --- saved --------------------------------------------------------------------------------------------------------


def test_what_is_saved_loads_with_equal_weights(module: Any, tokenizer: Any, tmp_path: Path) -> None:
    with torch.no_grad():
        module.model.norm.weight.mul_(2)
    policy.save_model(module, tokenizer, tmp_path / "deep/m")
    again = policy.load_model(tmp_path / "deep/m").state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in module.state_dict().items())
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["m"]


def test_weights_gathered_elsewhere_are_saved_in_the_place_of_the_policys_own(
    module: Any, tokenizer: Any, tmp_path: Path
) -> None:
    named = ((name, torch.full_like(weight, 0.5)) for name, weight in module.named_parameters())
    policy.save_model(module, tokenizer, tmp_path / "m", named)
    assert all((p == 0.5).all() for p in policy.load_model(tmp_path / "m").parameters())
    assert not (module.model.norm.weight == 0.5).any()


def test_a_large_model_is_written_in_several_files_that_are_held_one_at_a_time(
    module: Any, tokenizer: Any, tmp_path: Path
) -> None:
    given, most = 0, 0

    def one_by_one() -> Iterator[tuple[str, Tensor]]:
        nonlocal given, most
        for name, weight in module.named_parameters():
            given += weight.nbytes
            written = sum(file.stat().st_size for file in tmp_path.glob(".m.*.tmp/part-*"))
            most = max(most, given - written)
            yield name, weight.detach() + 1

    largest = max(p.nbytes for p in module.parameters())
    policy.save_model(module, tokenizer, tmp_path / "m", one_by_one(), shard_bytes=largest)
    files = sorted((tmp_path / "m").glob("*.safetensors"))
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    assert len(files) > 2
    assert {*index["weight_map"].values()} == {file.name for file in files}
    assert most <= 2 * largest  # one file, and the weight that no longer fitted into it
    again = dict(policy.load_model(tmp_path / "m").named_parameters())
    assert all(torch.equal(again[name], weight + 1) for name, weight in module.named_parameters())


def test_saving_again_replaces_the_whole_folder(module: Any, tokenizer: Any, tmp_path: Path) -> None:
    policy.save_model(module, tokenizer, tmp_path / "m")
    (tmp_path / "m/stale").write_text("x")
    policy.save_model(module, tokenizer, tmp_path / "m")
    assert not (tmp_path / "m/stale").exists()
    assert json.loads((tmp_path / "m/config.json").read_text())["model_type"] == "qwen2"


def test_a_save_that_fails_leaves_the_old_folder_whole(
    module: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.save_model(module, tokenizer, tmp_path / "m")
    before = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}

    def full_disk(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(artifacts, "sync_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        policy.save_model(module, tokenizer, tmp_path / "m")
    assert {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()} == before
