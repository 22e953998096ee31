"""The built wheel, installed away from the checkout, holds all that a first run needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def call(*words: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it. The dependencies are those of the running environment, seen through
    its site-packages folder (whose own .pth files, that of this checkout among them, are not followed)."""
    place = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--outdir", place, REPOSITORY, cwd=place)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "env", with_pip=True)
    python = place / "env" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel, cwd=place)
    where = call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    (Path(where) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def test_the_installed_wheel_writes_a_pipeline_and_runs_it(installed: Path) -> None:
    concise = installed / "env" / "bin" / "concise"
    home = installed / "home"
    home.mkdir()
    module = call(installed / "env" / "bin" / "python", "-c", "import concisecli; print(concisecli.__file__)", cwd=home)
    assert module.startswith(str(installed / "env"))
    assert call(concise, "init", "tiny", cwd=home).split() == ["concise.yaml", "data_recipes/tiny.yaml"]
    short = ["--set", "sft.steps=3", "--set", "sft.warmup_steps=1", "--set", "traces.sources.chains.count=200"]
    out = call(concise, "run", "--until", "sft", *short, "--set", "facts.sources.chains.count=50", cwd=home)
    assert [line.split()[0] for line in out.splitlines()] == ["traces", "facts", "sft"]
    (model,) = (home / "runs" / "tiny").glob("sft-*/model/model.safetensors")
    assert model.stat().st_size > 100_000


def test_the_installed_wheel_finds_shipped_recipes(installed: Path, tmp_path: Path) -> None:
    concise = installed / "env" / "bin" / "concise"
    assert "run: first time" in call(concise, "data", "build", "tiny", "--dry-run", cwd=tmp_path)
