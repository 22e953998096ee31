"""`concise doctor`: what a machine and a model's folder are told about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from concisecli.upkeep import doctor

ROOT = Path(__file__).parent.parent


def by_name(found: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in found}


def test_the_machine_is_looked_at(tmp_path: Path) -> None:
    found = by_name(doctor.examine(tmp_path / "runs", hub=False))
    assert {"python", "versions", "vllm", "deepspeed", "cores", "memory", "disk", "runs folder"} <= set(found)
    assert found["runs folder"].level == "ok"
    assert "torch" in found["versions"].text
    assert not (tmp_path / "runs").exists()


def test_a_runs_folder_that_cannot_be_written_is_an_error() -> None:
    found = doctor.writable(Path("/proc/nothing/here"))
    assert (found.level, found.advice) == ("error", "choose another with --runs")


def test_a_hub_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert doctor.reachable().level == "ok"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    found = doctor.reachable()
    assert found.level == "warning"
    assert "127.0.0.1:9 cannot be reached" in found.text


def test_a_package_that_is_missing_or_too_old_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ["numpy>=999", "no-such-package", "x; extra == 'gpu'"]
    )
    wrong = [f for f in doctor.versions() if f.level == "error"]
    assert [(f.name, f.text.split(", ")[-1]) for f in wrong] == [
        ("numpy", "needed is >=999"),
        ("no-such-package", "not installed"),
    ]


def test_cards_are_read_from_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "NVIDIA H200, 143771, 143000, 570.1\nNVIDIA H200, 143771, 40000, 570.1\n"
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = by_name(list(doctor.cards()))
    assert found["GPU 0"].text == "NVIDIA H200, 140 GiB, 140 free, driver 570.1"
    assert (found["GPU 1"].level, found["GPU 1"].advice) == ("warning", "another process uses it")


def test_a_sound_model_has_one_end_of_text(tiny_model: Path) -> None:
    found = by_name(list(doctor.of_model(tiny_model)))
    assert found["end of text"].level == "ok"
    assert found["model"].text.startswith("qwen2, ")
    assert (found["chat template"].level, "weights" in found) == ("warning", False)


def test_ends_of_text_that_differ_are_named(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "generation_config.json").read_bytes())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [1, 3]}))
    (folder / "model.safetensors").unlink()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    found = by_name(list(doctor.of_model(folder)))
    assert found["end of text"].level == "warning"
    assert "generation_config.json [1, 3]" in found["end of text"].text
    assert (found["weights"].level, found["chat template"].level) == ("error", "ok")
    assert by_name(list(doctor.of_model(tmp_path)))["model"].level == "error"


def test_the_command_ends_with_1_where_something_is_wrong(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "concisecli", "doctor", "--offline", "--json"]
    done = subprocess.run([*command, "--runs", str(tmp_path)], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["level"] for row in json.loads(done.stdout)} <= {"ok", "warning"}
    done = subprocess.run([*command, "--model", str(tmp_path)], capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stderr) == (1, "concise: not in order: model\n")


def test_the_doctor_loads_no_torch() -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom concisecli.upkeep.doctor import examine\n"
        "examine(Path('.'), hub=False)\nassert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
