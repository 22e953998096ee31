"""When a training goes wrong, in numbers worked out by hand, and that noise alone says nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from concisecli.algo.alarms import Evaluated, Step, of_evaluations, of_steps, standard_error
from concisecli.config import AlarmConfig

CONFIG = AlarmConfig(window=5)
WELL = Step(accuracy=0.6, length=50.0, truncated=0.02, repetition=0.0, empty_think=0.0, problems=32.0)


def steps(**then: float) -> list[Step]:
    """Ten steps that go well, then five with some things changed."""
    return [WELL] * 10 + [replace(WELL, **then)] * 5


def test_the_standard_error_of_two_shares_is_that_of_agresti_and_caffo() -> None:
    # (0 + 1) / (10 + 2) = 1/12 and (5 + 1) / (10 + 2) = 1/2
    assert standard_error(0.0, 10, 0.5, 10) == pytest.approx(math.sqrt(1 / 12 * 11 / 12 / 12 + 1 / 4 / 12), rel=1e-15)


def test_accuracy_that_falls_while_lengths_shrink_is_a_collapse() -> None:
    found = of_steps(steps(accuracy=0.4, length=30.0), CONFIG)
    assert found == {"collapse": "accuracy fell from 0.600 to 0.400 while responses shrank from 50 to 30 tokens"}


def test_neither_half_of_a_collapse_is_one() -> None:
    assert of_steps(steps(accuracy=0.4), CONFIG) == {}
    assert of_steps(steps(length=20.0), CONFIG) == {}


def test_a_fall_within_the_noise_of_so_few_problems_is_none() -> None:
    # Of 160 problems each the difference has a standard error of 0.055: 0.15 is under three of them, 0.2 is not.
    assert 3 * standard_error(0.45, 160, 0.6, 160) > 0.15
    assert of_steps(steps(accuracy=0.45, length=30.0), CONFIG) == {}
    few = [replace(step, problems=4.0) for step in steps(accuracy=0.4, length=30.0)]
    assert of_steps(few, CONFIG) == {}


def test_the_best_window_is_what_a_fall_is_measured_from() -> None:
    risen = [replace(WELL, accuracy=a, length=50 + 40 * a) for a in np.linspace(0.3, 0.9, 20)]
    fallen = [replace(WELL, accuracy=0.5, length=60.0)] * 5
    assert "collapse" in of_steps(risen + fallen, CONFIG)
    assert "collapse" not in of_steps(risen[:10] + fallen, CONFIG)


@pytest.mark.parametrize(
    ("kind", "field"), [("empty_think", "empty_think"), ("repetition", "repetition"), ("truncation", "truncated")]
)
def test_a_share_that_rises_is_told_by_its_name(kind: str, field: str) -> None:
    (found,) = of_steps(steps(**{field: 0.3}), CONFIG).items()
    assert found[0] == kind
    assert found[1].endswith("to 30.0%")
    assert of_steps(steps(**{field: 0.04}), CONFIG) == {}


def test_the_first_steps_have_nothing_to_be_compared_with() -> None:
    assert of_steps(steps(accuracy=0.0, length=1.0)[6:], CONFIG) == {}
    assert of_steps([], CONFIG) == {}


def test_noise_alone_is_quiet_and_a_collapse_among_it_is_not() -> None:
    rng = np.random.default_rng(0)

    def run(accuracy: np.ndarray, length: np.ndarray) -> list[bool]:
        seen, fired = [], []
        for a, n in zip(accuracy, length, strict=True):
            rates = rng.beta(2 * a, 2 * (1 - a), size=32)  # problems differ; 8 rollouts each
            seen.append(replace(WELL, accuracy=float(rng.binomial(8, rates).mean() / 8), length=n))
            fired.append("collapse" in of_steps(seen, CONFIG))
        return fired

    shrinking = np.linspace(100, 30, 200)
    assert not any(any(run(np.full(200, 0.6), shrinking)) for _ in range(10))
    falling = np.concatenate([np.full(100, 0.6), np.linspace(0.6, 0.1, 40), np.full(60, 0.1)])
    for _ in range(5):
        fired = run(falling, shrinking)
        assert not any(fired[:100])
        assert all(fired[140:])


def evaluated(accuracy: np.ndarray, length: float, **changes: float) -> Evaluated:
    zeros = (0.0,) * len(accuracy)
    made = Evaluated(tuple(accuracy.tolist()), (length,) * len(accuracy), zeros, 0.0, 0.0)
    return replace(made, **changes)


def test_evaluations_are_paired_by_problem() -> None:
    hard = np.tile([0.0, 1.0], 20)  # between problems the spread is 0.5, between two evaluations of one it is nothing
    before, after = evaluated(hard, 80.0), evaluated(np.maximum(hard - 0.12, 0.0), 40.0)
    assert set(of_evaluations([before, after], CONFIG)) == {"collapse"}
    assert of_evaluations([before, evaluated(np.maximum(hard - 0.12, 0.0), 80.0)], CONFIG) == {}
    shuffled = evaluated(np.roll(np.maximum(hard - 0.12, 0.0), 1), 40.0)
    assert of_evaluations([before, shuffled], CONFIG) == {}
    assert of_evaluations([before], CONFIG) == of_evaluations([], CONFIG) == {}


def test_an_evaluation_tells_rising_shares_too() -> None:
    base = np.full(40, 0.5)
    before = evaluated(base, 80.0)
    assert set(of_evaluations([before, replace(before, truncated=(0.4,) * 40)], CONFIG)) == {"truncation"}
    assert set(of_evaluations([before, replace(before, repetition=0.4)], CONFIG)) == {"repetition"}
    assert set(of_evaluations([before, replace(before, empty_think=0.5)], CONFIG)) == {"empty_think"}
