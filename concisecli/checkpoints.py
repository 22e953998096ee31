"""Checkpoints in mid-stage: whole or not there, the older kept until the newer is durable.

checkpoints/step-000060/...          what `Backend.save` wrote
checkpoints/step-000060/COMPLETE     written last: the size of every file above
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from concisecli import limits
from concisecli.artifacts import sync_file, sync_folder, unwritable, write_json
from concisecli.monitor import note
from concisecli.records import Preempted

if TYPE_CHECKING:
    from concisecli.backends import Backend

MARKER = "COMPLETE"


def save(
    folder: Path,
    step: int,
    backend: Backend,
    state: dict[str, Any],
    *,
    beside: Callable[[Path], None] | None = None,
    keep: int = 2,
) -> Path:
    """Save the backend and `state` after `step` steps, a collective over all ranks. The path of the checkpoint.

    What `Backend.load` gives back also holds `world`, the number of ranks that saved. `beside` is called with the
    folder on every rank and may add files.
    Everything is written under a temporary name, flushed to disk and renamed, and the marker is written last; only
    then are checkpoints beyond the newest `keep` removed. A kill at any moment leaves the one before.
    """
    final, temporary = folder / f"step-{step:06}", folder / f".step-{step:06}.partial"
    first = backend.rank == 0
    try:
        if first:
            for left_over in folder.glob(".step-*.partial"):
                shutil.rmtree(left_over)
            temporary.mkdir(parents=True)
        barrier(backend)
        backend.save(temporary, state | {"world": backend.world})
        if beside:
            beside(temporary)
        barrier(backend)
        if first:
            publish(temporary, final)
            for old in complete(folder)[:-keep]:
                discard(old)
    except OSError as error:
        raise unwritable(folder, error) from error
    barrier(backend)
    return final


def publish(temporary: Path, final: Path) -> None:
    sizes = {}
    for path in sorted(temporary.rglob("*")):
        if path.is_file():
            sync_file(path)
            sizes[str(path.relative_to(temporary))] = path.stat().st_size
        else:
            sync_folder(path)
    sync_folder(temporary)
    if final.exists():  # a step that is done again after a resume from an older checkpoint
        discard(final)
    temporary.rename(final)
    sync_folder(final.parent)
    write_json(final / MARKER, sizes)


def discard(folder: Path) -> None:
    """Remove a checkpoint, its marker first, so that half of one never looks whole."""
    (folder / MARKER).unlink(missing_ok=True)
    sync_folder(folder)
    shutil.rmtree(folder)


def latest(folder: Path, *, warn: bool = False) -> Path | None:
    """The newest whole checkpoint below `folder`, which is given to `Backend.load`; None where there is none.

    One that is not whole (a kill or a full disk in mid-save, a lost file) is passed over; `warn` says so.
    """
    found = complete(folder)
    newest = found[-1] if found else None
    if warn:
        for step in half_written(folder, after=step_of(newest) if newest else -1):
            going_on = f"going on from step {step_of(newest)}" if newest else "beginning anew"
            note(f"warning: the checkpoint of step {step} in {folder} is not whole and is passed over; {going_on}")
    return newest


def half_written(folder: Path, *, after: int) -> list[int]:
    """Steps of the checkpoints later than `after` of which only a part is there."""
    names = (path.name for pattern in ("step-*", ".step-*.partial") for path in folder.glob(pattern))
    steps = {int(name.strip(".").removeprefix("step-").removesuffix(".partial")) for name in names}
    return sorted(step for step in steps if step > after)


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def complete(folder: Path) -> list[Path]:
    """The whole checkpoints, oldest first: those with a marker and every file in the size the marker states."""
    return [path for path in sorted(folder.glob("step-*"), key=step_of) if is_whole(path)]


def is_whole(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / MARKER).read_bytes())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def remove_all(folder: Path) -> None:
    """Called once the stage's outputs are durable."""
    shutil.rmtree(folder, ignore_errors=True)


def barrier(backend: Backend) -> None:
    if backend.world > 1:
        from concisecli import collectives

        collectives.barrier()


@contextlib.contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """For a loop that can save between two steps: yields a question that SIGTERM or a limit of the
    command turns to True.

        with stop_signal() as asked:
            for step in ...:
                ...
                if asked():
                    save(...)
                    raise Preempted(...)

    A second SIGTERM ends at once. Only the main thread hears signals; elsewhere the answer stays False.
    """
    heard = False

    def hear(number: int, frame: Any) -> None:
        nonlocal heard
        if heard:
            raise Preempted("stopped at once by a second SIGTERM; run the same command again to go on")
        heard = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: limits.reached() is not None
        return
    before = signal.signal(signal.SIGTERM, hear)
    try:
        yield lambda: heard or limits.reached() is not None
    finally:
        signal.signal(signal.SIGTERM, before)
