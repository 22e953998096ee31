"""Where a recipe's rows come from: files on this machine and data sets of the hub, its suites included.

Light on purpose: a dry run and a plan ask these questions of every recipe of a pipeline.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from concisecli.building import sources
from concisecli.building.hubsets import is_remote, reference
from concisecli.config import CleaningConfig, DataConfig, FileSource, HubSource
from concisecli.loading import packaged
from concisecli.records import ConciseError


def row_sources(config: DataConfig) -> dict[str, FileSource | HubSource]:
    """The recipe's real sources, with local copies in place, in order of trust."""
    placed = {name: _at_commit(config, source) for name, source in _placed(config).items()}
    prefer = config.dedup.prefer if config.dedup else ()
    unknown = [name for name in prefer if name not in config.sources]
    if unknown:
        raise ConciseError(f"dedup.prefer names {unknown[0]}, which is no source; sources: {', '.join(config.sources)}")
    return dict(sorted(placed.items(), key=lambda item: prefer.index(item[0]) if item[0] in prefer else len(prefer)))


def _placed(config: DataConfig) -> dict[str, FileSource | HubSource]:
    real = {n: s for n, s in config.sources.items() if isinstance(s, FileSource | HubSource)}
    local = local_copies(config)
    return {n: _at(s, local[n]) if n in local and s.path is None else s for n, s in real.items()}


def _at(source: FileSource | HubSource, path: Path) -> FileSource | HubSource:
    return source.model_copy(update={"path": path})


def _at_commit(config: DataConfig, source: FileSource | HubSource) -> FileSource | HubSource:
    commit = config.commits.get(reference(source)) if isinstance(source, HubSource) and is_remote(source) else None
    return source.model_copy(update={"revision": commit}) if commit else source


def hub_sets(config: DataConfig) -> dict[str, HubSource]:
    """What a recipe reads from the hub, its suites after its own sources, each as the recipe names it."""
    suites = {f"suite {name}": source for name, (source, _) in _named_suites(config).items()}
    found = _placed(config) | suites
    return {name: source for name, source in found.items() if isinstance(source, HubSource) and is_remote(source)}


def suite_sources(config: DataConfig) -> dict[str, tuple[FileSource | HubSource, CleaningConfig]]:
    """The evaluation suites that a recipe is checked against: the sources of the recipes named there."""
    return {name: (_at_commit(config, s), cleaning_) for name, (s, cleaning_) in _named_suites(config).items()}


def _named_suites(config: DataConfig) -> dict[str, tuple[FileSource | HubSource, CleaningConfig]]:
    if config.decontaminate is None or not _placed(config):
        return {}
    local = local_copies(config)
    found = {}
    for suite in config.decontaminate.against:
        checked = packaged_recipe(suite)
        for name, source in checked.sources.items():
            if isinstance(source, FileSource | HubSource):
                found[name] = (_at(source, local[name]) if name in local else source, checked.cleaning)
    return found


def local_copies(config: DataConfig) -> dict[str, Path]:
    """The `local` map: source name -> path, relative to the map's own folder."""
    if config.local is None:
        return {}
    try:
        said = yaml.safe_load(config.local.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConciseError(f"the map of local copies {config.local} cannot be read: {error}") from error
    if not isinstance(said, dict) or not all(isinstance(v, str) for v in said.values()):
        raise ConciseError(f"{config.local}: write one 'source: path' a line")
    return {str(name): (config.local.parent / path).resolve() for name, path in said.items()}


def packaged_recipe(name: str) -> DataConfig:
    """A recipe that ships with the package, as it stands in its file."""
    return DataConfig.model_validate(yaml.safe_load(packaged("data_recipes", name).read_text(encoding="utf-8")))


def key_files(config: DataConfig) -> dict[str, Path]:
    """Every local file whose content decides the outcome: for the stage's key. Raises ConciseError where one is
    missing."""
    for name, source in row_sources(config).items():
        sources.check_exists(name, source)
    paths = {name: _folder(source) for name, source in row_sources(config).items()}
    suites = {f"suite {name}": _folder(source) for name, (source, _) in suite_sources(config).items()}
    return {name: path for name, path in (paths | suites).items() if path}


def _folder(source: FileSource | HubSource) -> Path | None:
    """Where a source lies on this machine; None: on the hub."""
    if source.path is None and isinstance(source, HubSource) and not is_remote(source):
        return Path(source.name)
    return source.path
