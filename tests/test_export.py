"""`concise export`: a folder that transformers loads, with a card that says where it is from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from concisecli.artifacts import read_json, sha256_path, write_json, write_text
from concisecli.records import ConciseError, UsageError
from concisecli.upkeep.export import export, push, trained_stage
from tests.toy_run import folder_of, write_run

ROOT = Path(__file__).parent.parent


def edit(path: Path, **changed: Any) -> None:
    write_json(path, read_json(path) | changed)


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Path:
    """The toy run, its last stage of training with a real model, data and an evaluation of these weights."""
    folder = tmp_path / "runs" / "toy"
    write_run(folder)
    last = folder_of(folder, "lgrpo")
    shutil.copytree(tiny_model, last / "model")
    digest = sha256_path(last / "model")
    edit(last / "manifest.json", outputs={"model": {"path": "model", "sha256": digest}})
    for name in ("lgrpo_t10", "lgrpo_t06"):
        path = folder_of(folder, name) / "manifest.json"
        edit(path, inputs=read_json(path)["inputs"] | {"model": [digest]})
    first = folder_of(folder, "sft") / "manifest.json"
    data = folder_of(folder, "test")
    write_text(data / "data_card.md", "# card of the data\n")
    source = {"type": "hub", "name": "org/set", "licence": "MIT"}
    output = {"path": "examples.parquet", "sha256": "5" * 64, "rows": 1234}
    edit(data / "manifest.json", config={"sources": {"real": source}}, outputs={"examples": output})
    edit(
        first,
        sources={"model": ["hf:Qwen/Qwen2.5-0.5B@c0ffee"], "examples": ["test.examples"]},
        inputs={"model": ["c0ffee"], "examples": ["5" * 64]},
    )
    return folder


def test_the_last_stage_of_training_is_meant_where_only_the_run_is_named(run: Path) -> None:
    assert trained_stage("toy", run.parent).stage == "lgrpo"
    assert trained_stage(None, run.parent).stage == "lgrpo"
    assert trained_stage("toy/rl1", run.parent).stage == "rl1"
    with pytest.raises(UsageError, match="did you mean toy"):
        trained_stage("tay", run.parent)


def test_the_folder_loads_and_its_card_tells_base_lineage_data_and_scores(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = export(trained_stage("toy", run.parent), "model", tmp_path / "out" / "model")
    AutoModelForCausalLM.from_pretrained(target)
    AutoTokenizer.from_pretrained(target)
    card = (target / "README.md").read_text()
    facts = yaml.safe_load(card.split("---")[1])
    assert (facts["base_model"], facts["datasets"]) == ("Qwen/Qwen2.5-0.5B", ["org/set"])
    assert "sft → rl1 → lgrpo" in card
    assert "| test.real | org/set | MIT |" in card
    assert "test: 1,234 examples." in card
    overall = read_json(folder_of(run, "lgrpo_t06") / "scores.json")["overall"]
    assert f"| lgrpo_t06 | 24 | 4 | 0.6 | {100 * overall['pass_at_1']['value']:.1f} [" in card
    assert "sft_t06" not in card
    assert str(run) not in card
    assert (target / "data_cards" / "test.md").read_text() == "# card of the data\n"
    assert not [p for p in target.parent.iterdir() if p != target]


def test_nothing_is_overwritten_and_changed_weights_are_not_passed_on(run: Path, tmp_path: Path) -> None:
    stage = trained_stage("toy", run.parent)
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        export(stage, "model", tmp_path / "there")
    with pytest.raises(UsageError, match="made no best; it made model"):
        export(stage, "best", tmp_path / "new")
    with (stage.path / "model" / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ConciseError, match="was changed since stage 'lgrpo' made it"):
        export(stage, "model", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


def test_without_a_token_the_folder_stands_and_the_next_step_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ConciseError, match=r"no token for the Hugging Face hub.*hf upload org/name"):
        push(tmp_path, "org/name")


def test_the_command_prints_the_folder(run: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "concisecli", "export", "toy/lgrpo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=run.parent.parent, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "export/toy-lgrpo\n")
    done = subprocess.run(command, capture_output=True, text=True, cwd=run.parent.parent, env=env, check=False)
    assert done.returncode == 2
    assert "export/toy-lgrpo exists already; choose another with --to" in done.stderr
