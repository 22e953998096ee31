"""Golden numbers were worked out in float64 from the papers' formulas and the released code of GRPO-LEAD."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.advantages import difficulty_weight, difficulty_weights, group_advantages, of_group, pass_rate
from concisecli.algo.group_filters import group_kind, keep_group
from concisecli.algo.rewards import zscore_bonus
from concisecli.config import AdvantageConfig, LogisticDifficulty, StepDifficulty

PAPER = {"low": 0.4, "high": 1.5, "midpoint": 0.75, "slope": 10.0}
WEIGHTS = [
    1.499391943499384,
    1.4978805918703397,
    1.492637863983287,
    1.4747248930989718,
    1.4165560019766321,
    1.2550298472921604,
    0.9500000000000001,
    0.6449701527078398,
    0.4834439980233679,
]
EASY = ([1000, 1200, 1400, 1600, 1800, 2000, 2200, 3000], "11111110")
HARD = ([4000, 6000] + [8000] * 6, "11000000")
SOLVED = (list(range(5000, 6401, 200)), "11111111")


def close(got: object, expected: object, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=0)


def lead(group: tuple[list[int], str], std: str) -> tuple[list[float], list[float]]:
    """Advantages before and after the difficulty weight, with one kind of std for lengths and rewards."""
    lengths, correct = group[0], np.array([c == "1" for c in group[1]])
    reward = np.where(correct, 1.0, -1.0) + zscore_bonus(lengths, correct, alpha=0.05, std=std)
    plain = of_group(reward, 0.5, AdvantageConfig(std=std))
    weighted = of_group(reward, pass_rate(correct), AdvantageConfig(std=std, difficulty=LogisticDifficulty()))
    return plain.tolist(), weighted.tolist()


# --- difficulty -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eighths", range(9))
def test_the_logistic_weight_falls_from_hard_to_easy(eighths: int) -> None:
    close(difficulty_weight(eighths / 8, **PAPER), WEIGHTS[eighths])
    close(difficulty_weight(1 - eighths / 8, **PAPER), WEIGHTS[8 - eighths])


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_the_weight_lies_between_low_and_high_and_never_rises(one: float, other: float) -> None:
    easy, hard = max(one, other), min(one, other)
    assert 0.4 < difficulty_weight(easy, **PAPER) <= difficulty_weight(hard, **PAPER) < 1.5


def test_what_pulls_down_is_weighed_by_the_mirrored_pass_rate() -> None:
    close(difficulty_weights(np.array([2.0, -2.0]), 7 / 8, LogisticDifficulty()), [WEIGHTS[7], WEIGHTS[1]])
    assert difficulty_weights(np.array([2.0, -2.0]), 7 / 8, None).tolist() == [1.0, 1.0]


def test_the_step_rule_weighs_hard_problems_whatever_the_sign() -> None:
    rule = StepDifficulty()
    assert difficulty_weights(np.array([1.0, -1.0]), 0.29, rule).tolist() == [1.5, 1.5]
    assert difficulty_weights(np.array([1.0, -1.0]), 0.3, rule).tolist() == [1.0, 1.0]


def test_the_pass_rate_comes_from_verdicts_or_from_scores() -> None:
    assert pass_rate([True, False, False, False]) == 0.25
    assert pass_rate([True, False, False, False], [0.9, 0.5, 0.49, 0.0], score_threshold=0.5) == 0.5
    assert pass_rate([True, False], [0.0, 0.0]) == 0.5
    with pytest.raises(ValueError, match="needs scores"):
        pass_rate([True, False], score_threshold=0.5)


# --- LEAD -------------------------------------------------------------------------------------------------------------


def test_lead_on_an_easy_problem_with_sample_std() -> None:
    plain, weighted = lead(EASY, "sample")
    close(
        plain,
        [
            0.4527014112552106,
            0.41811075879613835,
            0.384311530086718,
            0.35128561758901716,
            0.31901532806013805,
            0.287483373073272,
            0.2566728597556282,
            -2.4695808786161226,
        ],
    )
    close(
        weighted,
        [
            0.29197889834832774,
            0.2696689599495361,
            0.24786946624741404,
            0.2265687384204562,
            0.20575536485508883,
            0.1854181950320331,
            0.16554633355254544,
            -3.6991372681331915,
        ],
    )
    close(sum(weighted), -2.10633131172779)


def test_lead_on_an_easy_problem_with_population_std() -> None:
    close(
        lead(EASY, "population")[1],
        [
            0.317660697074719,
            0.2917911130116269,
            0.2665602512532658,
            0.2419523416897819,
            0.21795200357671915,
            0.1945442359215547,
            0.17171440810758976,
            -3.953136376323781,
        ],
    )


def test_lead_on_a_hard_problem() -> None:
    plain, weighted = lead(HARD, "sample")
    close(plain, [1.6580222242367104, 1.5816699017830842] + [-0.5399486876699658] * 6)
    close(weighted, [2.4748267512215016, 2.360860383724158] + [-0.5129512532864676] * 6)
    close(sum(weighted), 1.7579796152268539)
    plain, weighted = lead(HARD, "population")
    close(plain, [1.7890267825701052, 1.6736289646550486] + [-0.5771092912041924] * 6)
    close(weighted, [2.670369115344334, 2.4981219629032716] + [-0.5482538266439828] * 6)


def test_lead_on_a_solved_problem_pushes_down_the_long_half() -> None:
    plain, weighted = lead(SOLVED, "sample")
    close(
        plain,
        [
            1.4579964392445854,
            1.024336955877266,
            0.5994397755035087,
            0.18312785148488384,
            -0.22477228550267894,
            -0.6244305997503218,
            -1.0160136213371338,
            -1.399684515520125,
        ],
    )
    close(
        weighted,
        [
            0.7048596276922368,
            0.49520955327239163,
            0.28979556164364634,
            0.08853206067128179,
            -0.3370217540046602,
            -0.936266210540121,
            -1.5234026383185324,
            -2.098675686011714,
        ],
    )
    close(sum(weighted), -3.3169694855954712)


def test_lead_with_one_correct_rollout_of_eight() -> None:
    one = ([1500] + [3000] * 7, "10000000")
    plain, weighted = lead(one, "sample")
    close(plain, [2.4748702341578657] + [-0.3535528905939808] * 7)
    close(weighted, [3.70706009114267] + [-0.22803106183669797] * 7)
    plain, weighted = lead(one, "population")
    close(plain, [2.6457473110706378] + [-0.37796390158151966] * 7)
    close(weighted, [3.9630135482458466] + [-0.24377543532108364] * 7)


def test_lead_with_half_correct_and_with_two_rollouts() -> None:
    half = ([2000] * 8, "11110000")
    signs = np.array([1.0] * 4 + [-1.0] * 4)
    for std, plain, weighted in (
        ("sample", 0.9354134716943039, 1.3250655676583647),
        ("population", 0.9999990000010001, 1.4165545854220467),
    ):
        close(lead(half, std)[0], plain * signs)
        close(lead(half, std)[1], weighted * signs)
    plain_two, weighted_two = lead(([100, 200], "10"), "sample")
    close(plain_two, [0.7071062811869011, -0.7071062811869011])
    close(weighted_two, [1.001655646650681, -1.001655646650681])


def test_lead_with_the_gate_shut_and_with_every_rollout_wrong() -> None:
    close(group_advantages([1] * 7 + [-1]), [0.3535528905939808] * 7 + [-2.4748702341578657])
    cfg = AdvantageConfig(difficulty=LogisticDifficulty(), keep="some_right")
    assert of_group([-1.0] * 8, 0.0, cfg).tolist() == [0.0] * 8
    assert not keep_group([-1.0] * 8, [False] * 8, cfg)


# --- plain groups -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "std", "up", "down"),
    [
        (7, "sample", 0.35355239059610216, -2.474866734172715),
        (2, "sample", 1.6201816746095261, -0.5400605582031753),
        (1, "sample", 2.474866734172715, -0.35355239059610216),
        (4, "sample", 0.9354125966967592, -0.9354125966967592),
        (7, "population", 0.37796333015554007, -2.6457433110887805),
        (2, "population", 1.732046807578115, -0.5773489358593717),
        (1, "population", 2.6457433110887805, -0.37796333015554007),
        (4, "population", 0.999998000004, -0.999998000004),
    ],
)
def test_plain_grpo_with_rewards_zero_and_one(right: int, std: str, up: float, down: float) -> None:
    rewards = [1.0] * right + [0.0] * (8 - right)
    close(group_advantages(rewards, std=std), [up] * right + [down] * (8 - right))


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_of_one_kind_has_no_advantage(reward: float) -> None:
    assert group_advantages([reward] * 8).tolist() == [0.0] * 8


def test_mean_only_leaves_the_division_out() -> None:
    assert group_advantages([1, 1, 1, 0, 0, 0, 0, 0], normalize="mean").tolist() == [0.625] * 3 + [-0.375] * 5


L_GRPO = [1.004544, 1.004144, 1.003744, 1.003344]


@pytest.mark.parametrize(
    ("rewards", "options", "expected"),
    [
        (L_GRPO, {}, [1.1596493525475333, 0.386549784182368, -0.386549784182368, -1.159649352547104]),
        (L_GRPO, {"std": "population"}, [1.3386474797375452, 0.44621582657901654, -0.4462158266, -1.33864747974]),
        (L_GRPO, {"std_eps": 1e-4}, [0.9733974066103109, 0.3244658022033169, -0.3244658022, -0.973397406610]),
        (L_GRPO, {"std_eps": 1e-8}, [1.1618725042981637, 0.3872908347659112, -0.3872908347, -1.1618725042981]),
        ([1, 1, 1, 0], {}, [0.499999000002] * 3 + [-1.499997000006]),
        ([1.0, 1.005944], {}, [-0.7069385843269043, 0.7069385843269043]),
    ],
)
def test_l_grpo_advantages_to_the_digits_that_survive_cancellation(
    rewards: list[float], options: dict[str, object], expected: list[float]
) -> None:
    close(group_advantages(rewards, **options), expected, rtol=1e-9)  # type: ignore[arg-type]


def test_equal_l_grpo_rewards_give_exactly_zero() -> None:
    for count in (4, 7):
        assert group_advantages([1.005144] * count).tolist() == [0.0] * count


@settings(deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(1, 40),
    st.sampled_from(["std", "mean"]),
    st.sampled_from(["sample", "population"]),
    st.sampled_from([0.0, 1e-8, 1e-6]),
)
def test_equal_rewards_of_any_size_give_exactly_zero(
    reward: float, count: int, normalize: str, std: str, std_eps: float
) -> None:
    found = group_advantages([reward] * count, normalize=normalize, std=std, std_eps=std_eps)
    assert found.tolist() == [0.0] * count


def test_one_outlier_among_seven_equal_rewards_is_exact_in_every_order() -> None:
    for place in range(8):
        rewards = [0.35] * 8
        rewards[place] = 0.95
        found = group_advantages(rewards, std_eps=0.0)
        expected = np.full(8, -1 / np.sqrt(8))
        expected[place] = 7 / np.sqrt(8)
        close(found, expected, rtol=1e-14)


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6))
def test_the_order_of_a_group_changes_no_advantage(rewards: list[float]) -> None:
    found = group_advantages(rewards)
    for order in itertools.islice(itertools.permutations(range(len(rewards))), 24):
        assert group_advantages([rewards[i] for i in order]).tolist() == [found[i] for i in order]


def test_rows_that_may_not_train_neither_get_nor_shape_an_advantage() -> None:
    found = group_advantages([1.0, 0.0, 50.0, 1.0], [True, True, False, True])
    close(found[[0, 1, 3]], group_advantages([1.0, 0.0, 1.0]))
    assert found[2] == 0.0
    assert group_advantages([5.0, 1.0], [True, False]).tolist() == [0.0, 0.0]


# --- which groups train -----------------------------------------------------------------------------------------------


def kept(keep: str, total: list[float], correct: str, usable: list[bool] | None = None) -> bool:
    return keep_group(total, [c == "1" for c in correct], AdvantageConfig(keep=keep), usable)  # type: ignore[arg-type]


def test_mixed_keeps_groups_with_right_and_wrong() -> None:
    assert kept("mixed", [1, 0], "10")
    assert not kept("mixed", [1.1, 0.9], "11")
    assert not kept("mixed", [0, -1], "00")


def test_some_right_is_the_filter_of_leads_code() -> None:
    assert not kept("some_right", [-1, -1], "00")
    assert not kept("some_right", [0, -1], "00")  # one of them only unfinished
    assert not kept("some_right", [1, 1], "11")
    assert kept("some_right", [1.02, 0.98], "11")  # shaped by length
    assert kept("some_right", [1, -1], "10")


def test_nonzero_keeps_whatever_has_an_advantage() -> None:
    assert kept("nonzero", [1.004, 1.003], "11")
    assert kept("nonzero", [0, -1], "00")
    assert not kept("nonzero", [1, 1], "11")


def test_all_keeps_all() -> None:
    assert kept("all", [1, 1], "11")
    assert kept("all", [0, 0], "00")


@pytest.mark.parametrize("keep", ["mixed", "some_right", "nonzero", "all"])
def test_under_two_usable_rows_no_group_trains(keep: str) -> None:
    assert not kept(keep, [1, 0, 0], "100", [True, False, False])
    assert not kept(keep, [1, 0, 0], "100", [False, False, False])
    assert kept(keep, [1, 0, 0], "100", [True, True, False])


def test_rows_that_may_not_train_do_not_make_a_group_mixed() -> None:
    assert not kept("mixed", [1, 1, 0], "110", [True, True, False])
    assert not kept("nonzero", [1, 1, 0], "110", [True, True, False])


def test_groups_are_right_wrong_or_mixed() -> None:
    assert [group_kind(c) for c in ([True, True], [False, False], [True, False])] == ["all_right", "all_wrong", "mixed"]
