from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concisecli.algo import advantages
from concisecli.algo.rewards import score_group
from concisecli.config import AdvantageConfig, LogisticDifficulty, RewardConfig, TrainConfig
from concisecli.records import Completion, ConciseError, Group, Problem, Verdict
from concisecli.stages.score import run_score, score_rows

LEAD = TrainConfig(
    steps=1,
    reward=RewardConfig(wrong=-1, length="zscore"),
    advantage=AdvantageConfig(keep="some_right", difficulty=LogisticDifficulty()),
)
PLAIN = TrainConfig(steps=1)
BUDGET = 14_000


def rows_of(group: str, lengths: list[int], correct: str) -> list[dict[str, Any]]:
    return [
        {"group": group, "id": i, "length": length, "correct": c == "1"}
        for i, (length, c) in enumerate(zip(lengths, correct, strict=True))
    ]


EASY = rows_of("easy", [1000, 1200, 1400, 1600, 1800, 2000, 2200, 3000], "11111110")
HARD = rows_of("hard", [4000, 6000] + [8000] * 6, "11000000")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def column(rows: list[dict[str, Any]], field: str) -> list[Any]:
    return [row[field] for row in rows]


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_a_file_is_scored_by_the_papers_numbers() -> None:
    scored = list(score_rows(EASY, LEAD, BUDGET))
    np.testing.assert_allclose(
        column(scored, "reward")[:3] + column(scored, "reward")[-1:],
        [1.0719040009887928, 1.0473791590612458, 1.0234154381585445, -1.0],
        rtol=1e-12,
    )
    np.testing.assert_allclose(scored[0]["advantage"], 0.29197889834832774, rtol=1e-12)
    np.testing.assert_allclose(scored[-1]["advantage"], -3.6991372681331915, rtol=1e-12)
    np.testing.assert_allclose(scored[0]["weight"], 0.6449701527078398, rtol=1e-12)
    np.testing.assert_allclose(scored[-1]["weight"], 1.4978805918703397, rtol=1e-12)
    assert column(scored, "accuracy") == [1.0] * 7 + [-1.0]
    assert json.dumps(scored[3]["length_bonus"]) == "0.0"  # not -0.0
    assert column(scored, "pass_rate") == [0.875] * 8
    assert column(scored, "kept") == [True] * 8


def test_rows_keep_their_order_and_groups_need_not_be_adjacent() -> None:
    alone = {(row["group"], row["id"]): row for g in (EASY, HARD) for row in score_rows(g, LEAD, BUDGET)}
    mixed = EASY + HARD
    random.Random(0).shuffle(mixed)
    scored = list(score_rows(mixed, LEAD, BUDGET))
    assert [(row["group"], row["id"]) for row in scored] == [(row["group"], row["id"]) for row in mixed]
    assert all(row == alone[row["group"], row["id"]] for row in scored)


def test_what_grade_writes_can_be_scored_and_every_field_passes_through(tmp_path: Path) -> None:
    graded = [
        {"group": "q1", "id": "a", "length": 12, "response": "…\u2028 7", "gold": "7", "outcome": "match"},
        {"group": "q1", "id": "b", "length": 30, "response": "8", "gold": "7", "outcome": "mismatch"},
        {"group": "q1", "id": "c", "length": 9, "response": "", "gold": "7", "outcome": "no_answer"},
        {"group": "q1", "id": "d", "length": 9, "response": "?", "gold": "7", "outcome": "error"},
    ]
    for row in graded:
        row |= {"correct": row["outcome"] == "match", "extracted": None, "rule": "boxed", "seconds": 0.01}
    config = TrainConfig(steps=1, reward=RewardConfig(wrong=-1, no_answer=-0.5, repetition=-2))
    out = io.StringIO()
    assert run_score(write(tmp_path / "graded.jsonl", graded), config, out, budget=100) == 4
    scored = [json.loads(line) for line in out.getvalue().split("\n")[:-1]]
    assert [{k: row[k] for k in given} for row, given in zip(scored, graded, strict=True)] == graded
    assert column(scored, "reward")[:3] == [1.0, -1.0, -0.5]
    assert column(scored, "usable") == [True, True, True, False]
    assert scored[3]["advantage"] == 0.0


def test_scoring_is_what_training_does() -> None:
    problem = Problem("p", "2 + 5", "7", "test")
    outcomes = ("match", "no_answer", "mismatch", "match")
    completions = tuple(
        Completion(tuple(range(n)), (0.0,) * n, text, reason)  # type: ignore[arg-type]
        for n, text, reason in ((5, "7", "stop"), (9, "go " * 10, "length"), (4, "8", "stop"), (8, "7", "stop"))
    )
    group = Group(problem, completions, tuple(Verdict(o) for o in outcomes))  # type: ignore[arg-type]
    config = LEAD.model_copy(update={"reward": LEAD.reward.model_copy(update={"repetition": -1.5, "unfinished": 0.0})})
    rows = [
        {
            "group": "p",
            "id": i,
            "length": len(c.token_ids),
            "correct": o == "match",
            "outcome": o,
            "prompt": problem.prompt,
            "text": c.text,
            "finish_reason": c.finish_reason,
        }
        for i, (c, o) in enumerate(zip(completions, outcomes, strict=True))
    ]
    scored = list(score_rows(rows, config, 9))
    trained = score_group(group, config.reward, 9)
    assert column(scored, "reward") == trained.total.tolist()
    assert column(scored, "repeated") == trained.repeated.tolist() == [False, True, False, False]
    expected = advantages.of_group(trained.total, group.pass_rate, config.advantage, trained.usable)
    assert column(scored, "advantage") == expected.tolist()


def test_without_a_finish_reason_a_rollout_as_long_as_the_budget_was_cut_off() -> None:
    config = TrainConfig(steps=1, reward=RewardConfig(unfinished=-0.5))
    rows = rows_of("a", [99, 100, 100], "000")
    rows[2]["finish_reason"] = "stop"
    assert column(list(score_rows(rows, config, 100)), "reward") == [0.0, -0.5, 0.0]


def test_difficulty_can_come_from_scores() -> None:
    rule = LogisticDifficulty(score_threshold=0.5)
    config = LEAD.model_copy(update={"advantage": AdvantageConfig(difficulty=rule)})
    rows = rows_of("a", [10, 20, 30, 40], "1000")
    for row, score in zip(rows, (1.0, 0.6, 0.5, 0), strict=True):
        row["score"] = score
    assert column(list(score_rows(rows, config, 100)), "pass_rate") == [0.75] * 4


def test_a_group_of_one_and_a_group_of_one_kind_are_marked_as_dropped() -> None:
    config = TrainConfig(steps=1, advantage=AdvantageConfig(keep="mixed"))
    scored = list(score_rows(rows_of("a", [10], "1") + rows_of("b", [10, 20], "11"), config, 100))
    assert column(scored, "kept") == [False] * 3
    assert column(scored, "advantage") == [0.0] * 3


def test_group_names_that_look_alike_stay_apart() -> None:
    rows = rows_of("1", [10, 20], "10")
    numbered = [row | {"group": 1} for row in rows_of("1", [10, 20], "00")]
    assert column(list(score_rows(rows + numbered, PLAIN, 100)), "pass_rate") == [0.5, 0.5, 0.0, 0.0]


def test_stdin_is_a_file_too(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from concisecli.config import TrainConfig;"
        "from concisecli.stages.score import run_score;"
        "run_score(Path('-'), TrainConfig(steps=1), sys.stdout); assert 'torch' not in sys.modules"
    )
    file = write(tmp_path / "rows.jsonl", rows_of("a", [10, 20], "10"))
    done = subprocess.run([sys.executable, "-c", script], input=file.read_bytes(), capture_output=True, check=True)
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0, 0.0]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": None}, "rows.jsonl:3: field 'length' is missing; every row needs group, id, length"),
        ({"group": None}, "rows.jsonl:3: field 'group' is missing"),
        ({"correct": None}, "rows.jsonl:3: field 'correct' is missing"),
        ({"length": -1}, "rows.jsonl:3: field 'length' is -1; it must be a whole number of tokens"),
        ({"length": "12"}, "rows.jsonl:3: field 'length' is '12'"),
        ({"length": 1.5}, "rows.jsonl:3: field 'length' is 1.5"),
        ({"length": True}, "rows.jsonl:3: field 'length' is True"),
        ({"id": [1]}, "rows.jsonl:3: field 'id' is [1]; it must be a text or a whole number"),
        ({"correct": "yes"}, "rows.jsonl:3: field 'correct' is 'yes'; it must be true or false"),
        ({"outcome": "right"}, "rows.jsonl:3: field 'outcome' is 'right'; it must be one of match, mismatch"),
        ({"outcome": "match"}, "rows.jsonl:3: field 'outcome' is 'match' but 'correct' is False"),
        ({"finish_reason": "eos"}, "rows.jsonl:3: field 'finish_reason' is 'eos'"),
        ({"id": 0}, "rows.jsonl:3: field 'id': 0 stands in group 'a' already"),
    ],
)
def test_a_row_that_cannot_be_meant_is_named_by_line_and_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    rows = rows_of("a", [10, 20], "10")
    rows[1] |= change
    first, second = (json.dumps(row) for row in rows)
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{first}\n\n{second}\n")
    out = io.StringIO()
    with pytest.raises(ConciseError) as error:
        run_score(file, PLAIN, out)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert out.getvalue() == ""


def test_settings_that_read_text_or_score_ask_for_them() -> None:
    rows = rows_of("a", [10, 20], "10")
    with pytest.raises(ConciseError, match="row 1: field 'text' is needed"):
        list(score_rows(rows, TrainConfig(steps=1, reward=RewardConfig(repetition=-2)), 100))
    unfinished_only = RewardConfig(repetition=-2, repetition_scope="unfinished")
    assert len(list(score_rows(rows, TrainConfig(steps=1, reward=unfinished_only), 100))) == 2
    with pytest.raises(ConciseError, match="row 2: field 'text' is needed"):
        list(score_rows(rows, TrainConfig(steps=1, reward=unfinished_only), 20))
    scored = AdvantageConfig(difficulty=LogisticDifficulty(score_threshold=0.5))
    for bad in ({}, {"score": 1.2}, {"score": "1"}, {"score": True}):
        with pytest.raises(ConciseError, match=r"row 1: field 'score' .*number in \[0, 1\]"):
            list(score_rows([rows[0] | bad, rows[1]], TrainConfig(steps=1, advantage=scored), 100))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConciseError, match=r"cannot read .*absent\.jsonl"):
        run_score(tmp_path / "absent.jsonl", PLAIN, io.StringIO())
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ConciseError, match=r"empty\.jsonl holds no rows"):
        run_score(empty, PLAIN, io.StringIO())
    unknown = tmp_path / "nan.jsonl"
    unknown.write_text('{"group": "a", "id": 1, "length": 3, "correct": true, "entropy": NaN}')
    with pytest.raises(ConciseError, match=r"nan\.jsonl:1: holds NaN"):
        run_score(unknown, PLAIN, io.StringIO())
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"group": "a"')
    with pytest.raises(ConciseError, match=r"broken\.jsonl:1: not valid JSON"):
        run_score(broken, PLAIN, io.StringIO())
