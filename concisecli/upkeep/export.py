"""A trained model as a folder of its own: the weights copied, with a model card that says where they are from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from concisecli.artifacts import read_json, sha256_path, sync_file, sync_folder, unwritable
from concisecli.records import ConciseError, UsageError
from concisecli.store import RunManifest
from concisecli.upkeep.lineage import Made, everything, lineage
from concisecli.upkeep.model_card import card
from concisecli.upkeep.runs import StageFolder, finished_stage, newest, run_folder, stage_folders

TRAINS = ("train", "sft")
DATA_CARDS = "data_cards"


def trained_stage(given: str | None, runs: Path, expected: str | None = None) -> StageFolder:
    """The stage to export: the one named as RUN/STAGE, or of a run the last one trained."""
    if given is not None and _names_a_stage(given, runs):
        return finished_stage(given, runs)
    run = run_folder(given, runs, expected)
    trained = [f for f in newest(stage_folders(run)).values() if f.manifest and f.manifest.kind in TRAINS]
    if not trained:
        raise UsageError(f"{run} has no finished stage of training; look with: concise status {run}")
    made_of = {made.digest for folder in trained for source in lineage(folder).sources for made in everything(source)}
    last = [folder for folder in trained if folder.manifest and folder.manifest.key not in made_of]
    if len(last) > 1:
        names = ", ".join(f"{run}/{folder.stage}" for folder in last)
        raise UsageError(f"{run} ends in several models; name one: {names}")
    return last[0]


def _names_a_stage(given: str, runs: Path) -> bool:
    try:
        run_folder(given, runs)
    except UsageError:
        return "/" in given
    return False


def export(stage: StageFolder, output: str, target: Path) -> Path:
    """Write the folder whole or not at all. Raises UsageError where something lies at `target`, ConciseError where the
    weights are no longer what the stage made."""
    manifest = stage.manifest
    assert manifest is not None
    made = manifest.outputs.get(output)
    if made is None:
        raise UsageError(f"stage {stage.stage} made no {output}; it made {', '.join(manifest.outputs)}")
    if target.exists():
        raise UsageError(f"{target} exists already; choose another with --to")
    source = stage.path / made.path
    if not (source / "config.json").is_file():
        raise UsageError(f"{source} is no model; give the stage that trained one")
    making = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        making.mkdir(parents=True)
        for file in sorted(p for p in source.iterdir() if p.is_file()):
            shutil.copyfile(file, making / file.name)
        if sha256_path(making) != made.sha256:
            raise ConciseError(f"{source} was changed since stage '{stage.stage}' made it; make it anew with --force")
        _write_papers(stage, manifest, made.sha256, making)
        for path in making.rglob("*"):
            if path.is_file():
                sync_file(path)
        sync_folder(making)
        making.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return target


def _write_papers(stage: StageFolder, manifest: RunManifest, digest: str, folder: Path) -> None:
    """The model card and the cards of the data sets it was trained on."""
    tree = lineage(stage)
    stages = _stages_of(tree)
    evaluations = _evaluations(stage_folders(stage.path.parent), digest)
    (folder / "README.md").write_text(
        card(stage.path.parent.name, manifest, tree, stages, evaluations), encoding="utf-8"
    )
    for name, made in stages.items():
        written = Path(made.folder or "") / "data_card.md"
        if made.kind == "data" and written.is_file():
            (folder / DATA_CARDS).mkdir(exist_ok=True)
            shutil.copyfile(written, folder / DATA_CARDS / f"{name}.md")
    if (folder / DATA_CARDS).is_dir():
        with (folder / "README.md").open("a", encoding="utf-8") as file:
            file.write(f"\nThe cards of the data sets, with what was dropped and why, are in `{DATA_CARDS}/`.\n")


def _stages_of(tree: Made) -> dict[str, Made]:
    """Every stage that the model goes back to, the first one first."""
    found: dict[str, Made] = {}
    for made in reversed(list(everything(tree))):
        if made.kind and made.name not in found:
            found[made.name] = made
    return found


def _evaluations(folders: Sequence[StageFolder], digest: str) -> list[tuple[str, dict[str, Any]]]:
    """(stage, scores) of the evaluations of these weights, the newest of each stage."""
    found = {}
    for folder in folders:
        manifest = folder.manifest
        if manifest and manifest.kind == "eval" and manifest.inputs.get("model") == [digest]:
            found[folder.stage] = read_json(folder.path / manifest.outputs["scores"].path)
    return sorted(found.items())


# --- the hub ----------------------------------------------------------------------------------------------------------


def push(folder: Path, repository: str, *, private: bool = True) -> str:
    """Upload an exported folder; the address of its page. Raises ConciseError without a token or a network."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if get_token() is None:
        raise ConciseError(
            f"{folder} is written, but there is no token for the Hugging Face hub: log in with `hf auth login` or set "
            f"HF_TOKEN, then: hf upload {repository} {folder}"
        )
    try:
        api = HfApi()
        url = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Export by concise")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConciseError(f"{folder} is written, but not pushed to {repository}: {first}") from error
    return str(url)
