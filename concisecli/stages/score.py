"""`concise score FILE`: what graded rollouts would earn in training under a `train` stage's settings, without a model.

A row needs `group` (rollouts of one problem share it; they need not be adjacent), `id`, `length` (tokens of the
response) and `correct`. It may have `outcome` (as `concise grade` writes it), `text` or `response`, `prompt`, `score`
in [0, 1], and `finish_reason` ("stop" or "length"; without it a rollout as long as the budget counts as cut off).
Every field passes through; beside them stand

    accuracy, length_bonus, repeated, usable, reward    the parts of the reward and what is trained on
    pass_rate, weight, advantage, kept                  the difficulty weight already lies in the advantage
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, get_args

import numpy as np

from concisecli.algo import advantages, group_filters
from concisecli.algo.rewards import score_rollouts
from concisecli.artifacts import json_line, json_object
from concisecli.config import TrainConfig
from concisecli.custom_rewards import rewards_of
from concisecli.grader.grading import GraderPool
from concisecli.records import ConciseError, Floats, Outcome, UsageError

NEEDED = "every row needs group, id, length (tokens of the response) and correct"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One row, checked. `place` is where it stands, for messages."""

    place: str
    group: str | int
    id: str | int
    length: int
    outcome: Outcome
    finished: bool
    text: str | None
    score: float | None


def run_score(file: Path, config: TrainConfig, out: TextIO, budget: int | None = None) -> int:
    """Score the JSONL `file` ("-": stdin) and write one JSON line a row, in the order of the file; the number of rows.

    `budget` defaults to the limit that the stage samples with. Nothing is written when a row cannot be scored: raises
    ConciseError naming file, line and field.
    """
    places, rows = _read(file)
    scored = score_rows(rows, config, budget or config.sampling.max_response_tokens, places)
    lines = [_line(row, place) for row, place in zip(scored, places, strict=True)]
    out.writelines(lines)
    return len(lines)


def score_rows(
    rows: Iterable[Mapping[str, Any]], config: TrainConfig, budget: int, places: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """The rows in their order with what each earns; `places` names each one in messages (default: row 1, row 2, ...).

    Raises ConciseError for a row that lacks a field, or has a value that cannot be meant.
    """
    given = list(rows)
    named = places or [f"row {number}" for number in range(1, len(given) + 1)]
    attempts = [_attempt(row, place, config, budget) for row, place in zip(given, named, strict=True)]
    earned: list[dict[str, Any]] = [{} for _ in given]
    groups = list(_groups(attempts).values())
    custom = _custom(given, attempts, groups, config, budget)
    for members, added in zip(groups, custom, strict=True):
        parts = _score_group([attempts[index] for index in members], config, budget, added)
        for index, part in zip(members, parts, strict=True):
            earned[index] = part
    for row, part in zip(given, earned, strict=True):
        yield {**row, **part}


def _custom(
    rows: Sequence[Mapping[str, Any]],
    attempts: Sequence[Attempt],
    groups: Sequence[Sequence[int]],
    config: TrainConfig,
    budget: int,
) -> Sequence[Floats | None]:
    """What `reward.custom` adds in each group: it is given what the rows hold."""
    name = config.reward.custom
    if name is None:
        return [None] * len(groups)
    given = [
        {
            "problem_id": str(attempts[members[0]].group),
            "problem": rows[members[0]].get("prompt", rows[members[0]].get("problem")),
            "gold": rows[members[0]].get("gold", rows[members[0]].get("answer")),
            "budget": budget,
            "rollouts": [
                {
                    "text": rows[i].get("text", rows[i].get("response", "")),
                    "length": attempts[i].length,
                    "finished": attempts[i].finished,
                    "outcome": attempts[i].outcome,
                    "correct": attempts[i].outcome == "match",
                }
                for i in members
            ],
        }
        for members in groups
    ]
    with GraderPool(config.grader, name) as pool:
        return rewards_of(pool, name, given, config.grader.max_error_share)


def _score_group(
    group: Sequence[Attempt], config: TrainConfig, budget: int, custom: Floats | None
) -> list[dict[str, Any]]:
    reward = score_rollouts(
        [attempt.outcome for attempt in group],
        [attempt.length for attempt in group],
        [attempt.finished for attempt in group],
        [attempt.text or "" for attempt in group],
        config.reward,
        budget,
        custom,
    )
    rule = config.advantage.difficulty
    correct = np.array([attempt.outcome == "match" for attempt in group], dtype=bool)
    threshold = rule.score_threshold if rule else None
    pass_rate = advantages.pass_rate(correct, [attempt.score or 0.0 for attempt in group], score_threshold=threshold)
    advantage = advantages.of_group(reward.total, pass_rate, config.advantage, reward.usable)
    weight = advantages.difficulty_weights(advantage, pass_rate, rule)
    kept = group_filters.keep_group(reward.total, correct, config.advantage, reward.usable)
    return [
        {
            "accuracy": _number(reward.accuracy[index]),
            "length_bonus": _number(reward.length[index]),
            **({} if custom is None else {"custom": _number(custom[index])}),
            "repeated": bool(reward.repeated[index]),
            "usable": bool(reward.usable[index]),
            "reward": _number(reward.total[index]),
            "pass_rate": pass_rate,
            "weight": _number(weight[index]),
            "advantage": _number(advantage[index]),
            "kept": kept,
        }
        for index in range(len(group))
    ]


def _number(value: Any) -> float:
    return float(value) + 0.0  # -0.0, which a bonus of nothing may be, becomes 0.0


def _groups(attempts: Sequence[Attempt]) -> dict[tuple[str, str | int], list[int]]:
    """Row numbers by group. The same id twice in a group is a file joined to itself, and would be counted twice."""
    groups: dict[tuple[str, str | int], list[int]] = {}
    seen: dict[tuple[str, str], str] = {}
    for index, attempt in enumerate(attempts):
        once = (repr(attempt.group), repr(attempt.id))
        if once in seen:
            raise ConciseError(
                f"{attempt.place}: field 'id': {attempt.id!r} stands in group {attempt.group!r} already "
                f"({seen[once]}); give each rollout its own"
            )
        seen[once] = attempt.place
        groups.setdefault((type(attempt.group).__name__, attempt.group), []).append(index)
    return groups


# --- reading and checking ---------------------------------------------------------------------------------------------


def _read(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    if str(file) == "-":
        return _rows(sys.stdin.buffer, "stdin")
    try:
        with file.open("rb") as lines:
            return _rows(lines, str(file))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; give a JSONL file, or - for stdin") from error


def _rows(lines: BinaryIO, name: str) -> tuple[list[str], list[dict[str, Any]]]:
    numbered = [(f"{name}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConciseError(f"{name} holds no rows; {NEEDED}")
    return [place for place, _ in numbered], [json_object(line, place) for place, line in numbered]


def _line(row: Mapping[str, Any], place: str) -> str:
    try:
        return json_line(row)
    except ValueError as error:
        raise ConciseError(f"{place}: holds NaN or Infinity, which JSON has not; write null instead") from error


def _attempt(row: Mapping[str, Any], place: str, config: TrainConfig, budget: int) -> Attempt:
    fields = _Fields(row, place)
    length = fields.length()
    finished = fields.finished(default=length < budget)
    rule, reward = config.advantage.difficulty, config.reward
    reads_text = reward.repetition is not None and not (finished and reward.repetition_scope == "unfinished")
    reads_score = rule is not None and rule.score_threshold is not None
    return Attempt(
        place=place,
        group=fields.name("group"),
        id=fields.name("id"),
        length=length,
        outcome=fields.outcome(),
        finished=finished,
        text=fields.text() if reads_text else None,
        score=fields.score() if reads_score else None,
    )


class _Fields:
    """The fields of one row by what they must be; anything else raises ConciseError with place and field."""

    def __init__(self, row: Mapping[str, Any], place: str) -> None:
        self._row = row
        self._place = place

    def name(self, field: str) -> str | int:
        value = self._needed(field)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._wrong(field, "a text or a whole number")
        return value

    def length(self) -> int:
        value = self._needed("length")
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value % 1 == 0
        if not whole:
            raise self._wrong("length", "a whole number of tokens")
        return int(value)

    def outcome(self) -> Outcome:
        value, outcome = self._needed("correct"), self._row.get("outcome")
        if value not in (0, 1):
            raise self._wrong("correct", "true or false")
        correct = bool(value)
        if outcome is None:
            return "match" if correct else "mismatch"
        if outcome not in get_args(Outcome):
            raise self._wrong("outcome", f"one of {', '.join(get_args(Outcome))}")
        if correct != (outcome == "match"):
            raise ConciseError(
                f"{self._place}: field 'outcome' is {outcome!r} but 'correct' is {value!r}; only a match is correct"
            )
        checked: Outcome = outcome
        return checked

    def finished(self, *, default: bool) -> bool:
        reason = self._row.get("finish_reason")
        if reason is None:
            return default
        if reason not in ("stop", "length"):
            raise self._wrong("finish_reason", '"stop" or "length"')
        return bool(reason == "stop")

    def text(self) -> str:
        """Prompt, where there is one, and response: the words that repetition is looked for in."""
        field = "text" if "text" in self._row else "response"
        response, prompt = self._row.get(field), self._row.get("prompt", "")
        if not isinstance(response, str):
            raise ConciseError(
                f"{self._place}: field 'text' is needed: these settings replace the reward of repetitive rollouts; "
                "add the response, or set reward.repetition to null"
            )
        return f"{prompt} {response}" if isinstance(prompt, str) else response

    def score(self) -> float:
        value = self._row.get("score")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            what = "is missing" if value is None else f"is {value!r}"
            raise ConciseError(
                f"{self._place}: field 'score' {what}; advantage.difficulty.score_threshold needs a number in [0, 1]"
            )
        return float(value)

    def _needed(self, field: str) -> Any:
        value = self._row.get(field)
        if value is None:
            raise ConciseError(f"{self._place}: field '{field}' is missing; {NEEDED}")
        return value

    def _wrong(self, field: str, meant: str) -> ConciseError:
        return ConciseError(f"{self._place}: field '{field}' is {self._row[field]!r}; it must be {meant}")
