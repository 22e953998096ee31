"""The vLLM engine against transformers, from one real run of vLLM (tests/vllm_session.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make setup")


@pytest.fixture(scope="module")
def facts(tiny_model: Path) -> Any:
    command = [sys.executable, "-m", "tests.vllm_session", str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.split("FACTS ")[1])


def test_logprobs_equal_those_of_transformers_at_the_sampling_temperature(facts: Any) -> None:
    assert facts["gap_before"] < 5e-6
    assert facts["gap_top_p"] < 1e-5


def test_after_a_weight_update_they_are_equal_again_and_the_rollouts_are_others(facts: Any) -> None:
    assert facts["gap_after"] < 5e-6
    assert facts["moved"]


def test_after_twenty_updates_between_sleep_and_waking_they_still_are(facts: Any) -> None:
    assert facts["gap_after_20"] < 5e-6


def test_what_comes_in_the_wrong_order_is_refused_with_the_state(facts: Any) -> None:
    asleep, not_loaded = facts["wrong_order"][:4], facts["wrong_order"][4:]
    assert all("the rollout engine is asleep, so it cannot" in text for text in asleep)
    assert all("is weights awake, not loaded, so it cannot" in text for text in not_loaded)


def test_a_rollout_ends_with_the_first_token_that_completes_a_stop_string(facts: Any, tiny_model: Path) -> None:
    from concisecli.policy import load_tokenizer
    from tests.vllm_session import STOP

    tokenizer = load_tokenizer(tiny_model)
    ends = 0
    for whole, cut, text, reason in facts["stop_strings"]:
        said = (n for n in range(1, len(whole) + 1) if any(s in tokenizer.decode(whole[:n]) for s in STOP))
        end = next(said, None)
        assert cut == whole[:end]
        if end is not None:
            ends += 1
            assert reason == "stop"
            assert any(s in text for s in STOP)
    assert 0 < ends < len(facts["stop_strings"])


def test_a_second_engine_starts_where_one_was_closed_and_leaves_the_trainers_process_group(facts: Any) -> None:
    found = facts["reopened"]
    assert "the rollout engine is closed" in found["closed"]
    assert not found["group_left"]
    assert found["gap"] < 5e-6
    assert found["same_greedy_ids"]
    assert found["our_group_is_left"]


def test_the_engine_keeps_room_for_the_longest_sequence_of_the_stage_and_no_more(facts: Any) -> None:
    assert facts["reopened"]["context"] == 80


def test_the_probe_sees_that_weights_have_not_come_and_that_they_have(facts: Any) -> None:
    assert facts["gap_probe"] < 1e-5
    assert "differ from the trainer's by" in facts["stale"]
    assert facts["gap_probe_after"] < 1e-5


def test_an_adapters_engine_samples_from_the_merged_weights_after_an_update_and_after_a_resume(facts: Any) -> None:
    found = facts["adapter"]
    assert found["moved"] > 1e-2
    assert "differ from the trainer's by" in found["stale"]
    assert max(found[when] for when in ("fresh", "trained", "resumed")) < 1e-5


def test_the_same_seeds_give_the_same_ids_in_any_order_and_to_any_limit(facts: Any) -> None:
    assert facts["again"]
    assert facts["reversed"]
    assert facts["cut"]


def test_rollouts_end_at_any_stop_id_and_say_so(facts: Any) -> None:
    completions = [c for group in facts["completions"] for c in group]
    assert {reason for _, _, reason in completions} == {"stop", "length"}
    for ids, _, reason in completions:
        assert (ids[-1] in facts["stop"]) == (reason == "stop")
        assert not set(ids[:-1]) & set(facts["stop"])
        assert reason == "stop" or len(ids) == 48


def test_the_text_leaves_out_the_stop_token(facts: Any, tiny_model: Path) -> None:
    from concisecli.policy import load_tokenizer

    tokenizer = load_tokenizer(tiny_model)
    for ids, text, reason in (c for group in facts["completions"] for c in group):
        assert text == tokenizer.decode(ids[:-1] if reason == "stop" else ids, skip_special_tokens=True)


def test_seeds_tell_the_rollouts_of_a_group_apart(facts: Any) -> None:
    rows = [tuple(ids) for group in facts["completions"] for ids, _, _ in group]
    assert len(set(rows)) == 12


def test_temperature_zero_is_greedy(facts: Any) -> None:
    assert facts["greedy"]


def test_a_rollout_ends_where_the_engines_positions_end_and_a_prompt_that_fills_them_is_named(facts: Any) -> None:
    assert any(reason == "length" for _, reason in facts["near_the_end"])
    assert all(length == 6 for length, reason in facts["near_the_end"] if reason == "length")
    assert "prompt 0 has 96 tokens and the engine's longest sequence is 96" in facts["refusal"]
