"""Whether this machine has the optional libraries that a stage asks for, without importing any."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

WHERE = {
    "engine": "vllm",
    "backend": "deepspeed",
}  # the part of the settings -> its `type`, which is the library's name


def missing(config: Any) -> Iterator[tuple[str, str]]:
    """(setting, what is missing) of a stage's settings."""
    for part, library in WHERE.items():
        if getattr(getattr(config, part, None), "type", None) == library and not importable(library):
            yield (
                f"{part}.type",
                f"{part}.type {library} is not installed on this machine; pip install 'concise[gpu]', or set "
                f"{part}.type to {'transformers' if part == 'engine' else 'torch'}",
            )


def importable(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
