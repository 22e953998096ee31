"""`include:` in a pipeline file: other files first, left to right, then what the file says itself."""

from __future__ import annotations

import os
from pathlib import Path

from concisecli.marked import Marked, merge, read_yaml
from concisecli.records import UsageError


def read_pipeline(path: Path, above: tuple[str, ...] = ()) -> Marked:
    """The file with all that it includes. A later file wins key by key; a stage that is `null` in it is taken out.

    Raises UsageError for a file that cannot be read or that includes itself.
    """
    tree = read_yaml(path)
    if not tree.is_mapping or "include" not in tree.value:
        return tree
    here, include = os.path.abspath(path), tree.value["include"]
    given = include.value if isinstance(include.value, list) else [include]
    merged = Marked({}, tree.origin, tree.base)
    for one in given:
        if not isinstance(one.value, str):
            raise UsageError(f"{one.origin}: include takes the names of pipeline files")
        file = tree.base / os.path.expanduser(one.value)
        if os.path.abspath(file) in (here, *above):
            raise UsageError(f"{one.origin}: {one.value} includes itself")
        if not file.is_file():
            raise UsageError(f"{one.origin}: there is no file {one.value} beside {path.name}")
        merged = merge(merged, read_pipeline(file, (here, *above)))
    own = Marked({k: v for k, v in tree.value.items() if k != "include"}, tree.origin, tree.base)
    return without_taken_out(merge(merged, own))


def without_taken_out(tree: Marked) -> Marked:
    stages = tree.value.get("stages")
    if stages is None or not stages.is_mapping:
        return tree
    left = {name: stage for name, stage in stages.value.items() if stage.value is not None}
    return tree.with_value(("stages",), Marked(left, stages.origin, stages.base))
