"""What is decided for a stage, and how it is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from concisecli.config import StageSpec
from concisecli.store import RunManifest

FIRST = "first time"
Action = Literal["skip", "resume", "run", "waits", "blocked"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided for a stage, and what came of it. Of a dry run only: `waits`, its inputs are not made yet;
    `blocked`, it cannot run as things are."""

    stage: str
    kind: str
    action: Action
    reason: str
    folder: Path | None = None
    outputs: Mapping[str, Path] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """`skip: same settings and inputs`, `resume at step 60`, `run: reward.alpha 0.05 -> 0.1`, `runs after rl1`,
        `blocked: there is no file x`"""
        if self.action == "waits":
            return self.reason
        colon = "" if self.action == "resume" else ":"
        return f"{self.action}{colon} {self.reason}".strip()


@dataclass(frozen=True, slots=True)
class Decision:
    spec: StageSpec
    action: Action
    reason: str
    key: str | None = None
    manifest: RunManifest | None = None


def beginning(decision: Decision) -> str:
    """`begins`, `begins again: reward.alpha 0.05 -> 0.1`, `goes on at step 60`"""
    if decision.action == "resume":
        return f"goes on {decision.reason}" if decision.reason.startswith("at") else f"goes on with {decision.reason}"
    return "begins" if decision.reason == FIRST else f"begins again: {decision.reason}"
