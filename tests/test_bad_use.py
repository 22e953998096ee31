"""Bad use, swept over every command: one clear sentence, the documented exit code, nothing written, no traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from concisecli.artifacts import write_text
from concisecli.cli import app, main

Call = Callable[..., tuple[int, str, str]]
PIPELINE = """\
run: t
stages:
  d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
  rl1: {uses: train, inputs: {model: ./base, problems: d.problems}, config: {steps: 3}}
  e: {uses: eval, inputs: {model: ./base, problems: d.problems}, config: {samples: 2}}
  r: {uses: report, inputs: {scores: [e.scores]}}
"""
ELSEWHERE = {"push"}  # options that need the network to say no


def leaves(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for word, child in command.commands.items():
        yield from leaves(child, (*name, word)) if hasattr(child, "commands") else [((*name, word), child)]


COMMANDS = dict(leaves(typer.main.get_command(app)))


def options(*, of: Callable[[Any], bool]) -> list[tuple[tuple[str, ...], str]]:
    return [
        (name, option.opts[-1])
        for name, command in COMMANDS.items()
        for option in command.params
        if option.param_type_name == "option" and not option.is_flag and option.name not in ELSEWHERE and of(option)
    ]


def is_number(option: Any) -> bool:
    return "int" in str(option.bare_type()) or "float" in str(option.bare_type())


@pytest.fixture
def concise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "concise.yaml", PIPELINE)
    write_text(tmp_path / "base" / "config.json", "{}")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["concise", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return code, *capsys.readouterr()

    return call


def clear(err: str) -> str:
    """The one message of a refused command."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("concise: ") or "Error" in line or "Invalid value" in line]
    assert said, err
    return " ".join(lines)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", list(COMMANDS), ids=" ".join)
def test_an_unknown_flag_is_refused_with_the_nearest(concise: Call, name: tuple[str, ...]) -> None:
    code, out, err = concise(*name, "--jsn")
    assert (code, out) == (2, "")
    assert "No such option" in clear(err)


@pytest.mark.parametrize(
    ("name", "flag"), options(of=is_number), ids=lambda x: x if isinstance(x, str) else " ".join(x)
)
def test_a_word_where_a_number_belongs_is_refused(concise: Call, name: tuple[str, ...], flag: str) -> None:
    code, out, err = concise(*name, flag, "many")
    assert (code, out) == (2, "")
    assert f"Invalid value for '{flag}'" in clear(err) or f"/ '{flag}'" in err or "Missing argument" in err


WITH_PATH = [
    *[
        (name, ("-p", "nowhere.yaml"))
        for name, c in COMMANDS.items()
        if any("--pipeline" in p.opts for p in c.params) and name != ("score",)
    ],
    (("score",), ("concise.yaml", "-p", "nowhere.yaml")),
    (("run",), ("nowhere.yaml",)),
    (("data", "build"), ("nowhere.yaml",)),
    (("data", "show"), ("nowhere",)),
    (("eval",), ("--model", "nowhere", "--data", "nowhere.jsonl")),
    (("eval",), ("--model", "base", "--data", "nowhere.jsonl")),
    (("eval",), ("--regrade", "nowhere")),
    (("report",), ("nowhere",)),
    (("compare",), ("nowhere", "elsewhere")),
    (("rollouts",), ("nowhere",)),
    (("grade",), ("nowhere.jsonl",)),
    (("score",), ("nowhere.jsonl", "--method", "tiny", "--only", "rl1")),
]


@pytest.mark.parametrize(("name", "words"), WITH_PATH, ids=lambda x: " ".join(x))
def test_a_path_that_is_not_there_is_wrong_usage_and_named(
    concise: Call, tmp_path: Path, name: tuple[str, ...], words: tuple[str, ...]
) -> None:
    before = files(tmp_path)
    code, out, err = concise(*name, *words)
    assert (code, out) == (2, ""), err
    assert "nowhere" in clear(err)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (("data", "show"), ()),
        (("grade",), ()),
        (("score",), ("--method", "tiny", "--only", "rl1")),
        (("report",), ()),
        (("rollouts",), ()),
    ],
    ids=lambda x: " ".join(x),
)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe not text", b'{"half": ', b"[1, 2]\n"], ids=["empty", "bytes", "cut", "list"]
)
def test_a_file_of_nonsense_is_told_in_one_line(
    concise: Call, tmp_path: Path, name: tuple[str, ...], words: tuple[str, ...], content: bytes
) -> None:
    (tmp_path / "odd.jsonl").write_bytes(content)
    code, out, err = concise(*name, "odd.jsonl", *words)
    assert code in (1, 2), (out, err)
    assert "odd.jsonl" in clear(err)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "concise.yaml: a pipeline is a mapping"),
        ("run: [", "concise.yaml:1: not readable as YAML"),
        ("run: t\nstages: {}\n", "concise.yaml:2: stages is a mapping"),
        ("run: t\nstages: {a: {uses: trian}}\n", "did you mean 'train'?"),
        (PIPELINE.replace("steps: 3", "steps: many"), "concise.yaml:4: rl1.steps: should be a valid integer"),
        (PIPELINE.replace("steps: 3", "stpes: 3"), "concise.yaml:4: rl1: unknown key 'stpes'; did you mean 'steps'?"),
        (PIPELINE.replace("d.problems", "x.problems", 1), "concise.yaml:4"),
        (PIPELINE.replace("./base", "rl1.model", 1), "circle"),
    ],
)
@pytest.mark.parametrize("command", ["run", "train", "plan", "eval", "report"])
def test_a_faulty_pipeline_is_told_with_its_line_by_every_command(
    concise: Call, tmp_path: Path, command: str, text: str, said: str
) -> None:
    write_text(tmp_path / "concise.yaml", text)
    before = files(tmp_path)
    code, out, err = concise(command)
    assert code == 2, (out, err)
    assert said in (out + err)
    assert "Traceback" not in err
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 0},
        {"schema_version": 99},
        {"outputs": None},
        {"surprise": 1},
    ],
    ids=lambda change: next(iter(change)) + str(next(iter(change.values()))),
)
def test_a_manifest_of_another_time_is_told_and_left(concise: Call, tmp_path: Path, change: dict[str, Any]) -> None:
    assert concise("run", "--only", "d")[0] == 0
    (manifest,) = tmp_path.glob("runs/t/d-*/manifest.json")
    write_text(manifest, json.dumps(json.loads(manifest.read_text()) | change))
    before = manifest.read_bytes()
    code, _, err = concise("run", "--only", "d")
    assert code == 1
    assert "manifest.json" in clear(err)
    assert "--force d" in err or "away" in err  # what to do about it
    assert manifest.read_bytes() == before


def test_an_artifact_edited_by_hand_is_told_and_made_anew_on_request(concise: Call, tmp_path: Path) -> None:
    assert concise("run", "--only", "d")[0] == 0
    (problems,) = tmp_path.glob("runs/t/d-*/problems.parquet")
    problems.write_bytes(b"other")
    code, _, err = concise("run", "--only", "d")
    assert (code, "problems.parquet" in err, "--force d" in err) == (1, True, True)
    assert concise("run", "--only", "d", "--force", "d")[0] == 0
    assert problems.read_bytes() != b"other"


def test_runs_that_cannot_be_written_are_one_line(concise: Call, tmp_path: Path) -> None:
    write_text(tmp_path / "taken", "a file")
    for place in ("taken", "/proc/nowhere"):
        code, _, err = concise("run", "--only", "d", "--runs", place)
        assert code in (1, 2)
        assert place in clear(err)
