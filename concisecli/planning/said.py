"""Every setting of a pipeline with the place that said it and what the comment beside it tells of its source."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from concisecli.config import NewModel, Pipeline, StageSpec
from concisecli.marked import DEFAULT

MARK = re.compile(r"\[([^\[\]]+)\]")


@dataclass(frozen=True, slots=True)
class Setting:
    """`path` begins with the stage's name; `origin` is "file:line", "--set ..." or "default"; `comment` is the text of
    that line's comment."""

    path: str
    value: Any
    origin: str
    comment: str

    @property
    def is_default(self) -> bool:
        return self.origin == DEFAULT

    @property
    def sources(self) -> tuple[str, ...]:
        """What the comment has in brackets: ("paper",), ("code",), ("ours",)."""
        return tuple(MARK.findall(self.comment))


def settings(pipeline: Pipeline, origins: Mapping[str, str]) -> list[Setting]:
    """Those of the pipeline itself, then stage by stage its inputs and every field of its config."""
    found = [_setting(name, getattr(pipeline, name), origins) for name in ("run", "seed", "threads")]
    for spec in pipeline.stages.values():
        found += [_setting(path, value, origins) for path, value in _of_stage(spec)]
    return found


def _of_stage(spec: StageSpec) -> Iterator[tuple[str, Any]]:
    for role, given in spec.inputs.items():
        yield f"{spec.name}.inputs.{role}", _reference(given)
    yield from _leaves(spec.config, spec.name)


def _reference(given: Any) -> Any:
    if isinstance(given, tuple):
        return [_reference(one) for one in given]
    return {"new": given.new.model_dump(mode="json")} if isinstance(given, NewModel) else given


def _leaves(config: BaseModel, path: str) -> Iterator[tuple[str, Any]]:
    for name in type(config).model_fields:
        value, below = getattr(config, name), f"{path}.{name}"
        if isinstance(value, BaseModel):
            yield from _leaves(value, below)
        elif isinstance(value, dict) and any(isinstance(v, BaseModel) for v in value.values()):
            for key, inner in value.items():
                yield from _leaves(inner, f"{below}.{key}")
        else:
            yield below, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _setting(path: str, value: Any, origins: Mapping[str, str]) -> Setting:
    origin = origins.get(path, DEFAULT)
    return Setting(path, value, origin, comment_at(origin))


# --- comments ---------------------------------------------------------------------------------------------------------


def comment_at(origin: str) -> str:
    """The comment on the line that an origin names; where it has none, that of the nearest line above with fewer
    columns before its first key, as `rl1: # GRPO++ [paper]` speaks for what stands below it."""
    file, _, line = origin.rpartition(":")
    if not file or not line.isdigit():
        return ""
    return comments(file).get(int(line), "")


@functools.cache
def comments(file: str) -> Mapping[int, str]:
    """Line number, from 1 -> the comment that goes for it. A file that is gone or unreadable has none."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        own = _own_comments(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    found: dict[int, str] = {}
    above: list[tuple[int, str]] = []  # (indent, comment) of the lines that this one stands below
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        comment = own.get(number, "")
        inherited = next((said for _, said in reversed(above) if said), "")
        found[number] = comment or inherited
        above.append((indent, comment))
    return found


def _own_comments(text: str) -> dict[int, str]:
    """What stands behind a `#` that is inside no scalar: YAML's scanner says where scalars are."""
    inside: dict[int, list[tuple[int, int]]] = {}
    for token in yaml.scan(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(token, yaml.ScalarToken):
            first, last = token.start_mark, token.end_mark
            for row in range(first.line, last.line + 1):
                start = first.column if row == first.line else 0
                inside.setdefault(row, []).append((start, last.column if row == last.line else 1 << 30))
    found = {}
    for row, line in enumerate(text.splitlines()):
        for match in re.finditer(r"(?:^|\s)#", line):
            at = match.end() - 1
            if not any(start <= at < end for start, end in inside.get(row, ())):
                found[row + 1] = line[at + 1 :].strip()
                break
    return found
