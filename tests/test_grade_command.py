"""What stands behind `concise grade`."""

from __future__ import annotations

import gzip
import json

import pytest

from concisecli.config import GraderConfig
from concisecli.grader.grading_audit import second_opinion
from concisecli.records import ConciseError, UsageError
from concisecli.stages.grade import audit, dump_line, rows, run_grade, selftest

QUICK = GraderConfig(workers=1)
ROWS = [
    {"id": "a", "gold": "1/2", "response": "\\boxed{0.5}", "equivalent": True, "note": "kept"},
    {"id": "b", "gold": 3, "response": "\\boxed{4}", "equivalent": False},
    {"id": "c", "gold": 3, "response": "no idea at all, we would have to think about it", "equivalent": False},
    {"id": "d", "gold": None, "response": None, "equivalent": True},
]


def write(path, rows, *, end="\n", bom=False, pack=False):
    data = ("\ufeff" if bom else "") + "".join(json.dumps(r, ensure_ascii=False) + end for r in rows)
    path.write_bytes(gzip.compress(data.encode()) if pack else data.encode())
    return path


def test_every_row_comes_back_with_its_fields_and_a_verdict(tmp_path):
    out = tmp_path / "out.jsonl"
    summary = run_grade(write(tmp_path / "in.jsonl", ROWS), config=QUICK, out=out)
    graded = [json.loads(line) for line in out.read_text().split("\n")[:-1]]
    assert [g["outcome"] for g in graded] == ["match", "mismatch", "no_answer", "no_answer"]
    assert graded[0] | ROWS[0] == graded[0]
    assert graded[0]["correct"] is True
    assert graded[0]["extracted"] == "0.5"
    assert graded[0]["rule"] == "value"
    assert graded[0]["seconds"] >= 0
    assert summary["counts"] == {"match": 1, "mismatch": 1, "no_answer": 2, "timeout": 0, "error": 0}
    assert summary["accuracy"] == 0.25
    assert (summary["agreement"]["right"], summary["agreement"]["of"]) == (3, 4)
    assert [d["id"] for d in summary["agreement"]["disagreements"]] == ["d"]
    assert summary["grader"]["math_verify"]
    json.dumps(summary)


def test_rows_go_to_a_callback_without_an_output_file(tmp_path):
    lines: list[str] = []
    run_grade(write(tmp_path / "in.jsonl", ROWS[1:3]), config=QUICK, emit=lines.append)
    assert [json.loads(line)["id"] for line in lines] == ["b", "c"]


@pytest.mark.parametrize(
    ("end", "bom", "pack"), [("\n", False, False), ("\r\n", True, False), ("\n", True, True), ("\n\n", False, True)]
)
def test_plain_gz_bom_and_crlf_read_the_same(tmp_path, end, bom, pack):
    tricky = [
        {"gold": "a\u2028b", "response": "\\boxed{a\u2028b}\u2029\x85\x0b"},
        {"gold": 1, "response": "\\boxed{1}"},
    ]
    file = write(tmp_path / "in.jsonl", tricky, end=end, bom=bom, pack=pack)
    assert [r.fields for r in rows(file)] == tricky
    out = tmp_path / "out.jsonl.gz"
    summary = run_grade(file, config=QUICK, out=out)
    assert summary["counts"]["match"] == 2
    assert len(gzip.decompress(out.read_bytes()).decode().splitlines()) == 2


def test_other_field_names_and_an_open_thought(tmp_path):
    file = write(
        tmp_path / "in.jsonl",
        [{"answer": 5, "text": "so \\boxed{5} hm", "think_open": True}, {"answer": 5, "text": "so \\boxed{5}"}],
    )
    summary = run_grade(file, gold_field="answer", response_field="text", config=QUICK)
    assert summary["counts"]["no_answer"] == 1
    assert summary["counts"]["match"] == 1


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{broken\n", ConciseError, "line 1"),
        ("[1]\n", ConciseError, "not a JSON object"),
        ('{"response": "x"}\n', UsageError, "--gold-field"),
        ('{"gold": 1}\n', UsageError, "--response-field"),
        ('{"gold": 1, "response": ["a"]}\n', UsageError, "one response a row"),
    ],
)
def test_a_file_that_cannot_be_meant_says_where_and_what_to_do(tmp_path, text, error, words):
    (tmp_path / "in.jsonl").write_text(text)
    with pytest.raises(error, match=words):
        run_grade(tmp_path / "in.jsonl", config=QUICK, out=tmp_path / "out.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]
    with pytest.raises(UsageError, match="cannot read"):
        run_grade(tmp_path / "absent.jsonl", config=QUICK)


def test_the_audit_lists_where_a_second_check_disagrees(tmp_path):
    file = write(tmp_path / "in.jsonl", [
        {"id": "agree", "gold": "1/2", "response": "\\boxed{0.5}"},
        {"id": "differ", "gold": "1/3", "response": "\\boxed{0.33333333333333}"},
        {"id": "unknown", "gold": "x+1", "response": "\\boxed{1+x}"},
    ])  # fmt: skip
    found = audit(file, config=QUICK)
    assert found["counts"] == {"agree": 1, "disagree": 1, "no_opinion": 1}
    assert found["disagreements"][0]["id"] == "differ"
    assert found["disagreements"][0]["second"] == "match"


@pytest.mark.parametrize(
    ("answer", "gold", "opinion"),
    [
        ("0.5", "1/2", True),
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("2", 3, False),
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("x", "y", None),
        (None, 1, None),
        ("3", [2, 3], True),
    ],
)
def test_the_second_opinion(answer, gold, opinion):
    assert second_opinion(answer, gold) is opinion


def test_the_self_test_passes_and_names_its_limits():
    found = selftest(GraderConfig(workers=1, deadline_s=2))
    assert found["wrong"] == []
    assert found["right"] == found["cases"] >= 472
    assert sum(k["of"] for k in found["kinds"].values()) == found["cases"]
    assert all(limit["outcome"] != "match" and limit["why"] for limit in found["known_limits"])


def test_a_line_survives_readers_that_split_at_unicode_line_ends():
    assert dump_line({"a": "x\u2028y"}).splitlines() == [dump_line({"a": "x\u2028y"})]
    assert json.loads(dump_line({"a": "\ud800"})) == {"a": "\ud800"}


def test_a_packed_file_that_ends_early_is_named(tmp_path):
    file = write(tmp_path / "in.jsonl.gz", ROWS * 50, pack=True)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConciseError, match="to its end"):
        list(rows(file))


def test_an_output_that_is_a_folder_is_refused_before_anything_is_graded(tmp_path):
    with pytest.raises(UsageError, match="it is a folder"):
        run_grade(write(tmp_path / "in.jsonl", ROWS), config=QUICK, out=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]
