"""Which cleaned rows a recipe selects: level, difficulty, pass rate, language, length, figures, subject, answer type;
and how many of each source a mixture takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from concisecli.building.cleaning import FIGURE_CODE, Drop
from concisecli.building.columns import Row
from concisecli.config import SelectConfig
from concisecli.records import ConciseError

CHINESE = re.compile(r"[\u3400-\u9fff]")
BOUNDS = (("level", "min_level", "max_level"), ("difficulty", "min_difficulty", "max_difficulty"),
          ("pass_rate", "min_pass_rate", "max_pass_rate"))  # fmt: skip
ANSWER_TYPES = ("integer", "decimal", "fraction", "choice", "text", "tuple", "interval", "set", "matrix", "equation",
                "expression")  # fmt: skip


def refuse(row: Row, config: SelectConfig, count_tokens: Callable[[str], int] | None = None) -> Drop | None:
    """Why a row is not selected. `count_tokens` counts with the recipe's tokenizer.

    Raises ConciseError where a field that is asked for is missing and `missing` says stop."""
    for name, low, high in BOUNDS:
        bounds = getattr(config, low), getattr(config, high)
        if bounds == (None, None):
            continue
        value = getattr(row, name)
        if value is None:
            if config.missing == "stop":
                raise ConciseError(_missing(row, name))
            if config.missing == "drop":
                return Drop("not-selected", f"no {name}")
        elif (bounds[0] is not None and value < bounds[0]) or (bounds[1] is not None and value > bounds[1]):
            return Drop("not-selected", f"{name} {value:g}")
    return _refuse_text(row, config, count_tokens)


def _missing(row: Row, name: str) -> str:
    return (
        f"source '{row.source}': {row.place} has no {name}, which the recipe selects by; add a source with "
        f"role: reference that has it, or set select.missing to keep or drop"
    )


def _refuse_text(row: Row, config: SelectConfig, count_tokens: Callable[[str], int] | None) -> Drop | None:
    problem = row.problem or ""
    if config.languages is not None and (found := language(problem)) not in config.languages:
        return Drop("not-selected", f"language {found}")
    if config.subjects is not None and (row.subject or "").lower() not in {s.lower() for s in config.subjects}:
        return Drop("not-selected", f"subject {row.subject}")
    if config.figures == "drop" and FIGURE_CODE.search(problem):
        return Drop("not-selected", "figure")
    if config.answer_types is not None and (kind := answer_type(row.answer or "")) not in config.answer_types:
        return Drop("not-selected", f"answer type {kind}")
    if count_tokens is not None:
        n = count_tokens(problem)
        if (config.min_tokens or 0) > n or (config.max_tokens is not None and n > config.max_tokens):
            return Drop("not-selected", f"{n} tokens")
    return None


@lru_cache(maxsize=4)
def token_counter(config: SelectConfig) -> Callable[[str], int] | None:
    """Counts tokens of a prompt with `config.tokenizer`, where a bound asks for it."""
    if config.min_tokens is None and config.max_tokens is None:
        return None
    if config.tokenizer is None:
        raise ConciseError("select.min_tokens and select.max_tokens need select.tokenizer; name a folder or hub id")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
    except (OSError, ValueError) as error:
        raise ConciseError(f"select.tokenizer {config.tokenizer} cannot be loaded ({str(error)[:120]})") from error
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])


def language(text: str) -> str:
    """zh where Chinese characters are a tenth of the letters and more, else en."""
    if text.isascii():
        return "en"
    letters = sum(c.isalpha() for c in text) or 1
    return "zh" if len(CHINESE.findall(text)) >= 0.1 * letters else "en"


def answer_type(answer: str) -> str:
    """One of ANSWER_TYPES, by the answer's form alone."""
    text = answer.strip().strip("$").strip()
    for kind, pattern in ANSWER_FORMS:
        if pattern.fullmatch(text):
            return kind
    return "expression"


ANSWER_FORMS = tuple(
    (kind, re.compile(pattern, re.DOTALL))
    for kind, pattern in (
        ("integer", r"[-+]?\d{1,3}(?:(?:,|\{,\}|\\,|\\!,)\d{3})+|[-+]?\d+"),
        ("decimal", r"[-+]?\d*\.\d+"),
        ("fraction", r"[-+]?(?:\\[dt]?frac\s*(?:\{-?\d+\}\{-?\d+\}|\d\s*\d)|\d+\s*/\s*\d+)"),
        ("choice", r"\(?[A-J]\)?|\\text(?:bf)?\{\(?[A-J]\)?\}"),
        ("matrix", r".*\\begin\{[a-zA-Z]*matrix\}.*"),
        (
            "interval",
            r"(?:\\left)?[\[(](?:[^,]+,[^,]*infty[^,]*|[^,]*infty[^,]*,[^,]+)[\])]|(?:\\left)?(?:\[[^,]+,[^,]+[\])]|\([^,]+,[^,]+\])|.*\\cup.*",
        ),
        ("tuple", r"(?:\\left)?\(.+,.+\)"),
        ("set", r"(?:\\left)?\\\{.*\\\}|[^()\[\]]+,[^()\[\]]+|.+,\s*\(.+\)"),
        ("equation", r"[^=<>]+(?:=|<|>|\\leq?|\\geq?)[^=<>]+"),
        ("text", r"(?:\\text(?:bf|rm|it)?\{[^{}]*\}|[A-Za-z]{2,}(?:\s+[A-Za-z]+)*)"),
    )
)


def quotas(counts: Mapping[str, int], weights: Mapping[str, float | None], limit: int | None) -> dict[str, int] | None:
    """Rows of each source, in the ratio of the weights: as many as the scarcest source allows, or the limit. None where
    no source has a weight."""
    given = {name: weight for name in counts if (weight := weights.get(name)) is not None}
    if not given:
        return None
    unweighted = [name for name in counts if name not in given]
    if unweighted:
        raise ConciseError(
            f"some sources have a weight and {', '.join(unweighted)} none; give every source one, or none"
        )
    total = sum(given.values())
    size = min(counts[name] * total / weight for name, weight in given.items())
    size = min(size, limit) if limit is not None else size
    return {name: int(size * weight / total + 1e-9) for name, weight in given.items()}


def shares(values: Iterable[Any]) -> dict[str, int]:
    """Counts by value, most frequent first, for a card."""
    return {str(value): n for value, n in sorted(Counter(values).items(), key=lambda item: (-item[1], str(item[0])))}
