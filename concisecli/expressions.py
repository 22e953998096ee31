r"""One mathematical expression: a strict reader from tokens to a tree, and equality of two trees.

The reader either accounts for every token or refuses (`Unreadable`): a parser that drops what it does not know reads
`4\sqrt(2)` as 4 and `1,2,\ldots,n` as 2 (Math-Verify#41, #14). Where print is ambiguous (`1/2x`, `\ln 2/3`) it refuses
as well. Equality is exact for rational numbers of any size that fits in memory, otherwise a comparison at 60 and 140
digits, relative to the values: 1/2^99 is not 1/2^98 and 0.333333 is not 1/3 (Math-Verify#14). Expressions with
variables are compared at fixed points, on both sides of zero, as real functions: sqrt(1/n) is 1/sqrt(n) wherever both
are real (Math-Verify#64), sqrt(x^2) is not x.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from concisecli.normalize import GREEK, Token, key, pairs

Node = tuple[Any, ...]  # ("num", Fraction) ("sym", name) ("const", name) ("add", [..]) ("mul", [..]) ("div", a, b)
# ("neg", a) ("percent", a) ("pow", a, b) ("fn", name, args) ("pm",) the sign of a plus-minus

MAX_DEPTH = 60
MAX_BITS = 200_000  # of a numerator or denominator that is kept exact
MAX_DIGITS = 20_000  # of a literal


class Unreadable(Exception):
    """Not an expression, or one that print leaves ambiguous."""


class Ambiguous(Unreadable):
    """Print that two readers would take for two things; no second opinion makes it certain."""


class TooBig(Exception):
    """A value beyond what can be written down; it differs from every value that is not."""


class Undefined(Exception):
    """No value here: a division by zero, a function outside its domain."""


def read(tokens: Sequence[Token]) -> Node:
    """The tree of an expression that uses up all tokens."""
    if not tokens:
        raise Unreadable("nothing")
    if pairs(list(tokens)) is None:
        raise Unreadable("brackets")
    depth = deepest = 0
    for token in tokens:
        depth += (token.kind == "open") - (token.kind == "close")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise Unreadable("too deep")
    reader = _Reader(tokens)
    try:
        tree = reader.sum()
    except RecursionError:
        raise Unreadable("too deep") from None
    if reader.at != len(tokens):
        raise Unreadable(f"left over: {tokens[reader.at].text}")
    return tree


def digits_to_int(text: str) -> int:
    """int() without the interpreter's limit on digits, up to MAX_DIGITS."""
    if len(text) > MAX_DIGITS:
        raise TooBig
    value = 0
    for i in range(0, len(text), 4000):
        part = text[i : i + 4000]
        value = value * 10 ** len(part) + int(part)
    return value


def literal(text: str) -> Fraction:
    """A decimal literal as the exact rational it prints, exponent included."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, part = mantissa.partition(".")
    value = Fraction(digits_to_int((whole + part) or "0"), 10 ** len(part))
    if not exponent:
        return value
    if len(exponent.lstrip("+-")) > 6 or abs(int(exponent)) > MAX_BITS // 4:
        if value == 0:
            return value
        raise TooBig
    return value * Fraction(10) ** int(exponent)


def repeating(text: str) -> Fraction:
    """0.1(6): a sixth."""
    found = re.fullmatch(r"(\d*)\.(\d*)\((\d+)\)", text)
    if not found:
        raise Unreadable(text)
    whole, part, period = found[1] or "0", found[2], found[3]
    all_digits = digits_to_int(whole + part + period) - digits_to_int(whole + part)
    return Fraction(all_digits, (10 ** len(period) - 1) * 10 ** len(part))


class _Reader:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> Token | None:
        i = self.at + ahead
        return self.tokens[i] if i < len(self.tokens) else None

    def op(self, *texts: str) -> str | None:
        token = self.peek()
        if token is not None and token.kind == "op" and token.text in texts:
            self.at += 1
            return token.text
        return None

    def sum(self) -> Node:
        terms = [self.term(signed=True)]
        while sign := self.op("+", "-", "pm", "mp"):
            right = self.term(signed=False)
            if sign == "-":
                right = ("neg", right)
            elif sign == "pm":
                right = ("mul", [("pm",), right])
            elif sign == "mp":
                right = ("neg", ("mul", [("pm",), right]))
            terms.append(right)
        return terms[0] if len(terms) == 1 else ("add", terms)

    def term(self, *, signed: bool) -> Node:
        signs = 0
        while signed:
            sign = self.op("+", "-", "pm", "mp")
            if sign is None:
                break
            if sign in ("pm", "mp"):
                inner = self.term(signed=False)
                value: Node = ("mul", [("pm",), inner])
                value = ("neg", value) if sign == "mp" else value
                return ("neg", value) if signs % 2 else value
            signs += sign == "-"
        value = self.product()
        return ("neg", value) if signs % 2 else value

    def product(self) -> Node:
        left = self.power()
        factors = [left]
        divided = False
        while True:
            if self.op("*"):
                sign = self.op("-", "+")
                right = self.power()
                factors.append(("neg", right) if sign == "-" else right)
                divided = False
                continue
            token = self.peek()
            if token is not None and token.kind == "op" and token.text == "/":
                self.at += 1
                sign = self.op("-", "+")
                right = self.power()
                nxt = self.peek()
                if nxt is not None and self.starts_factor(nxt) and not (nxt.kind == "open" and divided):
                    raise Ambiguous("1/2x")
                whole: Node = factors[0] if len(factors) == 1 else ("mul", factors)
                factors = [("div", whole, ("neg", right) if sign == "-" else right)]
                divided = True
                continue
            if token is not None and self.starts_factor(token):
                if token.kind in ("num", "rep") and not self._number_factor(token):
                    raise Ambiguous("two numbers side by side")
                factors.append(self.power())
                continue
            break
        return factors[0] if len(factors) == 1 else ("mul", factors)

    def _number_factor(self, token: Token) -> bool:
        """n2^{n-2} and `n 2` are products; x2 and `2 3` could be anything."""
        before = self.tokens[self.at - 1]
        after = self.peek(1)
        if before.kind != "sym":
            return False
        return token.space or (after is not None and after.kind == "op" and after.text == "^")

    def starts_factor(self, token: Token) -> bool:
        if token.kind in ("num", "rep", "sym", "fn"):
            return True
        if token.kind == "open":
            return True
        if token.kind == "cmd":
            return token.text in ("frac", "binom", "cbrt")
        return token.kind == "op" and token.text == "|" and self.bars == 0

    def power(self) -> Node:
        base = self.postfix()
        if self.op("^"):
            if self._degree():
                return ("mul", [base, ("div", ("const", "pi"), ("num", Fraction(180)))])
            exponent = self.exponent()
            base = ("pow", base, exponent)
            while (token := self.peek()) is not None and token.kind == "op" and token.text in ("!", "%"):
                self.at += 1
                base = ("fn", "factorial", [base]) if token.text == "!" else ("percent", base)
            if (token := self.peek()) is not None and token.kind == "op" and token.text == "^":
                raise Ambiguous("a^b^c")
        return base

    def _degree(self) -> bool:
        token, nxt, end = self.peek(), self.peek(1), self.peek(2)
        if token and token.kind == "cmd" and token.text == "circ":
            self.at += 1
            return True
        if token and token.text == "{" and nxt and nxt.text == "circ" and end and end.text == "}":
            self.at += 3
            return True
        return False

    def exponent(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("empty exponent")
        if token.kind == "open" and token.text in ("{", "("):
            return self.group()
        sign = self.op("-", "+")
        token = self.peek()
        if token is not None and token.kind == "num":
            self.at += 1
            value: Node = ("num", literal(token.text))
        elif token is not None and token.kind in ("sym", "open"):
            value = self.group() if token.kind == "open" else self.atom()
        elif token is not None and (token.kind == "fn" or (token.kind == "cmd" and token.text in ("frac", "binom"))):
            value = self.atom()
        else:
            raise Unreadable("exponent")
        return ("neg", value) if sign == "-" else value

    def postfix(self) -> Node:
        value = self.atom()
        while (token := self.peek()) is not None and token.kind == "op" and token.text in ("!", "%"):
            nxt = self.peek(1)
            if token.text == "!" and nxt is not None and nxt.kind == "op" and nxt.text == "!":
                raise Unreadable("double factorial")
            self.at += 1
            value = ("fn", "factorial", [value]) if token.text == "!" else ("percent", value)
        return value

    def group(self) -> Node:
        """A bracketed expression; the brackets have to be a pair of one kind."""
        start = self.peek()
        if start is None or start.kind != "open":
            raise Unreadable("bracket expected")
        self.at += 1
        bars, self.bars = self.bars, 0
        value = self.sum()
        self.bars = bars
        end = self.peek()
        want = {"(": ")", "{": "}", "[": "]", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}.get(start.text)
        if end is None or end.kind != "close" or end.text != want:
            raise Unreadable("bracket")
        self.at += 1
        if start.text == "\\lfloor":
            return ("fn", "floor", [value])
        if start.text == "\\lceil":
            return ("fn", "ceil", [value])
        return value

    def atom(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("ends early")
        if token.kind == "open":
            if token.text in ("\\{", "\\langle"):
                raise Unreadable(token.text)
            return self.group()
        if token.kind == "op" and token.text == "|" and self.bars == 0:
            self.at += 1
            self.bars += 1
            value = self.sum()
            self.bars -= 1
            if not self.op("|"):
                raise Unreadable("|")
            return ("fn", "abs", [value])
        self.at += 1
        if token.kind == "num":
            return self.number(token)
        if token.kind == "rep":
            return ("num", repeating(token.text))
        if token.kind == "sym":
            return self.symbol(token)
        if token.kind == "fn":
            return self.function(token.text)
        if token.kind == "cmd":
            if token.text == "frac":
                return ("div", *self.two_arguments())
            if token.text == "binom":
                return ("fn", "binom", list(self.two_arguments()))
            if token.text == "cbrt":
                return ("fn", "root", [self.root_argument(), ("num", Fraction(3))])
        raise Unreadable(token.text)

    def number(self, token: Token) -> Node:
        value = literal(token.text)
        nxt = self.peek()
        if nxt is None or not token.text.isdigit():
            return ("num", value)
        if nxt.kind == "cmd" and nxt.text == "frac":
            return self.mixed(value)
        if nxt.kind == "num" and nxt.space and nxt.text.isdigit():
            slash, below = self.peek(1), self.peek(2)
            if not (slash and slash.text == "/" and below and below.kind == "num" and below.text.isdigit()):
                raise Ambiguous("two numbers side by side")
            above, under = int(nxt.text[:50]), int(below.text[:50])
            if not 0 < above < under:
                raise Ambiguous("mixed number")
            self.at += 3
            return ("num", value + Fraction(above, under))
        return ("num", value)

    def mixed(self, whole: Fraction) -> Node:
        r"""3\frac{1}{2} is three and a half (Math-Verify#81), 3\frac{\pi}{2} a product; 3\frac{5}{2} could be either."""
        start = self.at
        self.at += 1
        above, under = self.two_arguments()
        if above[0] == "num" and under[0] == "num" and above[1].denominator == under[1].denominator == 1:
            if not 0 < above[1] < under[1] or whole == 0:
                raise Ambiguous("mixed number")
            return ("num", whole + above[1] / under[1])
        if not names(above) and not names(under) and above[0] == "neg":
            raise Ambiguous("mixed number")
        self.at = start
        return ("num", whole)

    def two_arguments(self) -> tuple[Node, Node]:
        token = self.peek()
        if token is not None and token.kind == "num":
            if not token.text.isdigit() or len(token.text) > 2:
                raise Ambiguous("\\frac")
            self.at += 1
            first: Node = ("num", Fraction(int(token.text[0])))
            if len(token.text) == 2:
                return first, ("num", Fraction(int(token.text[1])))
        else:
            first = self.argument()
        token = self.peek()
        if token is not None and token.kind == "num":
            if not token.text.isdigit() or len(token.text) > 1:
                raise Ambiguous("\\frac")
            self.at += 1
            return first, ("num", Fraction(int(token.text)))
        return first, self.argument()

    def argument(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("argument")
        if token.kind == "open" and token.text == "{":
            return self.group()
        if token.kind == "sym" or (token.kind == "cmd" and token.text in ("frac", "binom")):
            return self.atom()
        if token.kind == "fn" and token.text == "sqrt":
            return self.atom()
        raise Unreadable("argument")

    def symbol(self, token: Token) -> Node:
        name = token.text
        following = self.peek()
        if following is not None and following.kind == "op" and following.text == "_":
            self.at += 1
            return ("sym", name + "_" + self.subscript() + self.primes())
        if primes := self.primes():
            return ("sym", name + primes)
        if name == "pi":
            return ("const", "pi")
        if name == "infty":
            raise Unreadable("infinity inside an expression")
        if name == "emptyset":
            raise Unreadable("a set inside an expression")
        if name in ("e", "i"):
            return ("const", name)
        if name in ("f", "g", "h") and following is not None and following.text == "(":
            matched = pairs(list(self.tokens)) or {}
            end = matched[self.at]
            inside = self.tokens[self.at : end + 1]
            self.at = end + 1
            return ("sym", name + "".join(t.text for t in inside))
        return ("sym", name)

    def primes(self) -> str:
        found = ""
        while self.op("'"):
            found += "'"
        token, nxt = self.peek(), self.peek(1)
        if token is not None and token.text == "^" and nxt is not None:
            if nxt.kind == "op" and nxt.text == "'":
                self.at += 2
                return found + "'"
            end, close = self.peek(2), self.peek(3)
            if nxt.text == "{" and end and end.text == "'" and close and close.text == "}":
                self.at += 4
                return found + "'"
        return found

    def subscript(self) -> str:
        token = self.peek()
        if token is None:
            raise Unreadable("subscript")
        if token.kind == "open" and token.text == "{":
            matched = pairs(list(self.tokens)) or {}
            end = matched[self.at]
            inside = self.tokens[self.at + 1 : end]
            self.at = end + 1
            if not inside:
                raise Unreadable("subscript")
            return "".join(t.text for t in inside)
        if token.kind in ("num", "sym", "text"):
            self.at += 1
            return token.text
        raise Unreadable("subscript")

    def function(self, name: str) -> Node:
        if name == "sqrt":
            return self.root()
        power: Node | None = None
        base: Node | None = None
        if name == "log" and self.op("_"):
            token = self.peek()
            if token is not None and token.kind == "num" and token.text.isdigit() and not self._group_follows(1):
                # \log_28 may print log_2 8; only a blank tells
                nxt = self.peek(1)
                if len(token.text) > 1 and (nxt is None or not self.starts_factor(nxt)):
                    raise Ambiguous("\\log_28")
            base = self.exponent()
        if self.op("^"):
            power = self.exponent()
        argument = self.function_argument()
        if name in ("log", "lg") and (base is not None or name == "lg"):
            value: Node = ("div", ("fn", "ln", [argument]), ("fn", "ln", [base or ("num", Fraction(10))]))
        elif name == "log":
            value = ("fn", "ln", [argument])
        else:
            value = ("fn", name, [argument])
        if power is None:
            return value
        if power == ("neg", ("num", Fraction(1))):
            inverse = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}.get(name)
            if inverse is None:
                raise Unreadable("inverse function")
            return ("fn", inverse, [argument])
        return ("pow", value, power)

    def _group_follows(self, ahead: int) -> bool:
        token = self.peek(ahead)
        return token is not None and token.kind == "open"

    def function_argument(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("no argument")
        if token.kind == "open" and token.text in ("(", "{", "["):
            return self.group()
        if token.kind == "op" and token.text == "|":
            return self.atom()
        sign = self.op("-")
        factors = [self.power()]
        while (token := self.peek()) is not None and self.starts_factor(token):
            if token.kind in ("fn", "open") or (token.kind == "op"):
                break
            if token.kind in ("num", "rep"):
                raise Ambiguous("two numbers side by side")
            factors.append(self.power())
        token, nxt = self.peek(), self.peek(1)
        if token is not None and token.kind == "op" and token.text == "/" and (nxt is None or nxt.kind != "fn"):
            raise Ambiguous("\\ln 2/3")
        value = factors[0] if len(factors) == 1 else ("mul", factors)
        return ("neg", value) if sign else value

    def root(self) -> Node:
        token = self.peek()
        index: Node | None = None
        if token is not None and token.kind == "open" and token.text == "[":
            index = self.group()
        value = self.root_argument()
        return ("fn", "sqrt", [value]) if index is None else ("fn", "root", [value, index])

    def root_argument(self) -> Node:
        token = self.peek()
        if token is not None and token.kind == "open" and token.text in ("{", "("):
            return self.group()
        if token is not None and token.kind in ("num", "rep"):
            self.at += 1
            return ("num", literal(token.text) if token.kind == "num" else repeating(token.text))
        if token is not None and (token.kind == "sym" or (token.kind == "cmd" and token.text == "frac")):
            return self.atom()
        raise Unreadable("root")


# --- values -----------------------------------------------------------------------------------------------------------


def names(tree: Node) -> set[str]:
    """The variables of a tree."""
    found: set[str] = set()
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, tuple) and node:
            if node[0] == "sym":
                found.add(node[1])
            elif node[0] not in ("num", "const", "pm"):
                stack.extend(x for x in node[1:] if isinstance(x, (list, tuple)))
    return found


def has(tree: Node, kind: str, value: str | None = None) -> bool:
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, tuple) and node:
            if node[0] == kind and (value is None or node[1] == value):
                return True
            if node[0] not in ("num", "const", "pm", "sym"):
                stack.extend(x for x in node[1:] if isinstance(x, (list, tuple)))
    return False


_local = threading.local()


def _context(digits: int) -> Any:
    contexts = _local.__dict__.setdefault("contexts", {})
    if digits not in contexts:
        from mpmath.ctx_mp import MPContext

        contexts[digits] = MPContext()
        contexts[digits].dps = digits
    return contexts[digits]


class Evaluator:
    """The value of a tree: a Fraction where that is exact and small enough, else a number of `digits` digits."""

    def __init__(self, digits: int = 60, env: dict[str, Any] | None = None, pm: int = 1) -> None:
        self.ctx = _context(digits)
        self.env = env or {}
        self.pm = pm

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
        if value != 0 and abs(self.ctx.mag(value)) > 10**9:
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
                import math

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
            import math

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
    import math

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
        (-29387, 10079), (51713, 10091), (-731, 10093), (103331, 10099), (-53987, 10103), (373127, 10111), (1017313, 10133),
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
        return True
    # Two sides that differ only by rounding come closer as the digits grow (sqrt(2) - sqrt(2) against 0).
    before, after = abs(evaluate.mp(x) - evaluate.mp(y)), abs(precise.mp(p) - precise.mp(q))
    return bool(after < precise.ctx.mpf(before) * precise.ctx.mpf(10) ** -40)


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
    complex_differ = False
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
        equal = abs(x - y) <= scale * ctx.mpf(10) ** -30 or _vanishes(a, b, env, abs(x - y))
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


def _vanishes(a: Node, b: Node, env: dict[str, Any], difference: Any) -> bool:
    """Whether a small difference is rounding: then it shrinks as the digits grow. A small value does not."""
    if difference > 1e-20:
        return False
    precise = Evaluator(110, env)
    try:
        x, y = (precise.mp(precise(tree)) for tree in (a, b))
    except (Undefined, TooBig):
        return False
    return bool(abs(x - y) <= precise.ctx.mpf(difference) * precise.ctx.mpf(10) ** -30)


def proportional(a: Node, b: Node, *, positive: bool = False) -> bool | None:
    """Whether a = c b with one constant c other than 0 (greater than 0 where asked): the same equation in another form."""
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


__all__ = ["GREEK", "Node", "TooBig", "Unreadable", "key", "proportional", "read", "same_value", "value_of"]
