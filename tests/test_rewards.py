"""Golden numbers were worked out in float64 from the papers' formulas and the released code of GRPO-LEAD."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.rewards import (
    length_gate_is_open,
    mean_and_std,
    relative_bonus,
    remaining_bonus,
    score_group,
    score_rollouts,
    soft_overlong,
    zscore_bonus,
)
from concisecli.config import RewardConfig
from concisecli.records import Completion, Group, Outcome, Problem, RewardBreakdown, Verdict

LEAD = RewardConfig(wrong=-1, length="zscore")
LEAD_CODE = RewardConfig(
    wrong=-1, unfinished=0.0, length="zscore", length_gate_tokens=4000, repetition=-2, repetition_scope="unfinished"
)
L_GRPO = RewardConfig(length="remaining")
BUDGET = 14_000

EASY = ([1000, 1200, 1400, 1600, 1800, 2000, 2200, 3000], "11111110")
HARD = ([4000, 6000] + [8000] * 6, "11000000")
SOLVED = (list(range(5000, 6401, 200)), "11111111")


def rollouts(
    lengths: list[int], correct: str, cfg: RewardConfig, *, budget: int = BUDGET, finished: str | None = None
) -> RewardBreakdown:
    outcomes: list[Outcome] = ["match" if c == "1" else "mismatch" for c in correct]
    done = [c == "1" for c in finished or "1" * len(lengths)]
    return score_rollouts(outcomes, lengths, done, [""] * len(lengths), cfg, budget)


def close(got: object, expected: object) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=0)


# --- LEAD's length reward ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "std", "reward"),
    [
        (
            EASY,
            "sample",
            [
                1.0719040009887928,
                1.0473791590612458,
                1.0234154381585445,
                1.0,
                0.977120300040933,
                0.954764080752083,
                0.932919365052781,
                -1.0,
            ],
        ),
        (
            EASY,
            "population",
            [
                1.0778841506825283,
                1.0512710962446152,
                1.0253151204603466,
                1.0,
                0.9753099120892895,
                0.9512294246196177,
                0.9277434865025048,
                -1.0,
            ],
        ),
        (HARD, "sample", [1.035987770296314, 0.9652623599156765] + [-1.0] * 6),
        (HARD, "population", [1.0512710963234604, 0.9512294245482755] + [-1.0] * 6),
        (
            SOLVED,
            "sample",
            [
                1.0740574117734192,
                1.0523555538978284,
                1.031092192726501,
                1.0102584682180178,
                0.9898456993524513,
                0.9698453805141474,
                0.9502491779475974,
                0.931048926284918,
            ],
        ),
        (([1500] + [3000] * 7, "10000000"), "sample", [1.0] + [-1.0] * 7),
        (([1500] + [3000] * 7, "10000000"), "population", [1.0] + [-1.0] * 7),
        (([2000] * 8, "11110000"), "sample", [1.0] * 4 + [-1.0] * 4),
        (([100, 200], "10"), "sample", [1.0, -1.0]),
        (([100, 200], "00"), "sample", [-1.0, -1.0]),
    ],
)
def test_a_correct_rollout_earns_exp_of_minus_alpha_z(
    group: tuple[list[int], str], std: str, reward: list[float]
) -> None:
    close(rollouts(*group, LEAD.model_copy(update={"std": std})).total, reward)


def test_the_codes_gate_leaves_short_groups_alone() -> None:
    assert rollouts(*EASY, LEAD_CODE).total.tolist() == [1.0] * 7 + [-1.0]
    close(rollouts(*SOLVED, LEAD_CODE).total, rollouts(*SOLVED, LEAD).total)


def test_the_gate_looks_at_the_three_shortest_right_or_wrong() -> None:
    assert not length_gate_is_open([4000, 4000, 4000, 9000], length_gate_tokens=4000)
    assert length_gate_is_open([4000, 4000, 4001, 9000], length_gate_tokens=4000)
    assert length_gate_is_open([1, 1], length_gate_tokens=4000)  # fewer than three: always shaped, as in the code
    assert length_gate_is_open([1, 1, 1], length_gate_tokens=0)


@pytest.mark.parametrize(
    ("count", "std", "low", "high"),
    [
        (7, "sample", 0.892803, 1.120068),
        (7, "population", 0.884728, 1.130290),
        (8, "sample", 0.883606, 1.131726),
        (8, "population", 0.876089, 1.141437),
    ],
)
def test_the_reward_stays_within_what_the_group_size_allows(count: int, std: str, low: float, high: float) -> None:
    alone_short = 1 + zscore_bonus([1] + [10**6] * (count - 1), [True] * count, alpha=0.05, std=std)
    alone_long = 1 + zscore_bonus([10**6] + [1] * (count - 1), [True] * count, alpha=0.05, std=std)
    np.testing.assert_allclose([alone_long.min(), alone_short.max()], [low, high], atol=5e-7)
    z_max = (count - 1) / math.sqrt(count) if std == "sample" else math.sqrt(count - 1)
    np.testing.assert_allclose(alone_short.max(), math.exp(0.05 * z_max), rtol=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 20_000), min_size=2, max_size=16),
    st.sampled_from(["sample", "population"]),
    st.floats(0, 1),
)
def test_no_group_leaves_those_bounds(lengths: list[int], std: str, alpha: float) -> None:
    count = len(lengths)
    z_max = (count - 1) / math.sqrt(count) if std == "sample" else math.sqrt(count - 1)
    reward = 1 + zscore_bonus(lengths, [True] * count, alpha=alpha, std=std)
    assert reward.max() <= math.exp(alpha * z_max) * (1 + 1e-9)
    assert reward.min() >= math.exp(-alpha * z_max) * (1 - 1e-9)


# --- L-GRPO and the design that failed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "correct", "reward"),
    [
        ([800, 1000, 1200, 1400], "1111", [1.004544, 1.004144, 1.003744, 1.003344]),
        ([800, 1000, 1200, 1400], "1110", [1, 1, 1, 0]),
        ([800, 1000, 1200, 1400], "0000", [0, 0, 0, 0]),
        ([3072, 100], "11", [1.0, 1.005944]),
        ([500] * 4, "1111", [1.005144] * 4),
    ],
)
def test_tokens_left_pay_once_every_rollout_is_correct(lengths: list[int], correct: str, reward: list[float]) -> None:
    close(rollouts(lengths, correct, L_GRPO, budget=3072).total, reward)


def test_no_length_bonus_until_every_rollout_is_correct() -> None:
    lengths, correct = np.array([800, 1400]), np.array([True, False])
    assert remaining_bonus(lengths, correct, lam=2e-6, budget=3072).tolist() == [0.0, 0.0]


def test_the_relative_bonus_pays_the_short_right_or_wrong() -> None:
    bonus = relative_bonus([100, 200, 300, 500], relative_weight=0.5)
    close(bonus, [0.5, 0.375, 0.25, 0.0])
    reward = rollouts([100, 500], "01", RewardConfig(length="relative", relative_weight=2.0)).total
    assert reward.tolist() == [2.0, 1.0]  # a short guess outbids a long right answer: why the design fails
    assert relative_bonus([7, 7], relative_weight=0.5).tolist() == [0.0, 0.0]


CONFIGS = [
    LEAD,
    LEAD_CODE,
    L_GRPO,
    RewardConfig(length="relative"),
    RewardConfig(length="zscore", std="population", alpha=0.5),
    RewardConfig(overlong="soft", overlong_window=400),
    RewardConfig(length="zscore", overlong="soft", overlong_window=BUDGET),
]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, BUDGET), st.booleans()), min_size=2, max_size=16),
    st.sampled_from(CONFIGS),
)
def test_among_correct_rollouts_the_shorter_never_gets_less(group: list[tuple[int, bool]], cfg: RewardConfig) -> None:
    lengths = [length for length, _ in group]
    reward = rollouts(lengths, "".join("1" if c else "0" for _, c in group), cfg).total
    right = sorted((length, total) for (length, c), total in zip(group, reward, strict=True) if c)
    for (short, more), (long, less) in itertools.pairwise(right):
        assert more >= less if short < long else more == less


# --- base values, truncation, timeouts --------------------------------------------------------------------------------


def test_wrong_unanswered_and_unfinished_have_values_of_their_own() -> None:
    outcomes: list[Outcome] = ["match", "mismatch", "no_answer", "no_answer", "mismatch", "timeout"]
    finished = [True, True, True, False, False, True]

    def total(cfg: RewardConfig) -> list[float]:
        return score_rollouts(outcomes, [5] * 6, finished, [""] * 6, cfg, 10).total.tolist()

    assert total(RewardConfig(wrong=-1)) == [1, -1, -1, -1, -1, -1]
    assert total(RewardConfig(wrong=-1, no_answer=-0.5, unfinished=0)) == [1, -1, -0.5, 0, 0, -1]


def test_leads_code_tells_wrong_unfinished_and_unfinished_loops_apart() -> None:
    loop = "again " * 12
    outcomes: list[Outcome] = ["mismatch", "no_answer", "no_answer", "mismatch"]
    texts = ["done", "cut", loop, loop]
    finished = [True, False, False, True]
    code = score_rollouts(outcomes, [9] * 4, finished, texts, LEAD_CODE, 9)
    assert code.total.tolist() == [-1.0, 0.0, -2.0, -1.0]
    assert code.repeated.tolist() == [False, False, True, False]
    paper = LEAD.model_copy(update={"repetition": -1.5})
    assert score_rollouts(outcomes, [9] * 4, finished, texts, paper, 9).total.tolist() == [-1, -1, -1.5, -1.5]


def test_repetition_replaces_the_reward_of_a_right_answer_too() -> None:
    cfg = RewardConfig(length="zscore", repetition=-1.5)
    outcomes: list[Outcome] = ["match", "match"]
    reward = score_rollouts(outcomes, [10, 50], [True, True], ["fine", "go " * 10], cfg, 99)
    assert reward.total[1] == -1.5
    assert reward.length[1] == 0.0
    assert reward.total[0] > 1


def test_nothing_is_looked_for_while_repetition_is_unset() -> None:
    reward = score_rollouts(["mismatch"], [10], [True], ["go " * 10], RewardConfig(), 99)
    assert reward.repeated.tolist() == [False]


def test_truncated_rollouts_are_penalised_masked_or_pay_softly() -> None:
    lengths, correct, finished = [80, 90, 100, 100], "1111", "1110"
    penalised = rollouts(lengths, "1110", RewardConfig(unfinished=-0.5), budget=100, finished=finished)
    assert penalised.total.tolist() == [1, 1, 1, -0.5]
    assert penalised.usable.all()
    masked = rollouts(lengths, "1110", RewardConfig(overlong="mask"), budget=100, finished=finished)
    assert masked.usable.tolist() == [True, True, True, False]
    soft = RewardConfig(overlong="soft", overlong_window=20)
    assert rollouts(lengths, correct, soft, budget=100).total.tolist() == [1.0, 0.5, 0.0, 0.0]


def test_a_masked_truncation_still_is_an_attempt_that_failed() -> None:
    cfg = RewardConfig(length="remaining", overlong="mask")
    reward = rollouts([100, 200, 300], "110", cfg, budget=300, finished="110")
    assert reward.length.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("length", "budget", "window", "penalty"),
    [
        (16384, 20480, 4096, 0.0),
        (18432, 20480, 4096, -0.5),
        (20480, 20480, 4096, -1.0),
        (20481, 20480, 4096, -1.0),
        (80, 100, 20, 0.0),
        (90, 100, 20, -0.5),
        (100, 100, 20, -1.0),
    ],
)
def test_the_soft_overlong_penalty_is_dapos(length: int, budget: int, window: int, penalty: float) -> None:
    close(soft_overlong([length], budget=budget, overlong_window=window), [penalty])
    close(soft_overlong([length], budget=budget, overlong_window=window, overlong_factor=0.5), [penalty / 2])


def test_a_late_answer_is_wrong_by_default_and_left_out_on_request() -> None:
    outcomes: list[Outcome] = ["match", "timeout"]
    wrong = score_rollouts(outcomes, [1, 1], [True, True], ["", ""], RewardConfig(wrong=-1), 9)
    assert (wrong.total.tolist(), wrong.usable.tolist()) == ([1, -1], [True, True])
    left_out = RewardConfig(wrong=-1, on_timeout="leave-out")
    assert score_rollouts(outcomes, [1, 1], [True, True], ["", ""], left_out, 9).usable.tolist() == [True, False]


def test_a_grader_error_is_no_verdict_on_the_model() -> None:
    outcomes: list[Outcome] = ["match", "match", "error"]
    reward = score_rollouts(outcomes, [100, 300, 9000], [True] * 3, [""] * 3, L_GRPO, 3072)
    assert reward.usable.tolist() == [True, True, False]
    close(reward.length, [2e-6 * 2972, 2e-6 * 2772, 0.0])  # the two judged ones are all correct


# --- groups and sums --------------------------------------------------------------------------------------------------


def test_a_group_is_scored_from_its_verdicts_tokens_and_words() -> None:
    problem = Problem(id="p", prompt="Say it: go go", answer="1", source="test")

    def attempt(tokens: int, text: str, finish_reason: str) -> Completion:
        return Completion(tuple(range(tokens)), (0.0,) * tokens, text, finish_reason)  # type: ignore[arg-type]

    group = Group(
        problem,
        (attempt(4, "1", "stop"), attempt(6, "2", "stop"), attempt(8, "go " * 10, "length")),
        (Verdict("match"), Verdict("mismatch"), Verdict("no_answer")),
    )
    cfg = RewardConfig(wrong=-1, unfinished=-0.25, repetition=-2, repetition_offsets="all")
    reward = score_group(group, cfg, 8)
    assert reward.accuracy.tolist() == [1.0, -1.0, -0.25]
    assert reward.total.tolist() == [1.0, -1.0, -2.0]
    assert reward.repeated.tolist() == [False, False, True]


def test_the_prompts_words_count_towards_a_repetition() -> None:
    problem = Problem(id="p", prompt="a b", answer="1", source="test")
    loop = Completion((1,), (0.0,), "a b " * 9, "length")
    group = Group(problem, (loop, loop), (Verdict("no_answer"), Verdict("no_answer")))
    assert score_group(group, RewardConfig(repetition=-2), 1).total.tolist() == [-2, -2]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12), st.randoms())
def test_mean_and_std_do_not_depend_on_order(values: list[float], random: object) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for std in ("sample", "population"):
        assert mean_and_std(np.array(values), std) == mean_and_std(np.array(shuffled), std)
        np.testing.assert_allclose(
            mean_and_std(np.array(values), std),
            (np.mean(values), np.std(values, ddof=int(std == "sample"))),
            rtol=1e-9,
            atol=1e-9,
        )
