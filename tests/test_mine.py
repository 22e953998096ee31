"""Mining: which problems leave for the next stage, decided with no attempt more than needed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.config import MineConfig
from concisecli.records import PassRate, Problem
from concisecli.stages import mine


def problem(pid):
    return Problem(pid, f"question {pid}", "1", "test")


def solver(outcomes):
    """Attempt number n at problem i succeeds as the table says; counts what was asked for."""

    def attempt(problems, ranges):
        return [[bool(outcomes[int(p.id)][n]) for n in numbers] for p, numbers in zip(problems, ranges, strict=True)]

    return attempt


@settings(deadline=None, max_examples=60)
@given(
    outcomes=st.lists(st.lists(st.booleans(), min_size=16, max_size=16), min_size=1, max_size=6),
    max_pass_rate=st.sampled_from([0.5, 0.75, 0.7, 1.0]),
    min_pass_rate=st.sampled_from([None, 1 / 16, 0.25]),
)
def test_stopping_early_decides_as_all_sixteen_attempts_would(outcomes, max_pass_rate, min_pass_rate):
    config = MineConfig(max_pass_rate=max_pass_rate, min_pass_rate=min_pass_rate, attempts=16)
    tallies = mine.decide([problem(str(i)) for i in range(len(outcomes))], config, solver(outcomes))
    for i, row in enumerate(outcomes):
        tally = tallies[str(i)]
        stopped = mine.is_hard(PassRate(str(i), 0, tally.right, tally.attempts), config)
        in_full = mine.is_hard(PassRate(str(i), 0, sum(row), 16), config)
        assert tally.right == sum(row[: tally.attempts])
        assert mine.verdict(tally, config) == in_full
        if tally.attempts == 16:
            assert stopped == in_full


def test_a_problem_never_solved_stops_after_four_attempts_and_one_always_solved_after_thirteen():
    outcomes = [[False] * 16, [True] * 16]
    tallies = mine.decide([problem("0"), problem("1")], MineConfig(max_pass_rate=0.75), solver(outcomes))
    assert (tallies["0"].right, tallies["0"].attempts) == (0, 4)
    assert (tallies["1"].right, tallies["1"].attempts) == (13, 13)


def test_three_in_four_is_still_hard_and_thirteen_in_sixteen_is_not():
    config = MineConfig(max_pass_rate=0.75)
    assert mine.is_hard(PassRate("a", 0, 12, 16), config)
    assert not mine.is_hard(PassRate("a", 0, 13, 16), config)
    assert not mine.is_hard(PassRate("a", 0, 0, 16), MineConfig(min_pass_rate=1 / 16))


VISITS = [PassRate("a", 0, 2, 8), PassRate("b", 1, 8, 8), PassRate("a", 5, 8, 8)]


@pytest.mark.parametrize(("window", "right", "attempts"), [("all", 10, 16), ("last", 8, 8)])
def test_a_log_counts_every_visit_or_the_last_one(window, right, attempts):
    rates = mine.from_log(VISITS, MineConfig(source="log", window=window))
    assert rates["a"] == PassRate("a", 5, right, attempts)
    assert rates["b"] == PassRate("b", 1, 8, 8)


def test_a_problem_seen_too_rarely_is_as_if_never_seen():
    rates = mine.from_log(VISITS, MineConfig(source="log", min_attempts=16))
    assert set(rates) == {"a"}


def test_attempts_are_numbered_on_so_that_no_rollout_is_drawn_twice():
    seen = {}

    def attempt(problems, ranges):
        for p, numbers in zip(problems, ranges, strict=True):
            seen.setdefault(p.id, []).extend(numbers)
        return [[n % 2 == 0 for n in numbers] for numbers in ranges]

    mine.decide([problem(str(i)) for i in range(3)], MineConfig(), attempt)
    for numbers in seen.values():
        assert numbers == list(np.arange(len(numbers)))
