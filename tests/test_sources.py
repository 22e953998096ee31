"""Reading rows whatever the file: formats, compression, column names, and files that are broken in every usual way."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from concisecli.building import columns, sources
from concisecli.building.columns import answer_texts, column_map, map_row
from concisecli.config import FileSource, HubSource
from concisecli.records import ConciseError

ROWS = [{"problem": f"What is {n}+1?", "answer": n + 1} for n in range(5)]


def lines(rows=ROWS):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def read(path, **settings):
    return list(sources.read("s", FileSource(path=path, **settings)))


def fields(path, **settings):
    return [row.fields for row in read(path, **settings)]


def write(path, data):
    path.write_bytes(data)
    return path


def test_every_format_gives_the_same_rows(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    folder = tmp_path / "tree" / "algebra"
    folder.mkdir(parents=True)
    for n, row in enumerate(ROWS):
        (folder / f"{n}.json").write_text(json.dumps(row))
    files = [
        write(tmp_path / "a.jsonl", lines()),
        write(tmp_path / "a.json", json.dumps(ROWS, indent=1).encode()),
        write(tmp_path / "lines.json", lines()),
        write(tmp_path / "b.jsonl.gz", gzip.compress(lines())),
        write(tmp_path / "c.jsonl.zst", zstandard.compress(lines())),
        write(tmp_path / "d.json.gz", gzip.compress(json.dumps(ROWS).encode())),
        write(tmp_path / "two.jsonl.zst", zstandard.compress(lines(ROWS[:2])) + zstandard.compress(lines(ROWS[2:]))),
        tmp_path / "a.parquet",
        tmp_path / "tree",
    ]
    for path in files:
        assert fields(path) == ROWS, path.name


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.jsonl.zst"])
def test_how_far_a_file_is_read_is_known_where_its_rows_cannot_be_counted(tmp_path, name):
    rows = [{"problem": f"What is {i * 7919 % 10007} times {i}?", "answer": str(i)} for i in range(200_000)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = {
        "a.json": lambda: json.dumps(rows).encode(),
        "a.jsonl.gz": lambda: gzip.compress(text, 1),
        "a.jsonl.zst": lambda: zstandard.compress(text),
    }
    (tmp_path / name).write_bytes(packed[name]())
    meter = sources.Meter()
    assert meter.share() == 0
    found = sources.read("s", FileSource(path=tmp_path / name), meter=meter)
    assert sources.size(FileSource(path=tmp_path / name)) is None
    for _ in range(100_000):
        next(found)
    assert 0.3 < meter.share() < 0.8


def test_csv_rows_are_texts_under_the_header(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(ROWS)
        writer.writerow({"problem": "two\nlines, and a comma", "answer": "7"})
    got = fields(path)
    assert [row["answer"] for row in got] == ["1", "2", "3", "4", "5", "7"]
    assert got[-1]["problem"] == "two\nlines, and a comma"


def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path):
    assert fields(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + lines().replace(b"\n", b"\r\n"))) == ROWS
    assert fields(write(tmp_path / "a.json", b"\xef\xbb\xbf" + json.dumps(ROWS).encode())) == ROWS
    assert fields(write(tmp_path / "a.csv", b"\xef\xbb\xbfproblem,answer\r\nx,1\r\n")) == [
        {"problem": "x", "answer": "1"}
    ]


def test_only_a_line_feed_ends_a_record(tmp_path):
    odd = [{"problem": "a\u2028b\u0085c\x0bd", "answer": "1"}]
    path = write(tmp_path / "a.jsonl", json.dumps(odd[0], ensure_ascii=False).encode() + b"\n\n")
    assert fields(path) == odd


def test_a_bad_line_is_named_by_its_number_and_the_others_are_read(tmp_path):
    data = lines(ROWS[:2]) + b'{"problem": "cut\n' + b"[1, 2]\n" + b"\xff\xfe\n" + lines(ROWS[2:])
    rows = read(write(tmp_path / "a.jsonl", data))
    bad = [row for row in rows if isinstance(row, sources.BadRow)]
    assert [row.place for row in bad] == ["line 3", "line 4", "line 5"]
    assert len(rows) == 8


def test_a_row_of_50_megabytes_is_set_aside_without_being_parsed(tmp_path):
    data = lines(ROWS[:1]) + b'{"problem": "' + b"x" * 50_000_000 + b'"}\n' + lines(ROWS[1:])
    rows = read(write(tmp_path / "a.jsonl", data))
    assert [type(row).__name__ for row in rows[:3]] == ["RawRow", "BadRow", "RawRow"]
    assert "longer than 16 MiB" in rows[1].reason


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing.jsonl", None, "does not exist"),
        ("empty.jsonl", b"", "holds no rows"),
        ("blank.jsonl", b"\n\n", "holds no rows"),
        ("cut.jsonl.gz", gzip.compress(lines() * 500)[:-20], "cannot be read to its end"),
        ("cut.jsonl.zst", zstandard.compress(lines() * 500)[:-20], "cannot be read to its end"),
        ("not.parquet", lines(), "read as parquet but its content is jsonl"),
        ("cut.parquet", b"PAR1" + b"\0" * 50, "cannot be read"),
        ("array.json", b'[{"problem": "a"}, {"problem": ', "row 2 of the array is not valid JSON"),
        ("odd.csv", b'{"problem": "a"}\n', "read as csv but its content is jsonl"),
        ("what.bin", b"hello", "cannot tell the format"),
    ],
)
def test_a_broken_file_is_one_clear_line(tmp_path, name, data, message):
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConciseError) as caught:
        read(path)
    assert message in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_called_jsonl_is_refused_rather_than_read_as_text(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.jsonl")
    with pytest.raises(ConciseError, match=r"content is parquet.*format: parquet"):
        read(tmp_path / "a.jsonl")
    assert fields(tmp_path / "a.jsonl", format="parquet") == ROWS


def test_a_hub_data_set_is_read_through_datasets(tmp_path):
    (tmp_path / "set").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "set" / "train.parquet")
    rows = list(sources.read("s", HubSource(name=str(tmp_path / "set"))))
    assert [row.fields for row in rows] == ROWS
    local = HubSource(name="nobody/such-a-set", path=tmp_path / "set" / "train.parquet")
    assert [row.fields for row in sources.read("s", local)] == ROWS


def test_a_hub_name_that_cannot_be_read_says_how_to_go_on(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConciseError, match=r"nobody/no-such-set.*nobody has looked up.*sources\.s\.path"):
        list(sources.read("s", HubSource(name="nobody/no-such-set")))


# --- columns ----------------------------------------------------------------------------------------------------------


def mapped(row, declared=None, kind="problems"):
    return map_row("s", "line 1", row, column_map("s", declared or {}, [row], kind))


def test_usual_names_are_found():
    assert mapped({"question": "Q", "final_answer": ["7"]}).answer == "7"
    assert mapped({"query": "Q", "ans_box": "7", "critic_method": "m"}).origin == "m"
    verl = {"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}],
            "reward_model": {"ground_truth": "34", "style": "rule"}}  # fmt: skip
    assert (mapped(verl).problem, mapped(verl).answer) == ("Q", "34")
    sharegpt = {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "\\boxed{1}"}]}
    row = mapped(sharegpt, {"problem": "conversations", "solution": "conversations"})
    assert (row.problem, row.solution) == ("Q", "\\boxed{1}")
    math = {"problem": "Q", "level": "Level 5", "type": "Algebra", "solution": "\\boxed{1}"}
    assert (mapped(math).level, mapped(math).subject, mapped(math).answer) == (5.0, "Algebra", None)
    assert mapped({**math, "level": "Level ?"}).level is None


def test_gsm8k_answers_are_taken_apart():
    row = mapped({"question": "Q", "answer": "He has 2*3=<<2*3=6>>6 eggs.\n#### 1,006"})
    assert (row.answer, row.solution) == ("1006", "He has 2*3=6 eggs.")


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("27", ("27",)),
        (27, ("27",)),
        (27.0, ("27",)),
        (0.1, ("0.1",)),
        (-3.25, ("-3.25",)),
        (10**30, ("1" + "0" * 30,)),
        (None, ()),
        ("", ()),
        (float("nan"), ()),
        (["a", "b"], ("a", "b")),
        ([["a"], 2], ("a", "2")),
        ({"value": 5}, ("5",)),
        (True, ()),
    ],
)
def test_answers_of_every_type_become_text_without_loss(value, texts):
    assert answer_texts(value) == texts


def test_a_list_of_answers_means_any_of_them_unless_the_row_says_all():
    anyof = mapped({"problem": "Q", "answer": ["1/2", "0.5"]})
    assert (anyof.answer, anyof.answers, anyof.flags) == ("1/2", ("1/2", "0.5"), ("any-of",))
    every = mapped({"problem": "Q", "final_answer": ["2", "3"], "is_multiple_answer": True})
    assert every.answer == "2, 3"


def test_a_missing_column_names_those_that_were_found():
    with pytest.raises(ConciseError, match=r"no column for answer; found problem, text"):
        column_map("s", {}, [{"problem": "Q", "text": "T"}], "problems")
    with pytest.raises(ConciseError, match=r"no column 'gold' \(columns\.answer\); found answer, problem"):
        column_map("s", {"answer": "gold"}, [{"problem": "Q", "answer": "T"}], "problems")
    with pytest.raises(ConciseError, match=r"columns\.reply is not ours"):
        column_map("s", {"reply": "problem"}, [{"problem": "Q"}], "problems")


def test_columns_that_only_later_rows_have_are_used_for_these():
    mapping = column_map("s", {}, [{"problem": "Q", "answer": "1"}], "problems")
    assert map_row("s", "line 9", {"problem": "Q", "answer": "1", "solution": "S"}, mapping).solution == "S"
    assert mapping.used["solution"] == "solution"


def test_a_response_is_the_assistants_last_message():
    row = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "R"}]}
    mapping = column_map("s", {}, [row], "examples")
    assert columns.response_text(row, mapping) == "R"
    assert map_row("s", "line 1", row, mapping).problem == "Q"
