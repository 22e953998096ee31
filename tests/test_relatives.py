from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo.relatives import (
    at_most_bonus,
    cosine_bonus,
    kimi_bonus,
    limit_bonus,
    relative_of,
    shortest_bonus,
    sigmoid_bonus,
    target_bonus,
)
from concisecli.algo.rewards import length_bonus
from concisecli.config import RewardConfig


def close(got: object, expected: object) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


def test_kimi_pays_short_right_rollouts_and_fines_long_ones() -> None:
    close(
        kimi_bonus([100, 200, 300, 400], [True, True, False, False]),
        [0.5, 0.16666666666666669, -0.16666666666666663, -0.5],
    )
    close(kimi_bonus([100, 200, 300], [False, False, True]), [0, 0, -0.5])
    assert kimi_bonus([100, 100], [True, False]).tolist() == [0, 0]


def test_the_sigmoid_reward_of_arora_and_zanette() -> None:
    reward = 1 + sigmoid_bonus([1000, 2000, 3000], [True] * 3, weight=0.1)
    close(reward, [0.9772897480537986, 0.95, 0.9227102519462014])
    assert sigmoid_bonus([1000, 2000], [True, False], weight=0.1).tolist() == [-0.05, 0.0]
    assert sigmoid_bonus([1000], [False], weight=0.1).tolist() == [0.0]


def test_l1_exact_rewards_the_distance_to_a_target() -> None:
    close(1 + target_bonus([2000, 1500, 3000, 6000], [True] * 4, target=2000), [1, 0.85, 0.7, -0.2])


def test_l1_max_pays_half_at_the_target_and_nothing_far_beyond() -> None:
    worth = 1 + at_most_bonus([1000, 1500, 1750, 2000, 2250, 2600], [True] * 6, target=2000)
    close(worth, [1, 1, 0.75, 0.5, 0.25, 0])
    assert at_most_bonus([9000], [False], target=2000).tolist() == [0]


def test_thinkprune_takes_back_what_was_right_beyond_the_limit() -> None:
    close(1 + limit_bonus([2999, 3000, 3001], [True] * 3, limit=3000), [1, 1, 0])
    assert limit_bonus([5000], [False], limit=3000).tolist() == [0]


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        (RewardConfig(length="kimi"), [0.5, 0.0, -0.5]),
        (RewardConfig(length="kimi", length_weight=0.4), [0.2, 0.0, -0.2]),
        (RewardConfig(length="l1-exact", target_tokens=200), [-0.03, 0.0, -0.03]),
        (RewardConfig(length="l1-max", target_tokens=200), [-0.4, -0.5, 0.0]),
        (RewardConfig(length="shorterbetter", correct=2), [0.0, -0.1, -0.2]),
        (RewardConfig(length="cosine", wrong=-1), [-0.125, -0.375, 0.5]),
        (RewardConfig(length="arora-zanette", length_weight=0), [0.0, 0.0, 0.0]),
        (RewardConfig(length="thinkprune", target_tokens=150), [0.0, -1.0, 0.0]),
    ],
)
def test_each_is_one_word_in_the_settings(cfg: RewardConfig, expected: list[float]) -> None:
    lengths, correct = np.array([100.0, 200.0, 300.0]), np.array([True, True, False])
    close(relative_of(lengths, correct, cfg, budget=300), expected)
    close(length_bonus(lengths, correct, cfg, budget=300), expected)


def test_shorter_better_measures_from_the_shortest_correct_rollout() -> None:
    correct = np.array([True, True, True, False])
    close(2 * correct + shortest_bonus([800, 1000, 1500, 2000], correct), [2, 1.8, 1.3, -1.2])
    close(shortest_bonus([100, 300], [False, False]), [-0.1, -0.1])


@pytest.mark.parametrize(("length", "right"), [(0, 1.0), (500, 0.75), (1000, 0.5)])
def test_the_cosine_reward_of_yeo_is_mirrored_for_wrong_rollouts(length: int, right: float) -> None:
    close(np.add([1, -1], cosine_bonus([length, length], [True, False], budget=1000)), [right, -right])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.booleans()), min_size=1, max_size=12))
def test_among_correct_rollouts_the_shorter_never_gets_less(group: list[tuple[int, bool]]) -> None:
    # target_bonus is absent: it asks for a length, so shorter than the target rightly gets less.
    lengths, correct = [length for length, _ in group], [right for _, right in group]
    for bonus in (
        kimi_bonus(lengths, correct),
        sigmoid_bonus(lengths, correct, weight=0.1),
        shortest_bonus(lengths, correct),
        cosine_bonus(lengths, correct, budget=1000),
    ):
        right = sorted((length, value) for (length, c), value in zip(group, bonus, strict=True) if c)
        for (_, more), (_, less) in itertools.pairwise(right):
            assert more >= less - 1e-12
