"""Why a stage runs again: what differs between the manifest of the last time and what would be made now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concisecli.store import RunManifest

NAMED = 3  # differences spelled out before "and N more"


def difference(older: RunManifest, now: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """What differs from the last time: "reward.alpha 0.05 -> 0.1", "input model is another". A setting that is new
    since then, and not among those `told`, is at its default and changes nothing."""
    parts = []
    if older.kind != now["kind"]:
        parts.append(f"uses {older.kind} -> {now['kind']}")
    if older.version != now["version"]:
        parts.append(f"stage version {older.version} -> {now['version']}")
    before, after = flat(older.config), flat(now["config"])
    parts += [
        f"{name} {brief(before, name)} -> {brief(after, name)}"
        for name in sorted({*before, *after})
        if before.get(name, ABSENT) != after.get(name, ABSENT) and (name in before or name in flat(told))
    ]
    parts += changed_hashes("input", older.inputs, now["inputs"])
    parts += changed_hashes("file", older.files, now["files"])
    if not parts and older.sources != now["sources"]:
        parts = [f"input {role} is {', '.join(now['sources'][role])}" for role in now["sources"]]
    if not parts:
        parts = changed_makers(older, now)
    more = f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return ", ".join(parts[:NAMED]) + more if parts else "something else differs"


def changed_makers(older: RunManifest, now: Mapping[str, Any]) -> list[str]:
    """Inputs with the same content that now come from a stage with other settings: a report tells those, too."""
    return [
        f"{label} was made under other settings, with the same result"
        for role, keys in now["input_keys"].items()
        for label, key, before in zip(now["sources"][role], keys, older.input_keys.get(role, keys), strict=False)
        if key != before
    ]


ABSENT = object()


def brief(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "unset"


def changed_hashes(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [f"{what} {name} is another" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


def flat(value: Any, path: Sequence[str] = ()) -> dict[str, Any]:
    """Leaves by dotted path."""
    if isinstance(value, Mapping):
        return {k: v for key, child in value.items() for k, v in flat(child, (*path, str(key))).items()}
    return {".".join(path): value}
