"""The eval stage on a small random model: one pass, seeds of its own, and nothing lost on the way."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from concisecli import artifacts, evaluation, rollout
from concisecli.config import EvalConfig, GraderConfig, HfConfig, PromptConfig
from concisecli.policy import load_tokenizer
from concisecli.records import ConciseError, Problem, StageRun, Verdict
from concisecli.stages import evaluate

BUDGETS = (10, 40, 90, 200)
PROMPT = PromptConfig(template="raw", chat=False)


NO_DIGIT_FIRST = "[!0-9<]*"  # a "gold answer" that most but not all responses of a random model match


def problems(count: int = 6) -> list[Problem]:
    return [Problem(f"p{i}", f"{20 + i}A-6B+{i}=", NO_DIGIT_FIRST, "chains", float(i % 3)) for i in range(count)]


def config(**changes: object) -> EvalConfig:
    custom = GraderConfig(custom="fnmatch:fnmatchcase", workers=1)
    settings = {"budgets": BUDGETS, "samples": 10, "temperature": 1.0, "top_p": 1.0, "bootstrap": 50}
    return EvalConfig(**(settings | {"prompt": PROMPT, "grader": custom, "engine": HfConfig()} | changes))  # type: ignore[arg-type]


def stage(folder: Path, model: Path, asked: list[Problem], settings: EvalConfig) -> StageRun:
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.write_problems(folder / "problems.parquet", asked)
    out = folder / "eval"
    out.mkdir(exist_ok=True)
    return StageRun("test", out, settings, {"model": (model,), "problems": (folder / "problems.parquet",)})


def rows_of(run: StageRun) -> dict[tuple[str, int], dict]:
    rows = artifacts.read_parquet(run.folder / "completions.parquet")
    return {(row["problem_id"], row["sample"]): row for row in rows}


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> StageRun:
    run = stage(tmp_path_factory.mktemp("evaluated"), tiny_model, problems(), config())
    evaluate.run(run)
    return run


def test_the_curve_equals_real_runs_with_each_limit(finished: StageRun, tiny_model: Path) -> None:
    tokenizer, engine = load_tokenizer(tiny_model), rollout.make_engine(HfConfig(), tiny_model)
    scores = artifacts.read_json(finished.folder / "scores.json")
    rows = rows_of(finished)
    shares = []
    for budget in (*BUDGETS, *range(5, 200, 25)):
        sampling = rollout.Sampling(max_response_tokens=budget)
        groups = rollout.sample_groups(engine, tokenizer, problems(), sampling, PROMPT, seed=0, step=0, samples=10)
        really = {
            (problem.id, k): c.finished and fnmatch.fnmatchcase(c.text, NO_DIGIT_FIRST)
            for problem, _, completions in groups
            for k, c in enumerate(completions)
        }
        assert really == {key: row["correct"] and row["length"] <= budget for key, row in rows.items()}
        shares.append(np.mean(list(really.values())))
        if budget in BUDGETS:
            assert scores["overall"]["budgets"][str(budget)]["value"] == pytest.approx(shares[-1], abs=1e-15)
    assert len(set(shares)) > 5, "the budgets must tell something apart"


def test_pass_at_1_is_the_accuracy_at_the_largest_budget(finished: StageRun) -> None:
    overall = artifacts.read_json(finished.folder / "scores.json")["overall"]
    assert overall["pass_at_1"]["value"] == overall["budgets"]["200"]["value"] == overall["curve"]["accuracy"][-1]


def test_neither_order_nor_the_cut_into_parts_changes_a_rollout(
    finished: StageRun, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "PART_ROLLOUTS", 20)
    run = stage(tmp_path, tiny_model, problems()[::-1], config())
    evaluate.run(run)
    assert rows_of(run) == rows_of(finished)


def test_an_interrupted_run_goes_on_with_equal_bytes(
    finished: StageRun, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "PART_ROLLOUTS", 20)
    run = stage(tmp_path, tiny_model, problems(), config())
    asked: list[list[str]] = []
    engines = []
    sample = rollout.sample_groups

    def stops_at_the_second_part(engine, tokenizer, some, *args, **more):  # type: ignore[no-untyped-def]
        engines.append(engine)
        asked.append([p.id for p in some])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return sample(engine, tokenizer, some, *args, **more)

    monkeypatch.setattr(evaluation, "sample_groups", stops_at_the_second_part)
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(run)
    with pytest.raises(ConciseError, match="the rollout engine is closed"):
        engines[-1].probe([40, 41])
    assert not (run.folder / "completions.parquet").exists()
    evaluate.run(run)
    assert asked == [["p0", "p1"], ["p2", "p3"], ["p2", "p3"], ["p4", "p5"]]
    for name in ("completions.parquet", "scores.json"):
        assert artifacts.sha256_file(run.folder / name) == artifacts.sha256_file(finished.folder / name)
    assert not (run.folder / "completions").exists()


def test_another_grader_or_budget_samples_nothing_anew(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = stage(tmp_path / "run" / "first", tiny_model, problems(2), config())
    evaluate.run(first)
    changed = config(budgets=(50, 200), grader=GraderConfig(profile="strict", workers=1))
    alone = stage(tmp_path / "elsewhere" / "alone", tiny_model, problems(2), changed)
    evaluate.run(alone)

    monkeypatch.setattr(evaluate, "make_engine", None)  # whoever calls it fails
    again = replace(stage(tmp_path / "other", tiny_model, problems(2), changed), folder=first.folder.parent / "again")
    again.folder.mkdir()
    evaluate.run(again)
    for name in ("completions.parquet", "scores.json"):
        assert artifacts.sha256_file(again.folder / name) == artifacts.sha256_file(alone.folder / name)
    hotter = replace(again, config=config(temperature=1.5), folder=first.folder.parent / "hotter")
    hotter.folder.mkdir()
    with pytest.raises(TypeError):
        evaluate.run(hotter)


def test_a_model_without_a_chat_template_is_asked_in_plain_text(tiny_model: Path, tmp_path: Path) -> None:
    run = stage(tmp_path, tiny_model, problems(1), config(prompt=PromptConfig(), budgets=(20,)))
    assert PromptConfig().chat
    assert evaluate.run(run).rows == {"completions": 10}


def test_another_seed_gives_other_rollouts(finished: StageRun, tiny_model: Path, tmp_path: Path) -> None:
    run = stage(tmp_path, tiny_model, problems(), config(seed=1))
    evaluate.run(run)
    ours, theirs = rows_of(run), rows_of(finished)
    assert all(ours[key]["text"] != theirs[key]["text"] for key in ours)
    texts = [row["text"] for row in theirs.values()]
    assert len(set(texts)) == len(texts)


def test_prompts_over_the_limit_are_left_out_and_named(tiny_model: Path, tmp_path: Path) -> None:
    long = Problem("long", "1+" * 40, "40", "chains")
    run = stage(tmp_path, tiny_model, [*problems(2), long], config(max_prompt_tokens=40, budgets=(20,)))
    evaluate.run(run)
    scores = artifacts.read_json(run.folder / "scores.json")
    assert scores["overall"]["problems"] == 2
    assert scores["left_out"] == [
        {"problem_id": "long", "reason": "prompt of 80 tokens, more than max_prompt_tokens 40"}
    ]


@pytest.mark.parametrize(
    ("asked", "changes", "said"),
    [
        ([], {}, "holds no problem"),
        (problems(1), {"max_prompt_tokens": 2}, "every prompt is longer than max_prompt_tokens 2"),
        (problems(1), {"budgets": (250,)}, "the largest budget it can hold is 248"),
        (problems(1), {"budgets": ()}, "budgets needs at least one"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(
    tiny_model: Path, tmp_path: Path, asked: list[Problem], changes: dict, said: str
) -> None:
    with pytest.raises(ConciseError, match=said) as error:
        evaluate.run(stage(tmp_path, tiny_model, asked, config(**changes)))
    assert "\n" not in str(error.value)


def test_a_model_without_a_chat_template_is_asked_plainly_and_that_is_said(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stage(tmp_path, tiny_model, problems(1), config(prompt=PromptConfig(template="raw"), budgets=(10,)))
    evaluate.run(run)
    assert "has no chat template; problems are asked as plain text" in capsys.readouterr().err


def test_completions_of_other_problems_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    run = stage(tmp_path, tiny_model, problems(1), config())
    artifacts.write_parquet(run.folder / "completions" / "part-00007.parquet", [row(0, "7") | {"problem_id": "other"}])
    with pytest.raises(ConciseError, match="completions of problem 'other', which is not among the problems"):
        evaluate.run(run)


def test_a_spoilt_completions_file_is_said_in_one_line(tiny_model: Path, tmp_path: Path) -> None:
    run = stage(tmp_path, tiny_model, problems(1), config())
    (run.folder / "completions.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ConciseError, match=r"completions\.parquet.*delete it and run") as error:
        evaluate.run(run)
    assert "\n" not in str(error.value)


def test_a_part_of_something_else_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    run = stage(tmp_path, tiny_model, problems(1), config())
    artifacts.write_parquet(run.folder / "completions" / "part-00000.parquet", [{"id": "p0", "text": "x"}])
    with pytest.raises(ConciseError, match="has no column problem_id"):
        evaluate.run(run)


# --- grading ----------------------------------------------------------------------------------------------------------


def row(sample: int, text: str, finish_reason: str = "stop") -> dict:
    return {
        "problem_id": "p0",
        "sample": sample,
        "length": 5,
        "text": text,
        "finish_reason": finish_reason,
        "think_open": False,
    }


def test_equivalent_answers_are_one_vote_and_the_unfinished_abstain() -> None:
    half = Problem("p0", "What is one half?", "0.5", "hand")
    texts = [r"\boxed{3}", r"\boxed{0.5}", r"\boxed{1/2}", r"\boxed{\frac12}", r"no box at all", r"\boxed{3.0}"]
    rows = [row(i, text) for i, text in enumerate(texts)] + [row(6, r"\boxed{0.5} and on", "length")]
    judged = evaluate.judge(rows, [half], GraderConfig(workers=1))
    assert [r["cluster"] for r in judged] == [0, 1, 1, 1, -1, 0, -1]
    assert [r["correct"] for r in judged] == [False, True, True, True, False, False, False]


def test_regrading_needs_no_model_and_says_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, strict = [Problem("p0", "7*6?", "42", "hand")], GraderConfig(profile="strict", workers=1)
    first, second = tmp_path / "first", tmp_path / "second"
    rows = [row(0, r"\boxed{42}"), row(1, "<think>6*7</think><answer>42</answer>")]
    artifacts.write_parquet(first / "completions.parquet", evaluate.judge(rows, asked, strict))
    settings = EvalConfig(budgets=(10,), samples=2, grader=strict)
    before = evaluate._score(first, asked, settings, [])
    after = evaluate.regrade(first, GraderConfig(workers=1), second)
    assert before["overall"]["pass_at_1"]["value"] == 0.5
    assert after["overall"]["pass_at_1"]["value"] == 1.0
    assert artifacts.read_json(second / "scores.json") == after
    assert after["settings"] == before["settings"]
    assert "another grader than before" in capsys.readouterr().err


def test_a_custom_check_that_names_no_answer_still_leaves_votes() -> None:
    found = evaluation.extracted(row(0, r"\boxed{7}"), Verdict("match", None, "custom"), config().grader)
    assert found == "7"


# --- ranks ------------------------------------------------------------------------------------------------------------

ON_ONE_OF_TWO_RANKS = """
import sys
from dataclasses import replace
from pathlib import Path
from concisecli import collectives
from concisecli.stages import evaluate
from tests.test_evaluate import config
from concisecli.records import StageRun

model, problems, out = map(Path, sys.argv[1:])
evaluate.PART_ROLLOUTS = 20
evaluate.run(StageRun("test", out, config(), {"model": (model,), "problems": (problems,)}))
collectives.close()
"""


@pytest.mark.slow
def test_two_ranks_write_what_one_does(finished: StageRun, tiny_model: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "rank.py", tmp_path / "out"
    script.write_text(ON_ONE_OF_TWO_RANKS)
    out.mkdir()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    paths = [str(tiny_model), str(finished.one("problems")), str(out)]
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [*launch, *paths],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("completions.parquet", "scores.json"):
        assert artifacts.sha256_file(out / name) == artifacts.sha256_file(finished.folder / name)
