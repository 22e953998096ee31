"""The records that stages hand to each other in memory: frozen, without behaviour beyond what they are asked for.

Shapes: [G] one group of rollouts of one problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["match", "mismatch", "no_answer", "timeout", "error"]
FinishReason = Literal["stop", "length"]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class ConciseError(Exception):
    """Something the user can mend. The message is one sentence that says what to do next."""

    exit_code = 1


class UsageError(ConciseError):
    """Wrong usage: a flag, a key or a value that cannot be meant."""

    exit_code = 2


class Preempted(ConciseError):
    """Asked to stop from outside after the state was saved; running the same command again goes on."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with its gold answer. `id` is a short hash of the normalised prompt, so it is the same everywhere."""

    id: str
    prompt: str
    answer: str
    source: str
    level: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gold(self) -> Any:
        """What the grader compares with: the list of right answers where there are several, else the answer."""
        return self.extra.get("answers") or self.answer


@dataclass(frozen=True, slots=True)
class Example:
    """One row of supervised fine-tuning. `loss_spans` are [start, end) character spans of the response that carry
    loss; None means all of it. `weight` multiplies the loss of the row's tokens."""

    problem_id: str
    prompt: str
    response: str
    weight: float = 1.0
    loss_spans: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One rollout as the engine sampled it: the ids are trained as they are, the stop token included."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason

    @property
    def finished(self) -> bool:
        return self.finish_reason == "stop"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the grader found in one response, and which rule decided."""

    outcome: Outcome
    extracted: str | None = None
    rule: str = ""

    @property
    def correct(self) -> bool:
        return self.outcome == "match"


@dataclass(frozen=True, slots=True)
class Group:
    """The G attempts at one problem by one policy, graded."""

    problem: Problem
    completions: tuple[Completion, ...]
    verdicts: tuple[Verdict, ...]
    policy_step: int = 0
    prompt_ids: tuple[int, ...] = ()

    @property
    def correct(self) -> Bools:
        return np.array([v.correct for v in self.verdicts], dtype=bool)

    @property
    def finished(self) -> Bools:
        return np.array([c.finished for c in self.completions], dtype=bool)

    @property
    def lengths(self) -> Ints:
        """[G] sampled tokens, the stop token included."""
        return np.array([len(c.token_ids) for c in self.completions], dtype=np.int64)

    @property
    def pass_rate(self) -> float:
        return float(self.correct.mean())


@dataclass(frozen=True, slots=True)
class RewardBreakdown:
    """[G] each: `accuracy` the base value, `length` the bonus on top, `repeated` rows replaced for repetition,
    `usable` rows that may train, `total` what is trained on, `custom` what the user's own function added to it."""

    accuracy: Floats
    length: Floats
    repeated: Bools
    usable: Bools
    total: Floats
    custom: Floats | None = None


@dataclass(frozen=True, slots=True)
class PassRate:
    """How often one problem was solved at one step (0 for fresh rollouts of a finished model)."""

    problem_id: str
    step: int
    correct: int
    attempts: int

    @property
    def rate(self) -> float:
        return self.correct / self.attempts


@dataclass(frozen=True, slots=True)
class StageRun:
    """What a stage is given: its own folder to write in, its checked config, the paths of its inputs by role, and
    the manifests those inputs came with (None for a model or file brought from outside)."""

    name: str
    folder: Path
    config: Any
    inputs: Mapping[str, tuple[Path, ...]]
    sources: Mapping[str, tuple[Mapping[str, Any] | None, ...]] = field(default_factory=dict)

    def one(self, role: str) -> Path:
        """The only path of a role that takes exactly one."""
        (path,) = self.inputs[role]
        return path


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage made: output name -> path relative to its folder, and the metrics worth a line."""

    outputs: Mapping[str, str]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
