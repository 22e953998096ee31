from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.repetition import LONGEST_NGRAM, is_repetitive, longest_run, longest_word

THIRTY = " ".join(f"w{i}" for i in range(30)) + " "
THIRTY_ONE = " ".join(f"w{i}" for i in range(31)) + " "

# What the released function of GRPO-LEAD gives.
CASES = [
    ("a " * 9, (9, 1), False),
    ("a " * 10, (10, 1), True),
    ("a b " * 10, (10, 2), True),
    ("x " + "a b " * 10, (9, 2), False),
    ("x " + "a b " * 11, (10, 2), True),
    ("x " + "a b c " * 10, (9, 3), False),
    (THIRTY * 10, (10, 30), True),
    (THIRTY_ONE * 10, (0, 0), False),
    ("A a " * 10, (10, 2), True),
    ("", (0, 0), False),
]


@pytest.mark.parametrize(("text", "run", "penalised"), CASES)
def test_the_aligned_rule_agrees_with_the_released_code(text: str, run: tuple[int, int], penalised: bool) -> None:
    assert longest_run(text.split()) == run
    assert is_repetitive(text) is penalised


def test_a_word_in_front_hides_a_loop_from_the_aligned_rule_only() -> None:
    text = "x " + "a b " * 10
    assert not is_repetitive(text, repetition_offsets="aligned")
    assert is_repetitive(text, repetition_offsets="all")
    assert longest_run(("x " + "a b c " * 10).split(), repetition_offsets="all") == (10, 3)


def test_a_word_of_120_characters_is_repetition_and_one_of_119_is_not() -> None:
    assert not is_repetitive("so " + "x" * 119)
    assert is_repetitive("so " + "x" * 120)
    assert is_repetitive("so " + "x" * 40, repetition_word=40)
    assert longest_word([]) == 0


@pytest.mark.parametrize("offsets", ["aligned", "all"])
def test_counting_to_thirty_is_not_repetition(offsets: str) -> None:
    assert not is_repetitive(", ".join(map(str, range(1, 31))), repetition_offsets=offsets)
    assert is_repetitive("ab " * 10, repetition_offsets=offsets)


def test_the_run_that_counts_is_a_setting() -> None:
    assert is_repetitive("a b a b a b", repetition_run=3)
    assert not is_repetitive("a b a b a b", repetition_run=4)


def slow_longest_run(words: list[str], offsets: str) -> tuple[int, int]:
    """The definition, chunk by chunk, in quadratic time."""
    best = (0, 0)
    for n in range(1, LONGEST_NGRAM + 1):
        for start in [0] if offsets == "aligned" else range(n):
            chunks = [tuple(words[i : i + n]) for i in range(start, len(words) - n + 1, n)]
            run = 1
            for previous, chunk in itertools.pairwise(chunks):
                run = run + 1 if chunk == previous else 1
                if run > max(best[0], 1):
                    best = (run, n)
    return best


@settings(deadline=None)
@given(st.lists(st.sampled_from("ab"), max_size=80), st.sampled_from(["aligned", "all"]))
def test_the_fast_run_is_the_slow_one(words: list[str], offsets: str) -> None:
    assert longest_run(words, repetition_offsets=offsets) == slow_longest_run(words, offsets)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_looking_at_every_offset_never_finds_less(words: list[str]) -> None:
    assert longest_run(words, repetition_offsets="all")[0] >= longest_run(words)[0]
