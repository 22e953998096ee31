"""Suites and presets are what the papers evaluated, and a slip of the pen is answered with the nearest name."""

from __future__ import annotations

import pytest

from concisecli.building.suites import PRESETS, SUITES, preset_named, suites_named
from concisecli.config import EvalConfig
from concisecli.loading import packaged
from concisecli.records import UsageError


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_is_a_recipe(suite: str) -> None:
    assert packaged("data_recipes", suite).is_file()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_evaluation_of_32_samples(name: str) -> None:
    config = EvalConfig(**preset_named(name))
    assert (config.temperature, config.samples) == (0.6, 32)
    assert list(config.budgets) == sorted(config.budgets)


def test_presets_hold_the_papers_limits() -> None:
    assert (PRESETS["conciser"]["top_p"], PRESETS["conciser"]["budgets"][-1]) == (0.95, 3072)
    assert (PRESETS["lead"]["min_p"], PRESETS["lead"]["budgets"][-1]) == (0.01, 14336)
    assert PRESETS["lead-7b"]["budgets"][-1] == 8192


def test_suites_are_read_once_each_in_order() -> None:
    assert suites_named(" math500, aime24,math500 ") == ["math500", "aime24"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amc32", "did you mean 'amc23'"),
        ("math-500", "did you mean 'math500'"),
        ("poetry", "there are: aime24"),
        (",", "no suite given"),
    ],
)
def test_an_unknown_suite_is_answered_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        suites_named(text)


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'conciser'"):
        preset_named("concise")
