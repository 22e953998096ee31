"""Which name was meant: the nearest key of a tree of settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from concisecli.aliases import RL


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    found = difflib.get_close_matches(word, list(names), 1, cutoff)
    return found[0] if found else None


def suggestion(key: str, parent: tuple[str, ...], cls: type[BaseModel]) -> str | None:
    """The name that an unknown `key` under `parent` most likely stands for: the same name on another branch, a
    neighbour spelled alike, another project's name for it, or one spelled alike anywhere. Beside `key` the bare name
    is given, elsewhere the full path from the stage's config."""
    paths = list(tree(cls))
    same = [p for p in paths if p[-1] == key]
    if same:
        # Of two at one depth the one in a part that is always there: `reward.alpha` before `adapter.alpha`.
        return ".".join(min(same, key=lambda p: (len(p), cls.model_fields[p[0]].default is None)))
    beside = nearest(key, [p[-1] for p in paths if p[:-1] == parent])
    if beside:
        return beside
    familiar = nearest(key, RL, 0.7)
    if familiar and tuple(RL[familiar].split(".")) in paths:
        return RL[familiar]
    anywhere = nearest(key, [p[-1] for p in paths], 0.7)
    return ".".join(next(p for p in paths if p[-1] == anywhere)) if anywhere else None


def tree(cls: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path of names below a class, those of all the types a field may have."""
    for name, field in cls.model_fields.items():
        yield (*above, name)
        if get_origin(field.annotation) is not dict:  # the keys of a dict are the user's own
            for inner in model_classes(field.annotation):
                yield from tree(inner, (*above, name))


def model_classes(annotation: Any) -> list[type[BaseModel]]:
    """The settings classes an annotation allows, through unions and Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in model_classes(part)]
