r"""Do two written answers mean the same? Structure first (lists, sets, equations, units, words), values last.

`compare` reads both sides into kinds of answers (`answer_kinds`) and compares those; what was not read goes to
math-verify behind a guard (`second_reader`). In doubt the answer is no.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from concisecli.grader.answer_kinds import (
    FLIP,
    Braces,
    Brackets,
    Chain,
    InBase,
    Infinity,
    Items,
    Matrix,
    Name,
    NamedSet,
    Opaque,
    Ratio,
    Scalar,
    SetExpression,
    Words,
    interpret,
)
from concisecli.grader.expressions import Node, TooBig, Unreadable, has, names, read
from concisecli.grader.normalize import key, plain_number
from concisecli.grader.realsets import as_set, same_real_set
from concisecli.grader.second_reader import second_reader
from concisecli.grader.tokens import tokens
from concisecli.grader.units import drop_scale
from concisecli.grader.values import proportional, same_value, value_of

MAX_ANSWER = 20_000  # characters; longer answers are compared as text only
APPROXIMATION = 0.1  # how far apart, relative to the larger, the two sides of an approximation may be


@dataclass(frozen=True, slots=True)
class Decision:
    equal: bool
    rule: str


_SAME_WORDS = [
    {"no solution", "no solutions", "there is no solution", "there are no solutions", "无解"}
    | {"empty set", "the empty set", "空集"},
    {"does not exist", "dne", "不存在"},
    {"infinitely many", "infinitely many solutions", "infinite solutions", "infinite number of solutions"},
    {"yes", "是"}, {"no", "否", "不是"}, {"true", "正确"}, {"false", "错误"},
]  # fmt: skip


_E_NOTATION = re.compile(r"-?\d+e-\d")  # 5e-7: or 5e minus 7


def compare(gold: str, answer: str, *, slack: float = 0.0) -> Decision:
    """Whether an answer means the same as a gold answer. Pure; no time limit of its own."""
    quick = quick_compare(gold, answer)
    if quick is not None and not (slack and quick.rule == "other-number"):
        return quick
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return Decision(False, "too-long")
    if _E_NOTATION.fullmatch(answer.strip()) and "e" not in key(gold):
        answer = answer.replace("e-", "e-0")  # read as a number: the gold leaves no room for the constant
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
    if any(isinstance(side, Opaque) and side.ambiguous for side in (g, a)):
        return Decision(False, "ambiguous")
    return Decision(*second_reader(gold, answer))


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
    found = re.fullmatch(r"\(\s*([A-Ja-j])\s*\)|([A-J])\s*[).]?", flat)
    return (found[1] or found[2]).upper() if found else None


def _choice_content(text: str) -> str | None:
    """`(D) 192` -> `192`."""
    flat = re.match(
        r"\s*(?:\\(?:text|textbf|mathbf|mathrm|bf|bold)\s*\{)?\s*(?:\(\s*[A-J]\s*\)|[A-J]\s*[):.](?!\d))\s*\}?", text
    )
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
        g, a = (
            side.parts[0]
            if isinstance(side, Braces) and len(side.parts) == 1 and isinstance(side.parts[0], Scalar)
            else side
            for side in (g, a)
        )
    try:
        equal = _equal(g, a, slack)
    except (Unreadable, TooBig):
        equal = None
    return None if equal is None else Decision(equal, _rule(g, a))


_RULES: dict[type, str] = {  # of the kinds on either side, the first one here names the rule
    Words: "words",
    Matrix: "matrix",
    InBase: "base",
    Ratio: "ratio",
    Chain: "relation",
    SetExpression: "set",
    NamedSet: "set",
    Braces: "set",
    Brackets: "tuple-or-interval",
    Items: "list",
    Infinity: "infinity",
}


def _rule(g: Any, a: Any) -> str:
    kinds = {type(g), type(a)}
    for kind, name in _RULES.items():
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
    if g.unit is None and a.unit is None and _percent(g.tree, a.tree):
        return True
    degrees = [drop_scale(s.unit) == "deg" for s in (g, a)]
    if degrees[0] != degrees[1] and (g.unit is None or a.unit is None):
        # 60 degrees written as pi/3; a bare 60 was tried above
        radians = ("mul", [g.tree if degrees[0] else a.tree, ("div", ("const", "pi"), ("num", Fraction(180)))])
        other = a.tree if degrees[0] else g.tree
        if has(other, "const", "pi"):
            return same_value(radians, other)
    return same


def _percent(gold: Node, answer: Node) -> bool | None:
    """28% and 28 are taken as one answer to "how many percent" (Math-Verify tests, hendrycks/math); 0.28 and 28 are
    not, and a bare gold up to 1 is a share, not a number of percent."""
    bare = [_without_percent(t) for t in (gold, answer)]
    if bare[0] is not None and bare[1] is None:
        value = value_of(answer)
        if isinstance(value, Fraction) and abs(value) < 1:
            return None
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
    if (
        len(ratio.parts) != 2
        or scalar.unit
        or scalar.tree[0] != "div"
        or any(p.unit for p in ratio.parts if isinstance(p, Scalar))
    ):
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
    point = [_named_values(side) for side in (g, a)]
    if (point[0] is None) != (point[1] is None):
        # the names are gone on one side, so that the order has to tell which value is whose
        named, other = (point[0], a) if point[0] is not None else (point[1], g)
        if not named or not isinstance(other, (Items, Brackets)) or any(isinstance(p, Chain) for p in other.parts):
            return False
        return _all(named, other.parts)
    sides: list[Any] = []
    for side in (g, a):
        if isinstance(side, Items):
            sides.append(list(side.parts))
        elif isinstance(side, Braces):
            sides.append(_distinct(side.parts))
        else:
            sides.append(None)
    if sides[0] is None or sides[1] is None:
        whole = [as_set(s) for s in (g, a)]
        if (
            whole[0] is not None
            and whole[1] is not None
            and (isinstance(g, SetExpression) or isinstance(a, SetExpression))
        ):
            return same_real_set(whole[0], whole[1])
        return False
    if any(isinstance(s, Braces) for s in (g, a)):
        sides = [_distinct(s) for s in sides]
    if _and_against_or(g, a):
        return _equal_item_sets(g, a)
    return _match_all(sides[0], sides[1]) or _equal_item_sets(g, a)


def _and_against_or(g: Any, a: Any) -> bool:
    """Between values either word only joins a list; between statements and letters the one is not the other."""
    if not isinstance(g, Items) or not isinstance(a, Items) or {g.joined, a.joined} != {"and", "or"}:
        return False
    return any(
        (isinstance(p, Chain) and not _is_definition(p)) or (isinstance(p, Scalar) and p.tree[0] == "sym")
        for p in (*g.parts, *a.parts)
    )


def _named_values(side: Any) -> list[Any] | None:
    """3, 4 of x = 3, y = 4; None where not every part names a variable of its own."""
    if not isinstance(side, Items) or not all(isinstance(p, Chain) and _is_definition(p) for p in side.parts):
        return None
    if any("in" in p.signs for p in side.parts):
        return None
    labels = [p.parts[0].text for p in side.parts]
    variables = {p.parts[0].variable or p.parts[0].text for p in side.parts}
    if len(variables) < 2 or len(set(labels)) != len(labels):
        return None
    # against a point, x and y have to come in the order of their names
    return [_defined(p) for p in side.parts] if labels == sorted(labels) else []


def _equal_item_sets(g: Any, a: Any) -> bool:
    """Lists of relations as sets of numbers: x < 1 or x > 3 against (-oo, 1) cup (3, oo)."""
    if not any(isinstance(p, Chain) for s in (g, a) if isinstance(s, Items) for p in s.parts):
        return False
    whole = [as_set(s) for s in (g, a)]
    return whole[0] is not None and whole[1] is not None and same_real_set(whole[0], whole[1])


# --- relations --------------------------------------------------------------------------------------------------------


def _equal_relations(g: Any, a: Any) -> bool | None:
    if isinstance(g, Chain) and isinstance(a, Chain):
        if _same_chain(g, a):
            return True
        if _is_definition(g) and _is_definition(a):
            left_g, left_a = g.parts[0], a.parts[0]
            if left_g.text == left_a.text:
                pairs = itertools.product(_defined_values(g), _defined_values(a))
                verdicts = [_equal(x, y) for x, y in pairs]
                return True if True in verdicts else verdicts[-1]
        return _same_relation(g, a)
    if isinstance(g, Items) or isinstance(a, Items):
        return _relation_against_items(g, a)
    chain, other = (g, a) if isinstance(g, Chain) else (a, g)
    if (value := _chain_value(chain)) is not None:
        values = value if isinstance(value, list) else [value]
        return any(_equal(v, other) is True if chain is g else _equal(other, v) is True for v in values)
    sets = [as_set(x) for x in (chain, other)]
    if sets[0] is not None and sets[1] is not None and not isinstance(other, (Scalar, Infinity)):
        return same_real_set(sets[0], sets[1])
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
                return sets[0] is not None and sets[1] is not None and same_real_set(sets[0], sets[1])
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
    return (isinstance(chain.parts[0], Name) and all(s in ("=", "~") for s in chain.signs)) or (
        isinstance(chain.parts[0], Name) and chain.signs == ("in",)
    )


def _defined(chain: Chain) -> Any:
    return chain.parts[-1]


def _defined_values(chain: Chain) -> list[Any]:
    """What a name stands for: with an approximation (x = 1/3, about 0.33) the exact value too."""
    value = _chain_value(chain)
    return value if isinstance(value, list) else [_defined(chain)]


def _chain_value(chain: Chain) -> Any:
    """The value a chain of equalities ends in: 11 in x = 2 + 9 = 11; None where it is an equation in its own right.
    A chain that contradicts itself (2 + 2 = 5) has none. What stands before an approximation sign counts too."""
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
        if (sign == "=" and _equal(left, right) is False) or (sign == "~" and _far_apart(left, right)):
            return None
    if "~" in signs:
        return [rest[0], rest[-1]]
    return rest[-1]


def _far_apart(x: Any, y: Any) -> bool:
    """Two numbers that no rounding makes one (5 is not about 6)."""
    values = [value_of(p.tree) if isinstance(p, Scalar) else None for p in (x, y)]
    if values[0] is None or values[1] is None:
        return False
    try:
        left, right = complex(values[0]), complex(values[1])
    except OverflowError:
        return False
    return abs(left - right) > APPROXIMATION * max(abs(left), abs(right))


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
    turned = Chain(tuple(reversed(a.parts)), tuple(FLIP.get(s, s) for s in reversed(a.signs)))
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
            if sign in FLIP and other in FLIP:
                if FLIP[sign] == other:
                    y = ("neg", y)
                elif sign != other:
                    return False
                if proportional(x, y, positive=True) is True:
                    return True
    sets = [as_set(s) for s in (g, a)]
    if sets[0] is not None and sets[1] is not None and not all("=" in s.signs for s in (g, a)):
        return same_real_set(sets[0], sets[1])
    if any(isinstance(p, Opaque) for p in (*g.parts, *a.parts)):
        return None
    return False


def _equal_sets(g: Any, a: Any) -> bool | None:
    if isinstance(g, NamedSet) and isinstance(a, NamedSet):
        return g.name == a.name
    sets = [as_set(s) for s in (g, a)]
    if sets[0] is None or sets[1] is None:
        if isinstance(g, SetExpression) and isinstance(a, SetExpression) and g.signs == a.signs:
            return _all(g.parts, a.parts)
        return False
    return same_real_set(sets[0], sets[1])
