"""`include:`: files left to right, the including one last."""

from __future__ import annotations

from pathlib import Path

import pytest

from concisecli.loading import load_pipeline, load_pipeline_with_origins
from concisecli.records import UsageError

BASE = """\
run: base
stages:
  d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
  rl1: {uses: train, inputs: {model: ./here, problems: d.problems}, config: {steps: 3, reward: {alpha: 0.1, wrong: -1}}}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("parts").mkdir()
    Path("parts/base.yaml").write_text(BASE)
    Path("parts/brief.yaml").write_text("stages: {rl1: {config: {reward: {alpha: 0.2, lam: 3}}}}\n")
    return tmp_path


def test_later_files_win_key_by_key_and_the_file_itself_last() -> None:
    text = "include: [parts/base.yaml, parts/brief.yaml]\nrun: mine\nstages: {rl1: {config: {reward: {lam: 4}}}}\n"
    Path("p.yaml").write_text(text)
    pipeline, origins = load_pipeline_with_origins(Path("p.yaml"))
    reward = pipeline.stages["rl1"].config.reward
    assert (pipeline.run, reward.wrong, reward.alpha, reward.lam) == ("mine", -1, 0.2, 4)
    assert origins["rl1.reward.wrong"] == "parts/base.yaml:4"
    assert origins["rl1.reward.alpha"] == "parts/brief.yaml:1"
    assert origins["rl1.reward.lam"] == "p.yaml:3"


def test_paths_stay_relative_to_the_file_that_says_them(files: Path) -> None:
    Path("p.yaml").write_text("include: parts/base.yaml\n")
    assert load_pipeline(Path("p.yaml")).stages["rl1"].inputs["model"] == str(files / "parts" / "here")


def test_a_stage_that_is_null_is_taken_out() -> None:
    Path("p.yaml").write_text("include: parts/base.yaml\nstages: {rl1: null}\n")
    assert list(load_pipeline(Path("p.yaml")).stages) == ["d"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: p.yaml\n", "p.yaml:1: p.yaml includes itself"),
        ("include: parts/none.yaml\n", "p.yaml:1: there is no file parts/none.yaml beside p.yaml"),
        ("include: [1]\n", "p.yaml:1: include takes the names of pipeline files"),
        ("include: parts/base.yaml\nstages: {rl1: {config: {stps: 3}}}\n", "p.yaml:2: rl1: unknown key 'stps'"),
    ],
)
def test_what_cannot_be_included_is_one_clear_line(text: str, said: str) -> None:
    Path("p.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_pipeline(Path("p.yaml"))
    (line,) = str(caught.value).splitlines()
    assert line.startswith(said)


def test_a_stage_like_another_says_only_what_differs() -> None:
    text = "include: parts/base.yaml\nstages: {rl2: {like: rl1, config: {reward: {wrong: 0}}}, rl3: {like: rl2, inputs: {model: rl2.model}}}\n"
    Path("p.yaml").write_text(text)
    pipeline, origins = load_pipeline_with_origins(Path("p.yaml"), ("rl1.steps=9",))
    rl3 = pipeline.stages["rl3"]
    assert (rl3.uses, rl3.config.reward.wrong, rl3.config.reward.alpha, rl3.config.steps) == ("train", 0, 0.1, 9)
    assert (rl3.inputs["model"], rl3.inputs["problems"]) == ("rl2.model", "d.problems")
    assert (origins["rl3.reward.wrong"], origins["rl3.reward.alpha"]) == ("p.yaml:2", "parts/base.yaml:4")


def test_a_stage_made_like_another_forgets_what_it_was_in_an_included_file() -> None:
    Path("parts/more.yaml").write_text("include: base.yaml\nstages: {rl2: {like: rl1, config: {steps: 8, lr: 0.5}}}\n")
    Path("p.yaml").write_text("include: parts/more.yaml\nstages: {rl2: {like: rl1, config: {steps: 9}}}\n")
    config = load_pipeline(Path("p.yaml")).stages["rl2"].config
    assert (config.steps, config.lr) == (9, 1e-6)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("{rl2: {like: rl9}}", "p.yaml:2: stage 'rl2' is like 'rl9', which is no stage; did you mean 'rl2'?"),
        ("{rl2: {like: rl3}, rl3: {like: rl2}}", "p.yaml:2: stage 'rl3' is like itself, by way of rl2, rl3"),
    ],
)
def test_a_stage_like_nothing_is_one_clear_line(stages: str, said: str) -> None:
    Path("p.yaml").write_text(f"include: parts/base.yaml\nstages: {stages}\n")
    with pytest.raises(UsageError) as caught:
        load_pipeline(Path("p.yaml"))
    assert str(caught.value).splitlines()[0] == said
