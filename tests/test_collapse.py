"""The design that failed in ConciseR, on the demo's model: told early at weight 2, and nothing said at 0.5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from concisecli.chosen_stages import Selection
from concisecli.loading import load_pipeline
from concisecli.pipeline import execute

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_alarm_tells_a_collapse_and_only_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "pipelines" / "naive.yaml"
    stages = [name for name, spec in load_pipeline(path).stages.items() if spec.uses == "train"]
    sets = [f"{name}.steps=20" for name in stages]
    pipeline = load_pipeline(path, sets)
    alarms = {}
    for name in stages:
        config = pipeline.stages[name].config
        made = execute(pipeline, tmp_path, Selection(until=name))[-1]
        assert made.folder is not None
        rows = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
        alarms[config.reward.relative_weight] = made.metrics.get("alarms", {})
        told = {key.removeprefix("alarm/"): row["step"] + 1 for row in rows[::-1] for key in row if "alarm/" in key}
        assert told == alarms[config.reward.relative_weight]
    assert set(alarms[2.0]) == {"collapse", "empty_think"}
    assert max(alarms[2.0].values()) <= 20
    assert alarms[0.5] == {}
    said = [line for line in capsys.readouterr().err.splitlines() if ": collapse: " in line]
    assert len(said) == 1
