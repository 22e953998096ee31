"""`sweep:` multiplies what an axis touches and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from concisecli.checks import order
from concisecli.config import Pipeline
from concisecli.loading import load_pipeline
from concisecli.records import UsageError

PIPELINE = """\
run: t
sweep: {SWEEP}
stages:
  d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
  rl1: {uses: train, inputs: {model: ./base, problems: d.problems}, config: {steps: 3}}
  rl2: {uses: train, inputs: {model: rl1.model, problems: d.problems}, config: {steps: 3, stage: 2}}
  base_eval: {uses: eval, inputs: {model: ./base, problems: d.problems}, config: {samples: 2}}
  end_eval: {uses: eval, inputs: {model: rl2.model, problems: d.problems}, config: {samples: 2}}
  report:
    uses: report
    inputs: {scores: [base_eval.scores, end_eval.scores], metrics: [rl1.metrics]}
    config: {before: base_eval, after: end_eval}
"""


def swept(folder: Path, sweep: str, sets: tuple[str, ...] = ()) -> Pipeline:
    path = folder / "p.yaml"
    path.write_text(PIPELINE.replace("{SWEEP}", sweep), encoding="utf-8")
    return load_pipeline(path, sets)


def test_an_axis_copies_its_stage_and_what_is_made_from_it_and_nothing_else(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{rl2.reward.wrong: [-1, -2]}")
    assert list(pipeline.stages) == [
        *("d", "rl1", "rl2-wrong_-1", "rl2-wrong_-2", "base_eval"),
        *("end_eval-wrong_-1", "end_eval-wrong_-2", "report"),
    ]
    assert pipeline.stages["rl2-wrong_-2"].config.reward.wrong == -2
    assert pipeline.stages["rl2-wrong_-2"].inputs["model"] == "rl1.model"
    assert pipeline.stages["end_eval-wrong_-2"].inputs["model"] == "rl2-wrong_-2.model"


def test_two_axes_cross_only_where_both_touch(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{rl1.reward.wrong: [-1, -2, -3], rl2.seed: [0, 1]}")
    assert sum(name.startswith("rl1") for name in pipeline.stages) == 3
    assert sum(name.startswith("rl2") for name in pipeline.stages) == 6
    one = pipeline.stages["rl2-wrong_-3-seed_1"]
    assert (one.config.seed, one.config.reward.wrong, one.inputs["model"]) == (1, 0.0, "rl1-wrong_-3.model")
    assert order(pipeline).index("rl1-wrong_-3") < order(pipeline).index("rl2-wrong_-3-seed_1")


def test_a_report_gathers_every_variant_and_knows_its_values(tmp_path: Path) -> None:
    report = swept(tmp_path, "{rl2.reward.wrong: [-1, -2]}").stages["report"]
    assert report.inputs["scores"] == ("base_eval.scores", "end_eval-wrong_-1.scores", "end_eval-wrong_-2.scores")
    assert report.config.variants["end_eval-wrong_-2"].stage == "end_eval"
    assert report.config.variants["end_eval-wrong_-2"].values == {"rl2.reward.wrong": -2}
    assert (report.config.before, report.config.after) == ("base_eval", "end_eval-wrong_-1")


def test_a_field_without_a_stage_is_swept_wherever_it_is(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{reward.wrong: [-1, -2]}")
    assert pipeline.stages["rl2-wrong_-2"].config.reward.wrong == -2
    assert pipeline.stages["rl2-wrong_-2"].inputs["model"] == "rl1-wrong_-2.model"


def test_the_seed_is_swept_over_all_but_the_problems(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{seed: [0, 1]}")
    assert "d" in pipeline.stages
    assert pipeline.stages["base_eval-seed_1"].config.seed == 1
    assert pipeline.stages["rl2-seed_1"].config.seed == 1


def test_an_override_holds_for_every_variant_or_for_the_one_it_names(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{rl2.reward.wrong: [-1, -2]}", ("rl2.lr=3e-4", "rl2-wrong_-2.steps=7"))
    both = [pipeline.stages[f"rl2-wrong_{v}"].config for v in (-1, -2)]
    assert [c.lr for c in both] == [3e-4, 3e-4]
    assert [c.steps for c in both] == [3, 7]


def test_a_sweep_can_be_given_on_the_command_line(tmp_path: Path) -> None:
    pipeline = swept(tmp_path, "{seed: [0]}", ("sweep={rl2.lr: [1e-4, 0.5]}",))
    assert [n for n in pipeline.stages if n.startswith("rl2")] == ["rl2-lr_0_0001", "rl2-lr_0_5"]


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("{rl2.reward.wrng: [-1]}", "p.yaml:2: sweep.rl2.reward.wrng is a field of no stage"),
        ("{rl3.lr: [1]}", "p.yaml:2: sweep.rl3.lr is a field of no stage; did you mean 'rl2'?"),
        ("{rl2.lr: 1}", "p.yaml:2: sweep.rl2.lr is a list of values, such as [1, 2]"),
        ("{rl2.lr: []}", "p.yaml:2: sweep.rl2.lr is a list of values, such as [1, 2]"),
        ("[1]", "p.yaml:2: sweep is a mapping from a field to a list of values"),
        ("{rl2.lr: [1, 1]}", "p.yaml:2: two values of the sweep give the name rl2-lr_1; change one"),
        (f"{{rl2.seed: {list(range(300))}}}", "p.yaml:2: the sweep makes"),
        ("{rl2.lr: [fast]}", "rl2-lr_fast.lr: should be a valid number"),
    ],
)
def test_what_cannot_be_swept_is_one_clear_line(
    tmp_path: Path, sweep: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        swept(Path(), sweep)
    (line,) = str(caught.value).splitlines()
    assert said in line
