"""The README says what is: its numbers, its commands, its table of commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import readme_numbers

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORKS_WITHOUT = {"init"}  # commands without --dry-run


def commands() -> list[str]:
    """Every `concise ...` of the shell blocks, comments and joins taken apart."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        text = re.sub(r"\s+#.*", "", block).replace("\\\n", " ")
        for line in text.splitlines():
            found += [part.strip() for part in re.split(r"&&|\|\|", line) if part.strip().startswith("concise ")]
    return found


def test_there_are_commands_to_try():
    assert len(commands()) >= 10


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    subprocess.run([sys.executable, "-m", "concisecli", "init", "tiny"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_readme_is_taken(workplace, command):
    words = shlex.split(command)[1:]
    if words[0] in WORKS_WITHOUT:
        words += ["--dir", str(workplace / "anew")]
    elif "--dry-run" not in words:
        words += ["--dry-run"]
    done = subprocess.run([sys.executable, "-m", "concisecli", *words], cwd=workplace, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_table_of_commands_names_every_command():
    from concisecli.cli import app

    known = {c.name or c.callback.__name__ for c in app.registered_commands if not c.hidden}
    known |= {g.name for g in app.registered_groups}
    told = set(re.findall(r"^\| `concise ([a-z]+)", README, re.MULTILINE))
    assert told == known


def test_the_numbers_are_those_of_the_saved_completions():
    told = re.search(r"<!-- table:begin -->\n(.*?)\n<!-- table:end -->", README, re.DOTALL)
    assert told
    assert told[1].strip() == readme_numbers.table().strip()


def test_the_checker_imports_nothing_of_the_project():
    assert "concisecli" not in Path(readme_numbers.__file__).read_text(encoding="utf-8")


def test_links_and_pictures_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
