"""`include:` and `like:` in a pipeline file: text from other files, and a stage that differs from another in a line.

Included files come first, left to right, then what the file says itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from concisecli.aliases import translated
from concisecli.did_you_mean import nearest
from concisecli.marked import Marked, merge, read_yaml
from concisecli.records import UsageError


def read_pipeline(path: Path, above: tuple[str, ...] = ()) -> Marked:
    """The file with all that it includes. A later file wins key by key; a stage that is `null` in it is taken out.

    Raises UsageError for a file that cannot be read or that includes itself.
    """
    tree = read_yaml(path)
    if not tree.is_mapping or "include" not in tree.value:
        return in_our_words(tree, tree)
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
    own = in_our_words(own, merge(merged, own))
    return without_taken_out(merge(without_replaced(merged, own), own))


def in_our_words(tree: Marked, whole: Marked) -> Marked:
    """The tree with familiar names of settings replaced by ours before it meets others, which may use either. The
    kinds of its stages are looked up in `whole`."""
    stages, known = (one.value.get("stages") if one.is_mapping else None for one in (tree, whole))
    if stages is None or known is None or not (stages.is_mapping and known.is_mapping):
        return tree
    made = {name: in_our_words_of(kind_of(name, known.value), stage) for name, stage in stages.value.items()}
    return tree.with_value(("stages",), Marked(made, stages.origin, stages.base))


def in_our_words_of(kind: str, stage: Marked) -> Marked:
    config = stage.value.get("config") if stage.is_mapping else None
    if config is None or not config.is_mapping:
        return stage
    return stage.with_value(("config",), translated(kind, config))


def kind_of(name: str, stages: Mapping[str, Marked], above: tuple[str, ...] = ()) -> str:
    """What a stage uses, by way of the one it is like; "" where nothing says it."""
    stage = stages.get(name)
    if stage is None or not stage.is_mapping or name in above:
        return ""
    uses, like = stage.value.get("uses"), stage.value.get("like")
    if uses is not None:
        return str(uses.value)
    return kind_of(str(like.value), stages, (*above, name)) if like is not None else ""


def included(path: Path) -> list[Path]:
    """The files that a readable pipeline file includes, and those that they include."""
    tree = read_yaml(path)
    include = tree.value.get("include") if tree.is_mapping else None
    if include is None:
        return []
    files = [tree.base / str(one.value) for one in (include.value if isinstance(include.value, list) else [include])]
    return [file for direct in files for file in (direct, *included(direct))]


def without_replaced(tree: Marked, own: Marked) -> Marked:
    """The tree without the stages that `own` makes like another: they start from that one, not from what they were."""
    stages, said = tree.value.get("stages"), own.value.get("stages")
    if stages is None or said is None or not (stages.is_mapping and said.is_mapping):
        return tree
    anew = {name for name, stage in said.value.items() if stage.is_mapping and "like" in stage.value}
    left = {name: stage for name, stage in stages.value.items() if name not in anew}
    return tree.with_value(("stages",), Marked(left, stages.origin, stages.base))


def without_taken_out(tree: Marked) -> Marked:
    stages = tree.value.get("stages")
    if stages is None or not stages.is_mapping:
        return tree
    left = {name: stage for name, stage in stages.value.items() if stage.value is not None}
    return tree.with_value(("stages",), Marked(left, stages.origin, stages.base))


def spelled_out(pipeline: Marked) -> Marked:
    """The tree with every `like: STAGE` replaced by what that stage says, under what stands beside it.

    Raises UsageError for a stage that is not there and for stages that are like each other.
    """
    stages = pipeline.value.get("stages") if pipeline.is_mapping else None
    if stages is None or not stages.is_mapping:
        return pipeline
    made = {name: whole(name, stages.value, ()) for name in stages.value}
    return pipeline.with_value(("stages",), Marked(made, stages.origin, stages.base))


def whole(name: str, stages: Mapping[str, Marked], above: tuple[str, ...]) -> Marked:
    stage = stages[name]
    if not stage.is_mapping or "like" not in stage.value:
        return stage
    like = stage.value["like"]
    if like.value in (name, *above):
        raise UsageError(f"{like.origin}: stage '{name}' is like itself, by way of {', '.join((*above, name))}")
    if not isinstance(like.value, str) or like.value not in stages:
        near = nearest(str(like.value), stages)
        hint = f"did you mean '{near}'?" if near else f"the stages are {', '.join(stages)}"
        raise UsageError(f"{like.origin}: stage '{name}' is like '{like.value}', which is no stage; {hint}")
    own = Marked({k: v for k, v in stage.value.items() if k != "like"}, stage.origin, stage.base)
    return merge(whole(like.value, stages, (*above, name)), own)
