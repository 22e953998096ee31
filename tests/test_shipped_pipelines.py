"""The pipelines that ship: each differs from the next in what its name says and in nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from concisecli.checks import check_pipeline
from concisecli.config import Pipeline, StageSpec
from concisecli.explain import flat
from concisecli.loading import load_pipeline, load_pipeline_with_origins

FOLDER = Path(__file__).parent.parent / "pipelines"


def shipped(name: str) -> Pipeline:
    return load_pipeline(FOLDER / f"{name}.yaml")


def changed(before: StageSpec, after: StageSpec) -> dict[str, Any]:
    """The settings in which two stages differ, with the later one's value."""
    old, new = (flat(spec.config.model_dump(mode="json")) for spec in (before, after))
    return {name: new.get(name) for name in sorted({*old, *new}) if old.get(name) != new.get(name)}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_pipeline_passes_all_checks_without_a_warning(path: Path) -> None:
    pipeline, origins = load_pipeline_with_origins(path)
    assert [str(fault) for fault in check_pipeline(pipeline, origins)] == []


def test_the_ablation_changes_one_part_of_lead_at_a_time() -> None:
    stages = shipped("ablation").stages
    assert changed(stages["grpo"], stages["plus_length"]) == {"reward.length": "zscore"}
    difficulty = changed(stages["plus_length"], stages["plus_difficulty"])
    assert {name.rpartition(".")[0] for name in difficulty if "." in name} <= {"advantage", "advantage.difficulty"}
    assert difficulty["advantage.difficulty.midpoint"] == 0.75
    assert changed(stages["plus_difficulty"], stages["rl1"]) == {"reward.wrong": -1.0}
    assert len({stages[name].inputs["model"] for name in ("grpo", "plus_length", "plus_difficulty", "rl1")}) == 1


def test_the_curriculum_ablation_leaves_out_one_stage_at_a_time() -> None:
    stages = shipped("ablation-curriculum").stages
    base = stages["sft"].inputs["model"]
    assert stages["no_sft_rl1"].inputs["model"] == base
    assert changed(stages["rl1"], stages["no_sft_rl1"]) == {}
    assert stages["no_rl1_rl2"].inputs == {"model": "sft.model", "problems": "mined.problems"}
    assert stages["whole_pool_rl2"].inputs == {"model": "rl1.model", "problems": "hard.problems"}
    assert changed(stages["rl2"], stages["no_late_rl2"]) == {"steps": 240}
    assert stages["rl2"].config.steps + stages["rl3"].config.steps == 240


def test_the_naive_design_is_swept_over_its_weight_from_one_base() -> None:
    stages = shipped("naive").stages
    weak, strong = stages["rl1-relative_weight_0_5"], stages["rl1-relative_weight_2"]
    assert changed(weak, strong) == {"reward.relative_weight": 2.0}
    assert weak.inputs["model"] == strong.inputs["model"] == "sft.model"
    assert weak.config.reward.length == "relative"


def test_the_released_code_differs_from_the_paper_in_what_was_read_in_it() -> None:
    """methods: the table of paper and code of GRPO-LEAD."""
    paper, code = shipped("lead").stages, shipped("lead-code").stages
    assert changed(paper["rl1"], code["rl1"]) == {
        "advantage.keep": "some_right",
        "grader.profile": "inside-think",
        "loss.entropy_coef": 0.001,
        "loss.reduce": "micro-token",
        "reward.length_gate_tokens": 4000,
        "reward.repetition": -2.0,
        "reward.repetition_scope": "unfinished",
        "reward.unfinished": 0.0,
        "sampling.max_response_tokens": 12288,
        "sampling.stop": ["</think>"],
    }
    assert code["hard"].config.select.min_difficulty == 3.5
    assert code["rl3"].config.reward.length == "off"
    assert code["rl3"].config.reward.repetition == -2.0
    assert all(spec.config.stop == ("</think>",) for spec in code.values() if spec.uses == "eval")


@pytest.mark.parametrize(("name", "full"), [("conciser-1b5-24gb", "conciser"), ("lead-7b-80gb", "lead-7b")])
def test_a_pipeline_for_one_card_keeps_the_objective(name: str, full: str) -> None:
    small, large = shipped(name).stages, shipped(full).stages
    for stage in {n for n, s in large.items() if s.uses == "train"}:
        differing = {
            n for n in changed(large[stage], small[stage]) if n.split(".")[0] in ("reward", "advantage", "loss")
        }
        assert differing == set(), stage
