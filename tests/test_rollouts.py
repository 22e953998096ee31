"""The viewer finds what was asked for, over all files of a run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from concisecli import artifacts
from concisecli.records import ConciseError, Problem, UsageError
from concisecli.stages.rollouts import Wanted, fold, select, views

KEY = "0123456789ab"


def trained(
    step: int, problem: str, rollout: int, *, correct: bool, length: int, text: str = "<think>so</think>7"
) -> dict:
    return {
        "step": step,
        "problem_id": problem,
        "rollout": rollout,
        "outcome": "match" if correct else "mismatch",
        "correct": correct,
        "extracted": "7",
        "length": length,
        "finish_reason": "stop",
        "reward": float(correct),
        "reward_length": 0.0,
        "advantage": 0.5,
        "trained": True,
        "text": text,
    }


def evaluated(problem: str, sample: int, correct: bool) -> dict:
    row = trained(0, problem, sample, correct=correct, length=3)
    kept = ("problem_id", "outcome", "correct", "extracted", "length", "finish_reason", "text")
    return {name: row[name] for name in kept} | {"sample": sample, "rule": "x", "cluster": 0, "think_open": False}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three steps of training with two problems of two rollouts, then two evaluations."""
    run = tmp_path / "runs" / "t"
    artifacts.write_problems(
        run / f"pool-{KEY}" / "problems.parquet",
        [Problem(f"p{i}", f"What is {i}?", "7", "hand") for i in range(4)],
    )
    for step in range(3):
        rows = [
            trained(
                step,
                f"p{i}",
                k,
                correct=(i + k + step) % 2 == 0,
                length=100 * step + 10 * i + k,
                text=f"step {step} p{i} {k}",
            )
            for i in range(2)
            for k in range(2)
        ]
        artifacts.write_parquet(run / f"rl1-{KEY}" / "rollouts" / f"part-{step:05d}.parquet", rows)
    before = [evaluated("p0", 0, True), evaluated("p1", 0, False), evaluated("p2", 0, True)]
    after = [evaluated("p0", 0, True), evaluated("p1", 0, True), evaluated("p2", 0, False)]
    artifacts.write_parquet(run / f"base_eval-{KEY}" / "completions.parquet", before)
    artifacts.write_parquet(run / f"rl1_eval-{KEY}" / "completions.parquet", after)
    return run


def test_filters_hold_together(run: Path) -> None:
    found = select(run, Wanted(stage="rl1", steps=(1, 2), correct=False, problem="p1", number=10))
    assert {(r["step"], r["problem_id"], r["correct"]) for r in found} == {(1, "p1", False), (2, "p1", False)}


def test_longest_and_shortest_right_ones_come_first(run: Path) -> None:
    longest = select(run, Wanted(stage="rl1", order="longest", number=3))
    assert [r["length"] for r in longest] == [211, 210, 201]
    shortest = select(run, Wanted(stage="rl1", order="shortest", number=3))
    assert [r["length"] for r in shortest] == [0, 11, 101]
    assert all(r["correct"] for r in shortest)


def test_texts_are_searched_and_belong_to_their_row(run: Path) -> None:
    found = select(run, Wanted(stage="rl1", contains=r"p1 [01]$", number=20))
    assert len(found) == 6
    assert all(r["text"] == f"step {r['step']} {r['problem_id']} {r['sample']}" for r in found)


def test_the_same_seed_draws_the_same_and_in_turn_over_problems(run: Path) -> None:
    wanted = Wanted(stage="rl1", number=4, seed=3)
    assert select(run, wanted) == select(run, wanted)
    first, second, *_ = select(run, wanted)
    assert {first["problem_id"], second["problem_id"]} == {"p0", "p1"}
    drawn = {select(run, Wanted(stage="rl1", number=1, seed=seed))[0]["text"] for seed in range(20)}
    assert len(drawn) > 3


def test_changed_since_keeps_problems_whose_majority_turned(run: Path) -> None:
    found = select(run, Wanted(stage="rl1_eval", changed_since="base_eval", number=10))
    assert sorted((r["problem_id"], r["correct"]) for r in found) == [("p1", True), ("p2", False)]


def test_without_a_stage_the_one_that_wrote_last_is_shown(run: Path) -> None:
    artifacts.write_parquet(
        run / f"rl1-{KEY}" / "rollouts" / "part-00003.parquet", [trained(3, "p0", 0, correct=True, length=1)]
    )
    assert {r["stage"] for r in select(run, Wanted())} == {"rl1"}
    assert {r["stage"] for r in select(run / f"base_eval-{KEY}", Wanted())} == {"base_eval"}


def test_problem_and_answer_are_found_beside_the_stage(run: Path) -> None:
    for where in (run, run / f"rl1-{KEY}", run / f"rl1-{KEY}" / "rollouts" / "part-00000.parquet"):
        (row, *_) = select(where, Wanted(problem="p1", stage="rl1"))
        assert (row["prompt"], row["answer"]) == ("What is 1?", "7")


def test_an_eval_under_way_shows_what_is_there(tmp_path: Path) -> None:
    row = {"problem_id": "p0", "sample": 1, "length": 2, "text": "hm", "finish_reason": "length", "think_open": False}
    artifacts.write_parquet(tmp_path / f"e-{KEY}" / "completions" / "part-00000.parquet", [row])
    (found,) = select(tmp_path, Wanted())
    assert (found["stage"], found["outcome"], found["text"]) == ("e", None, "hm")
    assert "not judged yet, cut off" in printed([found])


def test_what_cannot_be_meant_is_said(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        select(run, Wanted(contains="("))
    with pytest.raises(UsageError, match="no rollouts of a stage 'rl9'; there are: base_eval, rl1, rl1_eval"):
        select(run, Wanted(stage="rl9"))
    with pytest.raises(UsageError, match="none of: match, mismatch"):
        select(run, Wanted(verdict="wrong"))
    with pytest.raises(ConciseError, match="there are no rollouts under"):
        select(tmp_path_factory.mktemp("empty"), Wanted())


def printed(rows: list[dict], **options: bool) -> str:
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    for part in views(rows, **options):
        console.print(part)
    return console.export_text()


def test_thinking_is_folded_unless_asked_for(run: Path) -> None:
    (row,) = select(run, Wanted(stage="base_eval", problem="p0"))
    row["text"] = "<think>" + "a" * 500 + "</think>the answer is 7"
    assert "[180 characters]" in printed([row])
    assert "a" * 100 in printed([row], unfold=True)
    assert "[180 characters]" not in printed([row], unfold=True)
    assert "the answer is 7" in printed([row])
    assert "What is 0?  → 7" in printed([row])


def test_brackets_in_a_text_are_shown_as_they_are(run: Path) -> None:
    (row,) = select(run, Wanted(stage="base_eval", problem="p0"))
    assert "[bold]x[/bold]" in printed([row | {"text": "[bold]x[/bold]"}])


def test_short_texts_are_not_folded() -> None:
    assert fold("b" * 360) == "b" * 360
    assert len(fold("b" * 361)) < 361


# --- answers that are empty, folders of runs --------------------------------------------------------------------------


def test_an_empty_answer_says_of_how_many(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert select(run, Wanted(problem="nobody", number=3)) == []
    assert "no rollout matches, of " in capsys.readouterr().err


def test_rollouts_of_a_folder_of_runs_have_their_problems_texts(run: Path) -> None:
    (row,) = select(run.parent, Wanted(number=1))
    assert row["prompt"] == f"What is {row['problem_id'][1:]}?"
