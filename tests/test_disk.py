"""Disks that are full or read-only, for real: a small file system of our own, mounted where nobody else sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from concisecli.artifacts import write_text
from tests.test_pipeline import REPOSITORY, RUN, TEXT

UNSHARE = shutil.which("unshare")


def can_mount() -> bool:
    """Whether this machine lets us mount in a name space of our own."""
    words = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/tmp"]
    return UNSHARE is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_mount(), reason="cannot mount in a name space")]


def run_on(folder: Path, mount: str, then: str = "") -> subprocess.CompletedProcess[str]:
    """Run the small pipeline of test_pipeline in `folder` after `mount`, a shell command; `then` follows in the same
    name space."""
    script = f'cd "{folder}" && {mount} && {{ "{sys.executable}" -c "$RUN"; code=$?; {then or ":"}; exit $code; }}'
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "RUN": RUN}
    words = ["unshare", "-rm", "sh", "-c", script]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_text(tmp_path / "base" / "config.json", "{}")
    write_text(tmp_path / "base" / "model.safetensors", "weights")
    write_text(tmp_path / "p.yaml", TEXT)
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_a_full_disk_is_one_line_and_leaves_no_half_file(place: Path) -> None:
    fill = "mount -t tmpfs -o size=48k tmpfs runs && head -c 44000 /dev/zero > runs/ballast"
    done = run_on(place, fill, then="find runs -name '.*.partial'")
    assert done.returncode == 1, done.stderr
    (line,) = done.stdout.splitlines()
    assert "cannot write runs/" in line
    assert "the disk is full; free some space and run the same command again" in line
    assert "Traceback" not in done.stderr


def test_a_read_only_disk_is_one_line(place: Path) -> None:
    done = run_on(place, "mount -t tmpfs tmpfs runs && mount -o remount,ro runs")
    assert done.returncode == 1, done.stderr
    (line,) = done.stdout.splitlines()
    assert "the disk is read-only; choose another folder with --runs" in line


def test_after_the_disk_filled_up_the_run_goes_on(place: Path) -> None:
    fill = "mount -t tmpfs -o size=48k tmpfs runs && head -c 44000 /dev/zero > runs/ballast"
    again = f'rm runs/ballast; "{sys.executable}" -c "$RUN" && ls runs/t/rl2-*/manifest.json'
    done = run_on(place, fill.replace("48k", "400k").replace("44000", "390000"), then=again)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1].endswith("/manifest.json"), done.stdout
