r"""One mathematical expression: a strict reader from tokens to a tree.

The reader either accounts for every token or refuses (`Unreadable`): a parser that drops what it does not know reads
`4\sqrt(2)` as 4 and `1,2,\ldots,n` as 2 (Math-Verify#41, #14). Where print is ambiguous (`1/2x`, `\ln 2/3`) it refuses
as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from concisecli.grader.tokens import Token, nesting, pairs

Node = tuple[Any, ...]  # ("num", Fraction) ("sym", name) ("const", name) ("add", [..]) ("mul", [..]) ("div", a, b)
# ("neg", a) ("percent", a) ("pow", a, b) ("fn", name, args) ("pm",) the sign of a plus-minus

MAX_DEPTH = 60  # of brackets in brackets
MAX_DIGITS = 20_000  # of a literal
MAX_EXPONENT = 50_000  # of a literal in E notation


class Unreadable(Exception):
    """Not an expression, or one that print leaves ambiguous."""


class Ambiguous(Unreadable):
    """Print that two readers would take for two things; no second opinion makes it certain."""


class TooBig(Exception):
    """A value beyond what can be written down; it differs from every value that is not."""


def read(tokens: Sequence[Token]) -> Node:
    """The tree of an expression that uses up all tokens."""
    if not tokens:
        raise Unreadable("nothing")
    if pairs(list(tokens)) is None:
        raise Unreadable("brackets")
    if nesting(tokens) > MAX_DEPTH:
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
    if len(exponent.lstrip("+-")) > 6 or abs(int(exponent)) > MAX_EXPONENT:
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
            if self._sign_follows():
                raise Ambiguous("--5")
            signs += sign == "-"
        value = self.product()
        return ("neg", value) if signs % 2 else value

    def _sign_follows(self) -> bool:
        token = self.peek()
        return token is not None and token.kind == "op" and token.text in ("+", "-", "pm", "mp")

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
            if not 0 < above < under or value == 0:
                raise Ambiguous("mixed number")
            self.at += 3
            return ("num", value + Fraction(above, under))
        return ("num", value)

    def mixed(self, whole: Fraction) -> Node:
        r"""3\frac{1}{2} is three and a half (Math-Verify#81), 3\frac{\pi}{2} a product, 3\frac{5}{2} either."""
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
            below = self.subscript()
            if name in ("C", "A") and (count := self._chosen(name, below)) is not None:
                return count
            return ("sym", name + "_" + below + self.primes())
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

    def _chosen(self, name: str, below: str) -> Node | None:
        """C_5^2 and A_5^2 with numbers: how many choices, how many arrangements (Chinese school notation)."""
        ahead = [t.text for t in self.tokens[self.at : self.at + 4]]
        if ahead[:1] != ["^"] or not below.isdigit() or len(below) > 4:
            return None
        above, used = (ahead[2], 4) if ahead[1:2] == ["{"] and ahead[3:] == ["}"] else ("".join(ahead[1:2]), 2)
        if not above.isdigit() or not 0 < int(above[:5]) <= int(below):
            return None
        chosen: Node = ("fn", "binom", [("num", Fraction(int(below))), ("num", Fraction(int(above)))])
        self.at += used
        return chosen if name == "C" else ("mul", [chosen, ("fn", "factorial", [("num", Fraction(int(above)))])])

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
                    return self.split_log(token)
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

    def split_log(self, digits: Token) -> Node:
        r"""\log_35 without anything after it prints \log_3 5: a subscript takes one digit."""
        base, argument = int(digits.text[0]), int(digits.text[1:])
        if base < 2 or len(digits.text) > 4 or digits.text[1] == "0":
            raise Ambiguous("\\log_10")
        self.at += 1
        return ("div", ("fn", "ln", [("num", Fraction(argument))]), ("fn", "ln", [("num", Fraction(base))]))

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


def substitute(tree: Any, name: str, value: int) -> Any:
    """A tree with a number for one of its variables."""
    if isinstance(tree, list):
        return [substitute(t, name, value) for t in tree]
    if tree == ("sym", name):
        return ("num", Fraction(value))
    return tuple(substitute(t, name, value) if isinstance(t, (tuple, list)) else t for t in tree)
