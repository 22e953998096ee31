r"""Do two written answers mean the same? Structure first (lists, sets, intervals, equations, units, words), values last.

`compare` reads both sides into a small tree of answer kinds. What the strict reader of `expressions` cannot read goes
to math-verify behind a guard: its parse has to cover every number and letter of the text, and a difference that is
not exactly zero is a difference. In doubt the answer is no.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from concisecli.expressions import Ambiguous, Node, TooBig, Unreadable, names, proportional, read, same_value, value_of
from concisecli.expressions import has as has_node
from concisecli.normalize import Token, key, normal_number, pairs, plain_number, tokens
from concisecli.units import Unit, drop_scale, read_unit

MAX_ANSWER = 20_000  # characters; longer answers are compared as text only
CHOICES = "ABCDEFGHIJ"


@dataclass(frozen=True, slots=True)
class Decision:
    equal: bool
    rule: str


# --- kinds of answers -------------------------------------------------------------------------------------------------


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
_FLIP = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


@lru_cache(maxsize=4096)
def interpret(text: str) -> Any:
    """The kind of a written answer. Never raises."""
    found = tokens(text)
    try:
        return _interpret(found)
    except Ambiguous:
        return Opaque(_loose_key(text), ambiguous=True)
    except (Unreadable, TooBig, RecursionError):
        return Opaque(_loose_key(text))


def _loose_key(text: str) -> str:
    """For what is not read: the printed text without blanks and without full stops after letters (p.m.)."""
    return re.sub(r"(?<=[A-Za-z])\.|\s", "", key(text))


def _interpret(found: Sequence[Token]) -> Any:
    found = _unwrap(tuple(found))
    if not found:
        raise Unreadable("nothing")
    matched = pairs(found)
    if matched is None:
        raise Unreadable("brackets")
    if any(t.kind == "dots" for t in found):
        raise Unreadable("an ellipsis leaves something out")
    if _is_words(found):
        return Words(words_key(found))
    if (ratio := _named_set(found)) is not None:
        return ratio
    whole = _whole_bracket(found, matched)
    parts, joints = _split(found, lambda t: t.kind == "sep")
    if joints:
        return _items(parts, [j.text for j in joints])
    if whole is not None and (inside := _bracketed(found)) is not None:
        return inside
    if found[0].kind == "begin":
        return _matrix(found)
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text in RELATIONS)
    if signs:
        return _chain(sides, [s.text for s in signs])
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text in ("cup", "cap", "minus"))
    if signs:
        return SetExpression(tuple(_interpret(s) for s in sides), tuple(s.text for s in signs))
    sides, signs = _split(found, lambda t: t.kind == "op" and t.text == ":")
    if signs:
        return Ratio(tuple(_scalar(s) for s in sides))
    if (based := _in_base(found)) is not None:
        return based
    if (infinite := _infinity(found)) is not None:
        return infinite
    return _scalar(found)


def _unwrap(found: tuple[Token, ...]) -> tuple[Token, ...]:
    while len(found) > 2 and found[0].kind == "open" and found[0].text == "{":
        matched = pairs(found)
        if not matched or matched.get(0) != len(found) - 1:
            break
        found = found[1:-1]
    return found


def _split(found: Sequence[Token], at: Any) -> tuple[list[tuple[Token, ...]], list[Token]]:
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
    if not any(t.kind == "text" for t in found):
        return False
    if all(t.kind == "text" and t.text in ("dollar", "euro", "pound") for t in found):
        return False
    return all(t.kind in ("text", "sep") or (t.kind == "sym" and len(t.text) == 1) or t.text in ("-", "'", ".", "(", ")", "!", "in", '"') for t in found)


def words_key(found: Sequence[Token]) -> str:
    """Words without case, punctuation and brackets around them; a separator counts as a word."""
    joined = " ".join(t.text for t in found if t.kind in ("text", "sym", "num", "sep") or t.text == "in")
    return re.sub(r"[\s_]+", " ", re.sub(r"[^\w\s]", " ", joined.casefold())).strip()


_SAME_WORDS = [
    {"no solution", "no solutions", "there is no solution", "there are no solutions", "无解", "empty set", "the empty set", "空集"},
    {"does not exist", "dne", "不存在"},
    {"infinitely many", "infinitely many solutions", "infinite solutions", "infinite number of solutions"},
    {"yes", "是"}, {"no", "否", "不是"}, {"true", "正确"}, {"false", "错误"},
]  # fmt: skip


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
        elif joint not in ("and", "or") and part is not parts[-1]:  # ", and" leaves an empty part behind
            raise Unreadable("empty part")
        elif part is parts[-1]:
            raise Unreadable("empty part")
    joined = "or" if "or" in joints else "and" if "and" in joints else ","
    read_parts = [_interpret(p) for p in kept]
    if any(isinstance(p, Words) for p in read_parts) and not all(isinstance(p, Words) or _is_letter(p) for p in read_parts):
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
            condition = _interpret(bar[1])
            if isinstance(condition, (Chain, Items)):
                return condition
            raise Unreadable("set builder")
        members = _items(parts, [",", *[j.text for j in joints][1:]]) if joints else _interpret(inside)
        return Braces(members.parts if isinstance(members, Items) else (members,))
    if left in ("(", "[", "\\langle") and joints:
        if any(not p for p in parts):
            raise Unreadable("empty part")
        return Brackets("(" if left == "\\langle" else left, tuple(_interpret(p) for p in parts), ")" if right == "\\rangle" else right)
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


_MATRICES = {"pmatrix", "bmatrix", "matrix", "Bmatrix", "smallmatrix", "array"}


def _matrix(found: Sequence[Token]) -> Any:
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


def _label(side: Sequence[Token]) -> Name | None:
    text = "".join(t.text for t in side if t.text not in ("{", "}"))
    kinds = [t.kind for t in side]
    if len(side) == 1 and side[0].kind == "sym" and side[0].text not in ("e", "i", "pi", "infty", "emptyset"):
        return Name(text, text)
    if kinds[0] == "sym" and side[0].text not in ("pi", "infty") and len(side) > 2:
        rest = side[1:]
        if rest[0].text == "_" and (len(rest) == 2 or (rest[1].text == "{" and (pairs(rest) or {}).get(1) == len(rest) - 1)):
            return Name(text, side[0].text)
        if rest[0].text == "(" and (pairs(rest) or {}).get(0) == len(rest) - 1 and all(t.kind in ("sym", "num", "sep", "open", "close") or t.text in "+-" for t in rest):
            return Name(text)
    if _is_words(side):
        return Name(words_key(side))
    if len(side) > 4 and side[0].text == "(" and (pairs(side) or {}).get(0) == len(side) - 1 and any(t.kind == "sep" for t in side):
        inside = [t for t in side[1:-1] if t.text not in ("_", "{", "}")]
        if all(t.kind in ("sym", "sep", "num") for t in inside) and not any(t.kind == "num" for t in side[1:2]):
            return Name(text)
    segment = [t for t in side if t.text not in ("|", "angle", "triangle", "{", "}", "measuredangle")]
    if segment and len(segment) <= 3 and all(t.kind in ("sym", "text") and re.fullmatch(r"[A-Z]{1,3}|\\overline\{[A-Z]+\}", t.text) for t in segment):
        return Name(text)
    parts, cuts = _split(side, lambda t: t.kind == "op" and t.text == ":")
    if cuts and all(p and all(t.kind in ("sym", "num", "text") or t.text in ("_", "{", "}") for t in p) and p[0].kind in ("sym", "text") for p in parts):
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
    base = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}.get(base, base)
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
        value = [t for i, t in enumerate(value) if t.text != "np" and not (t.text == "." and i and value[i - 1].text == "np")]
    tree = read(_join_words(value))
    if has_node(tree, "pm"):
        return Items(tuple(Scalar(_fix_sign(tree, s), unit) for s in (1, -1)), ",")
    return Scalar(tree, unit)


def _join_words(found: Sequence[Token]) -> list[Token]:
    """Runs of capital letters in a formula (points, angles) are one name each; other words are not mathematics."""
    out = []
    for token in found:
        if token.kind == "text":
            if token.roman or not re.fullmatch(r"[A-Z]{2,4}|[a-z]{3,4}", token.text) or len(set(token.text)) != len(token.text):
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


# --- comparison -------------------------------------------------------------------------------------------------------


def compare(gold: str, answer: str, *, slack: float = 0.0) -> Decision:
    """Whether an answer means the same as a gold answer. Pure; no time limit of its own."""
    quick = quick_compare(gold, answer)
    if quick is not None and not (slack and quick.rule == "other-number"):
        return quick
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return Decision(False, "too-long")
    if choice := _compare_choice(gold, answer):
        return choice
    g, a = interpret(gold), interpret(answer)
    decision = _decide(g, a, slack)
    if decision is not None and decision.equal:
        return decision
    if (content := _choice_content(answer)) and not _bare_choice(gold):
        inner = compare(gold, content, slack=slack)
        if inner.equal:
            return Decision(True, "choice-content")
    if decision is not None:
        return decision
    return _by_math_verify(gold, answer, g, a)


def quick_compare(gold: str, answer: str) -> Decision | None:
    """What text alone decides: equal spellings, and two bare numbers. Cheap enough for a hot loop."""
    gold, answer = gold.strip(), answer.strip()
    if gold == answer:
        return Decision(bool(gold), "same-text" if gold else "no-gold")
    if (x := plain_number(gold)) is not None and (y := plain_number(answer)) is not None:
        return Decision(x == y, "same-number" if x == y else "other-number")
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return Decision(False, "too-long")
    g, a = key(gold), key(answer)
    if not g:
        return Decision(False, "no-gold")
    if not a:
        return Decision(False, "nothing-printed")
    if g == a:
        return Decision(True, "same-text")
    if (x := plain_number(g)) is not None and (y := plain_number(a)) is not None:
        return Decision(x == y, "same-number" if x == y else "other-number")
    return None


_LABELLED = re.compile(r"\(\s*(?P<a>[A-J])\s*\)|(?P<b>[A-J])\s*(?:[):：]|\.(?!\d))")


def _flat(text: str) -> str:
    return "".join((" " if t.space else "") + t.text for t in tokens(text)).strip()


def _bare_choice(text: str) -> str | None:
    flat = re.sub(r"^(?i:the )?(?i:option|choice|answer) ", "", _flat(text))
    found = re.fullmatch(r"\(\s*([A-J])\s*\)|([A-J])\s*[).]?", flat)
    return (found[1] or found[2]) if found else None


def _choice_content(text: str) -> str | None:
    """`(D) 192` -> `192`."""
    flat = re.match(r"\s*(?:\\(?:text|textbf|mathbf|mathrm|bf|bold)\s*\{)?\s*(?:\(\s*[A-J]\s*\)|[A-J]\s*[):.](?!\d))\s*\}?", text)
    if not flat:
        return None
    rest = text[flat.end() :].strip()
    if rest.startswith(("=", ",", "_", "^")) or not rest:
        return None
    if rest.endswith("}") and rest.count("{") < rest.count("}"):
        rest = rest[:-1]
    return rest


def _compare_choice(gold: str, answer: str) -> Decision | None:
    """A gold that is one letter of a multiple choice question: the label of the answer decides, the option's text
    does not (NeMo Gym#1844)."""
    letter = _bare_choice(gold)
    if letter is None:
        label = _LABELLED.match(_flat(gold))
        theirs = _bare_choice(answer)
        if label and theirs and _choice_content(gold):
            return Decision((label["a"] or label["b"]) == theirs, "choice")
        return None
    theirs = _bare_choice(answer)
    if theirs is None:
        label = _LABELLED.match(re.sub(r"^(?i:option|choice) ", "", _flat(answer)))
        theirs = (label["a"] or label["b"]) if label else None
        if theirs is None:
            return None
        rest = _flat(answer)[label.end() :] if label else ""
        if re.search(r"\bor\b|\band\b|\([A-J]\)", rest):
            return Decision(False, "choice")
    return Decision(theirs == letter, "choice")


def _decide(g: Any, a: Any, slack: float = 0.0) -> Decision | None:
    """None where one side was not read. A set of one element may be written as that element, as a whole answer only."""
    if isinstance(g, Braces) != isinstance(a, Braces):
        g, a = (side.parts[0] if isinstance(side, Braces) and len(side.parts) == 1 and isinstance(side.parts[0], Scalar) else side for side in (g, a))
    try:
        equal = _equal(g, a, slack)
    except (Unreadable, TooBig):
        equal = None
    return None if equal is None else Decision(equal, _rule(g, a))


def _rule(g: Any, a: Any) -> str:
    kinds = {type(g), type(a)}
    for kind, name in (
        (Words, "words"), (Matrix, "matrix"), (InBase, "base"), (Ratio, "ratio"), (Chain, "relation"), (SetExpression, "set"),
        (NamedSet, "set"), (Braces, "set"), (Brackets, "tuple-or-interval"), (Items, "list"), (Infinity, "infinity"),
    ):  # fmt: skip
        if kind in kinds:
            return name
    return "value"


def _equal(g: Any, a: Any, slack: float = 0.0) -> bool | None:
    if isinstance(g, Opaque) or isinstance(a, Opaque):
        both = isinstance(g, Opaque) and isinstance(a, Opaque)
        return True if both and g.text == a.text else None
    if isinstance(g, Words) or isinstance(a, Words):
        return _equal_words(g, a)
    if isinstance(g, Scalar) and isinstance(a, Scalar):
        return _equal_scalars(g, a, slack)
    if isinstance(g, Chain) or isinstance(a, Chain):
        return _equal_relations(g, a)
    if isinstance(g, Items) or isinstance(a, Items):
        return _equal_items(g, a)
    if isinstance(g, (SetExpression, NamedSet)) or isinstance(a, (SetExpression, NamedSet)):
        return _equal_sets(g, a)
    if isinstance(g, Braces) or isinstance(a, Braces):
        if isinstance(g, Braces) and isinstance(a, Braces):
            return _match_all(_distinct(g.parts), _distinct(a.parts))
        return False
    if type(g) is not type(a):
        if {type(g), type(a)} == {Ratio, Scalar}:
            return _equal_ratio_value(g, a)
        return False
    if isinstance(g, Brackets):
        return (g.left, g.right) == (a.left, a.right) and _all(g.parts, a.parts)
    if isinstance(g, Matrix):
        return len(g.rows) == len(a.rows) and all(_all(r, s) for r, s in zip(g.rows, a.rows, strict=True))
    if isinstance(g, Ratio):
        return _equal_ratios(g, a)
    return bool(g == a)  # InBase, Infinity


def _all(g: Sequence[Any], a: Sequence[Any]) -> bool:
    return len(g) == len(a) and all(_equal(x, y) is True for x, y in zip(g, a, strict=True))


def _equal_words(g: Any, a: Any) -> bool:
    texts = []
    for side in (g, a):
        if isinstance(side, Words):
            texts.append(side.text)
        elif isinstance(side, NamedSet) and side.name == "empty":
            texts.append("empty set")
        else:
            return False
    return texts[0] == texts[1] or any(texts[0] in group and texts[1] in group for group in _SAME_WORDS)


def _equal_scalars(g: Scalar, a: Scalar, slack: float = 0.0) -> bool | None:
    gold, answer = g.tree, a.tree
    if g.unit is not None and a.unit is not None:
        scale = g.unit.scale_to(a.unit)
        if scale is None:
            return False
        if scale != 1:
            gold = ("mul", [gold, ("num", scale)])
    same = same_value(gold, answer, slack=slack)
    if same is True:
        return True
    percent = _percent(g.tree, a.tree)
    if percent is not None and percent:
        return True
    degrees = [drop_scale(s.unit) == "deg" for s in (g, a)]
    if degrees[0] != degrees[1] and (g.unit is None or a.unit is None):
        # 60 degrees written as pi/3; a bare 60 was tried above
        radians = ("mul", [g.tree if degrees[0] else a.tree, ("div", ("const", "pi"), ("num", Fraction(180)))])
        other = a.tree if degrees[0] else g.tree
        if has_node(other, "const", "pi"):
            return same_value(radians, other)
    return same


def _percent(gold: Node, answer: Node) -> bool | None:
    """28% and 28 are taken as one answer to "how many percent" (Math-Verify tests, hendrycks/math); 0.28 and 28 are
    not, and a bare gold up to 1 is a share, not a number of percent."""
    bare = [_without_percent(t) for t in (gold, answer)]
    if bare[0] is not None and bare[1] is None:
        return same_value(bare[0], answer)
    if bare[1] is not None and bare[0] is None and gold[0] in ("num", "neg"):
        value = value_of(gold)
        if isinstance(value, Fraction) and abs(value) > 1:
            return same_value(gold, bare[1])
    return None


def _without_percent(tree: Node) -> Node | None:
    if tree[0] == "neg":
        inner = _without_percent(tree[1])
        return None if inner is None else ("neg", inner)
    return tree[1] if tree[0] == "percent" else None


def _equal_ratios(g: Ratio, a: Ratio) -> bool | None:
    if len(g.parts) != len(a.parts) or not all(isinstance(p, Scalar) for p in (*g.parts, *a.parts)):
        return False
    if any(p.unit for p in (*g.parts, *a.parts)):
        return all(_equal(x, y) is True for x, y in zip(g.parts, a.parts, strict=True))
    first_g, first_a = g.parts[0].tree, a.parts[0].tree
    if any(value_of(p.tree) == 0 for p in (*g.parts, *a.parts)):  # a time of day (05:00), or nothing to divide by
        return _all(g.parts, a.parts)
    for x, y in zip(g.parts[1:], a.parts[1:], strict=True):
        if same_value(("mul", [first_g, y.tree]), ("mul", [first_a, x.tree])) is not True:
            return False
    return True


def _equal_ratio_value(g: Any, a: Any) -> bool | None:
    ratio, scalar = (g, a) if isinstance(g, Ratio) else (a, g)
    if len(ratio.parts) != 2 or scalar.unit or scalar.tree[0] != "div" or any(p.unit for p in ratio.parts if isinstance(p, Scalar)):
        return False
    return same_value(("div", ratio.parts[0].tree, ratio.parts[1].tree), scalar.tree)


def _distinct(parts: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    seen: set[Any] = set()
    for part in parts:
        mark = _exact(part)
        if mark is not None:
            if mark not in seen:
                seen.add(mark)
                kept.append(part)
        elif len(parts) > 200 or not any(_equal(part, k) is True for k in kept):
            kept.append(part)
    return kept


def _exact(part: Any) -> Fraction | None:
    if isinstance(part, Scalar) and part.unit is None:
        value = value_of(part.tree)
        return value if isinstance(value, Fraction) else None
    return None


def _match_all(g: Sequence[Any], a: Sequence[Any]) -> bool:
    """A one-to-one match in any order."""
    if len(g) != len(a):
        return False
    left: dict[Fraction, int] = {}
    rest_g, rest_a = [], []
    for part in g:
        mark = _exact(part)
        if mark is None:
            rest_g.append(part)
        else:
            left[mark] = left.get(mark, 0) + 1
    for part in a:
        mark = _exact(part)
        if mark is not None and left.get(mark, 0) > 0:
            left[mark] -= 1
        else:
            rest_a.append(part)
    for mark, count in left.items():
        rest_g.extend([Scalar(("num", mark))] * count)
    if len(rest_g) > 300:
        return rest_g == rest_a
    for part in rest_g:
        hit = next((i for i, other in enumerate(rest_a) if _equal(part, other) is True), None)
        if hit is None:
            return False
        rest_a.pop(hit)
    return not rest_a


def _equal_items(g: Any, a: Any) -> bool | None:
    sides = []
    for side in (g, a):
        if isinstance(side, Items):
            sides.append(list(side.parts))
        elif isinstance(side, Braces):
            sides.append(_distinct(side.parts))
        else:
            sides.append(None)
    if sides[0] is None or sides[1] is None:
        whole = [as_set(s) for s in (g, a)]
        if whole[0] is not None and whole[1] is not None and (isinstance(g, SetExpression) or isinstance(a, SetExpression)):
            return _same_real_set(whole[0], whole[1])
        return False
    if any(isinstance(s, Braces) for s in (g, a)):
        sides = [_distinct(s) for s in sides]  # type: ignore[arg-type]
    if _match_all(sides[0], sides[1]):  # type: ignore[arg-type]
        return True
    return _equal_item_sets(g, a)


def _equal_item_sets(g: Any, a: Any) -> bool:
    """Lists of relations as sets of numbers: x < 1 or x > 3 against (-oo, 1) cup (3, oo)."""
    if not any(isinstance(p, Chain) for s in (g, a) if isinstance(s, Items) for p in s.parts):
        return False
    whole = [as_set(s) for s in (g, a)]
    return whole[0] is not None and whole[1] is not None and _same_real_set(whole[0], whole[1])


# --- relations --------------------------------------------------------------------------------------------------------


def _equal_relations(g: Any, a: Any) -> bool | None:
    if isinstance(g, Chain) and isinstance(a, Chain):
        if _same_chain(g, a):
            return True
        if _is_definition(g) and _is_definition(a):
            left_g, left_a = g.parts[0], a.parts[0]
            if left_g.text == left_a.text:
                return _equal(_defined(g), _defined(a))
        return _same_relation(g, a)
    if isinstance(g, Items) or isinstance(a, Items):
        return _relation_against_items(g, a)
    chain, other = (g, a) if isinstance(g, Chain) else (a, g)
    if (value := _chain_value(chain)) is not None:
        values = value if isinstance(value, list) else [value]
        return any(_equal(v, other) is True if chain is g else _equal(other, v) is True for v in values)
    sets = [as_set(x) for x in (chain, other)]
    if sets[0] is not None and sets[1] is not None and not isinstance(other, (Scalar, Infinity)):
        return _same_real_set(sets[0], sets[1])
    return False


def _relation_against_items(g: Any, a: Any) -> bool | None:
    """x = plus or minus 2 carries its list on the right."""
    sides = []
    for side in (g, a):
        if isinstance(side, Chain):
            value = _chain_value(side)
            inner = value[-1] if isinstance(value, list) else value
            if inner is None:
                sets = [as_set(x) for x in (g, a)]
                return sets[0] is not None and sets[1] is not None and _same_real_set(sets[0], sets[1])
            sides.append(inner)
        else:
            sides.append(values_of_items(side))
    return _equal(sides[0], sides[1])


def values_of_items(items: Any) -> Any:
    """x = 1, x = 2 as 1, 2 where all parts name the same variable, subscripts aside."""
    if not isinstance(items, Items):
        return items
    if all(isinstance(p, Chain) and _is_definition(p) for p in items.parts):
        variables = {p.parts[0].variable or p.parts[0].text for p in items.parts}
        if len(variables) == 1:
            flat: list[Any] = []
            for part in items.parts:
                value = _defined(part)
                flat.extend(value.parts if isinstance(value, Items) else [value])
            return Items(tuple(flat), items.joined)
    return items


def _is_definition(chain: Chain) -> bool:
    return isinstance(chain.parts[0], Name) and all(s in ("=", "~") for s in chain.signs) or (isinstance(chain.parts[0], Name) and chain.signs == ("in",))


def _defined(chain: Chain) -> Any:
    return chain.parts[-1]


def _chain_value(chain: Chain) -> Any:
    """The value a chain of equalities ends in: 11 in x = 2 + 9 = 11; None where it is an equation in its own right.
    A chain that contradicts itself (2 + 2 = 5) has none. After an approximation sign, what stands before it counts too."""
    if any(s not in ("=", "~", "in") for s in chain.signs) or ("in" in chain.signs and chain.signs != ("in",)):
        return None
    parts = chain.parts
    named = isinstance(parts[0], Name)
    rest = parts[1:] if named else parts
    signs = chain.signs[1:] if named else chain.signs
    if not named and not all(isinstance(p, Scalar) and not names(p.tree) for p in rest):
        return None
    if named and len(rest) == 1 and isinstance(rest[0], Scalar) and parts[0].variable in names(rest[0].tree):
        return None
    for left, right, sign in zip(rest, rest[1:], signs, strict=False):
        if sign == "=" and _equal(left, right) is False:
            return None
    if "~" in signs:
        return [rest[0], rest[-1]]
    return rest[-1]


def _as_tree(part: Any) -> Node | None:
    if isinstance(part, Scalar) and part.unit is None:
        return part.tree
    if isinstance(part, Name) and part.variable and part.text == part.variable:
        return ("sym", part.variable)
    if isinstance(part, Name):
        try:
            return read(tokens(part.text))
        except (Unreadable, TooBig):
            return None
    return None


def _difference(chain: Chain) -> Node | None:
    left, right = _as_tree(chain.parts[0]), _as_tree(chain.parts[1])
    return None if left is None or right is None else ("add", [left, ("neg", right)])


def _same_chain(g: Chain, a: Chain) -> bool:
    if len(g.parts) != len(a.parts):
        return False
    turned = Chain(tuple(reversed(a.parts)), tuple(_FLIP.get(s, s) for s in reversed(a.signs)))
    for other in (a, turned):
        if g.signs == other.signs and all(_same_part(x, y) for x, y in zip(g.parts, other.parts, strict=True)):
            return True
    return False


def _same_part(x: Any, y: Any) -> bool:
    if isinstance(x, Name) and isinstance(y, Name):
        return x.text == y.text
    if isinstance(x, Name) or isinstance(y, Name):
        left, right = _as_tree(x), _as_tree(y)
        return left is not None and right is not None and same_value(left, right) is True
    return _equal(x, y) is True


def _same_relation(g: Chain, a: Chain) -> bool | None:
    if len(g.parts) == len(a.parts) == 2:
        sign, other = g.signs[0], a.signs[0]
        x, y = _difference(g), _difference(a)
        if x is not None and y is not None:
            if sign == other and sign in ("=", "!="):
                return proportional(x, y) is True
            if sign in _FLIP and other in _FLIP:
                if _FLIP[sign] == other:
                    y = ("neg", y)
                elif sign != other:
                    return False
                if proportional(x, y, positive=True) is True:
                    return True
    sets = [as_set(s) for s in (g, a)]
    if sets[0] is not None and sets[1] is not None and not all("=" in s.signs for s in (g, a)):
        return _same_real_set(sets[0], sets[1])
    if any(isinstance(p, Opaque) for p in (*g.parts, *a.parts)):
        return None
    return False


# --- sets of real numbers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval; `low` and `high` are trees or Infinity."""

    low: Any
    low_in: bool
    high: Any
    high_in: bool


@dataclass(frozen=True, slots=True)
class RealSet:
    pieces: tuple[Piece, ...]
    variable: str = ""


_ALL = RealSet((Piece(Infinity(-1), False, Infinity(1), False),))


def as_set(node: Any) -> RealSet | None:
    """A node as a union of intervals; None where it is no such thing."""
    if isinstance(node, NamedSet):
        return RealSet(()) if node.name == "empty" else _ALL if node.name == "R" else None
    if isinstance(node, Brackets):
        if len(node.parts) != 2 or node.left not in "([" or node.right not in ")]":
            return None
        ends = [_end(p) for p in node.parts]
        if ends[0] is None or ends[1] is None:
            return None
        order = _order(ends[0], ends[1])
        if order is not None and order >= 0 and not (order == 0 and node.left == "[" and node.right == "]"):
            return None
        return RealSet((Piece(ends[0], node.left == "[", ends[1], node.right == "]"),))
    if isinstance(node, Braces):
        points = [_end(p) for p in node.parts]
        if any(p is None or isinstance(p, Infinity) for p in points):
            return None
        return RealSet(tuple(Piece(p, True, p, True) for p in points))
    if isinstance(node, SetExpression):
        return _combine([as_set(p) for p in node.parts], node.signs)
    if isinstance(node, Chain):
        return _solve(node)
    if isinstance(node, Items):
        if not all(isinstance(p, Chain) for p in node.parts):
            return None
        sign = {"or": "cup", "and": "cap", ",": "cap"}[node.joined]
        if node.joined == "," and not all(p.signs == ("!=",) for p in node.parts):
            return None
        return _combine([as_set(p) for p in node.parts], (sign,) * (len(node.parts) - 1))
    return None


def _end(part: Any) -> Any:
    if isinstance(part, Infinity):
        return part
    if isinstance(part, Scalar) and part.unit is None and not has_node(part.tree, "const", "i"):
        return part.tree
    return None


def _solve(chain: Chain) -> RealSet | None:
    """x > 3, 1 < x <= 2, x in S, x != 0 for one letter x."""
    places = [i for i, p in enumerate(chain.parts) if (isinstance(p, Name) and p.variable) or (isinstance(p, Scalar) and p.tree[0] == "sym")]
    if len(places) != 1:
        return None
    at = places[0]
    part = chain.parts[at]
    variable = part.variable if isinstance(part, Name) else part.tree[1]
    if any(isinstance(p, Scalar) and variable in names(p.tree) for i, p in enumerate(chain.parts) if i != at):
        return None
    if chain.signs == ("in",) and at == 0:
        inner = as_set(chain.parts[1])
        return None if inner is None else RealSet(inner.pieces, variable)
    if chain.signs == ("!=",):
        point = _end(chain.parts[1 - at])
        if point is None or isinstance(point, Infinity):
            return None
        return RealSet((Piece(Infinity(-1), False, point, False), Piece(point, False, Infinity(1), False)), variable)
    if chain.signs == ("=",):
        point = _end(chain.parts[1 - at])
        return None if point is None or isinstance(point, Infinity) else RealSet((Piece(point, True, point, True),), variable)
    if not all(s in _FLIP for s in chain.signs):
        return None
    if len(chain.parts) == 2:
        sign = chain.signs[0] if at == 0 else _FLIP[chain.signs[0]]
        point = _end(chain.parts[1 - at])
        if point is None:
            return None
        if sign in ("<", "<="):
            return RealSet((Piece(Infinity(-1), False, point, sign == "<="),), variable)
        return RealSet((Piece(point, sign == ">=", Infinity(1), False),), variable)
    if len(chain.parts) == 3 and at == 1:
        signs, ends = list(chain.signs), [chain.parts[0], chain.parts[2]]
        if signs[0] in (">", ">="):
            signs, ends = [_FLIP[s] for s in reversed(signs)], ends[::-1]
        if signs[0] not in ("<", "<=") or signs[1] not in ("<", "<="):
            return None
        low, high = _end(ends[0]), _end(ends[1])
        if low is None or high is None:
            return None
        return RealSet((Piece(low, signs[0] == "<=", high, signs[1] == "<="),), variable)
    return None


def _order(x: Any, y: Any) -> int | None:
    """-1, 0, 1; None where an end is not a number."""
    if isinstance(x, Infinity) or isinstance(y, Infinity):
        left = x.sign if isinstance(x, Infinity) else 0
        right = y.sign if isinstance(y, Infinity) else 0
        return (left > right) - (left < right)
    if same_value(x, y) is True:
        return 0
    a, b = value_of(x), value_of(y)
    if a is None or b is None:
        return None
    try:
        return -1 if a < b else 1
    except TypeError:
        return None


def _combine(sets: Sequence[RealSet | None], signs: Sequence[str]) -> RealSet | None:
    """Left to right; complements and intersections only between numbers."""
    if any(s is None for s in sets):
        return None
    result = sets[0]
    for other, sign in zip(sets[1:], signs, strict=True):
        assert result is not None and other is not None
        if result.variable and other.variable and result.variable != other.variable:
            return None
        variable = result.variable or other.variable
        if sign == "cup":
            result = RealSet(result.pieces + other.pieces, variable)
            continue
        right = _complement(other) if sign == "minus" else other
        if right is None:
            return None
        pieces = _intersect(result, right)
        if pieces is None:
            return None
        result = RealSet(pieces, variable)
    return result


def _complement(node: RealSet) -> RealSet | None:
    merged = _merge(node)
    if merged is None:
        return None
    pieces: list[Piece] = []
    low: Any = Infinity(-1)
    low_in = False
    for piece in merged:
        if _order(low, piece.low) != 0 or (low_in and not piece.low_in):
            pieces.append(Piece(low, low_in, piece.low, not piece.low_in and not isinstance(piece.low, Infinity)))
        low, low_in = piece.high, not piece.high_in
    if not isinstance(low, Infinity) or low.sign < 0:
        pieces.append(Piece(low, low_in and not isinstance(low, Infinity), Infinity(1), False))
    return RealSet(tuple(pieces), node.variable)


def _intersect(x: RealSet, y: RealSet) -> tuple[Piece, ...] | None:
    pieces = []
    for a in x.pieces:
        for b in y.pieces:
            low, high = _order(a.low, b.low), _order(a.high, b.high)
            if low is None or high is None:
                return None
            start, start_in = (a.low, a.low_in and (b.low_in or low > 0)) if low >= 0 else (b.low, b.low_in)
            end, end_in = (a.high, a.high_in and (b.high_in or high < 0)) if high <= 0 else (b.high, b.high_in)
            order = _order(start, end)
            if order is None:
                return None
            if order < 0 or (order == 0 and start_in and end_in):
                pieces.append(Piece(start, start_in, end, end_in))
    return tuple(pieces)


def _merge(node: RealSet) -> list[Piece] | None:
    """Sorted, overlapping and touching pieces joined; None where ends cannot be ordered."""
    import functools

    pieces = list(node.pieces)
    if any(_order(p.low, p.high) is None for p in pieces):
        return None
    if len(pieces) > 1 and any(_order(p.low, q.low) is None for p, q in itertools.pairwise(pieces)):
        return None
    pieces.sort(key=functools.cmp_to_key(lambda p, q: (_order(p.low, q.low) or 0) or int(q.low_in) - int(p.low_in)))
    merged: list[Piece] = []
    for piece in pieces:
        if merged:
            last = merged[-1]
            touch = _order(piece.low, last.high)
            if touch is not None and (touch < 0 or (touch == 0 and (piece.low_in or last.high_in))):
                further = _order(piece.high, last.high) or 0
                if further > 0:
                    merged[-1] = Piece(last.low, last.low_in, piece.high, piece.high_in)
                elif further == 0:
                    merged[-1] = Piece(last.low, last.low_in, last.high, last.high_in or piece.high_in)
                continue
        merged.append(piece)
    return merged


def _same_real_set(x: RealSet, y: RealSet) -> bool:
    if x.variable and y.variable and x.variable != y.variable:
        return False
    a, b = _merge(x), _merge(y)
    left, right = (list(x.pieces), list(y.pieces)) if a is None or b is None else (a, b)
    return len(left) == len(right) and all(_same_piece(p, q) for p, q in zip(left, right, strict=True))


def _same_piece(p: Piece, q: Piece) -> bool:
    if not (_same_end(p.low, q.low) and _same_end(p.high, q.high)):
        return False
    low = isinstance(p.low, Infinity) or p.low_in == q.low_in
    return low and (isinstance(p.high, Infinity) or p.high_in == q.high_in)


def _same_end(x: Any, y: Any) -> bool:
    if isinstance(x, Infinity) or isinstance(y, Infinity):
        return bool(x == y)
    return same_value(x, y) is True


def _equal_sets(g: Any, a: Any) -> bool | None:
    if isinstance(g, NamedSet) and isinstance(a, NamedSet):
        return g.name == a.name
    sets = [as_set(s) for s in (g, a)]
    if sets[0] is None or sets[1] is None:
        if isinstance(g, SetExpression) and isinstance(a, SetExpression) and g.signs == a.signs:
            return _all(g.parts, a.parts)
        return False
    return _same_real_set(sets[0], sets[1])


# --- math-verify ------------------------------------------------------------------------------------------------------

# What the strict reader has no kind for and math-verify does: sums, products, integrals, limits, determinants.
_SECOND_READER = frozenset("sum prod int iint lim max min gcd lcm det partial nabla operatorname".split())
_FIRST_READER = frozenset("frac binom cbrt circ".split())
_DETERMINANTS = frozenset("vmatrix Vmatrix".split())


def _by_math_verify(gold: str, answer: str, g: Any, a: Any) -> Decision:
    """The second reader, for what the first one has no kind for, behind a guard."""
    if any(isinstance(side, Opaque) and side.ambiguous for side in (g, a)):
        return Decision(False, "ambiguous")
    reasons = [_hopeless(side) for side in (gold, answer)]
    if any(reasons):
        return Decision(False, next(r for r in reasons if r))
    if not any(_second_kind(side) for side in (gold, answer)):
        return Decision(False, "unreadable")
    try:
        from math_verify import verify

        parsed = [_covered_parse(side) for side in (gold, answer)]
        if parsed[0] is None or parsed[1] is None:
            return Decision(False, "unreadable")
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
        return Decision(False, "unreadable")
    return Decision(bool(equal), "math-verify")


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
    depth = deepest = 0
    for token in found:
        depth += (token.kind == "open") - (token.kind == "close")
        deepest = max(deepest, depth)
    if deepest > 60 or len(found) > 2000:
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
        "\\boxed{" + text + "}", extraction_config=[LatexExtractionConfig(boxed_match_priority=0)], fallback_mode="no_fallback", parsing_timeout=None
    )
    if not found or isinstance(found[0], str):
        return None
    printed = str(found[0])
    for token in tokens(text):
        if token.kind == "num":
            digits = token.text.strip("0").strip(".")
            if digits and digits not in printed:
                return None
            printed = printed.replace(digits, "", 1) if digits else printed
        elif token.kind == "sym" and token.text.isalpha() and token.text.isascii():
            name = {"e": "E", "i": "I", "infty": "oo"}.get(token.text, token.text)
            if name not in str(found[0]) and token.text not in str(found[0]):
                return None
    return found[0]
