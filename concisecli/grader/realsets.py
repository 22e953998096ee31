"""Sets of real numbers as unions of intervals: inequalities, intervals, complements and finite sets compared as one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from concisecli.grader.answer_kinds import (
    FLIP,
    Braces,
    Brackets,
    Chain,
    Infinity,
    Items,
    Name,
    NamedSet,
    Scalar,
    SetExpression,
)
from concisecli.grader.expressions import has, names, substitute
from concisecli.grader.values import Evaluator, same_value, value_of


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
    if isinstance(part, Scalar) and part.unit is None and not has(part.tree, "const", "i"):
        return part.tree
    return None


def _solve(chain: Chain) -> RealSet | None:
    """x > 3, 1 < x <= 2, x in S, x != 0 for one letter x."""
    places = [
        i
        for i, p in enumerate(chain.parts)
        if (isinstance(p, Name) and p.variable) or (isinstance(p, Scalar) and p.tree[0] == "sym")
    ]
    if len(places) != 1:
        return _solve_linear(chain)
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
        return (
            None
            if point is None or isinstance(point, Infinity)
            else RealSet((Piece(point, True, point, True),), variable)
        )
    if not all(s in FLIP for s in chain.signs):
        return None
    if len(chain.parts) == 2:
        sign = chain.signs[0] if at == 0 else FLIP[chain.signs[0]]
        point = _end(chain.parts[1 - at])
        if point is None:
            return None
        if sign in ("<", "<="):
            return RealSet((Piece(Infinity(-1), False, point, sign == "<="),), variable)
        return RealSet((Piece(point, sign == ">=", Infinity(1), False),), variable)
    if len(chain.parts) == 3 and at == 1:
        signs, ends = list(chain.signs), [chain.parts[0], chain.parts[2]]
        if signs[0] in (">", ">="):
            signs, ends = [FLIP[s] for s in reversed(signs)], ends[::-1]
        if signs[0] not in ("<", "<=") or signs[1] not in ("<", "<="):
            return None
        low, high = _end(ends[0]), _end(ends[1])
        if low is None or high is None:
            return None
        return RealSet((Piece(low, signs[0] == "<=", high, signs[1] == "<="),), variable)
    return None


def _solve_linear(chain: Chain) -> RealSet | None:
    """2x - 6 > 0, |x - 1| <= 2, -2 < 3x + 1 < 4 in one variable, which stands in one part only."""
    if not all(isinstance(p, Scalar) and p.unit is None for p in chain.parts) or not all(
        s in FLIP for s in chain.signs
    ):
        return None
    trees: list[Any] = [p.tree for p in chain.parts]
    holding = [i for i, tree in enumerate(trees) if names(tree)]
    if len(holding) != 1 or len(names(trees[holding[0]])) != 1:
        return None
    at, tree = holding[0], trees[holding[0]]
    if tree[0] == "fn" and tree[1] == "abs" and len(trees) == 2:
        return _solve_absolute(tree[2][0], chain.signs[0] if at == 0 else FLIP[chain.signs[0]], trees[1 - at])
    (variable,) = names(tree)
    if not _is_linear(tree, variable):
        return None
    constant = substitute(tree, variable, 0)
    slope = ("add", [substitute(tree, variable, 1), ("neg", constant)])
    sign = _order(slope, ("num", Fraction(0)))
    if not sign:
        return None
    parts: list[Any] = [Scalar(("div", ("add", [t, ("neg", constant)]), slope)) for t in trees]
    parts[at] = Scalar(("sym", variable))
    return _solve(Chain(tuple(parts), chain.signs if sign > 0 else tuple(FLIP[s] for s in chain.signs)))


def _solve_absolute(inner: Any, sign: str, bound: Any) -> RealSet | None:
    if _order(bound, ("num", Fraction(0))) != 1:
        return None
    low, middle, high = Scalar(("neg", bound)), Scalar(inner), Scalar(bound)
    if sign in ("<", "<="):
        return _solve(Chain((low, middle, high), (sign, sign)))
    sides = [_solve(Chain((middle, low), (FLIP[sign],))), _solve(Chain((middle, high), (sign,)))]
    return _combine(sides, ("cup",))


def _is_linear(tree: Any, variable: str) -> bool:
    """Whether a tree is a sum of constants and constant multiples of one variable."""
    kind = tree[0]
    if kind == "sym" or not names(tree):
        return True
    if kind == "add":
        return all(_is_linear(t, variable) for t in tree[1])
    if kind == "mul":
        return sum(bool(names(t)) for t in tree[1]) == 1 and all(_is_linear(t, variable) for t in tree[1])
    if kind == "neg":
        return _is_linear(tree[1], variable)
    return kind == "div" and not names(tree[2]) and _is_linear(tree[1], variable)


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
    mp = Evaluator(60).mp
    try:
        return -1 if mp(a) < mp(b) else 1
    except (TypeError, ValueError):  # complex numbers have no order
        return None


def _combine(sets: Sequence[RealSet | None], signs: Sequence[str]) -> RealSet | None:
    """Left to right; complements and intersections only between numbers."""
    if any(s is None for s in sets):
        return None
    result = sets[0]
    for other, sign in zip(sets[1:], signs, strict=True):
        assert result is not None
        assert other is not None
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


def same_real_set(x: RealSet, y: RealSet) -> bool:
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
