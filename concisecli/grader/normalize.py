"""Before anything is parsed: one spelling for what is the same on paper, and golds of any type as text.

Two answers with equal keys are equal without any parser (lm-evaluation-harness#4030).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any

from concisecli.grader.extraction import box_content, repair
from concisecli.grader.tokens import REMEMBERED, tokens


def key(text: str) -> str:
    """One string per printed form; "" where nothing is printed."""
    return _short_key(text) if len(text) <= REMEMBERED else _key(text)


@lru_cache(maxsize=16384)
def _short_key(text: str) -> str:
    return _key(text)


def _key(text: str) -> str:
    parts: list[str] = []
    last_wordy, before = False, ""
    for token in tokens(text):
        # \frac016 and x_{01} are not \frac16 and x_1
        shown = (
            normal_number(token.text) if token.kind == "num" and before not in ("frac", "binom", "_") else token.text
        )
        before = "_" if token.text == "{" and before == "_" else token.text
        wordy = token.kind in ("text", "fn", "cmd", "num", "begin", "end", "sep") or len(token.text) > 1
        if parts and wordy and last_wordy:
            parts.append(" ")
        if token.kind in ("fn", "cmd"):
            shown = "\\" + shown
        parts.append(shown)
        last_wordy = wordy
    return _canonical_groups("".join(parts))


def _canonical_groups(text: str) -> str:
    """x^{2} and x^2, x_{1} and x_1."""
    return re.sub(r"([\^_])\{([^\s{}\\])\}(?![\d.])", r"\1\2", text)


def normal_number(text: str) -> str:
    """Digits without leading zeros, decimals without trailing ones; anything else as it is."""
    whole, _, part = text.partition(".")
    if not (whole + part).isdigit():
        return text
    part = part.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{part}" if part else "")


_PLAIN = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)")


def plain_number(text: str) -> str | None:
    """The canonical digits of a bare integer or decimal of any length, compared as text and never as a float."""
    text = text.strip()
    if not _PLAIN.fullmatch(text) or not text.isascii():
        return None
    digits = normal_number(text.lstrip("+-"))
    return "-" + digits if text.startswith("-") and digits != "0" else digits


def gold_texts(gold: Any) -> list[str]:
    """A gold of any JSON type as answers to compare with; empty where nothing can match it (null, "", NaN).

    The box, where the gold carries one (DeepScaleR and LEAD rows do), is the answer in it. Math-Verify's `parse` reads
    bare ints, floats and lists as nothing at all (Math-Verify#20, slime#336).
    """
    if gold is None or isinstance(gold, dict):
        return []
    if isinstance(gold, bool):
        return ["True" if gold else "False"]
    if isinstance(gold, int):
        return [int_text(gold)]
    if isinstance(gold, float):
        if math.isnan(gold):
            return []
        if math.isinf(gold):
            return ["\\infty" if gold > 0 else "-\\infty"]
        return [format(Decimal(repr(gold)), "f")]
    if isinstance(gold, (list, tuple)):
        texts = []
        for item in gold:
            inner = gold_texts(item)
            if isinstance(item, (list, tuple)) and len(inner) > 1:
                inner = ["(" + ",".join(inner) + ")"]
            texts.extend(inner)
        return texts
    text = repair(str(gold)).strip()
    text = text.rpartition("####")[2].strip()  # GSM8K: the worked solution, then the answer
    if tagged := re.fullmatch(r"<answer>(.*)</answer>", text, re.DOTALL):
        text = tagged[1].strip()
    boxes = list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])", text))
    if boxes and (content := box_content(text, boxes[-1].end())) is not None and content.strip():
        text = content.strip()
    return [text] if text else []


def int_text(value: int) -> str:
    """str() of an int of any length, without the interpreter's limit on digits."""
    if value.bit_length() < 12_000:
        return str(value)
    head, tail = divmod(abs(value), 10 ** (value.bit_length() // 8))
    width = value.bit_length() // 8
    return ("-" if value < 0 else "") + int_text(head) + int_text(tail).zfill(width)
