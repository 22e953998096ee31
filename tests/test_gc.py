"""`concise gc`: lists what nothing needs, asks, and never touches what is in use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from concisecli.artifacts import write_text
from concisecli.store import Store
from concisecli.upkeep.leftovers import leftovers, remove, size
from tests.toy_run import folder_of, write_run

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "toy"
    write_run(folder)
    for path in folder.glob("report-*"):
        path.rmdir()
    return folder


def older(run: Path, stage: str) -> Path:
    """Another folder of a stage, written to before the newest."""
    path = run / f"{stage}-000000000000"
    shutil.copytree(folder_of(run, stage), path)
    for file in [*path.rglob("*"), path]:
        os.utime(file, (1, 1))
    return path


def found(run: Path) -> set[tuple[str, str]]:
    return {(str(f.path.relative_to(run)), f.why) for f in leftovers(run)}


def test_a_run_with_one_folder_a_stage_has_no_leftovers(run: Path) -> None:
    assert found(run) == set()


def test_all_kinds_of_leftovers_are_found_with_their_size(run: Path) -> None:
    old = older(run, "lgrpo")
    unfinished = run / "rl1-111111111111"
    unfinished.mkdir()
    os.utime(unfinished, (1, 1))
    write_text(folder_of(run, "sft") / "checkpoints" / "step-000010" / "state", "x" * 1000)
    (run / ".new-222222222222.partial").mkdir()
    (folder_of(run, "rl1") / ".model.77.tmp").mkdir()
    assert found(run) == {
        (old.name, "superseded"),
        (unfinished.name, "unfinished"),
        (f"{folder_of(run, 'sft').name}/checkpoints", "checkpoints of a finished stage"),
        (".new-222222222222.partial", "left by a killed process"),
        (f"{folder_of(run, 'rl1').name}/.model.77.tmp", "left by a killed process"),
    }
    assert {f.bytes for f in leftovers(run) if "checkpoints" in f.why} == {1000}


def test_the_newest_unfinished_folder_is_kept_with_the_last_finished_one(run: Path) -> None:
    going = run / "rl1-111111111111"
    going.mkdir()
    assert found(run) == set()


def test_what_the_newest_was_made_from_is_kept_though_it_is_old(run: Path) -> None:
    newer = run / "sft-999999999999"
    shutil.copytree(folder_of(run, "sft"), newer)
    raw = json.loads((newer / "manifest.json").read_bytes())
    raw["key"] = "9" * 64
    raw["outputs"]["model"]["sha256"] = "8" * 64
    (newer / "manifest.json").write_text(json.dumps(raw))
    assert found(run) == set()  # rl1 was made from the older one


def test_a_locked_folder_is_left_alone(run: Path) -> None:
    old = older(run, "lgrpo")
    with Store(run).lock(old.name):
        done, left = remove(run, leftovers(run))
    assert (done, [kept.path for kept, _ in left]) == ([], [old])
    assert "is being written by process" in left[0][1]
    assert old.is_dir()
    done, left = remove(run, leftovers(run))
    assert ([gone.path for gone in done], left, old.exists()) == ([old], [], False)
    assert not [p for p in run.iterdir() if p.name.startswith(".") and p.name != ".locks"]


def test_a_file_linked_twice_is_counted_once(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x" * 100)
    os.link(tmp_path / "a", tmp_path / "b")
    assert size(tmp_path) == 100


def test_the_command_asks_and_without_a_terminal_wants_yes(run: Path) -> None:
    old = older(run, "lgrpo")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def concise(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "concisecli", "gc", "toy", *words]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=run.parent.parent,
            env=env,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    asked = concise()
    assert asked.returncode == 2
    assert asked.stderr == "concise: say --yes to remove these, or --dry-run to list them only\n"
    assert "superseded" in asked.stdout
    assert concise("--dry-run").returncode == 0
    assert old.is_dir()
    document = json.loads(concise("--yes", "--json").stdout)
    assert [(row["why"], row["removed"]) for row in document["leftovers"]] == [("superseded", True)]
    assert not old.exists()
    assert concise().stdout.split() == ["0", "bytes", "in", "all,", "0", "of", "runs/toy"]


def test_the_pipeline_as_it_is_now_decides_what_is_current(tmp_path: Path) -> None:
    text = (
        "run: t\nstages:\n  d: {uses: data, config: {recipe: "
        f"{ROOT}/data_recipes/tiny.yaml, sources: {{chains: {{split: pool, count: 3}}}}}}}}\n"
    )
    (tmp_path / "concise.yaml").write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def concise(*words: str) -> str:
        command = [sys.executable, "-m", "concisecli", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=True).stdout

    first = json.loads(concise("run", "--json"))["stages"][0]["folder"]
    second = json.loads(concise("run", "--json", "--set", "d.sources.chains.count=4"))["stages"][0]["folder"]
    rows = json.loads(concise("gc", "--dry-run", "--json"))["leftovers"]
    assert [row["path"] for row in rows] == [second]  # the newer one: the file asks for the first
    assert first != second
