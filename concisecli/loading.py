"""From YAML and `--set` to a checked Pipeline: every value knows the file and line it came from.

A tree of `Marked` values is read, overridden, filled from recipes and from the shared keys, and only then checked, so
that a message can name the place whoever said the value. All faults are gathered before one error is raised.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from concisecli.aliases import translated
from concisecli.config import KINDS, SHARED, Config, NewModel, NewModelConfig, Pipeline, StageSpec
from concisecli.did_you_mean import model_classes, nearest, suggestion
from concisecli.field_types import located, with_default_types
from concisecli.includes import read_pipeline, spelled_out
from concisecli.marked import DEFAULT, Marked, merge, parse_value, read_yaml
from concisecli.records import UsageError
from concisecli.sweeps import expanded

TOP = ("run", "seed", "threads", "stages", "sweep", "include", *(k for k in SHARED if k != "seed"))
STAGE_KEYS = ("uses", "config", "inputs", "like")
PIPELINE_FILE = "concise.yaml"


def find_pipeline(given: Path | None) -> Path:
    """The pipeline file to use: the one given, else `concise.yaml` in the current folder."""
    if given is not None:
        if given.is_file():
            return given
        near = nearest(given.name, [p.name for p in given.parent.glob("*.yaml")] if given.parent.is_dir() else [])
        hint = f"did you mean {given.parent / near}?" if near else "concise init METHOD writes one to start from"
        raise UsageError(f"there is no pipeline file {given}; {hint}")
    here = Path(PIPELINE_FILE)
    if here.is_file():
        return here
    raise UsageError(
        f"there is no {PIPELINE_FILE} in this folder; give one with -p FILE, or write one: concise init tiny"
    )


def packaged(kind: Literal["pipelines", "data_recipes"], name: str) -> Path:
    """The file `name` (with or without .yaml) that ships with the package; in a checkout it lies at the top."""
    folder = packaged_folder(kind)
    path = folder / (name if name.endswith(".yaml") else f"{name}.yaml")
    if path.is_file():
        return path
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    near = nearest(path.stem, known)
    hint = f"did you mean '{near}'?" if near else f"there are: {', '.join(known) or 'none'}"
    raise UsageError(f"no '{name}' among the {kind.replace('_', ' ')} of concise; {hint}")


def packaged_folder(kind: str) -> Path:
    inside = Path(str(resources.files("concisecli"))) / kind
    return inside if inside.is_dir() else inside.parent.parent / kind


def load_pipeline(path: Path, sets: Sequence[str] = ()) -> Pipeline:
    """The pipeline of a file with overrides such as "rl1.reward.alpha=0.1" or "seed=1". Raises UsageError."""
    return load_pipeline_with_origins(path, sets)[0]


def load_pipeline_with_origins(path: Path, sets: Sequence[str] = ()) -> tuple[Pipeline, dict[str, str]]:
    """Also where each value came from: {"rl1.reward.alpha": "lead.yaml:12", "rl1.seed": "--set seed=1", "rl1.lr":
    "default"}; the parts that hold values ("rl1", "rl1.reward") are in it where they are said."""
    return resolve(read_pipeline(path), path, sets)


def pipeline_of(tree: Mapping[str, Any], sets: Sequence[str] = ()) -> tuple[Pipeline, dict[str, str]]:
    """A pipeline from a mapping made by a command (`eval --model M`, `data build RECIPE`); paths are relative to the
    current folder."""
    return resolve(Marked.of(tree, "command line", Path.cwd()), Path("command line"), sets)


def resolve(tree: Marked, path: Path, sets: Sequence[str]) -> tuple[Pipeline, dict[str, str]]:
    loader = Resolver(path)
    pipeline = loader.pipeline(tree, sets)
    if loader.faults or pipeline is None:
        raise UsageError("\n".join(loader.faults))
    return pipeline, loader.origins


def dotted(path: Sequence[str]) -> str:
    return ".".join(path)


class Resolver:
    """One reading of one pipeline file; `faults` gathers one line for each thing that is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[str] = []
        self.origins: dict[str, str] = {}
        self.said: set[tuple[str, ...]] = set()

    def fault(self, origin: str, message: str) -> None:
        line = f"{origin}: {message}"
        if line not in self.faults:
            self.faults.append(line)

    # --- the whole file ---------------------------------------------------------------------------------------------

    def pipeline(self, tree: Marked, sets: Sequence[str]) -> Pipeline | None:
        if not tree.is_mapping:
            self.fault(tree.origin, "a pipeline is a mapping with the keys run and stages")
            return None
        tree = self.with_variants(tree, sets)
        if self.faults:  # what follows would be told of stages that are only half there
            return None
        top: dict[str, Marked] = tree.value
        for key, node in top.items():
            if key not in TOP:
                self.fault(node.origin, f"unknown key '{key}'{self.top_hint(key)}")
        for key in ("run", "stages"):
            if key not in top:
                self.fault(tree.origin, f"the key '{key}' is missing")
        stages = self.stages(top)
        top_level = {k: top[k] for k in ("run", "seed", "threads") if k in top}
        for name in ("run", "seed", "threads"):
            self.origins[name] = top[name].origin if name in top else DEFAULT
        values = Marked(top_level, tree.origin, tree.base).plain() | {"path": self.path, "stages": stages}
        return None if self.faults else self.validated(Pipeline, values, tree, ())

    def with_variants(self, tree: Marked, sets: Sequence[str]) -> Marked:
        """The tree with its sweep expanded. An override of a stage as it is written holds for all of its variants."""
        written = {
            name for key, stages in tree.value.items() if key == "stages" and stages.is_mapping for name in stages.value
        }
        for text in sets:
            if text.partition("=")[0].partition(".")[0].strip() in (*written, *TOP):
                tree = self.override(tree, text)
        try:
            tree = expanded(spelled_out(tree))
        except UsageError as error:
            self.faults += str(error).splitlines()
        for text in sets:
            if text.partition("=")[0].partition(".")[0].strip() not in (*written, *TOP):
                tree = self.override(tree, text)
        return tree

    def top_hint(self, key: str) -> str:
        kinds = [kind for kind, config in KINDS.items() if key in config.model_fields]
        if kinds:
            return f"; it belongs into the config of a stage that uses {' or '.join(kinds)}"
        near = nearest(key, TOP)
        if near:
            return f"; did you mean '{near}'?"
        return suggestion_text(suggestion(key, (), KINDS["train"]), "stages.NAME.config.")

    def stages(self, top: dict[str, Marked]) -> dict[str, StageSpec]:
        node = top.get("stages")
        if node is None:
            return {}
        if not node.is_mapping or not node.value:
            self.fault(node.origin, "stages is a mapping from a stage's name to what it does, with one stage at least")
            return {}
        seed = top["seed"].plain() if "seed" in top else 0
        shared = {key: top[key] for key in SHARED if key in top}
        names = list(node.value)
        made = {name: self.stage(name, stage, shared, names, seed) for name, stage in node.value.items()}
        return {name: spec for name, spec in made.items() if spec is not None}

    # --- one stage --------------------------------------------------------------------------------------------------

    def stage(
        self, name: str, node: Marked, shared: dict[str, Marked], names: list[str], seed: Any
    ) -> StageSpec | None:
        if name in TOP:
            self.fault(node.origin, f"a stage cannot be called '{name}', which is a key of the pipeline")
            return None
        if not node.is_mapping:
            self.fault(node.origin, f"stage '{name}' is a mapping with the keys {', '.join(STAGE_KEYS)}")
            return None
        uses = node.value.get("uses")
        kind = uses.value if uses is not None else None
        if not isinstance(kind, str) or kind not in KINDS:
            self.fault(uses.origin if uses else node.origin, f"stage '{name}': {wrong_kind(kind)}")
            return None
        self.refuse_unknown_keys(name, kind, node)
        self.origins[name] = node.origin
        config = self.config(name, kind, node.value.get("config"), node, shared)
        inputs = self.inputs(name, node.value.get("inputs"), names, seed)
        return None if config is None else StageSpec(name=name, uses=kind, config=config, inputs=inputs)

    def refuse_unknown_keys(self, name: str, kind: str, node: Marked) -> None:
        for key, child in node.value.items():
            if key in STAGE_KEYS:
                continue
            near = f"config.{key}" if key in KINDS[kind].model_fields else nearest(key, STAGE_KEYS)
            hint = f"did you mean '{near}'?" if near else f"a stage has {', '.join(STAGE_KEYS)}"
            self.fault(child.origin, f"stage '{name}': unknown key '{key}'; {hint}")

    def config(
        self, name: str, kind: str, given: Marked | None, stage: Marked, shared: dict[str, Marked]
    ) -> Config | None:
        node = given if given is not None and given.value is not None else Marked({}, stage.origin, stage.base)
        if not node.is_mapping:
            self.fault(node.origin, f"stage '{name}': config is a mapping")
            return None
        fields = KINDS[kind].model_fields
        if kind == "data" and "recipe" in node.value:
            node = self.with_recipe(name, node)
        try:
            node = translated(kind, node)
        except UsageError as error:
            self.fault(*str(error).split(": ", 1))
        inherited = Marked({k: v for k, v in shared.items() if k in fields}, node.origin, node.base)
        node = located(with_default_types(merge(inherited, node), KINDS[kind]), KINDS[kind])
        made: Config | None = self.validated(KINDS[kind], node.plain(), node, (name,))
        if made is not None:
            self.record_origins(made, node, (name,))
        return made

    def with_recipe(self, name: str, node: Marked) -> Marked:
        """What the recipe file says, under what stands beside `recipe`."""
        recipe = node.value["recipe"]
        if recipe.value is None:
            return node
        found = find_recipe(str(recipe.value), recipe.base, self.path)
        if found is None:
            self.fault(recipe.origin, f"{name}.recipe: there is no recipe file {recipe.value}")
            return node
        tree = read_yaml(found)
        if not tree.is_mapping or "recipe" in tree.value:
            self.fault(tree.origin, "a recipe is a mapping of the fields of a data stage, without 'recipe' itself")
            return node
        return merge(tree, node)

    # --- inputs -----------------------------------------------------------------------------------------------------

    def inputs(self, name: str, node: Marked | None, names: list[str], seed: Any) -> dict[str, Any]:
        if node is None or node.value is None:
            return {}
        if not node.is_mapping:
            self.fault(node.origin, f"stage '{name}': inputs is a mapping from a role to where it comes from")
            return {}
        self.origins[f"{name}.inputs"] = node.origin
        made: dict[str, Any] = {}
        for role, given in node.value.items():
            self.origins[f"{name}.inputs.{role}"] = given.origin
            several = isinstance(given.value, list)
            parts = [
                self.reference(f"{name}.inputs.{role}", g, names, seed) for g in (given.value if several else [given])
            ]
            made[role] = tuple(p for p in parts if p is not None) if several else parts[0] or ""
        return made

    def reference(self, where: str, node: Marked, names: list[str], seed: Any) -> str | NewModel | None:
        if isinstance(node.value, str) and node.value:
            return located_reference(node.value, node.base, names)
        if node.is_mapping and set(node.value) == {"new"}:
            inner = node.value["new"]
            inner = inner if inner.is_mapping else Marked({}, inner.origin, inner.base)
            if "seed" not in inner.value:
                inner = Marked(inner.value | {"seed": Marked(seed, DEFAULT, node.base)}, inner.origin, inner.base)
            made = self.validated(NewModelConfig, inner.plain(), inner, (*where.split("."), "new"))
            return None if made is None else NewModel(new=made)
        self.fault(node.origin, f"{where}: give STAGE.OUTPUT, a path, hf:ORG/NAME@REVISION or {{new: {{...}}}}")
        return None

    # --- overrides --------------------------------------------------------------------------------------------------

    def override(self, tree: Marked, text: str) -> Marked:
        key, equals, value = text.partition("=")
        origin = f"--set {text}"
        if not equals or not key:
            self.fault(origin, "write it as --set STAGE.FIELD=VALUE, for example rl1.reward.alpha=0.1")
            return tree
        path = key.strip().split(".")
        stages = tree.value.get("stages")
        names = list(stages.value) if stages is not None and stages.is_mapping else []
        if path[0] in names:
            level = () if len(path) > 1 and path[1] in ("uses", "inputs") else ("config",)
            path = ["stages", path[0], *level, *path[1:]]
        elif path[0] not in TOP or path[0] == "stages":
            near = nearest(path[0], [*names, *TOP])
            hint = f"did you mean '{near}'?" if near else f"the stages are {', '.join(names)}"
            self.fault(origin, f"'{path[0]}' is neither a stage nor a key of the pipeline; {hint}")
            return tree
        try:
            return tree.with_value(path, parse_value(value, origin))
        except UsageError as error:
            self.fault(origin, str(error))
            return tree

    # --- checking ---------------------------------------------------------------------------------------------------

    def validated(self, cls: type[Any], values: Any, tree: Marked, prefix: tuple[str, ...]) -> Any:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            for detail in error.errors():
                path, origin = tree.locate([str(part) for part in detail["loc"]])
                once = (origin, *path, detail["type"])  # a shared or merged value is wrong once, not once a stage
                if once in self.said:
                    continue
                self.said.add(once)
                self.fault(origin, self.explained(cls, prefix, path, dict(detail)))
            return None

    def explained(self, cls: type[BaseModel], prefix: tuple[str, ...], path: list[str], detail: dict[str, Any]) -> str:
        where = dotted([*prefix, *path])
        kind, message = detail["type"], str(detail["msg"])
        if kind == "extra_forbidden":
            parent = dotted([*prefix, *path[:-1]])
            hint = suggestion_text(suggestion(path[-1], tuple(path[:-1]), cls), "")
            return f"{parent + ': ' if parent else ''}unknown key '{path[-1]}'{hint}"
        if kind == "missing":
            return f"{where} is missing"
        if kind.startswith("union_tag"):
            wanted = detail.get("ctx", {}).get("expected_tags")
            key = str(detail.get("ctx", {}).get("discriminator", "type")).strip("'")
            if wanted:
                return f"{where}.{key} should be {wanted}"
            kinds = [c.model_fields[key].default for c in model_classes(cls.model_fields[path[0]].annotation)]
            return f"{where} needs the key {key}: {', '.join(map(str, kinds))}"
        message = message.removeprefix("Value error, ").replace("Input should be", "should be", 1)
        given = detail.get("input")
        shown = f", not {given!r}" if isinstance(given, str | int | float) and message.startswith("should be") else ""
        return f"{where}: {message}{shown}" if where else message

    def record_origins(self, config: BaseModel, node: Marked | None, path: tuple[str, ...]) -> None:
        """Note where each field of a checked config came from, nested ones under their dotted path."""
        given: dict[str, Marked] = node.value if node is not None and node.is_mapping else {}
        if node is not None:
            self.origins.setdefault(dotted(path), node.origin)
        for field in type(config).model_fields:
            value, said = getattr(config, field), given.get(field)
            if isinstance(value, BaseModel):
                self.record_origins(value, said, (*path, field))
            elif isinstance(value, dict) and any(isinstance(v, BaseModel) for v in value.values()):
                for key, inner in value.items():
                    below = said.value.get(key) if said is not None and said.is_mapping else None
                    self.record_origins(inner, below, (*path, field, key))
            else:
                self.origins[dotted((*path, field))] = said.origin if said is not None else DEFAULT


def wrong_kind(kind: Any) -> str:
    if kind is None:
        return f"the key 'uses' is missing; it is one of {', '.join(KINDS)}"
    near = nearest(str(kind), KINDS)
    return f"uses: there is no stage of kind '{kind}'; " + (
        f"did you mean '{near}'?" if near else f"it is one of {', '.join(KINDS)}"
    )


def suggestion_text(name: str | None, prefix: str) -> str:
    return f"; did you mean '{prefix}{name}'?" if name else ""


def find_recipe(name: str, base: Path, pipeline: Path) -> Path | None:
    """A recipe lies beside the file that names it, in data_recipes/ there or as named, or ships with concise."""
    given = Path(os.path.expanduser(name))
    for path in (base / "data_recipes" / given, base / given, packaged_folder("data_recipes") / given.name):
        for spelled in (path, path.with_name(f"{path.name}.yaml")):
            if spelled.is_file() and os.path.abspath(spelled) != os.path.abspath(pipeline):
                return spelled
    return None


def located_reference(text: str, base: Path, names: Sequence[str]) -> str:
    """A path is made absolute; "stage.output" and "hf:..." stay as they are."""
    if text.startswith("hf:") or text.partition(".")[0] in names:
        return text
    path = base / os.path.expanduser(text)
    looks_like_path = "/" in text or text.startswith((".", "~"))
    return os.path.abspath(path) if looks_like_path or path.exists() else text
