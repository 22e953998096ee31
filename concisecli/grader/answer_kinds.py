r"""What kind of thing a written answer is: a value, a list, a set, a point, an equation, words ...

`interpret` reads an answer into a small tree of these kinds. What it cannot read completely becomes `Opaque`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from concisecli.grader.expressions import MAX_DEPTH, Ambiguous, Node, TooBig, Unreadable, has, read
from concisecli.grader.normalize import key, normal_number
from concisecli.grader.tokens import REMEMBERED, Token, nesting, pairs, strip_braces, tokens
from concisecli.grader.units import Unit, read_unit


@dataclass(frozen=True, slots=True)
class Scalar:
    tree: Node
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Infinity:
    sign: int


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers side by side, in any order. `joined`: "," or "and" or "or"."""

    parts: tuple[Any, ...]
    joined: str = ","


@dataclass(frozen=True, slots=True)
class Braces:
    r"""\{...\}: a set; no order, no repetition."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Brackets:
    """(a, b, ...): a point, or with two parts an interval."""

    left: str
    parts: tuple[Any, ...]
    right: str


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """a = b, a < b <= c, x in S."""

    parts: tuple[Any, ...]
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetExpression:
    parts: tuple[Any, ...]
    signs: tuple[str, ...]  # cup, cap, minus between the parts


@dataclass(frozen=True, slots=True)
class NamedSet:
    name: str  # R, Z, Q, N, C, empty


@dataclass(frozen=True, slots=True)
class Ratio:
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class InBase:
    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Opaque:
    """Not read; only its own text equals it, or math-verify decides."""

    text: str
    ambiguous: bool = False


RELATIONS = {"=", "<", ">", "<=", ">=", "!=", "~", "in"}
FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def interpret(text: str) -> Any:
    """The kind of a written answer. Never raises."""
    return _short(text) if len(text) <= REMEMBERED else _read(text)


@lru_cache(maxsize=4096)
def _short(text: str) -> Any:
    return _read(text)


def _read(text: str) -> Any:
    found = tokens(text)
    if nesting(found) > MAX_DEPTH:
        return Opaque(loose_key(text))
    try:
        return _interpret(found)
    except Ambiguous:
        return Opaque(loose_key(text), ambiguous=True)
    except (Unreadable, TooBig, RecursionError):
        return Opaque(loose_key(text))


def loose_key(text: str) -> str:
    """For what is not read: the printed text without blanks and without full stops after letters (p.m.)."""
    return re.sub(r"(?<=[A-Za-z])\.|\s", "", key(text))


def _interpret(found: Sequence[Token]) -> Any:
    found = tuple(strip_braces(found))
    if not found:
        raise Unreadable("nothing")
    matched = pairs(found)
    if matched is None:
        raise Unreadable("brackets")
    if any(t.kind == "dots" for t in found):
        raise Unreadable("an ellipsis leaves something out")
    if _is_words(found):
        text = words_key(found)
        return NamedSet("R") if text in _ALL_REALS else Words(text)
    if (ratio := _named_set(found)) is not None:
        return ratio
    found = _with_condition(found, matched)
    matched = pairs(found) or {}
    whole = _whole_bracket(found, matched)
    parts, joints = _split(found, lambda t: t.kind == "sep")
    if joints:
        return _items(parts, [j.text for j in joints])
    if whole is not None and (inside := _bracketed(found)) is not None:
        return inside
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text in RELATIONS)
    if signs:
        return _chain(sides, [s.text for s in signs])
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text in ("cup", "cap", "minus"))
    if signs:
        return SetExpression(tuple(_interpret(s) for s in sides), tuple(s.text for s in signs))
    if found[-1].kind == "end":
        return _matrix(found)
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text == ":")
    if signs:
        return Ratio(tuple(_scalar(s) for s in sides))
    if (based := _in_base(found)) is not None:
        return based
    if (infinite := _infinity(found)) is not None:
        return infinite
    return _scalar(found)


def _with_condition(found: tuple[Token, ...], matched: dict[int, int]) -> tuple[Token, ...]:
    r"""k\pi (k \in Z) is k\pi, k \in Z."""
    start = next((i for i, end in matched.items() if end == len(found) - 1), 0)
    inside = found[start + 1 : -1]
    if not start or found[start].text != "(" or len(inside) < 3 or inside[1].text != "in" or inside[1].kind != "op":
        return found
    return (*found[:start], Token("sep", ","), *inside)


def _split(found: Sequence[Token], at: Callable[[Token], bool]) -> tuple[list[tuple[Token, ...]], list[Token]]:
    """Cut at the tokens outside of any bracket for which `at` holds."""
    depth = 0
    parts: list[list[Token]] = [[]]
    cuts: list[Token] = []
    for token in found:
        if token.kind in ("open", "begin"):
            depth += 1
        elif token.kind in ("close", "end"):
            depth -= 1
        if depth == 0 and token.kind not in ("close", "end") and at(token):
            cuts.append(token)
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(p) for p in parts], cuts


def _is_words(found: Sequence[Token]) -> bool:
    """Prose: at least one word, and nothing that is mathematics."""
    if found[0].text == "-" or not any(t.kind == "text" for t in found):
        return False
    if all(t.kind == "text" and t.text in ("dollar", "euro", "pound") for t in found):
        return False
    return all(
        t.kind in ("text", "sep")
        or (t.kind == "sym" and len(t.text) == 1)
        or t.text in ("-", "'", ".", "(", ")", "!", "in", '"')
        for t in found
    )


def words_key(found: Sequence[Token]) -> str:
    """Words without case, punctuation and brackets around them; a separator counts as a word."""
    joined = " ".join(t.text for t in found if t.kind in ("text", "sym", "num", "sep") or t.text == "in")
    return re.sub(r"[\s_]+", " ", re.sub(r"[^\w\s]", " ", joined.casefold())).strip()


_ALL_REALS = {
    "all real numbers",
    "all reals",
    "real numbers",
    "the real numbers",
    "the set of all real numbers",
    "全体实数",
}


def _named_set(found: Sequence[Token]) -> Any:
    if len(found) == 1 and found[0].kind == "sym":
        name = found[0].text
        if name == "emptyset":
            return NamedSet("empty")
        if sets := re.fullmatch(r"\\mathbb\{([A-Z])\}", name):
            return NamedSet(sets[1])
    if len(found) == 2 and found[0].text == "\\{" and found[1].text == "\\}":
        return NamedSet("empty")
    return None


def _whole_bracket(found: Sequence[Token], matched: dict[int, int]) -> str | None:
    return found[0].text if found[0].kind == "open" and matched.get(0) == len(found) - 1 else None


def _items(parts: list[tuple[Token, ...]], joints: list[str]) -> Any:
    kept: list[tuple[Token, ...]] = []
    for part, joint in itertools.zip_longest(parts, joints):
        if part:
            kept.append(part)
        elif joint not in ("and", "or") or part is parts[-1]:  # ", and" leaves an empty part behind
            raise Unreadable("empty part")
    joined = "or" if "or" in joints else "and" if "and" in joints else ","
    read_parts = [_interpret(p) for p in kept]
    if any(isinstance(p, Words) for p in read_parts) and not all(
        isinstance(p, Words) or _is_letter(p) for p in read_parts
    ):
        raise Unreadable("words between values")
    # x = 1, 2: the name belongs to every value
    first = read_parts[0]
    if isinstance(first, Chain) and first.signs == ("=",) and not any(isinstance(p, Chain) for p in read_parts[1:]):
        read_parts = [first, *[Chain((first.parts[0], p), ("=",)) for p in read_parts[1:]]]
    flat: list[Any] = []
    for part in read_parts:
        flat.extend(part.parts if isinstance(part, Items) else [part])
    return Items(tuple(flat), joined) if len(flat) > 1 else flat[0]


def _is_letter(part: Any) -> bool:
    return isinstance(part, Scalar) and part.unit is None and part.tree[0] in ("sym", "const")


def _bracketed(found: Sequence[Token]) -> Any:
    """A whole bracket that is a set, a point or an interval; None where it only groups."""
    left, right = found[0].text, found[-1].text
    inside = found[1:-1]
    parts, joints = _split(inside, lambda t: t.kind == "sep" and t.text == ",")
    if left == "\\{":
        bar, bars = _split(inside, lambda t: t.kind == "op" and t.text in ("|", ":"))
        if len(bars) == 1 and all(bar):
            return _set_builder(bar[0], bar[1])
        members = _items(parts, [",", *[j.text for j in joints][1:]]) if joints else _interpret(inside)
        return Braces(members.parts if isinstance(members, Items) else (members,))
    if left in ("(", "[", "\\langle") and joints:
        if any(not p for p in parts):
            raise Unreadable("empty part")
        return Brackets(
            "(" if left == "\\langle" else left,
            tuple(_interpret(p) for p in parts),
            ")" if right == "\\rangle" else right,
        )
    if left == "{" and joints:
        return _items(parts, [j.text for j in joints])
    if left in ("(", "{") and right in (")", "}"):
        inner = _interpret(inside)
        return inner
    if left == "[" and right == "]":
        inner = _interpret(inside)
        if isinstance(inner, Scalar):
            return inner
        if isinstance(inner, Matrix):
            return inner
    return None


def _set_builder(element: tuple[Token, ...], condition: tuple[Token, ...]) -> Any:
    r"""\{x | 1 < x < 3\} is its condition; a domain other than the reals before the bar is one condition more."""
    conditions = _interpret(condition)
    if not isinstance(conditions, (Chain, Items)):
        raise Unreadable("set builder")
    listed = list(conditions.parts) if isinstance(conditions, Items) else [conditions]
    if any(t.text == "in" for t in element):
        listed.append(_interpret(element))
    elif len(element) > 1:
        raise Unreadable("set builder")
    listed = [c for c in listed if not (isinstance(c, Chain) and c.signs == ("in",) and c.parts[1] == NamedSet("R"))]
    if not listed:
        return NamedSet("R")
    joined = conditions.joined if isinstance(conditions, Items) and conditions.joined == "or" else "and"
    return listed[0] if len(listed) == 1 else Items(tuple(listed), joined)


_MATRICES = {"pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array"}


def _matrix(found: Sequence[Token]) -> Any:
    start = next((i for i, t in enumerate(found) if t.kind == "begin"), 0)
    if start:
        return _multiple(found[:start], _matrix(found[start:]))
    if found[0].text not in _MATRICES or found[-1].kind != "end" or found[-1].text != found[0].text:
        raise Unreadable(found[0].text)
    if any(t.kind in ("begin", "end") for t in found[1:-1]):
        raise Unreadable("nested environments")
    rows, _ = _split(found[1:-1], lambda t: t.kind == "row")
    if rows and not rows[-1]:
        rows = rows[:-1]
    cells = []
    for row in rows:
        entries, _ = _split(row, lambda t: t.kind == "op" and t.text == "&")
        cells.append(tuple(_interpret(e) for e in entries))
    if not cells or len({len(r) for r in cells}) != 1:
        raise Unreadable("rows differ")
    return Matrix(tuple(cells))


def _multiple(factor: Sequence[Token], matrix: Matrix) -> Matrix:
    """A number before a matrix multiplies its entries."""
    if factor[-1].text == "*":
        factor = factor[:-1]
    times = ("num", Fraction(-1)) if [t.text for t in factor] == ["-"] else read(factor)
    if times[0] == "add" or not all(isinstance(c, Scalar) and c.unit is None for row in matrix.rows for c in row):
        raise Unreadable("multiple of a matrix")
    return Matrix(tuple(tuple(Scalar(("mul", [times, c.tree])) for c in row) for row in matrix.rows))


def _chain(sides: list[tuple[Token, ...]], signs: list[str]) -> Any:
    if any(not s for s in sides):
        raise Unreadable("half a relation")
    parts: list[Any] = []
    for i, side in enumerate(sides):
        if i == 0 and signs[0] in ("=", "~", "in") and len(sides) >= 2 and (label := _label(side)) is not None:
            parts.append(label)
        else:
            parts.append(_interpret(side))
    return Chain(tuple(parts), tuple(signs))


@dataclass(frozen=True, slots=True)
class Name:
    """A left side that only names what follows: x, f(x), (p, q), |AB|, V_1:V_2, Area."""

    text: str
    variable: str = ""  # the letter, where it is one variable


_FACTORS = set("abcdklmnstxyz")  # before a bracket with a sum these multiply; f, g, P and the like take an argument


def _label(side: Sequence[Token]) -> Name | None:
    text = "".join(t.text for t in side if t.text not in ("{", "}"))
    kinds = [t.kind for t in side]
    if len(side) == 1 and side[0].kind == "sym" and side[0].text not in ("e", "i", "pi", "infty", "emptyset"):
        return Name(text, text)
    if kinds[0] == "sym" and side[0].text not in ("pi", "infty") and len(side) > 2:
        rest = side[1:]
        if rest[0].text == "_" and (
            len(rest) == 2 or (rest[1].text == "{" and (pairs(rest) or {}).get(1) == len(rest) - 1)
        ):
            return Name(text, side[0].text)
        if (
            rest[0].text == "("
            and (pairs(rest) or {}).get(0) == len(rest) - 1
            and all(t.kind in ("sym", "num", "sep", "open", "close") or t.text in "+-" for t in rest)
            and (side[0].text not in _FACTORS or not any(t.text in "+-" for t in rest))
        ):
            return Name(text)
    if any(t.kind == "text" and t.text.lower() in ("not", "no", "never") for t in side):
        raise Unreadable("denied")
    if _is_words(side):
        return Name(words_key(side))
    if (
        len(side) > 4
        and side[0].text == "("
        and (pairs(side) or {}).get(0) == len(side) - 1
        and any(t.kind == "sep" for t in side)
    ):
        inside = [t for t in side[1:-1] if t.text not in ("_", "{", "}")]
        if all(t.kind in ("sym", "sep", "num") for t in inside) and not any(t.kind == "num" for t in side[1:2]):
            return Name(text)
    segment = [t for t in side if t.text not in ("|", "angle", "triangle", "{", "}", "measuredangle")]
    if (
        segment
        and len(segment) <= 3
        and all(t.kind in ("sym", "text") and re.fullmatch(r"[A-Z]{1,3}|\\overline\{[A-Z]+\}", t.text) for t in segment)
    ):
        return Name(text)
    parts, cuts = _split(side, lambda t: t.kind == "op" and t.text == ":")
    if cuts and all(
        p
        and all(t.kind in ("sym", "num", "text") or t.text in ("_", "{", "}") for t in p)
        and p[0].kind in ("sym", "text")
        for p in parts
    ):
        return Name(text)
    return None


def _in_base(found: Sequence[Token]) -> InBase | None:
    """2516_8, (110)_3, AB3_{16}, 101_{\\text{two}}."""
    negative = found[0].text == "-"
    found = found[1:] if negative else found
    at = next((i for i, t in enumerate(found) if t.kind == "op" and t.text == "_"), None)
    if not at or any(t.kind == "op" for t in found[at + 1 :]):
        return None
    digits = "".join(t.text for t in found[:at] if t.text not in ("(", ")", "{", "}"))
    base = "".join(t.text for t in found[at + 1 :] if t.text not in ("(", ")", "{", "}"))
    base = {
        "two": "2",
        "three": "3",
        "four": "4",
        "five": "5",
        "six": "6",
        "seven": "7",
        "eight": "8",
        "nine": "9",
        "ten": "10",
        "twelve": "12",
        "sixteen": "16",
    }.get(base, base)
    if base.isdigit() and 2 <= int(base[:3]) <= 36 and re.fullmatch(r"\d[0-9A-Z]*|[A-Z]+\d[0-9A-Z]*|\d+\.\d+", digits):
        digits = normal_number(digits) if "." in digits else digits.lstrip("0") or "0"
        return InBase(("-" if negative else "") + digits, int(base))
    return None


def _infinity(found: Sequence[Token]) -> Infinity | None:
    sign = {"+": 1, "-": -1}.get(found[0].text, 0)
    rest = found[1:] if sign else found
    if len(rest) == 1 and rest[0].text == "infty":
        return Infinity(sign or 1)
    return None


def _scalar(found: Sequence[Token]) -> Any:
    """A value, with or without a unit."""
    if not found:
        raise Unreadable("nothing")
    value, unit = read_unit(list(found))
    if any(t.kind == "text" and t.text == "np" for t in value):  # np.arcsin(10/13), as Minerva's golds are written
        value = [
            t for i, t in enumerate(value) if t.text != "np" and not (t.text == "." and i and value[i - 1].text == "np")
        ]
    tree = read(_join_words(value))
    if has(tree, "pm"):
        return Items(tuple(Scalar(_fix_sign(tree, s), unit) for s in (1, -1)), ",")
    return Scalar(tree, unit)


def _join_words(found: Sequence[Token]) -> list[Token]:
    """Runs of capital letters in a formula (points, angles) are one name each; other words are not mathematics."""
    out = []
    for token in found:
        if token.kind == "text":
            if (
                token.roman
                or token.text in ("AM", "PM")
                or not re.fullmatch(r"[A-Z]{2,4}|[a-z]{3,4}", token.text)
                or len(set(token.text)) != len(token.text)
            ):
                raise Unreadable(token.text)
            token = token._replace(kind="sym")
        out.append(token)
    return out


def _fix_sign(tree: Any, sign: int) -> Any:
    if isinstance(tree, list):
        return [_fix_sign(t, sign) for t in tree]
    if isinstance(tree, tuple):
        if tree == ("pm",):
            return ("num", Fraction(sign))
        return tuple(_fix_sign(t, sign) if isinstance(t, (tuple, list)) else t for t in tree)
    return tree
