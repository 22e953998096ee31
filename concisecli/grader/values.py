r"""Equality of two expressions by value.

Exact for rational numbers of any size that fits in memory, otherwise a comparison at 60 and 140 digits, relative to the
values: 1/2^99 is not 1/2^98 and 0.333333 is not 1/3 (Math-Verify#14). Expressions with variables are compared at fixed
points, on both sides of zero, as real functions: sqrt(1/n) is 1/sqrt(n) wherever both are real (Math-Verify#64),
sqrt(x^2) is not x.
"""

from __future__ import annotations

import math
import threading
from fractions import Fraction
from typing import Any

from concisecli.grader.expressions import Node, TooBig, has, names

MAX_WIDE_DIGITS = 120_000  # of a value beyond that, only the same tree is the same value
MAX_BITS = 200_000  # of a numerator or denominator that is kept exact


class Undefined(Exception):
    """No value here: a division by zero, a function outside its domain."""


_local = threading.local()


def _context(digits: int) -> Any:
    contexts = _local.__dict__.setdefault("contexts", {})
    if digits not in contexts:
        from mpmath.ctx_mp import MPContext  # type: ignore[import-untyped]

        contexts[digits] = MPContext()
        contexts[digits].dps = digits
    return contexts[digits]


class Evaluator:
    """The value of a tree: a Fraction where that is exact and small enough, else a number of `digits` digits."""

    def __init__(self, digits: int = 60, env: dict[str, Any] | None = None, pm: int = 1) -> None:
        self.ctx = _context(digits)
        self.env = env or {}
        self.pm = pm
        self.reach = 0  # the largest power of two met, of large values and of small ones

    def __call__(self, node: Node) -> Any:
        kind = node[0]
        if kind == "num":
            return node[1]
        if kind == "sym":
            return self.env[node[1]]
        if kind == "const":
            return {"pi": self.ctx.pi, "e": self.ctx.e, "i": self.ctx.j}[node[1]] * self.ctx.one
        if kind == "pm":
            return Fraction(self.pm)
        if kind == "add":
            return self._fold([self(x) for x in node[1]], add=True)
        if kind == "mul":
            return self._fold([self(x) for x in node[1]], add=False)
        if kind == "neg":
            return -self(node[1])
        if kind == "percent":
            return self.divide(self(node[1]), Fraction(100))
        if kind == "div":
            return self.divide(self(node[1]), self(node[2]))
        if kind == "pow":
            return self.power(self(node[1]), self(node[2]))
        return self.function(node[1], [self(x) for x in node[2]])

    def mp(self, value: Any) -> Any:
        if isinstance(value, Fraction):
            bits = abs(value.numerator.bit_length() - value.denominator.bit_length())
            self.reach = max(self.reach, bits if value else 0)
            if value.denominator == 1:
                return self.ctx.mpf(value.numerator)
            return self.ctx.mpf(value.numerator) / value.denominator
        return value

    def keep(self, value: Any) -> Any:
        """A value small enough to go on with."""
        if isinstance(value, Fraction):
            if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
                return self.mp(value)
            return value
        if self.ctx.isnan(value):
            raise Undefined
        if self.ctx.isinf(value):
            raise Undefined
        if value != 0:
            self.reach = max(self.reach, abs(self.ctx.mag(value)))
            if abs(self.ctx.mag(value)) > 10**9:
                raise TooBig
        return value

    def _fold(self, values: list[Any], *, add: bool) -> Any:
        result = values[0]
        for value in values[1:]:
            if isinstance(result, Fraction) != isinstance(value, Fraction):
                result, value = self.mp(result), self.mp(value)
            result = self.keep(result + value if add else result * value)
        return result

    def divide(self, a: Any, b: Any) -> Any:
        if b == 0:
            raise Undefined
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return self.keep(a / b)
        return self.keep(self.mp(a) / self.mp(b))

    def power(self, base: Any, exponent: Any) -> Any:
        if isinstance(exponent, Fraction) and exponent.denominator == 1:
            n = exponent.numerator
            if base == 0:
                if n <= 0:
                    raise Undefined
                return Fraction(0)
            if isinstance(base, Fraction):
                if base in (1, -1):
                    return Fraction(1 if base == 1 or n % 2 == 0 else -1)
                bits = max(base.numerator.bit_length(), base.denominator.bit_length())
                if n.bit_length() < 40 and bits * abs(n) <= MAX_BITS:
                    return base**n
            if n.bit_length() > 40:
                raise TooBig
            value = self.mp(base)
            if abs(self.ctx.mag(value)) * abs(n) > 4 * 10**9:
                raise TooBig
            return self.keep(value**n)
        base, exponent = self.mp(base), self.mp(exponent)
        if base == 0:
            if self.ctx.re(exponent) <= 0:
                raise Undefined
            return Fraction(0)
        if abs(exponent) * (abs(self.ctx.mag(base)) + 1) > 10**9:
            raise TooBig
        return self.keep(self.ctx.power(base, exponent))

    def function(self, name: str, values: list[Any]) -> Any:
        ctx = self.ctx
        x = values[0]
        if name == "factorial":
            return self.factorial(x)
        if name == "binom":
            return self.binomial(x, values[1])
        if name in ("floor", "ceil"):
            if isinstance(x, Fraction):
                return Fraction(x.__floor__() if name == "floor" else x.__ceil__())
            if ctx.im(x) != 0 or ctx.mag(x) > 100:
                raise Undefined
            nearest = ctx.nint(x)
            if x != nearest and abs(x - nearest) < ctx.mpf(10) ** (-ctx.dps + 15):
                x = nearest
            return Fraction(int(ctx.floor(x) if name == "floor" else ctx.ceil(x)))
        if name == "abs":
            return abs(x)
        if name == "sqrt":
            return self.nth_root(x, 2)
        if name in ("root", "cbrt"):
            index = Fraction(3) if name == "cbrt" else values[1]
            if isinstance(index, Fraction) and index.denominator == 1 and 0 < index.numerator < 10**6:
                return self.nth_root(x, index.numerator)
            return self.power(x, self.divide(Fraction(1), index))
        x = self.mp(x)
        if name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            if x != 0 and ctx.mag(x) > 200:
                raise TooBig
            if name in ("tan", "cot", "sec", "csc"):
                below = ctx.cos(x) if name in ("tan", "sec") else ctx.sin(x)
                if abs(below) < ctx.mpf(10) ** (-ctx.dps + 10):
                    raise Undefined
            return self.keep(getattr(ctx, name)(x))
        if name in ("exp", "sinh", "cosh", "tanh", "coth"):
            if abs(x) > 10**8:
                raise TooBig
            if name == "coth" and x == 0:
                raise Undefined
            return self.keep(getattr(ctx, name)(x))
        if name == "ln":
            if x == 0:
                raise Undefined
            return self.keep(ctx.ln(x))
        inverse = {"arcsin": ctx.asin, "arccos": ctx.acos, "arctan": ctx.atan}
        if name in inverse:
            return self.keep(inverse[name](x))
        if name == "arccot":
            return self.keep(ctx.pi / 2 - ctx.atan(x))
        raise Undefined

    def nth_root(self, x: Any, n: int) -> Any:
        if x == 0:
            return Fraction(0)
        if isinstance(x, Fraction) and x > 0 and max(x.numerator, x.denominator).bit_length() < 4000:
            above, below = _exact_root(x.numerator, n), _exact_root(x.denominator, n)
            if above is not None and below is not None:
                return Fraction(above, below)
        value = self.mp(x)
        if self.ctx.im(value) == 0 and self.ctx.re(value) < 0 and n % 2:
            return -self.keep(self.ctx.root(-value, n))
        return self.keep(self.ctx.root(value, n))

    def factorial(self, x: Any) -> Any:
        if isinstance(x, Fraction) and x.denominator == 1:
            n = x.numerator
            if n < 0:
                raise Undefined
            if n <= 10_000:
                return self.keep(Fraction(math.factorial(n)))
            if n > 10**8:
                raise TooBig
        value = self.mp(x)
        if abs(value) > 10**8:
            raise TooBig
        if self.ctx.im(value) == 0 and value < 0 and value == self.ctx.floor(value):
            raise Undefined
        return self.keep(self.ctx.gamma(value + 1))

    def binomial(self, n: Any, k: Any) -> Any:
        if isinstance(n, Fraction) and isinstance(k, Fraction) and n.denominator == k.denominator == 1:
            a, b = n.numerator, k.numerator
            if a < 0 or b < 0:
                raise Undefined
            if a <= 20_000:
                return self.keep(Fraction(math.comb(a, b)))
            if min(b, a - b) <= 200 and a.bit_length() < 500:
                return self.keep(Fraction(math.comb(a, b)))
            raise TooBig
        n, k = self.mp(n), self.mp(k)
        if abs(n) > 10**6 or abs(k) > 10**6:
            raise TooBig
        return self.keep(self.ctx.binomial(n, k))


def _exact_root(value: int, n: int) -> int | None:
    if n == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value == 1:
        return 1
    if n >= value.bit_length():
        return None
    root = round(2 ** (math.log2(value) / n)) if value.bit_length() < 900 else 0
    for candidate in (root - 1, root, root + 1):
        if candidate > 0 and candidate**n == value:
            return candidate
    return None


# Points at which expressions with variables are compared: both signs, near and far, none special.
_POINTS = [
    Fraction(*p) for p in (
        (7314, 10007), (-6113, 10009), (13127, 10037), (26183, 10039), (-17713, 10061), (34127, 10067), (2131, 10069),
        (-29387, 10079), (51713, 10091), (-731, 10093), (103331, 10099), (-53987, 10103),
        (373127, 10111), (1017313, 10133),
    )
]  # fmt: skip


def same_value(a: Node, b: Node, *, slack: float = 0.0) -> bool | None:
    """Whether two trees are the same number or function; None where neither can be evaluated. `slack`: a relative
    tolerance for a gold that was a binary float."""
    variables = sorted(names(a) | names(b))
    if len(variables) > 12:
        return None
    if not variables:
        return _same_number(a, b, slack)
    return _same_function(a, b, variables)


def _same_number(a: Node, b: Node, slack: float) -> bool | None:
    results = []
    for tree in (a, b):
        try:
            results.append(Evaluator(60)(tree))
        except TooBig:
            results.append("big")
        except Undefined:
            results.append(None)
    x, y = results
    if x is None or y is None or (isinstance(x, str) and isinstance(y, str)):
        return None
    if isinstance(x, str) or isinstance(y, str):
        return False
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x == y or (slack > 0 and abs(x - y) <= Fraction(slack) * max(abs(x), abs(y)))
    evaluate = Evaluator(60)
    if _close(evaluate, x, y, 45, slack):
        if slack:
            return True
    elif abs(evaluate.mp(x) - evaluate.mp(y)) > max(1, abs(evaluate.mp(x))) / 1000:
        return False
    precise = Evaluator(140)
    try:
        p, q = precise(a), precise(b)
    except (TooBig, Undefined):
        return None
    if _close(precise, p, q, 110, 0.0):
        return precise.reach <= 300 or _same_wide(a, b, precise.reach)
    # Two sides that differ only by rounding come closer as the digits grow (sqrt(2) - sqrt(2) against 0).
    before, after = abs(evaluate.mp(x) - evaluate.mp(y)), abs(precise.mp(p) - precise.mp(q))
    return bool(after < precise.ctx.mpf(before) * precise.ctx.mpf(10) ** -40)


def _same_wide(a: Node, b: Node, reach: int) -> bool:
    """Where values as large or small as 2^reach are met, as many digits decide: e^1000 is not e^1000 + 1."""
    digits = 1 << int(reach * 0.302).bit_length()  # a power of two, so that few contexts are kept
    if reach * 0.302 > MAX_WIDE_DIGITS:
        return a == b
    evaluate = Evaluator(2 * digits + 150)
    try:
        return _close(evaluate, evaluate(a), evaluate(b), digits + 110, 0.0)
    except (TooBig, Undefined):
        return False


def _close(evaluate: Evaluator, x: Any, y: Any, digits: int, slack: float) -> bool:
    x, y = evaluate.mp(x), evaluate.mp(y)
    scale = max(abs(x), abs(y))
    tolerance = evaluate.ctx.mpf(slack) if slack else evaluate.ctx.mpf(10) ** -digits
    return bool(abs(x - y) <= scale * tolerance)


def _points(variables: list[str]) -> list[dict[str, Any]]:
    """A variable gets the same points whatever other variables there are: its place is its rank in the sorted list."""
    n = len(_POINTS)
    return [
        {name: _POINTS[(i + 5 * rank + (i * rank) % 3) % n] + Fraction(rank, 97) for rank, name in enumerate(variables)}
        for i in range(n)
    ]


def _same_function(a: Node, b: Node, variables: list[str]) -> bool | None:
    real = complex_points = 0
    complex_differ = confirmed = False
    for env in _points(variables):
        values = []
        evaluate = Evaluator(50, env)
        try:
            values = [evaluate.mp(evaluate(tree)) for tree in (a, b)]
        except Undefined:
            continue
        except TooBig:
            continue
        x, y = values
        ctx = evaluate.ctx
        tiny = ctx.mpf(10) ** -35
        scale = max(abs(x), abs(y))
        flat = [abs(ctx.im(v)) <= scale * tiny for v in (x, y)]
        close = abs(x - y) <= scale * ctx.mpf(10) ** -30
        equal = close and confirmed
        if not equal:  # once for all points: what is equal to 30 digits has to be so to 90
            equal = _vanishes(a, b, env, abs(x - y), scale)
            confirmed |= close and equal
        if flat[0] != flat[1]:
            return False
        if flat[0]:
            if not equal:
                return False
            real += 1
        else:
            complex_points += 1
            complex_differ |= not equal
    if real >= 4:
        return not complex_differ or not (has(a, "const", "i") or has(b, "const", "i"))
    if real + complex_points >= 4:
        return not complex_differ
    return None


def _vanishes(a: Node, b: Node, env: dict[str, Any], difference: Any, scale: Any) -> bool:
    """Whether a small difference is rounding: then it shrinks as the digits grow. A small value does not."""
    if difference > 1e-20 and difference > scale * 1e-30:
        return False
    precise = Evaluator(110, env)
    try:
        x, y = (precise.mp(precise(tree)) for tree in (a, b))
    except (Undefined, TooBig):
        return False
    bound = max(precise.ctx.mpf(difference) * precise.ctx.mpf(10) ** -30, abs(x) * precise.ctx.mpf(10) ** -90)
    return bool(abs(x - y) <= bound)


def proportional(a: Node, b: Node, *, positive: bool = False) -> bool | None:
    """Whether a = c b with a constant c other than 0 (above 0 where asked): the same equation in another form."""
    variables = sorted(names(a) | names(b))
    if not variables or names(a) != names(b) or len(variables) > 12:
        return None
    ratio: Any = None
    seen = 0
    for env in _points(variables):
        evaluate = Evaluator(50, env)
        try:
            x, y = evaluate.mp(evaluate(a)), evaluate.mp(evaluate(b))
        except (Undefined, TooBig):
            continue
        if x == 0 or y == 0:
            return None
        this = x / y
        if ratio is None:
            ratio = this
        elif abs(this - ratio) > abs(ratio) * evaluate.ctx.mpf(10) ** -30:
            return False
        seen += 1
    if seen < 4:
        return None
    return bool(not positive or (evaluate.ctx.im(ratio) == 0 and evaluate.ctx.re(ratio) > 0))


def value_of(tree: Node) -> Any:
    """The value of a tree without variables at 60 digits; None where it has none."""
    if names(tree):
        return None
    try:
        return Evaluator(60)(tree)
    except (TooBig, Undefined):
        return None
