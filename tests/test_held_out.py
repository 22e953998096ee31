"""Evaluation in the middle of a training: the same numbers as `concise eval`, once each, whatever is interrupted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from concisecli import artifacts, checkpoints, policy
from concisecli.artifacts import read_json, sha256_file, sha256_path
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource, ReportConfig, TrainConfig
from concisecli.held_out import settings_of
from concisecli.records import ConciseError, Preempted, Problem, StageResult, StageRun
from concisecli.stages import evaluate, report, train

SETTINGS = {
    "steps": 4,
    "batch_problems": 4,
    "lr": 1e-3,
    "save_every": 2,
    "sampling": {"group_size": 4, "max_response_tokens": 40, "temperature": 0.6},
    "reward": {"length": "relative", "relative_weight": 1.0},
    "prompt": {"template": "raw", "chat": False},
    "grader": {"custom": "fnmatch:fnmatchcase", "workers": 1},
    "evaluate_every": 2,
    "evaluation": {"samples": 3, "budgets": [20, 60], "temperature": 1.0, "bootstrap": 20},
}
SOME_RIGHT = "[!0-9<]*"  # a "gold answer" that some responses of a random model match


def problems(folder: Path) -> dict[str, tuple[Path, ...]]:
    asked = arithmetic_chains.problems(ChainsSource(count=8, operations=(2, 3), split="pool"), 0)
    artifacts.write_problems(folder / "train.parquet", asked)
    for suite, count in (("easy", 3), ("hard", 2)):
        rows = [Problem(f"{suite}{i}", f"{i}A-{6 + i}=", SOME_RIGHT, suite) for i in range(count)]
        artifacts.write_problems(folder / f"{suite}.parquet", rows)
    return {
        "problems": (folder / "train.parquet",),
        "evaluation": (folder / "easy.parquet", folder / "hard.parquet"),
    }


def stage(folder: Path, model: Path, name: str = "rl", **changes: object) -> StageRun:
    config = TrainConfig.model_validate(SETTINGS | changes)
    (folder / name).mkdir(parents=True, exist_ok=True)
    return StageRun(name, folder / name, config, {"model": (model,), **problems(folder)})


def rows(run: StageRun) -> list[dict]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def hashes(folder: Path) -> dict[str, str]:
    names = ("model", "best", "evaluations", "metrics.jsonl", "pass_rates.jsonl", "rollouts")
    return {name: sha256_path(folder / name) for name in names}


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StageRun, StageResult]:
    run = stage(tmp_path_factory.mktemp("held_out"), tiny_model)
    return run, train.run(run)


@pytest.fixture
def finished(trained: tuple[StageRun, StageResult]) -> StageRun:
    return trained[0]


def test_the_policy_is_evaluated_before_the_first_update_at_the_cadence_and_after_the_last(finished: StageRun) -> None:
    metrics = rows(finished)
    assert [row["step"] for row in metrics] == [-1, 0, 1, 2, 3]
    assert [("eval/easy/pass_at_1" in row) for row in metrics] == [True, False, True, False, True]
    assert sorted(p.name for p in (finished.folder / "evaluations").iterdir()) == [
        "step-000000",
        "step-000002",
        "step-000004",
    ]
    for suite in ("easy", "hard"):
        for name in ("pass_at_1", "cons_at_k", "length", "truncated", "accuracy_at_20", "accuracy_at_60"):
            assert f"eval/{suite}/{name}" in metrics[0]
    assert len({row["eval/easy/length"] for row in metrics if "eval/easy/length" in row}) > 1, "weights must move"


def test_a_report_draws_each_suite_over_the_updates_that_its_weights_had(finished: StageRun) -> None:
    log = (finished.folder / "metrics.jsonl",)
    tables, drawn = report.gather(StageRun("report", finished.folder, ReportConfig(), {"metrics": log}))
    (series,) = next(figure for figure in drawn if figure.name == "eval-easy-length").series
    at = [finished.folder / "evaluations" / f"step-{step:06}" / "scores.json" for step in (0, 2, 4)]
    assert series.x == (0.0, 2.0, 4.0)
    assert list(series.y) == [read_json(path)["suites"]["easy"]["length"]["value"] for path in at]
    (change,) = next(figure for figure in drawn if figure.name == "eval-easy-length-change").series
    assert change.y == tuple(100 * (y / series.y[0] - 1) for y in series.y)
    assert {row["kind"] for row in tables["alarms"]} == {
        name.removeprefix("alarm/") for row in rows(finished) for name in row if name.startswith("alarm/")
    }


@pytest.mark.parametrize(("step", "weights"), [(0, None), (4, "model")])
def test_its_files_are_those_of_the_eval_stage_on_the_same_weights(
    finished: StageRun, tiny_model: Path, tmp_path: Path, step: int, weights: str | None
) -> None:
    model = finished.folder / weights if weights else tiny_model
    every = [p for path in finished.inputs["evaluation"] for p in artifacts.read_problems(path)]
    artifacts.write_problems(tmp_path / "all.parquet", every)
    out = tmp_path / "run" / "eval"
    out.mkdir(parents=True)
    inputs = {"model": (model,), "problems": (tmp_path / "all.parquet",)}
    evaluate.run(StageRun("eval", out, settings_of(finished.config), inputs))
    for name in ("completions.parquet", "scores.json"):
        assert sha256_file(out / name) == sha256_file(finished.folder / "evaluations" / f"step-{step:06}" / name)


def test_the_best_evaluated_weights_are_an_output(trained: tuple[StageRun, StageResult]) -> None:
    run, result = trained
    assert {"model", "best", "evaluations"} <= set(result.outputs)
    values = {}
    for path in (run.folder / "evaluations").iterdir():
        suites = read_json(path / "scores.json")["suites"]
        values[int(path.name[-6:])] = float(np.mean([suites[n]["pass_at_1"]["value"] for n in ("easy", "hard")]))
    assert len(set(values.values())) > 1, "the steps must differ in something"
    assert result.metrics["best_pass_at_1"] == max(values.values())
    assert result.metrics["best_step"] == min(step for step in values if values[step] == max(values.values()))
    policy.load_model(run.folder / result.outputs["best"])


def test_accuracy_per_token_and_the_choice_of_suites_decide_what_is_best(tiny_model: Path, tmp_path: Path) -> None:
    from concisecli.held_out import HeldOut

    def scored(easy: tuple[float, float], hard: tuple[float, float]) -> dict:
        made = {"easy": easy, "hard": hard}
        return {
            "suites": {
                name: {"pass_at_1": {"value": right}, "length": {"value": length}}
                for name, (right, length) in made.items()
            }
        }

    def bests(**changes: object) -> list[bool]:
        config = TrainConfig.model_validate(SETTINGS | changes)
        held_out = HeldOut(config, settings_of(config), tmp_path, [], [], None)
        seen = [scored((0.5, 100), (0.5, 100)), scored((0.4, 20), (0.4, 20)), scored((0.3, 90), (0.9, 90))]
        return [held_out.improves(found, step) for step, found in enumerate(seen)]

    assert bests() == [True, False, True]
    assert bests(best_by="accuracy_per_token") == [True, True, False]
    assert bests(best_on=["easy"]) == [True, False, False]


def test_a_suite_that_is_not_there_is_named_with_the_nearest(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConciseError, match=r"best_on names 'esay', which is no suite .* did you mean 'easy'"):
        train.run(stage(tmp_path, tiny_model, best_on=["esay"]))


def test_asking_for_half_an_evaluation_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConciseError, match="half of an evaluation is asked for: evaluate_every is 0"):
        train.run(stage(tmp_path, tiny_model, evaluate_every=0))


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_crash_between_an_evaluation_and_its_checkpoint_leaves_nothing_doubled(
    finished: StageRun, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    run, evaluated, written = stage(tmp_path, tiny_model), train._evaluate, []

    def crashes(training: train.Training, done: int) -> dict[str, float]:
        metrics = evaluated(training, done)
        written.append(done)
        if metrics and sum(d % 2 == 0 for d in written) == after:
            raise KeyboardInterrupt
        return metrics

    monkeypatch.setattr(train, "_evaluate", crashes)
    with pytest.raises(KeyboardInterrupt):
        train.run(run)
    monkeypatch.undo()
    train.run(run)
    assert hashes(run.folder) == hashes(finished.folder)


def test_a_stage_that_is_stopped_and_gone_on_with_evaluates_nothing_twice(
    finished: StageRun, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import contextmanager

    from concisecli import evaluation

    asked = iter([False, True])

    @contextmanager
    def stops():  # type: ignore[no-untyped-def]
        yield lambda: next(asked)

    run = stage(tmp_path, tiny_model)
    monkeypatch.setattr(checkpoints, "stop_signal", stops)
    with pytest.raises(Preempted):
        train.run(run)
    monkeypatch.undo()
    sampled, sample = [], evaluation.sample

    def counts(*args, **more):  # type: ignore[no-untyped-def]
        sampled.append(1)
        return sample(*args, **more)

    monkeypatch.setattr(evaluation, "sample", counts)
    train.run(run)
    assert len(sampled) == 1, "only the evaluation after the last step was still to be made"
    assert hashes(run.folder) == hashes(finished.folder)


ON_ONE_OF_TWO_RANKS = """
import sys
from pathlib import Path
from concisecli import collectives
from concisecli.stages import train
from tests.test_held_out import stage

folder, model = map(Path, sys.argv[1:])
collectives.init()
train.run(stage(folder, model))
collectives.close()
"""


@pytest.mark.slow
def test_two_ranks_evaluate_what_one_does_before_the_first_update(
    finished: StageRun, tiny_model: Path, tmp_path: Path
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(ON_ONE_OF_TWO_RANKS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    root = str(Path(__file__).parent.parent)
    problems(tmp_path)
    done = subprocess.run(
        [*launch, str(tmp_path), str(tiny_model)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("completions.parquet", "scores.json"):
        at = Path("evaluations") / "step-000000" / name
        assert sha256_file(tmp_path / "rl" / at) == sha256_file(finished.folder / at)
    assert [row["step"] for row in rows(stage(tmp_path, tiny_model))] == [-1, 0, 1, 2, 3]
    shutil.rmtree(tmp_path / "rl")
