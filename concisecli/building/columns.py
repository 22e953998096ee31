"""Give the rows of any source our names: which of its columns is the problem, the answer, the worked solution.

A recipe may say so under `columns`; what it leaves out is found by habit, and the data card shows what was taken.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concisecli.records import ConciseError

PEEK_ROWS = 64  # rows looked at before a missing column is called missing: LEAD's file has six sets of keys

CANDIDATES: dict[str, tuple[str, ...]] = {
    "problem": ("problem", "question", "query", "prompt", "messages", "instruction"),
    "answer": (
        "answer",
        "final_answer",
        "ground_truth",
        "reward_model.ground_truth",
        "ans_box",
        "expected_answer",
        "gold",
    ),
    "solution": ("solution", "solutions", "worked_solution", "rationale"),
    "response": ("response", "output", "completion", "generation", "messages"),
    "level": ("level",),
    "difficulty": ("difficulty",),
    "pass_rate": ("pass_rate", "correctness", "solve_rate"),
    "subject": ("subject", "type", "subfield", "domain"),
    "origin": ("data_source", "source", "critic_method"),
    "choices": ("choices", "options"),
    "id": ("unique_id", "id", "idx", "problem_id", "extra_info.index"),
    "several": ("is_multiple_answer",),
}
NEEDED = {"problems": ("problem", "answer"), "examples": ("problem", "response")}
BLANKS = " \n"  # a form feed or a tab at an end may be half of a LaTeX command, which `cleaning` mends
GSM8K_MARK = "####"
GSM8K_SUM = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True)
class Row:
    """One row under our names, before anything is judged. `answers` holds the items of an answer that is a list."""

    source: str
    place: str
    problem: str | None
    answer: str | None = None
    solution: str | None = None
    answers: tuple[str, ...] = ()
    level: float | None = None
    difficulty: float | None = None
    pass_rate: float | None = None
    subject: str | None = None
    origin: str | None = None
    choices: tuple[str, ...] = ()
    foreign_id: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class ColumnMap:
    """Our name -> the columns to look in, first filled one wins; `used` counts which they were."""

    taken: dict[str, tuple[str, ...]]
    used: dict[str, str] = field(default_factory=dict)

    def value(self, fields: Mapping[str, Any], name: str) -> Any:
        for column in self.taken.get(name, ()):
            value = _dotted(fields, column)
            if value is not None and value != "" and value != []:
                self.used.setdefault(name, column)
                return value
        return None


def column_map(source: str, declared: Mapping[str, str], rows: Sequence[Mapping[str, Any]], kind: str) -> ColumnMap:
    """The mapping for a source, from what its recipe declares and the columns of its first rows.

    Raises ConciseError that names the columns found, where one that is needed or declared is not among them."""
    found = sorted({path for row in rows for path in _paths(row)})
    for name, column in declared.items():
        if name not in CANDIDATES:
            raise ConciseError(f"source '{source}': columns.{name} is not ours; ours are {', '.join(CANDIDATES)}")
        if column not in found:
            raise ConciseError(f"source '{source}': no column '{column}' (columns.{name}); found {', '.join(found)}")
    taken = {name: (declared[name],) if name in declared else CANDIDATES[name] for name in CANDIDATES}
    if "answer" in declared:  # what the recipe calls the answer is not the worked solution as well
        taken["solution"] = tuple(c for c in taken["solution"] if c != declared["answer"])
    for name in NEEDED.get(kind, ("problem",)):  # what lends or is looked for needs its problem alone
        sought = taken[name] + (taken["solution"] if name in ("answer", "response") else ())
        if rows and not any(column in found for column in sought):
            raise ConciseError(
                f"source '{source}': no column for {name}; found {', '.join(found) or 'none'}; "
                f"name it with sources.{source}.columns.{name}"
            )
    return ColumnMap(taken)


def map_row(source: str, place: str, fields: Mapping[str, Any], columns: ColumnMap) -> Row:
    """The row under our names; values that cannot be read as such are left None, for `cleaning` to judge."""
    answers = answer_texts(columns.value(fields, "answer"))
    solution = _joined(columns.value(fields, "solution"))
    flags: tuple[str, ...] = ()
    if len(answers) == 1 and GSM8K_MARK in answers[0]:
        solution, answers = gsm8k_parts(answers[0])
    elif len(answers) > 1 and not columns.value(fields, "several"):
        flags = ("any-of",)
    return Row(
        source,
        place,
        prompt_text(columns.value(fields, "problem")),
        answers[0] if flags or len(answers) == 1 else (", ".join(answers) or None),
        solution,
        answers if len(answers) > 1 else (),
        level_number(columns.value(fields, "level")),
        _number(columns.value(fields, "difficulty")),
        _number(columns.value(fields, "pass_rate")),
        _text(columns.value(fields, "subject")),
        _text(columns.value(fields, "origin")),
        choice_texts(columns.value(fields, "choices")),
        _text(columns.value(fields, "id")),
        flags,
    )


def response_text(fields: Mapping[str, Any], columns: ColumnMap) -> str | None:
    """The assistant's words of a row of examples: a text, or the last assistant message; else the solution."""
    value = columns.value(fields, "response")
    if isinstance(value, list):
        value = _said(value, ("assistant", "gpt"))
    return _text(value) or _joined(columns.value(fields, "solution"))


def answer_texts(value: Any) -> tuple[str, ...]:
    """The answer, whatever its JSON type, as texts without loss: 27.0 is 27, 0.1 stays 0.1, a list has its items."""
    if value is None or isinstance(value, bool):
        return ()
    if isinstance(value, list | tuple):
        return tuple(text for item in value for text in answer_texts(item))
    if isinstance(value, Mapping):
        return answer_texts([value[key] for key in ("text", "value", "content") if key in value][:1])
    if isinstance(value, float):
        return (_float_text(value),) if math.isfinite(value) else ()
    text = str(value).strip(BLANKS)
    return (text,) if text.strip() else ()


def choice_texts(value: Any) -> tuple[str, ...]:
    """The choices, whether listed, by letter, or under `text` beside their labels."""
    if isinstance(value, Mapping) and not any(key in value for key in ("text", "value", "content")):
        value = list(value.values())
    return answer_texts(value)


def _float_text(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def gsm8k_parts(text: str) -> tuple[str, tuple[str, ...]]:
    """GSM8K's answer field: a worked solution with <<calculator marks>>, then `#### N`."""
    solution, _, answer = text.rpartition(GSM8K_MARK)
    answer = answer.strip().replace(",", "")
    return GSM8K_SUM.sub("", solution).strip(), (answer,) if answer else ()


def prompt_text(value: Any) -> str | None:
    """The problem as a text: itself, or the last user message of a list of messages."""
    if isinstance(value, str) and value.lstrip().startswith('[{"'):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, list):
        value = _said(value, ("user", "human", None))
    if isinstance(value, list):  # content in parts
        value = "".join(str(part.get("text", "")) for part in value if isinstance(part, dict))
    return str(value) if isinstance(value, str) else None


def _said(messages: list[Any], roles: tuple[str | None, ...]) -> Any:
    """The last words of one side, in the field names of OpenAI (role, content) or ShareGPT (from, value)."""
    turns = [m for m in messages if isinstance(m, dict) and m.get("role", m.get("from")) in roles]
    return turns[-1].get("content", turns[-1].get("value")) if turns else None


def level_number(value: Any) -> float | None:
    """5 for 5, "5" and "Level 5"; None for "Level ?"."""
    if isinstance(value, str):
        value = value.removeprefix("Level").strip()
    return _number(value)


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _text(value: Any) -> str | None:
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value if item is not None)
    return None if value is None else str(value).strip(BLANKS) or None


def _joined(value: Any) -> str | None:
    """A solution, the first of several, or the assistant's words of a conversation."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = _said(value, ("assistant", "gpt"))
    if isinstance(value, list):
        value = next((item for item in value if isinstance(item, str) and item.strip()), None)
    return str(value).strip(BLANKS) or None if isinstance(value, str) else None


def _dotted(fields: Mapping[str, Any], column: str) -> Any:
    if column in fields or "." not in column:
        return fields.get(column)
    value: Any = fields
    for part in column.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _paths(row: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for key, value in row.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            yield from _paths(value, f"{key}.")
