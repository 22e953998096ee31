"""JSON Schema of pipeline files, for editors: made from the settings classes, with the comment beside each field as its
description."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import tokenize
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from concisecli.aliases import ALIASES
from concisecli.config import KINDS, SHARED, NewModelConfig
from concisecli.config.training import OptimiserConfig
from concisecli.did_you_mean import model_classes
from concisecli.stages import STAGES

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
ANY: Schema = {}


def schema() -> Schema:
    """Accepts every file that loads as far as keys and types go; what only a whole graph can tell is left to `plan`."""
    definitions: Schema = {}
    kinds = {kind: _of_class(cls, definitions) for kind, cls in KINDS.items()}
    for kind, config in kinds.items():
        config["properties"] |= {
            theirs: {"description": f"another name for {ours}"}
            for theirs, ours in ALIASES.get(kind, {}).items()
            if "." not in theirs
        }
    new_model = _of_class(NewModelConfig, definitions)
    shared = {name: _shared(name, definitions) for name in SHARED if name != "seed"}
    names = {"type": "integer", "description": "of every stage that says none"}
    return {
        "$schema": DRAFT,
        "title": "concise pipeline",
        "description": "Stages of a curriculum, by name. concise plan shows what a file means.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "run": {"type": "string", "description": "name of the run: artifacts go to runs/<run>/"},
            "seed": names,
            "threads": {
                "type": "integer",
                "minimum": 0,
                "description": "of torch; 0: OMP_NUM_THREADS, else every core",
            },
            "include": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            "sweep": {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}},
            **shared,
            "stages": {
                "type": "object",
                "additionalProperties": {"anyOf": [{"type": "null"}, _stage(kinds, new_model)]},
            },
        },
        "$defs": definitions,
    }


def _stage(kinds: Mapping[str, Schema], new_model: Schema) -> Schema:
    """A stage, whose `uses` says which settings its `config` may have."""
    new = {"type": "object", "properties": {"new": new_model}, "required": ["new"], "additionalProperties": False}
    one = {"anyOf": [{"type": "string"}, new]}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "uses": {"enum": list(kinds)},
            "like": {"type": "string", "description": "another stage, taken as a start"},
            "inputs": {
                "anyOf": [
                    {"type": "null"},
                    {"type": "object", "additionalProperties": {"anyOf": [one, {"type": "array", "items": one}]}},
                ]
            },
            "config": {"type": ["object", "null"]},
        },
        "allOf": [
            {
                "if": {"properties": {"uses": {"const": kind}}, "required": ["uses"]},
                "then": {
                    "description": _told(kind),
                    "properties": {"config": {"anyOf": [{"type": "null"}, config]}},
                },
            }
            for kind, config in kinds.items()
        ],
    }


def _told(kind: str) -> str:
    stage = STAGES[kind]
    return f"needs {', '.join(stage.inputs) or 'nothing'}; makes {', '.join(stage.outputs)}"


def _shared(name: str, definitions: Schema) -> Schema:
    """The schema of a setting that stands at the top of a file, taken from a stage that has it."""
    classes: tuple[type[BaseModel], ...] = (OptimiserConfig, *KINDS.values())
    owner = next(cls for cls in classes if name in cls.model_fields)
    return dict(_of_class(owner, definitions)["properties"][name])


def _of_class(cls: type[BaseModel], definitions: Schema) -> Schema:
    made: Schema = cls.model_json_schema(ref_template="#/$defs/{model}")
    for name, part in made.pop("$defs", {}).items():
        definitions.setdefault(name, _loosened(part))
    made = _loosened(made)
    for inner in _classes(cls):
        _describe(inner, made if inner is cls else definitions.get(inner.__name__, {}))
    return made


def _classes(cls: type[BaseModel]) -> list[type[BaseModel]]:
    found = [cls]
    for one in found:
        found += [c for f in one.model_fields.values() for c in model_classes(f.annotation) if c not in found]
    return found


def _describe(cls: type[BaseModel], schema: Schema) -> None:
    notes = comments(cls)
    for name, part in schema.get("properties", {}).items():
        if notes.get(name):
            part["description"] = notes[name]


def _loosened(schema: Any) -> Any:
    """What a file may leave out: a key may come from a recipe, from `like`, from the shared keys or from --set, and a
    part of several types has the type of its default."""
    if isinstance(schema, list):
        return [_loosened(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _loosened(part) for key, part in schema.items() if key not in ("required", "discriminator", "runtime")}
    if "oneOf" in kept:
        kept["anyOf"] = kept.pop("oneOf")
    if "$ref" in kept:  # a default beside a reference makes some editors look at the default alone
        kept.pop("default", None)
    return kept


@functools.cache
def comments(cls: type[BaseModel]) -> Mapping[str, str]:
    """The comment at the end of each field's line, else the one right above it; inherited fields included."""
    found: dict[str, str] = {}
    for base in reversed([c for c in cls.__mro__ if c.__module__.startswith("concisecli.")]):
        source = inspect.getsource(base)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        said = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                beside = [said[n] for n in range(node.lineno, (node.end_lineno or node.lineno) + 1) if n in said]
                found[node.target.id] = " ".join(c.string.lstrip("# ") for c in beside or _above(node.lineno, said))
    return found


def _above(line: int, said: Mapping[int, tokenize.TokenInfo]) -> list[tokenize.TokenInfo]:
    """The block of comments that ends right above a line; what stands at the end of a line of code is not of it."""
    block: list[tokenize.TokenInfo] = []
    while (above := said.get(line - 1 - len(block))) and above.line.lstrip().startswith("#"):
        block.insert(0, above)
    return block
