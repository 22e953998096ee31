"""What the type of a setting says about its value: the kind that was left out, the folder a path starts from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel

from concisecli.did_you_mean import model_classes
from concisecli.marked import DEFAULT, Marked


def with_default_types(node: Marked, cls: type[BaseModel]) -> Marked:
    """A part of several types that says none has the type of its default: `engine: {batch_rollouts: 64}`."""
    changed = dict(node.value)
    for name, field in cls.model_fields.items():
        part = changed.get(name)
        default = field.default
        if part is None or not part.is_mapping or not isinstance(default, BaseModel):
            continue
        key = field.discriminator
        if isinstance(key, str) and key not in part.value:
            filled = {key: Marked(getattr(default, key), DEFAULT, part.base)} | part.value
            part = Marked(filled, part.origin, part.base)
        changed[name] = part
    return Marked(changed, node.origin, node.base)


def located(node: Marked, cls: type[BaseModel]) -> Marked:
    """A relative path is relative to the file that says it."""
    if not node.is_mapping:
        return node
    changed = dict(node.value)
    for name, field in cls.model_fields.items():
        part = changed.get(name)
        if part is None:
            continue
        extra = field.json_schema_extra
        is_path = Path in (field.annotation, *get_args(field.annotation))
        if isinstance(part.value, str) and (is_path or (isinstance(extra, dict) and extra.get("or_file"))):
            full = os.path.abspath(part.base / os.path.expanduser(part.value))
            changed[name] = Marked(full, part.origin, part.base)
        elif get_origin(field.annotation) is dict and part.is_mapping:
            for model in model_classes(get_args(field.annotation)[1]):
                part = Marked({k: located(v, model) for k, v in part.value.items()}, part.origin, part.base)
            changed[name] = part
        elif part.is_mapping:
            for model in model_classes(field.annotation):
                part = located(part, model)
            changed[name] = part
    return Marked(changed, node.origin, node.base)
