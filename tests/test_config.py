"""Settings: strict, frozen, and the papers' values where the paper states them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from concisecli.config import (
    KINDS,
    SHARED,
    AdvantageConfig,
    LogisticDifficulty,
    Pipeline,
    RewardConfig,
    SamplingConfig,
    SftConfig,
    TrainConfig,
)
from concisecli.did_you_mean import model_classes


def every_class() -> Iterator[type[BaseModel]]:
    waiting, seen = list(KINDS.values()), set[type[BaseModel]]()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            waiting += [c for field in cls.model_fields.values() for c in model_classes(field.annotation)]


@pytest.mark.parametrize("cls", list(every_class()), ids=lambda cls: cls.__name__)
def test_every_settings_class_is_frozen_and_refuses_unknown_keys(cls: type[BaseModel]) -> None:
    assert cls.model_config.get("frozen") is True
    assert cls.model_config.get("extra") == "forbid"


def test_a_group_of_one_is_refused_because_its_advantage_is_always_zero() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        SamplingConfig(group_size=1)


def test_leads_difficulty_weight_has_the_papers_constants() -> None:
    rule = LogisticDifficulty()
    assert (rule.low, rule.high, rule.midpoint, rule.slope) == (0.4, 1.5, 0.75, 10.0)


def test_difficulty_is_told_apart_by_its_kind() -> None:
    step = AdvantageConfig.model_validate({"difficulty": {"kind": "step", "below": 0.2}})
    assert step.difficulty is not None
    assert step.difficulty.kind == "step"
    with pytest.raises(ValidationError):
        AdvantageConfig.model_validate({"difficulty": {"kind": "steep"}})


def test_the_length_reward_is_off_unless_asked_for() -> None:
    assert RewardConfig().length == "off"


def test_steps_must_be_said() -> None:
    for cls in (SftConfig, TrainConfig):
        with pytest.raises(ValidationError, match="steps"):
            cls()


def test_every_shared_key_is_a_field_of_some_stage() -> None:
    for key in SHARED:
        assert any(key in cls.model_fields for cls in KINDS.values()), key


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "a\\b"])
def test_names_that_cannot_be_folders_are_refused(name: str, tmp_path) -> None:
    with pytest.raises(ValidationError, match="cannot be a folder name"):
        Pipeline(run=name, path=tmp_path, stages={})
