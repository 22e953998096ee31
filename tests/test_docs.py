"""The documents say what is: every command is taken, every YAML block is valid, every named function and test exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from concisecli import config
from concisecli.checks import check_pipeline
from concisecli.cli import app
from concisecli.config import KINDS, Config
from concisecli.loading import load_pipeline_with_origins, pipeline_of
from concisecli.marked import parse
from concisecli.upkeep.schema import comments

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "README.md"]
WRITTEN = [page for page in PAGES if page.name != "reference.md"]


def blocks(language: str) -> list[tuple[str, str, str]]:
    """(page, what stands after the language, text) of every fenced block."""
    return [
        (page.name, words.strip(), text)
        for page in WRITTEN
        for words, text in re.findall(
            rf"```{language}\b([^\n]*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        )
    ]


def commands() -> list[tuple[str, str]]:
    found = []
    for page, _, block in blocks("sh"):
        for line in re.sub(r"\s+#.*", "", block).replace("\\\n", " ").splitlines():
            parts = re.split(r"&&|\|\||\||;", line)
            found += [(page, part.strip()) for part in parts if part.strip().startswith("concise ")]
    return found


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_has_a_meaning() -> None:
    classes = [
        one for one in map(vars(config).get, config.__all__) if isinstance(one, type) and issubclass(one, Config)
    ]
    assert len(classes) > 30
    assert [
        f"{cls.__name__}.{name}" for cls in classes for name in cls.model_fields if not comments(cls).get(name)
    ] == []


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_of_the_documents_is_one_that_concise_takes(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    words = [re.sub(r"^\$\{?\w+\}?$", "x", word) for word in words if not re.match(r"^\d?>", word)]
    taken, name, context = typer.main.get_command(app), "concise", None
    while hasattr(taken, "commands"):
        with_context = taken.context_class(taken, info_name=name, parent=context)
        name, taken, words = taken.resolve_command(with_context, words)
        context = with_context
    taken.make_context(name, list(words), parent=context)


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tutorial's pipelines are at hand."""
    folder = tmp_path_factory.mktemp("tutorial")
    for command in (command for page, command in commands() if page == "tutorial.md" and " init " in command):
        words = shlex.split(command)[1:]
        subprocess.run([sys.executable, "-m", "concisecli", *words], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    "command",
    [c for page, c in commands() if page == "tutorial.md" and re.match(r"concise (run|plan|doctor|data build)", c)],
)
def test_the_tutorial_can_be_followed_as_far_as_nothing_is_trained(tutorial: Path, command: str) -> None:
    """On the machine at hand, without a network: trainings and builds as dry runs, which say what they would do."""
    words = shlex.split(command)[1:]
    if words[0] == "doctor":
        words += ["--offline"]
    elif words[0] != "plan" and "--dry-run" not in words:
        words += ["--dry-run"]
    done = subprocess.run([sys.executable, "-m", "concisecli", *words], cwd=tutorial, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("page", "words", "text"), blocks("yaml"))
def test_every_yaml_block_of_the_documents_is_valid(page: str, words: str, text: str, tmp_path: Path) -> None:
    """A whole pipeline, a fragment of one (`yaml part`), or the settings of one kind of stage (`yaml train`)."""
    if words in KINDS:
        tree = {"run": "doc", "stages": {"s": {"uses": words, "config": parse(text, page, ROOT).plain()}}}
        pipeline_of(tree)
        return
    if words == "part":
        assert parse(text, page, ROOT).is_mapping
        return
    path = tmp_path / "concise.yaml"
    path.write_text(text, encoding="utf-8")
    for shipped in (ROOT / "pipelines").glob("*.yaml"):
        (tmp_path / shipped.name).write_text(shipped.read_text(encoding="utf-8"), encoding="utf-8")
    pipeline, origins = load_pipeline_with_origins(path)
    assert [str(f) for f in check_pipeline(pipeline, origins) if f.level == "error"] == []


def test_the_list_of_documents_is_whole() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"))) == pages


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_page_of_methods_names_functions_and_tests_that_exist() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    sources = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "concisecli" / "algo").glob("*.py")}
    tests = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    named = re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", page)
    assert len(named) > 30
    for file, test in named:
        assert any(f"def {test}(" in text for name, text in tests.items() if file in ("", name)), test
    for module, function in re.findall(
        r"`(rewards|advantages|losses|group_filters|repetition|intervals)\.(\w+)`", page
    ):
        assert f"def {function}(" in sources[module], function
    for function in re.findall(r"`(\w+_bonus|[a-z]+_at_\w+|macro_precision|reflection_words)`", page):
        assert any(f"def {function}(" in text for text in sources.values()), function
