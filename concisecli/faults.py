"""What is wrong with a pipeline, and where; the same fault of several stages by one flag said once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ABOUT_A_STAGE = re.compile(r"stage '([^']+)': ")


@dataclass(frozen=True, slots=True)
class Fault:
    level: Literal["error", "warning"]
    origin: str  # "file:line" where it is known
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}" if self.origin else self.message


def merged(faults: Sequence[Fault]) -> list[Fault]:
    """One fault where one flag did the same to several stages."""
    found: dict[tuple[str, str], list[Fault]] = {}
    for place, fault in enumerate(faults):
        stage = ABOUT_A_STAGE.match(fault.message)
        by_flag = stage is not None and fault.origin.startswith("--set ")
        rest = fault.message[stage.end() :] if stage and by_flag else str(place)
        found.setdefault((fault.level, rest), []).append(fault)
    return [same[0] if len(same) == 1 else in_one(same) for same in found.values()]


def in_one(faults: Sequence[Fault]) -> Fault:
    names = [match.group(1) for fault in faults if (match := ABOUT_A_STAGE.match(fault.message))]
    rest = ABOUT_A_STAGE.sub("", faults[0].message)
    flag = faults[0].origin.replace(f"--set {names[0]}.", "--set ")
    return Fault(faults[0].level, flag, f"stages {', '.join(names)}: {rest}")
