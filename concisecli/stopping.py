"""SIGTERM while stages run: the run ends so that the same command goes on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from concisecli.records import Preempted


class Stopped(BaseException):
    """SIGTERM on its way up: no `except Exception` of a library can take it for an error of its own."""


@contextlib.contextmanager
def sigterm_as_preempted() -> Iterator[None]:
    """SIGTERM ends with exit code 75 (run again); a training loop that can save first takes it over meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Stopped:
        raise Preempted("stopped by SIGTERM; run the same command again to go on") from None
    finally:
        signal.signal(signal.SIGTERM, before)
