"""Weights in mid-stage: whole model folders, kept as many as asked for, and evaluated afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from concisecli import checkpoint_evals, policy
from concisecli.artifacts import sha256_path
from concisecli.checkpoint_evals import chosen, eval_pipeline, table, weights_of
from concisecli.loading import pipeline_of
from concisecli.pipeline import execute
from concisecli.records import UsageError
from concisecli.weights import kept

TREE = {
    "run": "small",
    "prompt": {"template": "raw", "chat": False},
    "grader": {"profile": "strict", "workers": 1},
    "stages": {
        "pool": {
            "uses": "data",
            "config": {"sources": {"chains": {"type": "chains", "split": "pool", "count": 6, "operations": [2, 3]}}},
        },
        "rl": {
            "uses": "train",
            "inputs": {"problems": "pool.problems"},
            "config": {
                "steps": 4,
                "batch_problems": 2,
                "lr": 1e-3,
                "save_every": 3,
                "weights_every": 1,
                "weights_keep": 2,
                "sampling": {"group_size": 4, "max_response_tokens": 40, "temperature": 0.6},
                "reward": {"length": "relative"},
            },
        },
    },
}


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    TREE["stages"]["rl"]["inputs"]["model"] = str(tiny_model)  # type: ignore[index]
    runs = tmp_path_factory.mktemp("weights")
    execute(pipeline_of(TREE)[0], runs)
    return runs / "small"


def stage_folder(run: Path) -> Path:
    (folder,) = run.glob("rl-*")
    return folder


def test_weights_are_model_folders_and_the_newest_stay(run: Path) -> None:
    folder = stage_folder(run)
    assert list(kept(folder)) == [3, 4]
    for path in kept(folder).values():
        policy.load_tokenizer(path)
        policy.load_model(path)
    assert sha256_path(kept(folder)[4]) == sha256_path(folder / "model")
    assert sha256_path(kept(folder)[3]) != sha256_path(folder / "model")


def test_a_run_or_a_stage_names_its_weights_and_the_finished_model_is_the_last(run: Path) -> None:
    folder = stage_folder(run)
    assert [(w.stage, w.step, w.path.name) for w in weights_of(folder)] == [
        ("rl", 3, "step-000003"),
        ("rl", 4, "model"),
    ]
    assert chosen(run, "all") == chosen(folder, "all") == weights_of(folder)
    assert [w.step for w in chosen(run, "last")] == [4]
    assert [w.step for w in chosen(run, "3")] == [3]


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("1,3", "has no weights after 1 updates; it has those after 3, 4"),
        ("newest", "give all, last, or numbers of updates such as 50,100"),
    ],
)
def test_weights_that_are_not_there_are_told_with_those_that_are(run: Path, which: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        chosen(run, which)


def test_a_folder_without_weights_says_how_to_get_some(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no weights; set weights_every"):
        chosen(tmp_path, "all")
    with pytest.raises(UsageError, match="there is no folder"):
        chosen(tmp_path / "nowhere", "all")
    with pytest.raises(UsageError, match="which problems"):
        eval_pipeline(run, "all", [])


def test_each_is_evaluated_as_it_was_trained_in_one_table_and_skipped_when_done(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problems,) = run.glob("pool-*/problems.parquet")
    tree = eval_pipeline(run, "all", [str(problems)])
    sets = [f"{name}.samples=2" for name in tree["stages"]]
    pipeline = pipeline_of(tree, sets)[0]
    config = pipeline.stages["rl_000003_problems"].config
    assert (config.prompt.template, config.grader.profile, config.budgets) == ("raw", "strict", (40,))
    outcomes = execute(pipeline, tmp_path)
    head, *lines = table(outcomes)
    assert head.split()[:3] == ["stage", "problems", "updates"]
    assert [line.split()[:3] for line in lines] == [["rl", "problems", "3"], ["rl", "problems", "4"]]
    assert all(float(line.split()[head.split().index("length")]) <= 40 for line in lines)
    monkeypatch.setattr("concisecli.stages.evaluate.run", None)  # whoever calls it fails
    assert [outcome.action for outcome in execute(pipeline, tmp_path)] == ["skip", "skip"]


def test_a_training_under_way_is_asked_as_it_asks(run: Path) -> None:
    finished, on_the_way = weights_of(stage_folder(run))[1], weights_of(stage_folder(run))[0]
    manifest = stage_folder(run) / "manifest.json"
    aside = manifest.rename(manifest.with_suffix(".aside"))
    try:
        assert checkpoint_evals.trained_with(on_the_way)["budgets"] == [40]
        assert [w.step for w in weights_of(stage_folder(run))] == [3, 4]
        settings = checkpoint_evals.trained_with(on_the_way)
    finally:
        aside.rename(manifest)
    assert settings == checkpoint_evals.trained_with(finished)
