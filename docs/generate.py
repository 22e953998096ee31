"""Write reference.md from the settings classes, the table of stages and the commands: python docs/generate.py

Comments beside fields are part of the reference: they are read from the source.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel

from concisecli import config
from concisecli.aliases import ALIASES
from concisecli.cli import app
from concisecli.config import KINDS, SHARED
from concisecli.did_you_mean import model_classes
from concisecli.stages import STAGES
from concisecli.upkeep.schema import comments

PAGE = Path(__file__).parent / "reference.md"
HEAD = """# Reference

Made by `python docs/generate.py` from the settings classes and the commands; do not edit it by hand.

- [Commands](#commands)
- [The pipeline file](#the-pipeline-file)
- [Stages and their settings](#stages-and-their-settings)
- [Names from other tools](#names-from-other-tools)
"""
PIPELINE_FILE = """## The pipeline file

| key | meaning |
|---|---|
| `run` | name of the run: artifacts go to `runs/<run>/` |
| `stages` | a mapping from a stage's name to `{{uses, inputs, config}}`; `like: STAGE` takes another stage as a start |
| `seed` | of every stage that says none |
| `threads` | of torch; 0: `OMP_NUM_THREADS`, else every core |
| `include` | files that are read first, left to right; a stage that is `null` afterwards is taken out |
| `sweep` | a mapping from a field to a list of values: every stage it touches is copied for each of them |
| {shared} | said once here, inherited by every stage that has it |

An input is `STAGE.OUTPUT`, a path, `hf:ORG/NAME@REVISION`, a list of these, or `{{new: {{...}}}}` for a model made from
nothing. Paths are relative to the file that says them. A flag beats the file, the file beats the default.
"""


def page() -> str:
    parts = [HEAD, commands(), PIPELINE_FILE.format(shared=", ".join(f"`{k}`" for k in SHARED if k != "seed"))]
    return "\n".join([*parts, stages(), aliases()])


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    lines = ["## Commands", ""]
    for name, command in leaves(typer.main.get_command(app), ()):
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        usage = " ".join(["concise", *name, *(a.metavar or f"[{a.name.upper()}]" for a in arguments)])
        lines += [f"### `{usage}`", "", inspect.cleandoc(command.help or ""), "", "| flag | meaning |", "|---|---|"]
        for option in (p for p in command.params if p.param_type_name == "option" and not p.hidden):
            lines.append(f"| `{', '.join([*option.opts, *option.secondary_opts])}` | {escaped(option.help or '')} |")
        lines.append("")
    return "\n".join(lines)


def leaves(command: Any, name: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for word, child in children.items():
        if not child.hidden:
            yield from leaves(child, (*name, word))


# --- settings ---------------------------------------------------------------------------------------------------------


def stages() -> str:
    lines = ["## Stages and their settings", "", "A setting marked *speed* stays out of a stage's key.", ""]
    told: set[type[BaseModel]] = set()
    for kind, cls in KINDS.items():
        stage = STAGES[kind]
        lines += [f"### `uses: {kind}`", ""]
        needs = ", ".join(f"`{role}`" for role in stage.inputs) or "nothing"
        may = ", ".join("any other name" if role == "*" else f"`{role}`" for role in stage.optional)
        makes = ", ".join(f"`{output}`" for output in stage.outputs)
        lines += [
            f"Needs {needs}{f'; may be given {may}' if may else ''}. Makes {makes}.",
            "",
        ]
        lines += table(cls)
        told.add(cls)
    lines += ["## Parts of settings", ""]
    waiting = [inner for cls in KINDS.values() for inner in parts(cls)]
    while waiting:
        cls = waiting.pop(0)
        if cls not in told:
            told.add(cls)
            lines += [
                f"### {cls.__name__}",
                "",
                *([inspect.cleandoc(cls.__doc__), ""] if own_doc(cls) else []),
                *table(cls),
            ]
            waiting += parts(cls)
    return "\n".join(lines)


def parts(cls: type[BaseModel]) -> list[type[BaseModel]]:
    return [inner for field in cls.model_fields.values() for inner in model_classes(field.annotation)]


def own_doc(cls: type[BaseModel]) -> bool:
    return "__doc__" in vars(cls) and bool(cls.__doc__)


def table(cls: type[BaseModel]) -> list[str]:
    notes = comments(cls)
    lines = ["| setting | default | values | meaning |", "|---|---|---|---|"]
    for name, field in cls.model_fields.items():
        extra = field.json_schema_extra
        speed = "*speed* " if isinstance(extra, dict) and extra.get("runtime") else ""
        lines.append(
            f"| `{name}` | {default(field)} | {escaped(values(cls, name))} | {escaped(speed + notes.get(name, ''))} |"
        )
    return [*lines, ""]


def default(field: Any) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return f"[{type(value).__name__}](#{type(value).__name__.lower()})"
    return f"`{list(value) if isinstance(value, tuple) else 'null' if value is None else value}`"


def values(cls: type[BaseModel], name: str) -> str:
    """The annotation as it is written, with the settings classes in it as links."""
    owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
    text = str(owner.__annotations__[name])
    inner = model_classes(cls.model_fields[name].annotation)
    if inner:
        return ", ".join(f"[{one.__name__}](#{one.__name__.lower()})" for one in dict.fromkeys(inner))
    alias = getattr(config, text, None)
    text = str(alias).replace("typing.", "") if alias is not None and not isinstance(alias, type) else text
    return f"`{text}`"


def escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


# --- aliases ----------------------------------------------------------------------------------------------------------


def aliases() -> str:
    lines = ["## Names from other tools", "", "Taken as ours, and said on stderr what they were taken for.", ""]
    lines += ["| theirs | ours | in |", "|---|---|---|"]
    names: dict[tuple[str, str], list[str]] = {}
    for kind, table in ALIASES.items():
        for theirs, ours in table.items():
            names.setdefault((theirs, ours), []).append(kind)
    lines += [f"| `{theirs}` | `{ours}` | {', '.join(kinds)} |" for (theirs, ours), kinds in names.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv and PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the code says; run: python docs/generate.py")
    PAGE.write_text(text, encoding="utf-8")
