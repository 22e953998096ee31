"""Data sets of the Hugging Face hub: which commit a name stands for, and its files, in the hub's own cache.

A data set is fetched whole and read from there, so that a build reads one commit, can be stopped and gone on with, and
runs without network once it has been fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from concisecli.config import HubSource
from concisecli.records import ConciseError

COMMIT = re.compile(r"[0-9a-f]{40}")
SECONDS = 10  # that the hub may take to say what a name stands for
# What `datasets` reads rows from, and the card that says which files belong to which split.
FILES = (
    "*.parquet",
    "*.json",
    "*.jsonl",
    "*.ndjson",
    "*.csv",
    "*.tsv",
    "*.arrow",
    "*.gz",
    "*.zst",
    "*.zip",
    "README.md",
)


def reference(source: HubSource) -> str:
    """What a run's lock.yaml calls the data set: `hf:datasets/org/name`, with the revision that the recipe names."""
    return f"hf:datasets/{source.name}" + (f"@{source.revision}" if source.revision else "")


def is_remote(source: object) -> bool:
    """Whether a source is read from the hub: not a file, not a local copy, not a folder under the hub's name."""
    return isinstance(source, HubSource) and source.path is None and not Path(source.name).exists()


def is_copy(path: Path) -> bool:
    """Whether a folder is a copy of a data set as the hub has it, rather than MATH's one problem a file."""
    return path.is_dir() and any(
        next(path.rglob(kind), None) for kind in ("README.md", "*.parquet", "*.jsonl", "*.csv")
    )


def commit_of(name: str, source: HubSource) -> str:
    """The commit that the data set's name and revision stand for now; without network, that of the hub's cache.

    Raises ConciseError where neither knows it."""
    if COMMIT.fullmatch(source.revision or ""):
        return str(source.revision)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        found = HfApi().dataset_info(source.name, revision=source.revision, timeout=SECONDS).sha
        if found:
            return str(found)
        raise _unreadable(name, source, "the hub names no commit")
    except (HfHubHTTPError, HFValidationError) as error:  # the hub has answered: no such name, no right to read it
        raise _unreadable(name, source, error) from error
    except (ConciseError, KeyboardInterrupt):
        raise
    except Exception as error:  # no network: the transport below the client raises many kinds
        offline = isinstance(error, OfflineModeIsEnabled)
        try:
            return _fetched(source, here_only=True).name
        except OSError:
            why = "HF_HUB_OFFLINE is set and the hub's cache does not hold it" if offline else error
            raise _unreadable(name, source, why) from error


def rows(name: str, source: HubSource) -> Iterator[dict[str, Any]]:
    """The rows of the source's split, streamed from the fetched files. Raises ConciseError that says how to go on."""
    from datasets import load_dataset

    try:
        folder = _fetched(source) if is_remote(source) else source.path or Path(source.name)
        yield from map(dict, load_dataset(str(folder), source.subset, split=source.split, streaming=True))
    except ConciseError:
        raise
    except Exception as error:  # datasets and the client below it raise many kinds; all mean that it cannot be read
        raise _unreadable(name, source, error) from error


def _fetched(source: HubSource, *, here_only: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            source.name,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=list(FILES),
            local_files_only=here_only,
        )
    )


def _unreadable(name: str, source: HubSource, why: object) -> ConciseError:
    doubt = "" if source.verified else " (a name that nobody has looked up)"
    first = next((line.strip() for line in str(why).splitlines() if line.strip()), type(why).__name__)
    return ConciseError(
        f"source '{name}': the hub's data set {source.name}{doubt} cannot be read ({first[:160].rstrip('.')}); "
        f"set sources.{name}.path to a local copy, or name it in a map: local: MAP.yaml with a line '{name}: FILE'"
    )
