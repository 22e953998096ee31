"""Model folders written in the middle of a training, each as a finished stage would write its model.

weights/step-000050/        after 50 updates: what transformers and vLLM load
weights/trained_with.json   prompt and grader of the stage, for those who evaluate them before it has ended
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from concisecli.artifacts import write_json
from concisecli.config import TrainConfig
from concisecli.store import split_config

FOLDER = "weights"
TRAINED_WITH = "trained_with.json"


def keep(folder: Path, done: int, config: TrainConfig, write: Callable[[str], None], *, first: bool) -> None:
    """`write` the model after `done` updates, a collective; the `first` rank then removes the oldest of more than
    `weights_keep`, which happens only once the newest is durable."""
    write(f"{FOLDER}/step-{done:06}")
    if not first:
        return
    asked = {name: split_config(getattr(config, name))[0] for name in ("prompt", "grader", "sampling")}
    write_json(folder / FOLDER / TRAINED_WITH, asked)
    there = kept(folder)
    for step in sorted(there)[: -config.weights_keep] if config.weights_keep else ():
        shutil.rmtree(there[step])


def kept(folder: Path) -> dict[int, Path]:
    """updates -> model folder, of the weights that lie in a stage's folder, in order."""
    found = {int(path.name.removeprefix("step-")): path for path in (folder / FOLDER).glob("step-*")}
    return dict(sorted(found.items()))


def forget_after(folder: Path, done: int) -> None:
    """Drop the weights that a resumed run has yet to make."""
    for step, path in kept(folder).items():
        if step > done:
            shutil.rmtree(path)
