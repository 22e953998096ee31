"""Inputs that come from outside a pipeline: a path, a model of the Hugging Face hub, or a model made from nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from concisecli.artifacts import canonical_json, sha256_of_files, sha256_text, unwritable, write_text
from concisecli.config import NewModel
from concisecli.records import ConciseError
from concisecli.store import Store

LOCK_FILE = "lock.yaml"
NEW_MODEL_VERSION = 1  # raise it when policy.new_model makes another model of the same settings
# What decides what a model says. Readme files, images and optimiser states in the same folder do not.
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "*.safetensors",
    "*.safetensors.index.json",
)


@dataclass(frozen=True, slots=True)
class External:
    """An input from outside: what to call it, the hash of its content (None: known only once it is fetched), and
    where it lies (None: not yet made or fetched)."""

    label: str
    digest: str | None
    path: Path | None


def look_up(reference: str | NewModel, store: Store) -> External:
    """What is known without network or work. Raises ConciseError for a path that is not there."""
    if isinstance(reference, NewModel):
        digest = sha256_text(
            canonical_json({"new": reference.new.model_dump(mode="json"), "version": NEW_MODEL_VERSION})
        )
        folder = store.root / f"new-{digest[:12]}"
        return External("new", digest, folder if folder.is_dir() else None)
    if reference.startswith("hf:"):
        commit = pinned(store).get(reference)
        return External(f"{hub_name(reference)[0]}@{commit}" if commit else reference, commit, None)
    path = Path(reference)
    return External(reference, path_digest(path, store), path)


def bring(reference: str | NewModel, store: Store) -> External:
    """The input with its path: made, fetched, or as it lies."""
    known = look_up(reference, store)
    if known.path is not None:
        return known
    return made(reference, store) if isinstance(reference, NewModel) else fetched(reference, store)


def path_digest(path: Path, store: Store) -> str:
    """A model folder hashes by the files that decide what the model says, anything else by all of its content."""
    if not path.exists():
        raise ConciseError(f"there is no file or folder {path}")
    if not path.is_dir():
        return store.hashes.of(path)
    if not (path / "config.json").is_file():
        if (path / "model" / "config.json").is_file():
            raise ConciseError(f"{path} is the folder of a stage; its model is {path / 'model'}")
        return store.hashes.of(path)
    files = sorted({p for pattern in MODEL_FILES for p in path.glob(pattern) if p.is_file()})
    if not any(p.suffix == ".safetensors" for p in files):
        raise ConciseError(f"{path} holds no .safetensors file; save the model once with save_pretrained and use that")
    return sha256_of_files({p.name: store.hashes.of_file(p) for p in files})


def made(reference: NewModel, store: Store) -> External:
    known = look_up(reference, store)
    folder = store.root / f"new-{(known.digest or '')[:12]}"
    with store.lock(folder.name):
        if not folder.is_dir():
            from concisecli.policy import new_model

            temporary = folder.with_name(f".{folder.name}.partial")
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                new_model(reference.new, reference.new.seed or 0, temporary)
                temporary.rename(folder)
            except OSError as error:
                raise unwritable(folder, error) from error
    return External(known.label, known.digest, folder)


# --- the hub ----------------------------------------------------------------------------------------------------------


def hub_name(reference: str) -> tuple[str, str | None]:
    """("hf:org/name", revision) of "hf:org/name@revision"."""
    name, _, revision = reference.partition("@")
    return name, revision or None


def pinned(store: Store) -> dict[str, str]:
    """The commits that references to the hub were resolved to in this run, so that later runs take the same."""
    path = store.root / LOCK_FILE
    if not path.is_file():
        return {}
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConciseError(f"cannot read {path}; delete it to resolve models and data sets anew ({error})") from error
    return {str(key): str(value) for key, value in held.items()}


def pin(store: Store, commits: Mapping[str, str]) -> None:
    """Keep what references to the hub stand for in this run."""
    write_text(store.root / LOCK_FILE, yaml.safe_dump(pinned(store) | dict(commits), sort_keys=True))


def fetched(reference: str, store: Store) -> External:
    """The model's folder in the hub's cache; what is fetched the first time is pinned in the run's lock.yaml."""
    name, revision = hub_name(reference)
    commit = pinned(store).get(reference)
    folder = snapshot(name.removeprefix("hf:"), commit or revision, MODEL_FILES)
    if commit is None:
        commit = folder.name
        pin(store, {reference: commit})
    return External(f"{name}@{commit}", commit, folder)


def snapshot(repository: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        at = f"@{revision}" if revision else ""
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise ConciseError(
            f"cannot fetch hf:{repository}{at}{offline}: {first}; check name and network, or give a local folder"
        ) from error
