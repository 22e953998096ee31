"""From an artifact back to the data and models it was made from, by the hashes in the manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from concisecli.records import UsageError
from concisecli.upkeep.runs import StageFolder, finished_stage, newest, run_folder, stage_folders


@dataclass(frozen=True, slots=True)
class Made:
    """One thing and what it was made from. `digest` is the hash of the content, of a stage its key."""

    name: str
    digest: str
    role: str = ""
    kind: str = ""  # of the stage; "" for what came from outside
    folder: str | None = None
    note: str = ""
    sources: tuple[Made, ...] = field(default=())

    def as_record(self) -> dict[str, Any]:
        plain = {"name": self.name, "role": self.role, "kind": self.kind, "digest": self.digest, "folder": self.folder}
        plain |= {"note": self.note} if self.note else {}
        return plain | {"made_from": [source.as_record() for source in self.sources]}


def ends(given: str, runs: Path) -> list[StageFolder]:
    """The stage that was named, or of a run the finished stages that no other was made from."""
    try:
        run = run_folder(given, runs)
    except UsageError as no_run:
        try:
            return [finished_stage(given, runs)]
        except UsageError as no_stage:
            raise (no_stage if "/" in given else no_run) from None
    finished = [folder for folder in newest(stage_folders(run)).values() if folder.finished]
    used = {made.digest for folder in finished for source in lineage(folder).sources for made in everything(source)}
    return [folder for folder in finished if folder.manifest and folder.manifest.key not in used]


def everything(made: Made) -> Iterator[Made]:
    yield made
    for source in made.sources:
        yield from everything(source)


def lineage(folder: StageFolder) -> Made:
    """Of a finished stage, through the other stages of its run."""
    return _of_stage(folder, _by_output(stage_folders(folder.path.parent)), "", ())


def _by_output(folders: Sequence[StageFolder]) -> Mapping[tuple[str, str], StageFolder]:
    """(stage, hash of an output) -> the folder that holds it."""
    return {
        (f.stage, output.sha256): f for f in folders if f.manifest is not None for output in f.manifest.outputs.values()
    }


def _of_stage(
    folder: StageFolder, makers: Mapping[tuple[str, str], StageFolder], role: str, above: tuple[str, ...]
) -> Made:
    manifest = folder.manifest
    assert manifest is not None
    sources = [
        _source(one, label, digest, makers, (*above, manifest.key))
        for one, labels in manifest.sources.items()
        for label, digest in zip(labels, manifest.inputs.get(one, []), strict=False)
    ]
    sources += [Made(name, digest, "file") for name, digest in manifest.files.items()]
    return Made(folder.stage, manifest.key, role, manifest.kind, str(folder.path), "", tuple(sources))


def _source(
    role: str, label: str, digest: str, makers: Mapping[tuple[str, str], StageFolder], above: tuple[str, ...]
) -> Made:
    stage = label.partition(".")[0]
    maker = makers.get((stage, digest))
    if maker is not None and maker.manifest is not None and maker.manifest.key not in above:
        return _of_stage(maker, makers, role, above)
    gone = "" if label == "new" or _from_outside(label) else "no longer in this run"
    return Made(label, digest, role, "", None, gone)


def _from_outside(label: str) -> bool:
    return label.startswith("hf:") or "/" in label


def lines(made: Made, indent: int = 0) -> list[str]:
    """As an indented list: `rl1 (train)  3f2a...  runs/t/rl1-3f2a`."""
    kind = f" ({made.kind})" if made.kind else ""
    role = f"{made.role}: " if made.role else ""
    parts = [f"{role}{made.name}{kind}", made.digest[:12], made.folder or "", made.note]
    own = "  " * indent + "  ".join(part for part in parts if part)
    return [own, *(line for source in made.sources for line in lines(source, indent + 1))]
