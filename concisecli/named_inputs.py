"""What settings name that no stage made: files and modules, known by their hashes, data sets of the hub, by commits.

The first run asks the hub what a name stands for and keeps it in the run's lock.yaml, as for models; later runs, dry
ones and those without network read it there.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import BaseModel

from concisecli.config import ChainsSource, DataConfig, StageSpec
from concisecli.references import pin, pinned
from concisecli.store import Store


def named_files(config: BaseModel) -> dict[str, Path]:
    """Local files whose content belongs to the key of a stage with this config."""
    own = {name: file for name, function in custom_functions(config).items() if (file := module_file(function))}
    if not reads_files(config):
        return own
    from concisecli.building.places import key_files

    return own | key_files(config)


def custom_functions(config: Any) -> dict[str, str]:
    """The user's own functions that a config names: setting -> "module:function"."""
    parts = ((part, getattr(config, part, None)) for part in ("grader", "reward"))
    return {f"{part}.custom": found.custom for part, found in parts if found is not None and found.custom}


def module_file(function: str) -> Path | None:
    """The file of the module that "module:function" names, without running it; None where there is none."""
    try:
        spec = importlib.util.find_spec(function.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def named_commits(config: BaseModel) -> dict[str, str]:
    """Data sets of the hub that a config reads, as `org/name@commit`, where the commit is known."""
    if not reads_files(config):
        return {}
    from concisecli.building.hubsets import reference
    from concisecli.building.places import hub_sets

    sets = {name: (source.name, config.commits.get(reference(source))) for name, source in hub_sets(config).items()}
    return {name: f"{repository}@{commit}" for name, (repository, commit) in sets.items() if commit}


def pinned_sets(spec: StageSpec, store: Store) -> tuple[StageSpec, list[str]]:
    """A data stage with the commits that this run's lock.yaml has for the hub's data sets, and those it lacks."""
    if not reads_files(spec.config):
        return spec, []
    from concisecli.building.hubsets import reference
    from concisecli.building.places import hub_sets

    wanted = dict.fromkeys(reference(source) for source in hub_sets(spec.config).values())
    known = pinned(store) | spec.config.commits if wanted else {}
    commits = {name: known[name] for name in wanted if name in known}
    spec = spec.model_copy(update={"config": spec.config.model_copy(update={"commits": commits})})
    return spec, [name for name in wanted if name not in known]


def pin_sets(spec: StageSpec, store: Store) -> StageSpec:
    """The stage with every commit it lacks asked of the hub and kept in lock.yaml: later runs read the same."""
    if not pinned_sets(spec, store)[1]:
        return spec
    from concisecli.building.recipes import pinned as with_commits

    config = with_commits(spec.config)
    pin(store, config.commits)
    return spec.model_copy(update={"config": config})


def reads_files(config: BaseModel) -> TypeGuard[DataConfig]:
    return isinstance(config, DataConfig) and any(not isinstance(s, ChainsSource) for s in config.sources.values())
