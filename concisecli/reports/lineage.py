"""Which stage read what another made: from manifests to rows, and from rows to a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
BOX, STEP, GAP, LANE = (130, 34), 46, 56, 13  # pixels: a stage, from one to the next, between columns, a passing line


def lineage(manifests: Sequence[Json], labels: Mapping[str, str] | None = None) -> list[Json]:
    """Every stage behind the report with what it read and made, makers before users. `labels`: what the model of a
    stage is called, by the stage's key."""
    makers: dict[str, Json] = {}
    for manifest in manifests:
        for output in manifest.get("outputs", {}).values():
            makers.setdefault(output["sha256"], manifest)
    order: dict[str, Json] = {}
    # A stage that changes nothing makes what it read, and so seems to be its own ancestor: nobody is visited twice.
    visited: set[str] = set()

    def visit(manifest: Json) -> None:
        if manifest["key"] in visited:
            return
        visited.add(manifest["key"])
        for digest in read_by(manifest):
            if digest in makers:
                visit(makers[digest])
        order[manifest["key"]] = manifest

    for manifest in manifests:
        visit(manifest)
    places = _places(list(order.values()), makers)
    return [_link(m) | {"model": _model_of(m, makers, labels or {})} | places[key] for key, m in order.items()]


def _places(ordered: Sequence[Json], makers: Mapping[str, Json]) -> dict[str, Json]:
    """key -> where the stage stands in a drawing of the graph: `column` behind all that it reads, `row` near what it
    reads, and `reads`, the indices of those stages."""
    index = {m["key"]: i for i, m in enumerate(ordered)}
    places: dict[str, Json] = {}
    for m in ordered:
        read = list(dict.fromkeys(makers[d]["key"] for d in read_by(m) if d in makers))
        before = [places[key] for key in read if key in places]
        places[m["key"]] = {
            "column": max((p["column"] + 1 for p in before), default=0),
            "row": sum(p["row"] for p in before) / len(before) if before else float(len(places)),
            "reads": [index[key] for key in read if key in places],
        }
    for column in {p["column"] for p in places.values()}:
        together = sorted((p for p in places.values() if p["column"] == column), key=lambda p: p["row"])
        for row, place in enumerate(together):
            place["row"] = row
    return places


def read_by(manifest: Json) -> list[str]:
    """The content hashes of everything that a stage read."""
    return [digest for digests in manifest.get("inputs", {}).values() for digest in digests]


def _model_of(manifest: Json, makers: Mapping[str, Json], labels: Mapping[str, str]) -> str | None:
    """The model that a stage makes or looks at: it lends the stage its colour."""
    if "model" in manifest.get("outputs", {}):
        return labels.get(manifest["key"], str(manifest["stage"]))
    maker = makers.get(next(iter(manifest.get("inputs", {}).get("model", [])), ""))
    if maker is not None:
        return labels.get(maker["key"], str(maker["stage"]))
    reference = next(iter(manifest.get("sources", {}).get("model", [])), None)
    return None if reference is None else str(reference).split(".")[0]


def _link(manifest: Json) -> Json:
    return {
        "stage": manifest["stage"],
        "kind": manifest["kind"],
        "key": manifest["key"][:12],
        "inputs": [
            {"role": role, "from": reference, "sha256": digest[:12]}
            for role, references in manifest.get("sources", {}).items()
            for reference, digest in zip(references, manifest["inputs"].get(role, []), strict=False)
        ],
        "outputs": [
            {"name": name, "path": output["path"], "sha256": output["sha256"][:12], "rows": output.get("rows")}
            for name, output in manifest.get("outputs", {}).items()
        ],
        "metrics": manifest.get("metrics", {}),
        "config": manifest.get("config", {}),
        "origins": manifest.get("origins", {}),
    }


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if isinstance(value, Mapping) and value:
        return {k: v for name, part in value.items() for k, v in flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value}


# --- the drawing ------------------------------------------------------------------------------------------------------


def graph(rows: Sequence[Json]) -> Json:
    """Where the boxes of the stages stand and the lines between them run, in pixels. A line to a column further on has
    a lane of its own between the boxes that it passes."""
    last = {i: max((r["column"] for r in rows if i in r["reads"]), default=row["column"]) for i, row in enumerate(rows)}
    at: dict[tuple[int, int], float] = {}  # (stage, column) -> the middle of its box or lane there
    for column in range(max((row["column"] for row in rows), default=-1) + 1):
        wanted = []
        for i, row in enumerate(rows):
            if row["column"] == column:
                before = [at[j, column - 1] for j in row["reads"]]
                middle = sum(before) / len(before) if before else (row["row"] + 0.5) * STEP
                wanted.append((middle, row["row"], STEP, i))
            elif row["column"] < column < last[i]:
                wanted.append((at[i, column - 1], -1, LANE, i))
        top = 0.0
        for middle, _, height, i in sorted(wanted):
            at[i, column] = max(middle, top + height / 2)
            top = at[i, column] + height / 2
    pitch = BOX[0] + GAP
    return {
        "wide": (max((row["column"] for row in rows), default=0) + 1) * pitch - GAP,
        "high": max(at.values(), default=0) + STEP / 2,
        "box": BOX,
        "boxes": [(row["column"] * pitch, at[i, row["column"]] - BOX[1] / 2) for i, row in enumerate(rows)],
        "paths": [path for i, row in enumerate(rows) for path in _paths(i, row, rows, last[i], at, pitch)],
    }


def _paths(
    i: int, row: Json, rows: Sequence[Json], last: int, at: Mapping[tuple[int, int], float], pitch: int
) -> list[str]:
    """The lines that leave one stage: from column to column, with a branch to each stage that reads it."""
    paths = []
    for column in range(row["column"], last):
        x, y = column * pitch + BOX[0], at[i, column]
        ends = [at[j, column + 1] for j, r in enumerate(rows) if r["column"] == column + 1 and i in r["reads"]]
        if column + 1 < last:
            ends.append(at[i, column + 1])
            paths.append(f"M{x + GAP} {at[i, column + 1]:.1f}h{BOX[0]}")
        paths += [
            f"M{x} {y:.1f}C{x + GAP / 2:.0f} {y:.1f} {x + GAP / 2:.0f} {end:.1f} {x + GAP} {end:.1f}" for end in ends
        ]
    return paths
