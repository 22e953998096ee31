"""Where rollouts end: stop tokens and stop strings."""

from itertools import chain

import pytest

from concisecli.config import HfConfig, SamplingConfig
from concisecli.endings import StopStrings, texts
from concisecli.policy import load_tokenizer
from concisecli.records import ConciseError
from concisecli.rollout import Sampling, Wakefulness, make_engine


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("20-6=14</think>and more", "20-6=14</think>"),
        ("20-6</think>=14</think>", "20-6</think>"),  # the first of two
        ("no end here", None),
        ("", None),
    ],
)
def test_a_response_ends_with_the_token_that_completes_the_string(tokenizer, text, kept):
    ids = tokenizer.encode(text)
    end = StopStrings(tokenizer, ("</think>",)).end(ids)
    assert (None if end is None else tokenizer.decode(ids[:end])) == kept


def test_a_string_may_lie_over_many_tokens_and_end_in_the_middle_of_one(tokenizer):
    ids = tokenizer.encode("ab\n\ncd wait check more")
    assert tokenizer.decode(ids[: StopStrings(tokenizer, ("b\n\nc",)).end(ids)]) == "ab\n\nc"
    assert tokenizer.decode(ids[: StopStrings(tokenizer, ("wait",)).end(ids)]) == "ab\n\ncd wait check "


def test_a_character_of_several_bytes_ends_with_its_last(tokenizer):
    ids = tokenizer.encode("aébc")
    strings = StopStrings(tokenizer, ("é",))
    assert strings.end(ids) == 3
    assert [strings.completed(ids[:n]) for n in range(1, 4)] == [False, False, True]
    assert strings.may_complete(300)[ids[2]]


def test_only_tokens_that_hold_the_last_character_are_looked_at(tokenizer):
    able = StopStrings(tokenizer, ("x>",)).may_complete(len(tokenizer))
    (think,) = tokenizer.encode("</think>")
    (letter,) = tokenizer.encode("x")
    assert able[think]
    assert not able[letter]


def test_the_text_keeps_the_stop_string_and_drops_the_stop_token(tokenizer):
    strings = StopStrings(tokenizer, ("</think>",))
    spelt, ended = tokenizer.encode("ab</think>"), [*tokenizer.encode("ab"), tokenizer.eos_token_id]
    assert texts(tokenizer, [spelt, ended], {tokenizer.eos_token_id}, strings) == ["ab</think>", "ab"]


def test_the_transformers_engine_cuts_where_the_rule_says(tiny_model, tokenizer):
    engine = make_engine(HfConfig(batch_rollouts=7), tiny_model)
    prompts, seeds = [[20, 30, 40], [50, 60], [70] * 5], [list(range(8))] * 3
    stop = ("wait check", "1", "7=")
    whole = engine.generate(prompts, Sampling(max_response_tokens=60), seeds)
    cut = engine.generate(prompts, Sampling(max_response_tokens=60, stop=stop), seeds)
    ends = 0
    for one, other in zip(chain(*whole), chain(*cut), strict=True):
        said = (
            n for n in range(1, len(one.token_ids) + 1) if any(s in tokenizer.decode(one.token_ids[:n]) for s in stop)
        )
        end = next(said, None)
        assert other.token_ids == one.token_ids[:end]
        assert other.logprobs == pytest.approx(one.logprobs[:end], abs=1e-6)
        if end is not None:
            ends += 1
            assert other.finish_reason == "stop"
            assert any(s in other.text for s in stop)
    assert 0 < ends < 24


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="would end every rollout at its first token"):
        SamplingConfig(stop=("",))


def test_an_engine_goes_to_sleep_and_wakes_in_one_order_only():
    states = Wakefulness()
    for action in ("generate", "sync", "sleep", "wake weights", "sync", "wake kv_cache", "generate"):
        with states.during(action):
            pass
    with pytest.raises(ConciseError, match="the rollout engine is awake, so it cannot wake weights"):
        states.check("wake weights")


def test_a_step_that_fails_leaves_the_state_as_it_was():
    states = Wakefulness()
    with pytest.raises(RuntimeError), states.during("sleep"):
        raise RuntimeError
    assert states.state == "awake"


def test_an_engine_that_was_closed_says_so(tiny_model):
    engine = make_engine(HfConfig(), tiny_model)
    engine.close()
    engine.close()
    with pytest.raises(ConciseError, match="the rollout engine is closed, so it cannot generate"):
        engine.generate([[1]], Sampling(), [[1]])
