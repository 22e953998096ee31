"""Which name was meant: the nearest key of a tree of settings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel

# What the same settings are called in TRL, verl and OpenRLHF; used to name ours when one of theirs is written.
FAMILIAR = {
    "learning_rate": "lr",
    "num_generations": "sampling.group_size",
    "n": "sampling.group_size",
    "epsilon": "loss.eps_low",
    "epsilon_high": "loss.eps_high",
    "clip_ratio": "loss.eps_low",
    "clip_ratio_low": "loss.eps_low",
    "clip_ratio_high": "loss.eps_high",
    "beta": "loss.kl_coef",
    "kl_loss_coef": "loss.kl_coef",
    "entropy_coeff": "loss.entropy_coef",
    "max_completion_length": "sampling.max_response_tokens",
    "max_response_length": "sampling.max_response_tokens",
    "max_prompt_length": "sampling.max_prompt_tokens",
    "train_batch_size": "batch_problems",
    "max_steps": "steps",
    "max_grad_norm": "clip_norm",
    "max_length": "max_tokens",
}


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
        shortest = min(same, key=len)
        return ".".join(shortest)
    beside = nearest(key, [p[-1] for p in paths if p[:-1] == parent])
    if beside:
        return beside
    familiar = nearest(key, FAMILIAR, 0.7)
    if familiar and tuple(FAMILIAR[familiar].split(".")) in paths:
        return FAMILIAR[familiar]
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
