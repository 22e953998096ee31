"""Paired comparison of evaluations, worked out by hand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from concisecli import artifacts
from concisecli.config import EvalConfig
from concisecli.records import ConciseError, Problem, UsageError
from concisecli.reports import attempts, scores
from concisecli.reports.comparison import best_accuracy, budget_reaching, compare
from concisecli.stages import compare as stage

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=", str(2 * i), "sums" if i < 3 else "more") for i in range(5)]


def scored(right: list[list[int]], lengths: list[list[int]], temperature: float = 1.0) -> dict:
    rows = [
        {
            "problem_id": p.id,
            "sample": k,
            "length": lengths[i][k],
            "text": "x",
            "finish_reason": "stop",
            "outcome": "match" if right[i][k] else "mismatch",
            "extracted": "a" if right[i][k] else "b",
            "rule": "hand",
            "correct": bool(right[i][k]),
            "cluster": 1 - right[i][k],
        }
        for i, p in enumerate(PROBLEMS[: len(right)])
        for k in range(len(right[i]))
    ]
    config = EvalConfig(budgets=(100,), samples=len(right[0]), temperature=temperature, bootstrap=200)
    return scores.score(attempts.gather(rows, PROBLEMS), config, grader={"version": "1"})


BEFORE = scored([[1, 0], [0, 0], [1, 1], [1, 1], [0, 0]], [[10, 20], [30, 30], [20, 40], [50, 50], [80, 80]])
AFTER = scored([[1, 1], [1, 1], [0, 0], [1, 1], [0, 0]], [[5, 5], [15, 15], [10, 20], [25, 25], [40, 40]])


def test_differences_are_per_suite_and_paired() -> None:
    sums, more = compare(BEFORE, AFTER, resamples=500)
    assert (sums.suite, sums.problems, more.suite, more.problems) == ("sums", 3, "more", 2)
    assert sums.pass_at_1.before == pytest.approx(0.5)
    assert sums.pass_at_1.difference == pytest.approx((0.5 + 1 - 1) / 3)
    assert more.pass_at_1.difference == 0.0
    assert not more.pass_at_1.clear
    assert sums.pass_at_1.low <= sums.pass_at_1.difference <= sums.pass_at_1.high


def test_halved_lengths_are_minus_fifty_percent_without_any_doubt() -> None:
    assert compare(BEFORE, AFTER)[1].length_percent == pytest.approx((-50.0, -50.0, -50.0))


def test_a_problem_flips_when_the_majority_of_its_rollouts_turns() -> None:
    sums, more = compare(BEFORE, AFTER)
    assert sums.gained == ("p0", "p1")  # one of two is no majority
    assert sums.lost == ("p2",)
    assert more.gained == more.lost == ()


def test_the_budget_to_match_is_read_off_the_exact_curve() -> None:
    sums, more = compare(BEFORE, AFTER)
    assert (sums.budget_of_best, sums.budget_to_match) == (40, 15)  # three of six right: 0.5
    assert (more.budget_of_best, more.budget_to_match) == (50, 25)
    rows = [{"lengths": [10, 30], "correct": [1, 1]}, {"lengths": [20, 99], "correct": [1, 0]}]
    assert best_accuracy(rows) == (0.75, 30)
    assert budget_reaching(rows, 0.5) == 20
    assert budget_reaching(rows, 0.8) is None


def test_an_evaluation_does_not_differ_from_itself() -> None:
    for one in compare(BEFORE, BEFORE):
        assert one.pass_at_1.difference == one.length.difference == 0.0
        assert one.pass_at_1.p_value == 1.0
        assert one.budget_to_match == one.budget_of_best


def test_problems_of_one_side_only_are_counted_and_left_out() -> None:
    fewer = scored([[1, 1], [1, 1]], [[5, 5], [15, 15]])
    (sums,) = compare(BEFORE, fewer)
    assert (sums.problems, sums.only_before, sums.only_after) == (2, 1, 0)


def test_one_problem_alone_is_never_a_clear_difference() -> None:
    (one,) = compare(scored([[0, 0]], [[9, 9]]), scored([[1, 1]], [[5, 5]]))
    assert one.pass_at_1.difference == 1.0
    assert not one.pass_at_1.clear
    assert not one.length.clear


def test_evaluations_of_other_problems_cannot_be_compared() -> None:
    other = BEFORE | {"problems": [row | {"id": f"other-{row['id']}"} for row in BEFORE["problems"]]}
    with pytest.raises(ConciseError, match="share no problem"):
        compare(BEFORE, other)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    warm = scored([[1, 1], [1, 1], [0, 0], [1, 1], [0, 0]], [[5, 5]] * 5, temperature=0.6)
    for name, found in (("a", BEFORE), ("b", warm)):
        artifacts.write_json(tmp_path / name / "scores.json", found)
    return tmp_path / "a", tmp_path / "b"


def test_folders_and_files_are_taken_and_what_is_not_alike_is_said(folders: tuple[Path, Path]) -> None:
    (pair,) = stage.run_compare([folders[0], folders[1] / "scores.json"])
    assert (pair.before, pair.after) == ("a", "b")
    assert pair.unlike == ("temperature: 1.0 -> 0.6",)
    assert stage.as_json([pair])[0]["suites"][0]["gained"] == ("p0", "p1")


def test_the_table_holds_the_numbers(folders: tuple[Path, Path]) -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    for part in stage.tables(stage.run_compare(folders)):
        console.print(part, highlight=False)
    said = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "a → b, sums, 3 problems" in said
    assert any(line.startswith("Pass@1 (%) 50.0 66.7 +16.7 ") for line in said)
    assert any(line.startswith("Len (tokens) 25.0 5.0 −80.0 % ") for line in said)
    assert "tokens to reach 50.0 % 40 5" in said
    assert "not alike: temperature: 1.0 -> 0.6" in said
    assert "gained by majority of rollouts: 2: p0, p1" in said
    assert "lost by majority of rollouts: 1: p2" in said


def test_what_cannot_be_compared_says_what_to_give(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="at least two"):
        stage.run_compare(folders[:1])
    with pytest.raises(ConciseError, match=r"give one of: .*/a, .*/b"):
        stage.run_compare([folders[0].parent, folders[1]])
    artifacts.write_json(folders[0] / "scores.json", {"schema": 0})
    with pytest.raises(ConciseError, match=r"not a scores\.json of this version"):
        stage.run_compare(folders)


def test_more_problems_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)
    rows = [{"id": f"q{i}", "source": "s", "cons_at_k": 0.0} for i in range(400)]

    def fake(shift: float, number: int) -> dict:
        draws = rng.random((400, 8))
        return {
            "problems": [
                row | {"correct": (draws[i] < 0.5 + shift).astype(int).tolist(), "lengths": [10] * 8}
                for i, row in enumerate(rows[:number])
            ]
        }

    (few,) = compare(fake(0, 20), fake(0.1, 20))
    (many,) = compare(fake(0, 400), fake(0.1, 400))
    assert many.pass_at_1.high - many.pass_at_1.low < 0.4 * (few.pass_at_1.high - few.pass_at_1.low)
    assert many.pass_at_1.clear
