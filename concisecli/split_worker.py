"""The engine's side of `placement: split`: `python -m concisecli.split_worker FD PARENT`, started by `rollout_split`.

Reads calls from the pipe FD and answers them with a VllmEngine; ends when the pipe or the trainer PARENT does.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from concisecli.records import ConciseError

LOOK_S = 1.0


def main(line: Connection, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the trainer closed the line, or is gone
        config, model, longest = line.recv()
        engine = _answered(line, _engine, config, model, longest)
        while engine is not None:
            method, arguments = line.recv()
            _answered(line, _CALLS.get(method, _plain), engine, line, method, *arguments)


def _engine(config: Any, model: Any, longest: int | None) -> Any:
    from concisecli.rollout_vllm import VllmEngine

    return VllmEngine(config, model, longest=longest)


def _generate(engine: Any, line: Connection, method: str, *arguments: Any) -> Any:
    return engine.generate(*arguments, as_done=lambda *group: line.send(("group", *group)))


def _sync_weights(engine: Any, line: Connection, method: str) -> None:
    engine.sync_weights(_incoming(line))


def _incoming(line: Connection) -> Iterator[tuple[str, Any]]:
    """The weights of each file whose name comes, told when they are taken over; None ends them."""
    from safetensors.torch import load_file

    while (path := line.recv()) is not None:
        yield from load_file(path).items()
        line.send(("taken", None))


def _plain(engine: Any, line: Connection, method: str, *arguments: Any) -> Any:
    return getattr(engine, method)(*arguments)


_CALLS = {"generate": _generate, "sync_weights": _sync_weights}


def _answered(line: Connection, call: Any, *arguments: Any) -> Any:
    """Do it and send the result; an engine itself stays here. What the user can mend and what broke are told apart."""
    try:
        value = call(*arguments)
    except ConciseError as error:
        line.send(("refused", str(error)))
    except Exception as error:  # where it is the line that broke, this ends the process
        line.send(("failed", f"{type(error).__name__}: {str(error).strip() or 'no message'}"))
        raise
    else:
        line.send(("result", None if call is _engine else value))
        return value
    return None


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    print("the trainer is gone; its rollout engine ends", file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
