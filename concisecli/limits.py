"""How long, and with how many tokens, one command may work: `--max-hours` and `--max-tokens`.

What is told by flags lies in the environment, so that the processes which a stage is started in know it too. Loops ask
at their next whole step and save before they stop; the same command then goes on where it was, with a fresh allowance.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STOP_AT, HOURS, TOKENS, SPENT = "CONCISE_STOP_AT", "CONCISE_MAX_HOURS", "CONCISE_MAX_TOKENS", "CONCISE_TOKENS_SPENT"


@contextlib.contextmanager
def limited(hours: float | None, tokens: int | None) -> Iterator[None]:
    """The limits of what runs inside, here and in processes started from here."""
    before = {name: os.environ.get(name) for name in (STOP_AT, HOURS, TOKENS, SPENT)}
    with tempfile.TemporaryDirectory(prefix="concise-") as folder:
        if hours is not None:
            os.environ |= {STOP_AT: repr(time.time() + 3600 * hours), HOURS: f"{hours:g}"}
        if tokens is not None:
            os.environ |= {TOKENS: str(tokens), SPENT: str(Path(folder) / "tokens")}
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def spend(tokens: int) -> None:
    """So many response tokens were sampled (by all ranks together: the first one says it)."""
    if path := os.environ.get(SPENT):
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{tokens}\n")


def reached() -> str | None:
    """Which limit is reached, in words; None while there is none."""
    stop_at, most = os.environ.get(STOP_AT), os.environ.get(TOKENS)
    if stop_at and time.time() >= float(stop_at):
        return f"--max-hours {os.environ[HOURS]} is over"
    if most and (spent := _spent()) >= int(most):
        return f"--max-tokens {int(most):,} is reached ({spent:,} were sampled)"
    return None


def stopped(where: str) -> str:
    """What is said by a loop that has saved and stops, on request or at a limit."""
    return f"{reached() or 'stopped on request'}; stopped {where}, with all saved; run the same command again to go on"


def _spent() -> int:
    try:
        return sum(map(int, Path(os.environ[SPENT]).read_text(encoding="ascii").split()))
    except FileNotFoundError:
        return 0
