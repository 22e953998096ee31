from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.intervals import bootstrap_interval, paired_bootstrap, standard_error
from concisecli.algo.metrics import (
    REFLECTION_WORDS,
    accuracy_at_budget,
    accuracy_by_finish,
    break_even,
    cons_at_k,
    empty_think_rate,
    length_summary,
    lengths_by_correctness,
    macro_precision,
    mean_pass_at_k,
    pass_at_k,
    reflection_rates,
    reflection_words,
    think_body,
)

# --- pass@k -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "correct", "k", "value"),
    [
        (32, 0, 1, 0.0),
        (32, 8, 1, 0.25),
        (32, 8, 4, 0.7045050055617352),
        (32, 8, 8, 0.930077008642081),
        (32, 1, 16, 0.5),
        (32, 1, 32, 1.0),
        (10, 3, 5, 0.9166666666666666),
        (5, 2, 3, 0.9),
        (8, 7, 2, 1.0),
    ],
)
def test_pass_at_k_is_the_unbiased_estimator(samples: int, correct: int, k: int, value: float) -> None:
    assert pass_at_k(samples, correct, k) == pytest.approx(value, rel=1e-12, abs=0)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_1_has_the_same_mean_whichever_k_of_n_samples_are_kept(drawn: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(drawn)))
    subsets = list(itertools.combinations(drawn, k))
    mean = sum(Fraction(sum(subset), k) for subset in subsets) / len(subsets)
    assert mean == Fraction(sum(drawn), len(drawn))
    assert float(mean) == pytest.approx(np.mean([mean_pass_at_k([subset], 1) for subset in subsets]), abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 64), st.data())
def test_all_correct_is_one_and_all_wrong_is_zero_for_every_k(samples: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, samples))
    assert pass_at_k(samples, samples, k) == 1.0
    assert pass_at_k(samples, 0, k) == 0.0


@settings(deadline=None)
@given(st.integers(1, 9), st.data())
def test_pass_at_k_counts_the_draws_that_hold_a_right_sample(samples: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    draws = list(itertools.combinations([True] * correct + [False] * (samples - correct), k))
    assert pass_at_k(samples, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_1_uses_every_sample_and_weighs_problems_alike() -> None:
    assert mean_pass_at_k([[False, True, True, True]], 1) == 0.75  # the first sample alone would say 0
    assert mean_pass_at_k([[True] * 8, [False, False]], 1) == 0.5


@pytest.mark.parametrize(("samples", "correct", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_it_cannot_tell(samples: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        pass_at_k(samples, correct, k)


# --- the vote ---------------------------------------------------------------------------------------------------------


def same(one: str, other: str) -> bool:
    return Fraction(one) == Fraction(other)


@pytest.mark.parametrize(
    ("answers", "first", "expected", "pessimistic"),
    [
        (["7", "7", "3", "3"], 1, 0.5, 0),
        (["3", "7", "7", "3"], 0, 0.5, 0),
        (["7", "3", "5"], 1, 0.3333333333333333, 0),
        ([None, None, None, "7"], 1, 1, 1),
        ([None] * 4, 0, 0, 0),
        (["14/2", "7", "3", "3"], 1, 0.5, 0),
        (["1/2", "3", "3", "1/2", "14/2", "7", "21/3"], 1, 1, 1),
    ],
)
def test_the_vote_by_each_rule_for_ties(
    answers: list[str | None], first: float, expected: float, pessimistic: float
) -> None:
    correct = [answer is not None and Fraction(answer) == 7 for answer in answers]
    assert cons_at_k(answers, correct, tie="first", same=same) == first
    assert cons_at_k(answers, correct, tie="expected", same=same) == pytest.approx(expected, rel=1e-12)
    assert cons_at_k(answers, correct, tie="pessimistic", same=same) == pessimistic


def test_clusters_found_elsewhere_can_vote_by_number() -> None:
    assert cons_at_k([0, 1, 1, None, None, None], [False, True, True, False, False, False]) == 1.0


def test_the_first_sample_of_an_answer_decides_whether_it_is_right() -> None:
    assert cons_at_k(["7", "7", "3"], [True, False, False]) == 1.0
    assert cons_at_k(["7", "7", "3"], [False, True, False]) == 0.0


def test_equal_answers_are_never_compared_by_the_slow_rule() -> None:
    asked: list[tuple[str, str]] = []

    def slow(one: str, other: str) -> bool:
        asked.append((one, other))
        return False

    cons_at_k(["a"] * 50 + ["b"] * 50, [True] * 50 + [False] * 50, same=slow)
    assert asked == [("a", "b")]


# --- budgets, precision, break-even -----------------------------------------------------------------------------------


def test_within_a_budget_counts_what_is_right_and_ended_in_time() -> None:
    correct, lengths, finished = [True, True, True, False], [40, 80, 80, 20], [True, True, False, True]
    assert accuracy_at_budget(correct, lengths, finished, 40).tolist() == [True, False, False, False]
    assert accuracy_at_budget(correct, lengths, finished, 80).tolist() == [True, True, False, False]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.booleans()), min_size=1))
def test_accuracy_never_falls_as_the_budget_grows(rows: list[tuple[bool, int, bool]]) -> None:
    columns = tuple(zip(*rows, strict=True))
    curve = [accuracy_at_budget(*columns, budget).mean() for budget in range(0, 60, 7)]
    assert curve == sorted(curve)


def test_precision_is_averaged_over_problems_and_silence_counts_zero() -> None:
    assert macro_precision([3, 1, 0, 0], [4, 1, 2, 0]) == pytest.approx((0.75 + 1 + 0 + 0) / 4)


def test_a_wrong_answer_that_costs_one_must_be_right_half_the_time() -> None:
    assert [break_even(p) for p in (0.0, 1.0, 3.0)] == [0.0, 0.5, 0.75]


# --- lengths ----------------------------------------------------------------------------------------------------------


def test_lengths_are_summed_up_by_mean_and_quantiles() -> None:
    found = length_summary(range(101))
    assert found == {"mean": 50, "min": 0, "p10": 10, "p50": 50, "p90": 90, "p99": 99, "max": 100}
    assert length_summary([]) == {}


def test_wrong_answers_are_compared_with_right_ones_overall_and_within_problems() -> None:
    lengths = [[10, 30], [100, 80, 60], [500], [7]]
    correct = [[True, False], [True, True, False], [False], [True]]
    found = lengths_by_correctness(lengths, correct)
    assert found["right"] == pytest.approx((10 + 100 + 80 + 7) / 4)
    assert found["wrong"] == pytest.approx((30 + 60 + 500) / 3)
    assert found["within_problems"] == 2
    assert found["within_gap"] == pytest.approx((20 - 30) / 2)
    assert found["within_wrong_longer"] == 0.5
    assert lengths_by_correctness([[5]], [[True]]) == {"within_problems": 0.0, "right": 5.0}


def test_accuracy_is_split_by_truncation() -> None:
    found = accuracy_by_finish([True, False, False, True], [True, True, False, False])
    assert found == {"truncated": 0.5, "accuracy_finished": 0.5, "accuracy_truncated": 0.5}
    assert accuracy_by_finish([True], [True]) == {"truncated": 0.0, "accuracy_finished": 1.0}
    assert accuracy_by_finish([], []) == {}


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_pool_has_fifteen_words_and_python() -> None:
    assert len(REFLECTION_WORDS) == 16
    for word in REFLECTION_WORDS:
        assert reflection_words(f"So, {word.upper()}.") == {word: 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wait, let me check again: wait.", {"wait": 2, "check again": 1}),
        ("check\nagain and check", {"check again": 1, "check": 1}),
        ("re-check, recheck, Re-Check", {"recheck": 3}),
        ("double-check; double check; doublecheck", {"double-check": 3}),
        ("re-evaluate reevaluate evaluate evaluation", {"re-evaluate": 2, "evaluate": 1, "evaluation": 1}),
        ("rethinking, checked, waiter, evaluates, pythonic, awaits", {}),
        ("re-think or rethink", {"rethink": 2}),
        ("<think>wait check A20-6=14 ok;</think>", {"wait": 1, "check": 1}),
        ("", {}),
    ],
)
def test_reflection_is_counted_by_whole_words_longest_first(text: str, words: dict[str, int]) -> None:
    assert reflection_words(text) == words


def test_reflection_is_reported_per_response_and_per_thousand_tokens() -> None:
    rates = reflection_rates(["wait, wait", "no"], [300, 200])
    assert rates["wait"] == {"per_response": 1.0, "per_1k_tokens": 4.0}
    assert rates["verify"] == {"per_response": 0.0, "per_1k_tokens": 0.0}
    assert list(rates) == list(REFLECTION_WORDS)
    assert reflection_rates([], [])["wait"] == {"per_response": 0.0, "per_1k_tokens": 0.0}


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("<think>\n</think><answer>7</answer>", ""),
        ("</think>7", ""),  # the prompt opened the thought
        ("2+5</think>7", "2+5"),
        ("<think> 2+5 </think>7 <think>more</think>", "2+5"),
        ("<think>2+5", None),
        ("7", None),
    ],
)
def test_a_thought_ends_at_its_closing_tag(text: str, body: str | None) -> None:
    assert think_body(text) == body


def test_empty_thoughts_are_counted_among_all_responses() -> None:
    texts = ["<think></think>7", "<think>2+5</think>7", "7", "<think>"]
    assert empty_think_rate(texts) == 0.25
    assert empty_think_rate([]) == 0.0


# --- how sure ---------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
RATES = RNG.beta(0.8, 0.8, size=30)
DRAWN = [RNG.random(16) < rate for rate in RATES]


def test_an_interval_over_problems_is_about_two_standard_errors_wide() -> None:
    low, high = bootstrap_interval(DRAWN, resamples=2000, seed=0)
    mean = np.mean([row.mean() for row in DRAWN])
    assert low < mean < high
    assert (high - low) / (2 * 1.96) == pytest.approx(standard_error(DRAWN), rel=0.1)


def test_an_interval_over_samples_tells_how_far_another_run_may_land() -> None:
    low, high = bootstrap_interval(DRAWN, resamples=2000, seed=0, over="samples")
    shares = np.array([row.mean() for row in DRAWN])
    analytic = math.sqrt(np.mean(shares * (1 - shares)) / 16 / 30)
    assert (high - low) / (2 * 1.96) == pytest.approx(analytic, rel=0.1)


def test_more_samples_narrow_the_interval_over_samples() -> None:
    def width(count: int) -> float:
        rows = [np.arange(count) < count // 2] * 30
        low, high = bootstrap_interval(rows, resamples=500, seed=1, over="samples")
        return high - low

    assert width(64) < 0.6 * width(16)


def test_the_interval_over_both_is_the_widest() -> None:
    width = {
        over: np.diff(bootstrap_interval(DRAWN, resamples=2000, seed=0, over=over))[0]  # type: ignore[arg-type]
        for over in ("problems", "samples", "both")
    }
    assert width["both"] > width["problems"] > width["samples"]


def test_problems_may_have_different_numbers_of_samples() -> None:
    rows = [[1, 1, 1, 1], [0], [1, 0]]
    for over in ("problems", "samples", "both"):
        low, high = bootstrap_interval(rows, resamples=500, seed=0, over=over)  # type: ignore[arg-type]
        assert 0 <= low <= 0.5 <= high <= 1
    low, high = bootstrap_interval([[1, 1], [0]], resamples=200, seed=0, over="samples")
    assert (low, high) == (0.5, 0.5)


def test_an_interval_depends_on_its_seed_only() -> None:
    for over in ("problems", "both"):
        first = bootstrap_interval(DRAWN, resamples=100, seed=7, over=over)  # type: ignore[arg-type]
        assert first == bootstrap_interval(DRAWN, resamples=100, seed=7, over=over)  # type: ignore[arg-type]
        assert first != bootstrap_interval(DRAWN, resamples=100, seed=8, over=over)  # type: ignore[arg-type]


def test_a_paired_difference_cancels_how_hard_each_problem_is() -> None:
    before = {str(i): [rate] for i, rate in enumerate(RATES)}
    after = {str(i): [rate + 0.02] for i, rate in enumerate(RATES)} | {"new": [0.0]}
    found = paired_bootstrap(before, after, resamples=1000, seed=0)
    assert found.difference == pytest.approx(0.02)
    assert found.low == pytest.approx(0.02)
    assert found.high == pytest.approx(0.02)
    assert found.p_value == 0.0


def test_no_difference_has_a_large_p_value() -> None:
    noise = np.random.default_rng(0).normal(size=60)
    before = {str(i): [0.0] for i in range(60)}
    after = {str(i): [value - noise.mean()] for i, value in enumerate(noise)}
    found = paired_bootstrap(before, after, resamples=1000, seed=0)
    assert found.low < 0 < found.high
    assert found.p_value > 0.8
    assert paired_bootstrap(before, before, resamples=50, seed=0).p_value == 1.0


def test_evaluations_that_share_no_problem_are_not_compared() -> None:
    with pytest.raises(ValueError, match="share no problem"):
        paired_bootstrap({"a": [1]}, {"b": [1]}, resamples=10, seed=0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1, max_size=5), st.integers(0, 99))
def test_an_interval_never_leaves_the_range_of_the_values(values: list[list[float]], seed: int) -> None:
    low, high = bootstrap_interval(values, resamples=20, seed=seed, over="both")
    flat = [value for row in values for value in row]
    assert min(flat) - 1e-12 <= low <= high <= max(flat) + 1e-12
