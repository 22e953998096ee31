"""YAML whose every value remembers the file and line that said it.

YAML 1.2's scalars: `1e-6` is a number, and `off` and `no` are words, as a reader takes them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from concisecli.records import UsageError

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Marked:
    """A value with its origin ("file:line", "--set ..." or "default") and the folder its relative paths start from.
    `value` is a dict of Marked, a list of Marked, or a scalar."""

    value: Any
    origin: str
    base: Path

    @classmethod
    def of(cls, value: Any, origin: str, base: Path) -> Marked:
        if isinstance(value, Mapping):
            return cls({str(k): cls.of(v, origin, base) for k, v in value.items()}, origin, base)
        if isinstance(value, list | tuple):
            return cls([cls.of(v, origin, base) for v in value], origin, base)
        return cls(value, origin, base)

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def plain(self) -> Any:
        """The values alone. A truth value is handed over as a word: a number would silently take `true` for 1."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return str(self.value).lower() if isinstance(self.value, bool) else self.value

    def locate(self, path: Sequence[str]) -> tuple[list[str], str]:
        """The part of `path` that names keys of this tree (a checker's path also names types), and where it is said."""
        node, found = self, list[str]()
        for index, part in enumerate(path):
            if isinstance(node.value, dict) and part in node.value:
                node, found = node.value[part], [*found, part]
            elif isinstance(node.value, list) and part.isdigit() and int(part) < len(node.value):
                node, found = node.value[int(part)], [*found, part]
            elif index == len(path) - 1 and isinstance(node.value, dict):
                found = [*found, part]
        return found, node.origin

    def with_value(self, path: Sequence[str], leaf: Marked) -> Marked:
        """This tree with one value replaced or added; the mappings on the way are made where they are missing."""
        if not path:
            return leaf
        if self.value is not None and not isinstance(self.value, dict):
            raise UsageError(f"there is no '{path[0]}' inside the value {self.plain()!r}")
        children: dict[str, Marked] = self.value or {}
        child = children.get(path[0], Marked({}, leaf.origin, leaf.base))
        return Marked(children | {path[0]: child.with_value(path[1:], leaf)}, self.origin, self.base)


def merge(under: Marked, over: Marked) -> Marked:
    """Mappings merged key by key, `over` winning; two that say different types (`type`, `kind`) are not mixed."""
    if not under.is_mapping or not over.is_mapping or says_other_type(under, over):
        return over
    merged = dict(under.value)
    for key, value in over.value.items():
        merged[key] = merge(merged[key], value) if key in merged else value
    return Marked(merged, over.origin, over.base)


def says_other_type(under: Marked, over: Marked) -> bool:
    return any(k in under.value and k in over.value and under.value[k].value != over.value[k].value for k in TYPE_KEYS)


TYPE_KEYS = ("type", "kind")


class PlainLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the attribute PyYAML looks at


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+(?:_[0-9]+)*$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
    ("merge", r"^<<$", ["<"]),
):
    PlainLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def shown(path: Path) -> str:
    """The path as a reader of messages wants it: relative where it lies below the current folder."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def read_yaml(path: Path) -> Marked:
    """The file as a tree. Raises UsageError for a file that cannot be read, bad YAML and keys said twice."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {shown(path)}: {reason}") from error
    return parse(text, shown(path), Path(os.path.abspath(path)).parent)


def parse_value(text: str, origin: str) -> Marked:
    """The value of a `--set`, read as YAML; its relative paths start in the current folder."""
    return parse(text, origin, Path.cwd(), lines=False)


def parse(text: str, name: str, base: Path, *, lines: bool = True) -> Marked:
    """YAML text as a tree; `name` stands for the file in origins and messages, with the line unless `lines` is off."""
    reader = _Reader(name, base, lines)
    try:
        tree = reader.read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{name}:{mark.line + 1}" if mark and lines else name
        raise UsageError(f"{at}: not readable as YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not readable as YAML: {str(error).splitlines()[0]}") from error
    if reader.faults:
        raise UsageError("\n".join(reader.faults))
    return tree


class _Reader:
    def __init__(self, name: str, base: Path, lines: bool) -> None:
        self.name, self.base, self.lines = name, base, lines
        self.faults: list[str] = []

    def read(self, text: str) -> Marked:
        self.loader = PlainLoader(text)
        node = self.loader.get_single_node()
        if node is None:
            return Marked(None, self.name, self.base)
        return self.marked(node, self.origin(node), ())

    def origin(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}" if self.lines else self.name

    def marked(self, node: yaml.Node, origin: str, above: tuple[int, ...]) -> Marked:
        if id(node) in above:
            raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            self.refuse_repeated_keys(node)
            self.loader.flatten_mapping(node)
            pairs = [(str(self.scalar(k)), self.marked(v, self.origin(k), above)) for k, v in node.value]
            return Marked(dict(pairs), origin, self.base)
        if isinstance(node, yaml.SequenceNode):
            return Marked([self.marked(v, self.origin(v), above) for v in node.value], origin, self.base)
        value = self.scalar(node)
        if isinstance(value, float) and not math.isfinite(value):
            self.faults.append(f"{origin}: {node.value} is not a finite number")
        return Marked(value, origin, self.base)

    def scalar(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=node.start_mark)
        try:
            if node.tag == "tag:yaml.org,2002:int":  # PyYAML would take a leading zero for an octal number
                return int(node.value.replace("_", ""))
            return self.loader.construct_object(node)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=f"'{node.value}': {error}", problem_mark=node.start_mark) from error

    def refuse_repeated_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            if key.value in seen:
                self.faults.append(
                    f"{self.origin(key)}: the key '{key.value}' was said in line {seen[key.value] + 1} already"
                )
            seen.setdefault(key.value, key.start_mark.line)
