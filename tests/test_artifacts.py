"""Files that are whole or absent, and what is read comes back as it was written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.artifacts import (
    atomic_write,
    canonical_json,
    iter_jsonl,
    keep_jsonl,
    read_examples,
    read_json,
    read_parquet,
    read_problems,
    sha256_file,
    sha256_path,
    unwritable,
    write_examples,
    write_json,
    write_jsonl,
    write_parquet,
    write_problems,
    write_text,
)
from concisecli.records import ConciseError, Example, Problem

# --- hashes -----------------------------------------------------------------------------------------------------------


def test_a_files_hash_is_the_sha256_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_file(tmp_path / "a") == sha256_path(tmp_path / "a") == known


def test_a_folders_hash_depends_on_names_and_contents_only(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        for path in reversed(("x", "sub/y")) if name == "two" else ("x", "sub/y"):
            (tmp_path / name / path).write_text(path)
    os.utime(tmp_path / "two" / "x", (1, 1))
    assert sha256_path(tmp_path / "one") == sha256_path(tmp_path / "two")
    (tmp_path / "two" / "x").rename(tmp_path / "two" / "z")
    assert sha256_path(tmp_path / "one") != sha256_path(tmp_path / "two")


def test_a_file_still_being_written_is_no_part_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    before = sha256_path(tmp_path)
    with atomic_write(tmp_path / "y") as temporary:
        temporary.write_text("half")
        assert sha256_path(tmp_path) == before
    assert sha256_path(tmp_path) != before


def test_hashing_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConciseError, match="there is no"):
        sha256_path(tmp_path / "gone")


def test_canonical_json_has_one_spelling_and_no_nan() -> None:
    assert (
        canonical_json({"b": 1, "a": [1.0, "é"]})
        == canonical_json({"a": (1.0, "é"), "b": 1})
        == '{"a":[1.0,"é"],"b":1}'
    )
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"a": float("nan")})


# --- atomic writes ----------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "f", "old")

    def fail() -> None:
        with atomic_write(tmp_path / "f") as temporary:
            temporary.write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "f").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_json(tmp_path / "a" / "b" / "c.json", {"x": [1]})
    assert read_json(tmp_path / "a" / "b" / "c.json") == {"x": [1]}


def test_a_folder_that_is_a_file_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(ConciseError, match=r"cannot write .*: part of the path is a file") as caught:
        write_text(tmp_path / "f" / "x" / "y", "text")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_gets_one_line_with_what_to_do(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_write(tmp_path / "f"), Path("/dev/full").open("w") as full:
            full.write("x" * 100_000)

    with pytest.raises(ConciseError, match="the disk is full; free some space"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="rights do not bind root")
def test_a_folder_without_rights_gets_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConciseError, match="no right to write there"):
        write_text(tmp_path / "f", "x")
    tmp_path.chmod(stat.S_IRWXU)


def test_an_error_that_is_not_the_disks_stays_as_it_is(tmp_path: Path) -> None:
    error = InterruptedError(4, "interrupted")
    assert unwritable(tmp_path, error) is error


# --- JSON Lines -------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"))


@given(st.lists(st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none(), max_size=4), max_size=5))
@settings(max_examples=60, deadline=None)
def test_rows_come_back_whatever_their_text(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "r.jsonl"
    assert write_jsonl(path, rows) == len(rows)
    assert list(iter_jsonl(path)) == rows


def test_only_a_line_feed_ends_a_row(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes('{"a": "x\u2028y\u0085z"}\r\n\n{"a": "\x1c"}\n'.replace("\x1c", "\\u001c").encode())
    assert [row["a"] for row in iter_jsonl(path)] == ["x\u2028y\u0085z", "\x1c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [(b"{", "not valid JSON"), (b"[1]", "a row is a JSON object"), (b'{"a": "\xff"}', "not valid JSON")],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(ConciseError, match=message) as caught:
        list(iter_jsonl(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_log_is_cut_back_to_the_rows_that_are_wanted(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_jsonl(path, [{"step": 0}, {"step": 1}, {"step": 2}])
    with path.open("a") as file:
        file.write('{"step": 3')
    keep_jsonl(path, lambda row: row["step"] < 2)
    assert [row["step"] for row in iter_jsonl(path)] == [0, 1]


def test_json_that_was_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1')
    with pytest.raises(ConciseError, match="is not valid JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(ConciseError, match="cannot read"):
        read_json(tmp_path / "none.json")


# --- parquet ----------------------------------------------------------------------------------------------------------


def test_problems_and_examples_come_back_equal_and_twice_the_same_bytes(tmp_path: Path) -> None:
    problems = [
        Problem("a", "1+1", "2", "s", 0.5, {"subject": "é", "list": [1, {"x": None}]}),
        Problem("b", "2+2\u2028", "4", "", None),
    ]
    examples = [Example("a", "p", "r", 0.3, ((0, 1), (3, 5))), Example("b", "p", "r"), Example("c", "p", "r", 1.0, ())]
    for name in ("one", "two"):
        assert write_problems(tmp_path / f"{name}-p.parquet", problems) == 2
        assert write_examples(tmp_path / f"{name}-e.parquet", examples) == 3
    assert read_problems(tmp_path / "one-p.parquet") == problems
    assert read_examples(tmp_path / "one-e.parquet") == examples
    for kind in "pe":
        assert sha256_file(tmp_path / f"one-{kind}.parquet") == sha256_file(tmp_path / f"two-{kind}.parquet")


def test_no_rows_at_all_are_a_file_too(tmp_path: Path) -> None:
    write_problems(tmp_path / "p.parquet", [])
    assert read_problems(tmp_path / "p.parquet") == []


def test_a_file_without_the_columns_names_row_and_column(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [{"id": "a", "prompt": "p"}])
    with pytest.raises(ConciseError, match=r"x\.parquet: row 1: no answer; make the file with: concise data build"):
        read_problems(tmp_path / "x.parquet")


def test_a_file_that_is_no_parquet_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(ConciseError, match=r"cannot read .* as parquet") as caught:
        read_parquet(tmp_path / "x.parquet")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConciseError, match="cannot read"):
        read_parquet(tmp_path / "none.parquet")


def test_doubles_keep_every_bit(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(50).tolist()
    write_parquet(tmp_path / "d.parquet", [{"x": v} for v in values])
    assert [row["x"] for row in read_parquet(tmp_path / "d.parquet")] == values


def test_the_half_row_of_a_killed_writer_is_passed_over_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "lo')
    assert list(iter_jsonl(path, whole=False)) == [{"step": 0}]
    with pytest.raises(ConciseError, match=r"metrics.jsonl:2"):
        list(iter_jsonl(path))
