"""The artifact store: one folder a stage and key, a manifest written last, and one writer at a time.

runs/<run>/<stage>-<key[:12]>/manifest.json      a folder without a manifest is unfinished, by definition
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from concisecli.artifacts import (
    canonical_json,
    files_below,
    json_line,
    read_json,
    sha256_file,
    sha256_of_files,
    sha256_text,
    unwritable,
    write_json,
)
from concisecli.records import ConciseError

SCHEMA = 1
MANIFEST = "manifest.json"
TIMINGS = "timings.jsonl"


class Output(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str  # relative to the stage's folder
    sha256: str
    rows: int | None = None


class RunManifest(BaseModel):
    """What a finished stage was made from and what it made. Holds no time of day: that is in timings.jsonl."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    stage: str
    kind: str
    version: int
    key: str
    config: dict[str, Any]  # what the key was made of
    runtime: dict[str, Any]  # the settings that are left out of the key
    inputs: dict[str, list[str]]  # role -> content hashes
    sources: dict[str, list[str]]  # role -> what the pipeline called them: "sft.model", "hf:org/name@commit", a path
    input_keys: dict[str, list[str]] = {}  # role -> keys of the stages that made them, "" where none did
    origins: dict[str, str] = {}  # setting -> the line of a file or the flag that said it; defaults are left out
    files: dict[str, str]  # hashes of local files that the config names
    outputs: dict[str, Output]
    metrics: dict[str, Any]
    seed: int
    code: dict[str, Any]
    env: dict[str, Any]


def key_of(kind: str, version: int, config: Any, inputs: Mapping[str, Sequence[str]], files: Mapping[str, str]) -> str:
    """sha256 of everything that can change what a stage makes."""
    made_of = {
        "kind": kind,
        "version": version,
        "config": config,
        "inputs": {role: list(hashes) for role, hashes in inputs.items()},
        "files": dict(files),
    }
    return sha256_text(canonical_json(made_of))


def split_config(config: BaseModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config as (what belongs to the key, what does not): fields marked `runtime` change speed only, and a path is
    not what lies there, whose hash enters the key by itself. Both keep the nesting."""
    keyed: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        extra = field.json_schema_extra
        if (isinstance(extra, dict) and extra.get("runtime")) or isinstance(value, Path):
            rest[name] = as_json(value)
            continue
        keyed[name], outside = split_value(value)
        if outside:
            rest[name] = outside
    return keyed, rest


def said(config: BaseModel) -> dict[str, Any]:
    """What of a config goes into the key: the settings that are not their default, of those that belong to it.

    So a field that is added later, with a default that changes nothing, leaves every finished stage as it is. Who
    changes what a default means raises the stage's version.
    """
    keyed = split_config(config)[0]
    return {
        name: said_value(getattr(config, name), keyed[name])
        for name, field in type(config).model_fields.items()
        if name in keyed and (name in TELL_TYPES or field.is_required() or keyed[name] != default_of(field))
    }


TELL_TYPES = ("type", "kind")  # which of several classes a part is; that class's own default is no default


def said_value(value: Any, keyed: Any) -> Any:
    if isinstance(value, BaseModel):
        return said(value)
    if isinstance(value, Mapping):
        return {str(k): said_value(v, keyed[str(k)]) for k, v in value.items()}
    return keyed


def default_of(field: Any) -> Any:
    return split_value(field.get_default(call_default_factory=True))[0]


def split_value(value: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(value, BaseModel):
        return split_config(value)
    if isinstance(value, Mapping):
        parts = {str(k): split_value(v) for k, v in value.items()}
        return {k: keyed for k, (keyed, _) in parts.items()}, {k: rest for k, (_, rest) in parts.items() if rest}
    if isinstance(value, list | tuple):
        return [split_value(v)[0] for v in value], {}
    return as_json(value), {}


def as_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return str(value) if isinstance(value, Path) else value


class Store:
    """The stage folders of one run: `root` is runs/<run>."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hashes = HashCache(root.parent / ".hashes.json")

    def folder(self, stage: str, key: str) -> Path:
        return self.root / f"{stage}-{key[:12]}"

    def find(self, stage: str, key: str) -> RunManifest | None:
        """The manifest of a finished stage, or None."""
        path = self.folder(stage, key) / MANIFEST
        if not path.is_file():
            return None
        manifest = read_manifest(path)
        if manifest.key != key:
            raise ConciseError(f"{path} belongs to another key; it was edited by hand: run with --force {stage}")
        return manifest

    def newest(self, stage: str) -> RunManifest | None:
        """The manifest last written for a stage of this name, whatever its key; one that cannot be read is nothing to
        compare with."""
        paths = [p for p in self.root.glob(f"{stage}-*/{MANIFEST}") if p.parent.name[: -len("-") - 12] == stage]
        for path in sorted(paths, key=lambda p: p.stat().st_mtime_ns, reverse=True):
            with contextlib.suppress(ConciseError):
                return read_manifest(path)
        return None

    def changed_outputs(self, manifest: RunManifest) -> list[str]:
        """Names of the outputs whose content is no longer what the manifest says."""
        folder = self.folder(manifest.stage, manifest.key)
        return [
            name
            for name, output in manifest.outputs.items()
            if not (folder / output.path).exists() or self.hashes.of(folder / output.path) != output.sha256
        ]

    def begin(self, stage: str, key: str, *, anew: bool = False) -> Path:
        """The folder to write in: what an earlier attempt left is kept to resume from, unless `anew`."""
        folder = self.folder(stage, key)
        try:
            if anew and folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            note_time(folder, "begin")
        except OSError as error:
            raise cannot_write(folder, error) from error
        return folder

    def commit(self, folder: Path, manifest: RunManifest) -> None:
        """Write the manifest, last of all: from now on the stage is finished."""
        note_time(folder, "end")
        write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
        self.hashes.save()

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold one stage folder. A second process is told who holds it; the lock ends with its process."""
        path = self.root / ".locks" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise cannot_write(path, error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise ConciseError(
                    f"{self.root / name} is being written by {holder}; wait until it ends, then run this again"
                ) from error
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield
            file.truncate(0)


def read_manifest(path: Path) -> RunManifest:
    raw = read_json(path)
    found = raw.get("schema_version") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise ConciseError(
            f"{path} has manifest schema {found}, this concise reads {SCHEMA}; move {path.parent} away to make it anew"
        )
    try:
        return RunManifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConciseError(
            f"{path}: {where}: {first['msg']}; it was edited by hand: move {path.parent} away"
        ) from error


def cannot_write(path: Path, error: OSError) -> ConciseError:
    """Whatever the reason: nothing but making folders and opening files is tried where this is used."""
    known = unwritable(path, error)
    if isinstance(known, ConciseError):
        return known
    return ConciseError(f"cannot write {path}: {error.strerror}; choose another folder with --runs")


def note_time(folder: Path, event: str) -> None:
    with (folder / TIMINGS).open("a", encoding="utf-8") as file:
        file.write(json_line({"event": event, "time": round(time.time(), 3)}))


# --- hashes kept ------------------------------------------------------------------------------------------------------


class HashCache:
    """Hashes by (path, size, mtime), so that a model of many gigabytes is read once. A file touched within the last
    second is not remembered: another write could leave its mtime as it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, list[Any]] = {}
        self.changed = False
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(path.read_bytes())
            self.known = read if isinstance(read, dict) else {}

    def of(self, path: Path) -> str:
        """sha256 as `artifacts.sha256_path` gives it."""
        if path.is_dir():
            return sha256_of_files({str(p.relative_to(path)): self.of_file(p) for p in files_below(path)})
        return self.of_file(path)

    def of_file(self, path: Path) -> str:
        stat = path.stat()
        name = os.path.abspath(path)
        entry = self.known.get(name)
        if isinstance(entry, list) and entry[:2] == [stat.st_size, stat.st_mtime_ns]:
            return str(entry[2])
        digest = sha256_file(path)
        if time.time_ns() - stat.st_mtime_ns > 1_000_000_000:
            self.known[name] = [stat.st_size, stat.st_mtime_ns, digest]
            self.changed = True
        return digest

    def save(self) -> None:
        """Keep what was learnt; a cache that cannot be written is no reason to stop."""
        if self.changed and self.path.parent.is_dir():
            with contextlib.suppress(OSError, ConciseError):
                write_json(self.path, self.known)
                self.changed = False


# --- where and with what a stage ran ----------------------------------------------------------------------------------


@functools.cache
def code_state() -> dict[str, Any]:
    """The version of concise and, in a checkout, its commit and whether files differ from it."""
    here = Path(__file__).resolve().parent
    state: dict[str, Any] = {"concise": package_version("concise")}
    if (here.parent / ".git").exists():
        commit = git(here, "rev-parse", "HEAD")
        if commit:
            state |= {"commit": commit, "dirty": bool(git(here, "status", "--porcelain", "--untracked-files=no"))}
    return state


def git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def environment(threads: int, processes: int = 1) -> dict[str, Any]:
    """The versions, and the numbers of threads and processes, that the bits of a result can depend on."""
    names = ("torch", "transformers", "vllm", "deepspeed", "math-verify", "numpy")
    versions = {name: package_version(name) for name in names}
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": threads,
        "processes": processes,
        **gpus_in_use(),
        **{name: version for name, version in versions.items() if version},
    }


def gpus_in_use() -> dict[str, Any]:
    """{"gpus": how many this process may use}, by which their hours are counted; {} where there is none, or where
    nothing has loaded torch."""
    torch = sys.modules.get("torch")
    return {"gpus": torch.cuda.device_count()} if torch is not None and torch.cuda.is_available() else {}


def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
