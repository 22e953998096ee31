"""How many problems a round samples."""

import numpy as np
import pytest

from concisecli.config import TrainConfig
from concisecli.refilling import Yield, most_problems, round_size


def config(**fields):
    return TrainConfig.model_validate({"steps": 1, "batch_problems": 32, "advantage": {"keep": "mixed"}, **fields})


def test_without_oversampling_a_round_samples_what_is_missing():
    assert round_size(7, config(), Yield(1, 100)) == 7


def test_a_number_is_a_factor_rounded_up():
    assert round_size(32, config(oversample=1.5), Yield()) == 48
    assert round_size(1, config(oversample=1.5), Yield()) == 2
    assert round_size(10, config(oversample=1.1), Yield()) == 11  # 11.000000000000002 is eleven


def test_adaptive_follows_the_recent_share_with_one_standard_error():
    """Of a share of 1/2, 32 groups need (32 + sqrt(32 / 2)) / (1/2) = 72 problems."""
    assert round_size(32, config(oversample="adaptive"), Yield(50, 100)) == 72


def test_adaptive_begins_with_what_is_missing_and_never_passes_its_cap():
    assert round_size(32, config(oversample="adaptive"), Yield()) == 32
    assert round_size(32, config(oversample="adaptive", oversample_cap=2.5), Yield(0, 1000)) == 80


def test_older_steps_fade_from_the_estimate():
    recent = Yield()
    for kept in (0, 0, 10, 10, 10, 10, 10):
        recent.begin_step()
        recent.add(kept, 10)
    assert recent.share == pytest.approx(1 - (0.8**5 + 0.8**6) / sum(0.8**i for i in range(7)))


def test_a_step_never_samples_more_than_it_has_different_problems_for():
    asked = config(oversample="adaptive", oversample_cap=3, refill_rounds=2)
    assert most_problems(asked) == 288
    recent, missing, sampled = Yield(0, 50), 32, 0
    for _ in range(3):
        sampled += round_size(missing, asked, recent)
    assert sampled <= 288


@pytest.mark.parametrize(("group_size", "mixed"), [(8, 0.61), (16, 0.72), (32, 0.81)])
def test_two_rounds_are_enough_in_95_of_100_steps(group_size, mixed):
    """Problems whose true pass rate is Beta(1/2, 1/2), as simulated in the literature on dynamic sampling."""
    rng, asked, recent = np.random.default_rng(0), config(oversample="adaptive", refill_rounds=4), Yield()
    rounds, shares, sampled = [], [], 0
    for _ in range(400):
        recent.begin_step()
        kept = number = 0
        while kept < 32:
            size = round_size(32 - kept, asked, recent)
            right = rng.binomial(group_size, rng.beta(0.5, 0.5, size))
            new = int(((right > 0) & (right < group_size)).sum())
            recent.add(new, size)
            kept, number, sampled = kept + new, number + 1, sampled + size
        rounds.append(number)
        shares.append(recent.share)
    assert np.mean(shares) == pytest.approx(mixed, abs=0.02)
    assert np.mean(np.array(rounds) <= 2) >= 0.95
    assert sampled / (32 * 400) < 1.25 / mixed
