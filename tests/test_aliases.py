"""Settings under the names of other tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from concisecli.aliases import ALIASES, spoken
from concisecli.config import KINDS
from concisecli.did_you_mean import tree
from concisecli.loading import load_pipeline_with_origins
from concisecli.records import UsageError

PIPELINE = """\
run: t
stages:
  rl1:
    uses: train
    inputs: {model: ./base, problems: ./problems}
    config:
      steps: 3
      %s
"""


def load(line: str, *sets: str) -> object:
    Path("p.yaml").write_text(PIPELINE % line)
    return load_pipeline_with_origins(Path("p.yaml"), sets)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", list(ALIASES))
def test_every_familiar_name_stands_for_a_setting_that_exists_and_hides_none(kind: str) -> None:
    paths = {".".join(path) for path in tree(KINDS[kind])}
    assert set(ALIASES[kind].values()) <= paths
    assert not paths & set(ALIASES[kind])


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("num_generations: 4", lambda c: c.sampling.group_size == 4),
        ("rollout: {n: 4}", lambda c: c.sampling.group_size == 4),
        ("epsilon_high: 0.28", lambda c: c.loss.eps_high == 0.28),
        ("clip_ratio_high: 0.28", lambda c: c.loss.eps_high == 0.28),
        ("learning_rate: 1e-6", lambda c: c.lr == 1e-6),
        ("loss_agg_mode: seq-mean-token-mean", lambda c: c.loss.reduce == "sequence"),
        ("max_completion_length: 77", lambda c: c.sampling.max_response_tokens == 77),
    ],
)
def test_a_familiar_name_is_taken_as_ours_and_said(line: str, read: object) -> None:
    pipeline, origins = load(line)  # type: ignore[misc]
    assert read(pipeline.stages["rl1"].config)  # type: ignore[operator]
    (said,) = spoken(origins)
    assert said.startswith("p.yaml:8: ")
    assert " is rl1." in said


def test_a_flag_beats_the_file_under_either_name() -> None:
    pipeline, _ = load("num_generations: 4", "rl1.sampling.group_size=6")  # type: ignore[misc]
    assert pipeline.stages["rl1"].config.sampling.group_size == 6
    pipeline, _ = load("sampling: {group_size: 4}", "rl1.num_generations=6")  # type: ignore[misc]
    assert pipeline.stages["rl1"].config.sampling.group_size == 6


def test_one_setting_under_two_names_is_refused() -> None:
    with pytest.raises(UsageError, match=r"p.yaml:8: num_generations and sampling.group_size are one setting"):
        load("num_generations: 4\n      sampling: {group_size: 4}")


def test_stages_that_meet_may_use_either_name() -> None:
    Path("base.yaml").write_text(PIPELINE % "sampling: {group_size: 4}")
    Path("p.yaml").write_text(
        "include: base.yaml\nstages: {rl1: {config: {n_samples_per_prompt: 6}}, rl2: {like: rl1, config: {num_generations: 8}}}\n"
    )
    pipeline, origins = load_pipeline_with_origins(Path("p.yaml"))
    assert [pipeline.stages[name].config.sampling.group_size for name in ("rl1", "rl2")] == [6, 8]
    assert spoken(origins)[0] == "p.yaml:2: n_samples_per_prompt is rl1.sampling.group_size here"
