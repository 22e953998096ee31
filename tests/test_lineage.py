"""`concise lineage`: from an artifact back to where it came from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from concisecli.artifacts import read_json, write_json
from concisecli.upkeep.lineage import ends, lineage, lines
from concisecli.upkeep.runs import finished_stage
from tests.toy_run import fake_hash, folder_of, write_run

ROOT = Path(__file__).parent.parent


def toy(tmp_path: Path) -> Path:
    """The toy run with the hashes of its inputs as its outputs have them."""
    run = tmp_path / "runs" / "toy"
    write_run(run)
    return run


def test_a_model_goes_back_through_its_stages(tmp_path: Path) -> None:
    run = toy(tmp_path)
    found = lineage(finished_stage("toy/lgrpo", run.parent))
    assert lines(found)[0].startswith("lgrpo (train)  ")
    names, made = [], found
    while made.sources:
        names.append((made.name, made.kind, made.digest))
        made = made.sources[0]
    assert names == [
        ("lgrpo", "train", fake_hash("key of lgrpo")),
        ("rl1", "train", fake_hash("key of rl1")),
        ("sft", "sft", fake_hash("key of sft")),
    ]
    assert (made.name, made.kind) == ("new", "")


def test_what_is_gone_and_what_came_from_outside_are_told_apart(tmp_path: Path) -> None:
    run = toy(tmp_path)
    path = folder_of(run, "sft") / "manifest.json"
    raw = read_json(path)
    raw["sources"] = {"model": ["hf:Qwen/Qwen2.5-Math-7B@abc"], "examples": ["lost.examples"]}
    raw["inputs"] = {"model": ["abc"], "examples": ["0" * 64]}
    raw["files"] = {"rows": "1" * 64}
    write_json(path, raw)
    found = lineage(finished_stage("toy/sft", run.parent))
    assert [(s.role, s.name, s.note) for s in found.sources] == [
        ("examples", "lost.examples", "no longer in this run"),
        ("model", "hf:Qwen/Qwen2.5-Math-7B@abc", ""),
        ("file", "rows", ""),
    ]


def test_a_run_stands_for_all_of_its_ends(tmp_path: Path) -> None:
    run = toy(tmp_path)
    named = {folder.stage for folder in ends("toy", run.parent)}
    assert "sft" not in named
    assert {"lgrpo_t10", "lgrpo_t06", "unrelated"} <= named


def test_the_command_prints_a_tree_or_one_line_of_json(tmp_path: Path) -> None:
    toy(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def concise(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "concisecli", "lineage", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)

    done = concise("toy/rl1")
    assert done.stdout.splitlines()[:2] == [
        f"rl1 (train)  {fake_hash('key of rl1')[:12]}  {folder_of(Path('runs/toy'), 'rl1')}",
        f"  model: sft (sft)  {fake_hash('key of sft')[:12]}  {folder_of(Path('runs/toy'), 'sft')}",
    ]
    (document,) = json.loads(concise("toy/rl1", "--json").stdout)
    assert document["made_from"][0]["digest"] == fake_hash("key of sft")
    wrong = concise("toy/rl9")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "has no stage rl9; did you mean" in wrong.stderr
