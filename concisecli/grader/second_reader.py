r"""math-verify, for what the strict reader has no kind for, behind a guard against its known wrong acceptances.

Its parse has to cover every number and letter of the text (it reads `1,2,\ldots,n` as 2: Math-Verify#14), and a
difference that is not zero at 30 digits is a difference (its own tolerance is absolute, six decimals).
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from concisecli.grader.expressions import MAX_DEPTH
from concisecli.grader.tokens import nesting, pairs, tokens

# What the strict reader has no kind for and math-verify does: sums, products, integrals, limits, determinants.
_SECOND_READER = {"sum", "prod", "int", "iint", "lim", "max", "min", "gcd", "lcm", "det", "partial", "nabla"}
_FIRST_READER = {"frac", "binom", "cbrt", "circ"}
_DETERMINANTS = {"vmatrix", "Vmatrix"}


def before_second_reader() -> None:
    """Called before math-verify is used. A worker replaces it, so that an import is not charged to an answer."""


def second_reader(gold: str, answer: str) -> tuple[bool, str]:
    """The second reader, for what the first one has no kind for, behind a guard."""
    reasons = [_hopeless(side) for side in (gold, answer)]
    if any(reasons):
        return False, next(r for r in reasons if r)
    if not any(_second_kind(side) for side in (gold, answer)):
        return False, "unreadable"
    try:
        before_second_reader()
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that the limit of time is ours to keep
        from math_verify import verify

        parsed = [_covered_parse(side) for side in (gold, answer)]
        if parsed[0] is None or parsed[1] is None:
            return False, "unreadable"
        equal = verify(
            *parsed,
            float_rounding=30,
            numeric_precision=40,
            strict=True,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    except MemoryError:
        raise
    except Exception:  # whatever a parser trips over in a model's text, it is no reason to accept
        return False, "unreadable"
    return bool(equal), "math-verify"


def _second_kind(text: str) -> bool:
    return any(
        (t.kind == "cmd" and t.text in _SECOND_READER)
        or (t.kind == "text" and t.text in _SECOND_READER)
        or (t.kind == "begin" and t.text in _DETERMINANTS)
        for t in tokens(text)
    )


def _hopeless(text: str) -> str | None:
    """Why no reader should see this text."""
    found = tokens(text)
    if pairs(found) is None:
        return "unreadable"
    if any(t.kind == "dots" for t in found):
        return "ellipsis"
    if nesting(found) > MAX_DEPTH or len(found) > 2000:
        return "too-deep"
    if any(t.kind == "num" and len(t.text) > 4000 for t in found):
        return "too-long"
    if any(t.kind == "text" and t.text not in _SECOND_READER for t in found):
        return "unreadable"
    if any(t.kind == "cmd" and t.text not in _SECOND_READER | _FIRST_READER for t in found):
        return "unreadable"
    return None


@lru_cache(maxsize=512)
def _covered_parse(text: str) -> Any:
    """math-verify's parse of a text, or None where it does not account for every number and letter in it."""
    from math_verify import LatexExtractionConfig, parse

    found = parse(
        "\\boxed{" + text + "}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    if not found or isinstance(found[0], str):
        return None
    printed = str(found[0])
    before = ""
    for token in tokens(text):
        shorthand, before = before == "frac", token.text
        if token.kind == "num":
            for number in token.text if shorthand else [token.text]:  # \\frac12 is two numbers
                digits = number.strip("0").strip(".")
                if digits and digits not in printed:
                    return None
                printed = printed.replace(digits, "", 1) if digits else printed
        elif token.kind == "sym" and token.text.isalpha() and token.text.isascii():
            if token.text == "d" and any(t.kind == "cmd" and t.text in ("int", "iint") for t in tokens(text)):
                continue
            name = {"e": "E", "i": "I", "infty": "oo"}.get(token.text, token.text)
            if name not in str(found[0]) and token.text not in str(found[0]):
                return None
    return found[0]
