"""The house: imports go down a floor or stay within one, never up and never in a circle.

A module that is not listed is on floor 2, so that a new file needs no line here unless it is an exception.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "concisecli"
FLOORS = {
    "records": 0,
    "config": 0,
    "loading": 0,
    "marked": 0,
    "did_you_mean": 0,
    "aliases": 0,
    "field_types": 0,
    "includes": 0,
    "sweeps": 0,
    "algo": 1,
    "stages": 3,
    "pipeline": 4,
    "checks": 4,
    "faults": 4,
    "chosen_stages": 4,
    "explain": 4,
    "stopping": 4,
    "decisions": 4,
    "planning": 4,
    "launch": 4,
    "rank": 4,
    "company": 4,
    "upkeep": 4,
    "cli": 5,
    "standalone": 5,
    "checkpoint_evals": 5,
    "outcomes": 5,
    "flags": 5,
    "tools": 5,
    "inspection": 5,
    "plan_page": 5,
    "status_page": 5,
    "stage_commands": 5,
    "__main__": 5,
}
HEAVY = {"torch", "vllm", "transformers", "deepspeed", "datasets", "math_verify", "sympy", "pandas", "matplotlib"}
QUIET = {"torch", "numpy"}  # what algo may import beside the standard library and floor 0


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name below the package -> file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def floor(module: str) -> int:
    return FLOORS.get(module, FLOORS.get(module.partition(".")[0], 2))


def imports(path: Path, *, at_once: bool) -> Iterator[tuple[str, bool]]:
    """(imported module, whether it is one of ours) of a file; `at_once` leaves out what functions import when called
    and what only type checkers see."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8")), at_once=at_once):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ours_or_not(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            if node.module == "concisecli":
                yield from ((alias.name, True) for alias in node.names)
            else:
                yield from ours_or_not(node.module or "")


def ours_or_not(name: str) -> Iterator[tuple[str, bool]]:
    top, _, rest = name.partition(".")
    yield (rest, True) if top == "concisecli" and rest else (name, False)


def statements(tree: ast.AST, *, at_once: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        yield from statements(node, at_once=at_once)


def module_of(name: str) -> str:
    """The module that an imported name lies in: `algo.rewards.score_group` is `algo.rewards`."""
    known = modules()
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


@pytest.mark.parametrize("module", list(modules()))
def test_no_module_imports_from_a_floor_above(module: str) -> None:
    for name, ours in imports(modules()[module], at_once=False):
        if ours:
            above = module_of(name)
            assert floor(above) <= floor(module), f"{module} (floor {floor(module)}) imports {above} ({floor(above)})"


def test_the_stages_never_import_each_other() -> None:
    for module, path in modules().items():
        if module.startswith("stages."):
            for name, ours in imports(path, at_once=False):
                assert not (ours and module_of(name).startswith("stages.")), f"{module} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {module_of(name) for name, ours in imports(path, at_once=True) if ours} - {"", module}
        for module, path in modules().items()
    }
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for name in graph[module]:
                visit(name, (*above, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("algo.")])
def test_algo_knows_numbers_and_settings_only(module: str) -> None:
    for name, ours in imports(modules()[module], at_once=False):
        if ours:
            assert floor(module_of(name)) <= 1, f"{module} imports {name}"
        else:
            top = name.partition(".")[0]
            assert top in sys.stdlib_module_names | QUIET, f"{module} imports {name}"
            assert top not in {"os", "pathlib", "time", "random", "datetime", "shutil", "subprocess", "io"}, name


LIGHT = (
    *(module for module, place in FLOORS.items() if place in (0, 4, 5) and module != "__main__"),
    *("artifacts", "store", "references", "monitor", "trackers", "checkpoints", "launchers", "stages"),
    *("algo.rewards", "algo.advantages", "algo.metrics", "algo.repetition"),
    *("building.recipes", "building.places", "building.arithmetic_chains", "grader.grading", "grader.answers"),
)


def test_what_must_start_at_once_loads_nothing_heavy() -> None:
    script = f"""
import importlib, sys
for name in {LIGHT!r}:
    importlib.import_module("concisecli." + name)
    heavy = sorted({HEAVY!r} & set(sys.modules))
    assert not heavy, f"{{name}} loads {{', '.join(heavy)}}"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_file_is_listed_under_a_name_that_exists() -> None:
    known = {name.partition(".")[0] for name in modules()}
    assert set(FLOORS) <= known
    assert set(LIGHT) <= set(modules())


def test_the_folders_are_those_that_have_a_reason() -> None:
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders == {"config", "algo", "stages", "grader", "building", "reports", "planning", "upkeep"}


def test_the_map_names_every_module() -> None:
    page = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    house = page.split("```")[1]
    missing = [m for m in modules() if m != "__main__" and m.rpartition(".")[2] not in house]
    assert not missing
