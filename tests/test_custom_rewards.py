"""A reward of the user's own: called a group, killed when it hangs, part of the stage's key."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concisecli.algo.rewards import score_rollouts
from concisecli.checks import check_pipeline
from concisecli.config import GraderConfig, RewardConfig
from concisecli.custom_rewards import rewards_of
from concisecli.grader.grading import GraderPool
from concisecli.loading import pipeline_of
from concisecli.pipeline import named_files
from concisecli.records import ConciseError, UsageError

REWARDS = """
import time

def brief(group):
    if group["problem"] == "hang":
        time.sleep(3600)
    if group["problem"] == "raise":
        raise ValueError("as asked")
    if group["problem"] == "few":
        return [1.0]
    if group["problem"] == "nan":
        return [float("nan")] * len(group["rollouts"])
    return [group["budget"] - r["length"] if r["correct"] else 0 for r in group["rollouts"]]
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    module = f"brief_{tmp_path.name}"  # one a test: what was imported once stays imported
    (tmp_path / f"{module}.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{module}:brief"


def group(problem: str = "1+1") -> dict[str, Any]:
    attempts = [(3, True), (5, False)]
    rollouts = [
        {"text": "x", "length": n, "finished": True, "outcome": "match" if right else "mismatch", "correct": right}
        for n, right in attempts
    ]
    return {"problem_id": f"id-{problem}", "problem": problem, "gold": "2", "budget": 10, "rollouts": rollouts}


def asked(name: str, groups: list[dict[str, Any]], share: float = 0.05) -> list[list[float]]:
    with GraderPool(GraderConfig(workers=1, deadline_s=0.5), name) as pool:
        return [np.asarray(values).tolist() for values in rewards_of(pool, name, groups, share)]


def test_the_function_sees_a_group_and_gives_a_number_a_rollout(rewards: str) -> None:
    assert asked(rewards, [group(), group("2+2")]) == [[7.0, 0.0], [7.0, 0.0]]


@pytest.mark.parametrize("fault", ["hang", "raise", "few", "nan"])
def test_a_group_on_which_it_fails_does_not_train_and_the_others_do(rewards: str, fault: str) -> None:
    values = asked(rewards, [group(), group(fault), group()])
    assert values[0] == values[2] == [7.0, 0.0]
    assert np.isnan(values[1]).all()
    scored = score_rollouts(
        ["match", "mismatch"], [3, 5], [True, True], ["", ""], RewardConfig(), 10, np.array(values[1])
    )
    assert not scored.usable.any()


@pytest.mark.parametrize(("fault", "why"), [("raise", "ValueError: as asked"), ("hang", "took too long")])
def test_a_function_that_always_fails_ends_the_run_with_its_first_error(rewards: str, fault: str, why: str) -> None:
    with pytest.raises(ConciseError, match=rf"failed on 2 of 2 groups, first on problem id-{fault}: {why}"):
        asked(rewards, [group(fault)] * 2)


def test_its_numbers_are_added_to_the_reward(rewards: str) -> None:
    custom = np.array(asked(rewards, [group()])[0])
    reward = score_rollouts(["match", "mismatch"], [3, 5], [True, True], ["", ""], RewardConfig(wrong=-1), 10, custom)
    assert reward.total.tolist() == [8.0, -1.0]


def test_a_name_that_does_not_load_is_refused_before_anything_runs(rewards: str) -> None:
    with pytest.raises(UsageError, match=r"reward.custom '\w+:long' cannot be loaded"):
        GraderPool(GraderConfig(), rewards.replace("brief", "long").replace("long_", "brief_"))
    tree = {"run": "t", "stages": {"rl": {"uses": "train", "config": {"steps": 1, "reward": {"custom": "no_such:f"}}}}}
    faults = [str(fault) for fault in check_pipeline(pipeline_of(tree)[0], {})]
    assert any("reward.custom: there is no module 'no_such'" in fault for fault in faults)


def test_its_source_is_part_of_the_key(rewards: str, tmp_path: Path) -> None:
    tree = {"run": "t", "stages": {"rl": {"uses": "train", "config": {"steps": 1, "reward": {"custom": rewards}}}}}
    config = pipeline_of(tree)[0].stages["rl"].config
    assert named_files(config) == {"reward.custom": tmp_path / f"{rewards.partition(':')[0]}.py"}


def test_score_shows_what_it_adds_without_a_model(rewards: str, tmp_path: Path) -> None:
    rows = [{"group": 1, "id": i, "length": n, "correct": c, "text": "x"} for i, (n, c) in enumerate([(3, 1), (5, 0)])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "concisecli", "score", "rows.jsonl", "--method", "tiny", "--only", "rl1"]
    done = subprocess.run(
        [*command, "--set", f"reward.custom={rewards}", "--budget", "10"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["custom"] for line in done.stdout.splitlines()] == [7.0, 0.0]
