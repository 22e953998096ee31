"""The README says what is: its numbers, its commands, its table of commands."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import readme_numbers

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORKS_WITHOUT = {"init", "plan"}  # commands without --dry-run


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
    words = [str(ROOT / word) if word.startswith("pipelines/") else word for word in words]
    if words[0] == "init":
        words += ["--dir", str(workplace / "anew")]
    elif words[0] in WORKS_WITHOUT:
        pass
    elif "--dry-run" not in words:
        words += ["--dry-run"]
    done = subprocess.run([sys.executable, "-m", "concisecli", *words], cwd=workplace, capture_output=True, text=True)
    # A stage command in an empty store is told what has to be made first.
    waits = done.returncode == 1 and "made by stage" in done.stdout
    assert done.returncode == 0 or waits, done.stderr


def test_the_table_of_commands_names_every_command():
    from concisecli.cli import app

    known = {c.name or c.callback.__name__ for c in app.registered_commands if not c.hidden}
    known |= {g.name for g in app.registered_groups}
    told = set(re.findall(r"^\| `concise ([a-z]+)", README, re.MULTILINE))
    assert told == known


def test_the_table_of_pipelines_names_every_pipeline():
    told = re.search(r"\| `concise init` \| is \|\n(.*?)\n\n", README, re.DOTALL)
    assert told
    named = re.findall(r"^\| `([a-z0-9-]+)`", told[1], re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))


def test_the_excerpt_of_a_plan_is_what_plan_says():
    """The same lines; numbers may have moved by a fifth since the excerpt was taken."""
    told = re.search(r"<!-- plan:begin -->\n```text\n(.*?)```", README, re.DOTALL)
    assert told
    words = ["plan", "pipelines/conciser.yaml", "--gpu", "8xH20"]
    done = subprocess.run([sys.executable, "-m", "concisecli", *words], cwd=ROOT, capture_output=True, text=True)
    said = [(words_of(line), numbers_of(line)) for line in done.stdout.splitlines()]
    for line in filter(None, told[1].splitlines()):
        like = [numbers for words, numbers in said if words == words_of(line)]
        assert any(numbers == pytest.approx(numbers_of(line), rel=0.2) for numbers in like), line


def words_of(line):
    return re.sub(r"\b\d[\d,.]*", "N", " ".join(line.split()))


def numbers_of(line):
    return [float(number.replace(",", "")) for number in re.findall(r"\b\d[\d,.]*", line)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell):
    env = os.environ | {"_CONCISE_COMPLETE": f"complete_{shell}", "COMP_WORDS": "concise li", "COMP_CWORD": "1"}
    env |= {"_TYPER_COMPLETE_ARGS": "concise li", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([sys.executable, "-m", "concisecli"], env=env, capture_output=True, text=True)
    assert "lineage" in done.stdout


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


def saved(stage: str, temperature: str, seed: int) -> tuple[float, float, float]:
    """Accuracy, mean length and share of answers without any thinking."""
    rows = [
        r
        for r in pq.read_table(readme_numbers.DATA).to_pylist()
        if (r["stage"], r["temperature"], r["seed"]) == (stage, temperature, seed)
    ]
    empty = [r["text"].startswith("<think></think>") for r in rows]
    return (
        sum(map(readme_numbers.right, rows)) / len(rows),
        sum(r["length"] for r in rows) / len(rows),
        sum(empty) / len(rows),
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_saved_runs_carry_the_claims(seed):
    base, _, _ = saved("base", "t10", seed)
    assert 0.40 <= base <= 0.65
    assert saved("base", "t06", seed)[0] >= 0.80
    stage_1, long, empty = saved("rl1", "t10", seed)
    assert stage_1 >= base + 0.28
    assert empty < 0.02
    stage_2, short, _ = saved("lgrpo", "t10", seed)
    assert stage_2 >= stage_1 - 0.02
    assert short <= 0.55 * long


def test_without_its_length_reward_stage_2_stays_as_long_as_stage_1():
    for temperature in ("t10", "t06"):
        assert abs(saved("lgrpo_off", temperature, 0)[1] / saved("rl1", temperature, 0)[1] - 1) <= 0.10
