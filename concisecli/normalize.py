r"""Before anything is parsed: one spelling for what is the same on paper, and tokens that keep every character.

`tokens` reads LaTeX, plain text and unicode into one list; `key` joins it to a string, and two answers with equal
keys are equal without any parser (lm-evaluation-harness#4030). Nothing is dropped on the way except what cannot be
seen in print: spaces, sizes of brackets and fractions, fonts, dollar signs around formulas, a closing full stop.
"""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from concisecli.extraction import box_content, closing_brace, repair


class Token(NamedTuple):
    """kind: num, rep (repeating decimal), sym, text (a word), fn, cmd, op, open, close, sep, dots, begin, end."""

    kind: str
    text: str
    space: bool = False  # preceded by white space
    roman: bool = False  # written upright, as in \text{m}: a unit rather than a variable


FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth log ln lg exp sqrt cbrt abs".split()
)
_FUNCTION_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "arctg": "arctan"}
CONSTANTS = {"pi": "pi", "infty": "infty", "infinity": "infty", "inf": "infty", "oo": "infty", "emptyset": "emptyset"}
GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar".split()
)
_SEPARATOR_WORDS = {"and": "and", "or": "or", "或": "or", "或者": "or", "和": "and", "与": "and", "及": "and", "以及": "and"}

_WORD_COMMANDS = (
    "textbf textit textrm textsf texttt textnormal text mbox hbox emph underline mathrm mathbf mathit mathsf mathtt "
    "mathnormal boldsymbol bm bold operatorname* operatorname"
).split()
_GROUP_COMMAND = re.compile(r"\\(" + "|".join(re.escape(c) for c in _WORD_COMMANDS) + r")(?![A-Za-z])\s*\{")
_OPAQUE_COMMANDS = frozenset("mathbb mathcal mathscr mathfrak overline bar vec hat tilde overrightarrow widehat".split())
_IGNORED = frozenset(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle scriptstyle limits "
    "nolimits quad qquad thinspace medspace thickspace enspace rm bf it sf tt normalsize large Large small hfill hline "
    "nonumber notag noindent".split()
)
_OPERATORS = {
    "cdot": "*", "times": "*", "ast": "*", "div": "/", "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=",
    "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=", "lt": "<", "gt": ">", "ne": "!=", "neq": "!=",
    "approx": "~", "simeq": "~", "in": "in", "cup": "cup", "bigcup": "cup", "cap": "cap", "setminus": "minus",
    "backslash": "minus", "pm": "pm", "mp": "mp", "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "colon": ":",
    "equiv": "equiv", "sim": "sim", "to": "to", "rightarrow": "to", "prime": "'", "land": "and", "lor": "or",
    "wedge": "and", "vee": "or",
}  # fmt: skip
_SAME_COMMAND = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "varnothing": "emptyset",
    "empty": "emptyset", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots", "vdots": "ldots",
    "imath": "i", "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "degree": "circ",
}  # fmt: skip

_UNICODE = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "－": "-", "‐": "-", "‑": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "•": "*",
    "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "≤": "<=", "≦": "<=", "⩽": "<=", "≥": ">=", "≧": ">=", "⩾": ">=", "≠": "\\ne ",
    "≈": "\\approx ", "±": "\\pm ", "∓": "\\mp ", "∞": "\\infty ", "π": "\\pi ", "𝜋": "\\pi ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ",
    "∅": "\\emptyset ", "Ø": "\\emptyset ", "°": "^\\circ ", "º": "^\\circ ", "˚": "^\\circ ", "′": "'", "’": "'", "‘": "'", "…": "\\ldots ",
    "⋯": "\\ldots ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℚ": "\\mathbb{Q}", "ℕ": "\\mathbb{N}", "ℂ": "\\mathbb{C}",
    "√": "\\sqrt ", "∛": "\\cbrt ", "∖": "\\setminus ", "⟨": "\\langle ", "⟩": "\\rangle ", "⌊": "\\lfloor ", "⌋": "\\rfloor ",
    "⌈": "\\lceil ", "⌉": "\\rceil ", "，": ",", "；": ";", "：": ":", "、": ",", "。": ".", "％": "\\%", "（": "(", "）": ")",
    "［": "[", "］": "]", "【": "[", "】": "]", "｛": "{", "｝": "}", "＝": "=", "＋": "+", "＜": "<", "＞": ">", "｜": "|", "∣": "|", "℃": "^\\circ C", "∑": "\\sum ",
    "∏": "\\prod ", "∫": "\\int ", "→": "\\to ", "⇒": "\\to ",
}  # fmt: skip
_UNICODE |= {c: f"\\{n} " for c, n in zip("αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩ", (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega").split(), strict=True)}  # fmt: skip
_TRANSLATE = str.maketrans(_UNICODE)
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣ", "0123456789+-()nix", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙₖₘ", "0123456789+-()nkm", strict=True))
_SUPERS, _SUBS = re.compile(f"[{''.join(_SUPER)}]+"), re.compile(f"[{''.join(_SUB)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_ASCII = re.compile(r"[\x20-\x7e\n]*")

_THOUSANDS = [
    (re.compile(r"(?<=\d)\s*\{\s*,\s*\}\s*(?=\d{3}(?!\d))"), ""),  # 10{,}000
    (re.compile(r"(?<=\d),\s*\\!\s*(?=\d{3}(?!\d))"), ""),  # 10,\!000
    (re.compile(r"(?<=\d)\\!,\s*(?=\d{3}(?!\d))"), ""),  # 10\!,000
]
_THIN = re.compile(r"(?<![\d.])\d{1,3}(?:(?:\\[,;: ]|~|[\u2009\u202f\u2007\u00a0])\d{3})+(?!\d)")
_THIN_SPACE = re.compile(r"\\[,;: ]|[~\s]")
_SPACED = re.compile(r"(?<![\d.,/])\d{1,3}(?: \d{3})+(?![\d/]|\s*/|\s*\\frac)")
_REPEATING = re.compile(r"(?<![\d.])(\d*\.\d*)\s*\\(?:overline|bar|overset)\s*\{\s*(\d+)\s*\}|(?<![\d.])(\d*\.)\((\d+)\)")
_DOTTED = re.compile(r"(?<![\d.])(\d*\.\d*)\s*\\dot\s*\{?(\d)\}?(?:(\d*)\s*\\dot\s*\{?(\d)\}?)?(?!\d)")
_NUMBER = re.compile(r"(?:\d+\.\d+|\d+\.(?!\.)|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.]*[A-Za-z^]))?")
_AMBIGUOUS_E = re.compile(r"[02-9]\d*e-\d\Z|1\d+e-\d\Z")  # 3e-2: three hundredths, or 3e minus 2
_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yuan", "￥": "yuan", "₹": "rupee", "₽": "ruble", "₩": "won"}


def clean(text: str) -> str:
    """Unicode, dollar signs, fonts of digits and thousands separators, before tokens are cut."""
    text = repair(text)
    if not _ASCII.fullmatch(text):
        text = _SUPERS.sub(lambda m: "^{" + "".join(_SUPER[c] for c in m[0]) + "}", text)
        text = _SUBS.sub(lambda m: "_{" + "".join(_SUB[c] for c in m[0]) + "}", text)
        text = _VULGAR.sub(lambda m: "\\frac{%s}{%s}" % tuple(unicodedata.normalize("NFKC", m[0]).split("⁄")), text)
        text = _THIN.sub(lambda m: _THIN_SPACE.sub("", m[0]), text)
        text = text.translate(_TRANSLATE)
        text = unicodedata.normalize("NFKC", text).translate(_TRANSLATE)
        text = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cc") or c in "\n\t\r")
    text = re.sub(r"\*\*([^*]+)\*\*", r"\1", text).strip().strip("`").strip()
    if "$" in text:
        bare = len(re.findall(r"(?<!\\)\$", text))
        text = re.sub(r"(?<!\\)\$(?=\s*-?[\d.])", r"\\$", text) if bare == 1 else re.sub(r"(?<!\\)\$", " ", text)
        text = re.sub(r"(?<!\\)\$", " ", text)
    text = re.sub(r"(?<!\\)\\[()\[\]]", " ", text)
    for pattern, by in _THOUSANDS:
        text = pattern.sub(by, text)
    text = _THIN.sub(lambda m: _THIN_SPACE.sub("", m[0]), text)
    return strip_stop(text)


def strip_stop(text: str) -> str:
    """Without a closing full stop, comma or semicolon; an ellipsis stays."""
    text = text.strip()
    while text and text[-1] in ".,;:!？?" and not text.endswith(("..", "\\,", "\\;", "\\:", "\\!")):
        if text[-1] == "!" or (text[-1] in "?" and len(text) == 1):  # a factorial is no exclamation
            break
        text = text[:-1].rstrip()
    while text.endswith(("\\,", "\\;", "\\:", "\\!", "\\ ", "\\\\", "~")):
        text = text[: -1 if text.endswith("~") else -2].rstrip()
    return text


_SCAN = re.compile(
    r"(?P<space>\s+|~|\\[,;:!> ])|(?P<row>\\\\(?:\[[^\]]*\])?)|(?P<cmd>\\[A-Za-z]+\*?)|(?P<esc>\\.)|(?P<rep>\d*\.\d*\(\d+r\))"
    r"|(?P<num>\d|\.(?=\d))|(?P<word>[A-Za-z]+)|(?P<cjk>[\u3040-\u30ff\u3400-\u9fff]+)|(?P<dots>\.\.\.*)"
    r"|(?P<rel><=|>=|==|!=|=<|\*\*)|(?P<letter>[^\W\d_])|(?P<other>.)",
    re.DOTALL,
)


@lru_cache(maxsize=4096)
def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of an answer, in print order."""
    text = clean(text)
    text = _REPEATING.sub(lambda m: f"{m[1] or m[3]}({m[2] or m[4]}r)", text)
    text = _DOTTED.sub(lambda m: f"{m[1]}({m[2]}{m[3] or ''}{m[4] or ''}r)", text)
    text = _SPACED.sub(lambda m: m[0].replace(" ", ""), text)
    found: list[Token] = []
    _scan(text, found, roman=False)
    return tuple(_merge_thousands(_strip_braces(_strip_parentheses(found))))


def _scan(text: str, out: list[Token], *, roman: bool) -> None:
    at, space = 0, False
    while at < len(text):
        found = _SCAN.match(text, at)
        assert found is not None  # `other` takes any character
        kind, piece, end = found.lastgroup, found[0], found.end()
        if kind == "space":
            at, space = end, True
            continue
        if kind == "num":
            number = _NUMBER.match(text, at)
            assert number is not None
            piece, end = number[0], number.end()
            if "e" in piece.lower() and _AMBIGUOUS_E.match(piece):
                piece = piece[: piece.index("e")]
                end = at + len(piece)
            out.append(Token("num", piece, space, roman))
        elif kind == "rep":
            out.append(Token("rep", piece.replace("r", ""), space, roman))
        elif kind == "cmd":
            end = _command(text, at, piece[1:], space, out, roman)
        elif kind == "esc":
            mark = piece[1]
            if mark in "{}":
                out.append(Token("open" if mark == "{" else "close", "\\" + mark, space))
            elif mark == "%":
                out.append(Token("op", "%", space))
            elif mark == "$":
                out.append(Token("text", "dollar", space, True))
            elif mark == "|":
                out.append(Token("op", "||", space))
            else:
                out.append(Token("op", mark, space))
        elif kind == "word":
            end = at + _word(piece, space, out, roman)
        elif kind == "cjk":
            _cjk(piece, space, out)
        elif kind == "dots":
            out.append(Token("dots", "ldots", space))
        elif kind == "row":
            out.append(Token("row", "\\\\", space))
        elif kind == "rel":
            out.append(Token("op", {"==": "=", "=<": "<=", "**": "^"}.get(piece, piece), space))
        elif kind == "letter":
            out.append(Token("text" if unicodedata.category(piece) == "Lo" else "sym", piece, space, roman))
        elif piece in "([{":
            out.append(Token("open", piece, space))
        elif piece in ")]}":
            out.append(Token("close", piece, space))
        elif piece in ",;":
            out.append(Token("sep", ",", space))
        elif piece in _CURRENCY:
            out.append(Token("text", _CURRENCY[piece], space, True))
        else:
            out.append(Token("op", piece, space))
        at, space = end, False


def _command(text: str, at: int, name: str, space: bool, out: list[Token], roman: bool) -> int:
    """One LaTeX command at `at`; the index after it."""
    end = at + 1 + len(name)
    if group := _GROUP_COMMAND.match(text, at):
        brace = closing_brace(text, group.end() - 1)
        if brace is not None:
            before = len(out)
            _scan(_SPACED.sub(lambda m: m[0].replace(" ", ""), text[group.end() : brace]), out, roman=True)
            if len(out) > before:
                out[before] = out[before]._replace(space=space or out[before].space)
            return brace + 1
    if name in ("begin", "end"):
        env = re.match(r"\s*\{\s*([A-Za-z]+)\*?\s*\}(?:\s*\{[clr|@{}\s]*\})?", text[end : end + 200])
        if env:
            out.append(Token(name, env[1], space))
            stop = end + (env.end() if name == "begin" else text[end:].index("}") + 1)
            return stop
    if name in ("hspace", "vspace", "hphantom", "phantom", "vphantom", "color", "label", "tag"):
        brace = closing_brace(text, end) if text[end : end + 1] == "{" else None
        return end if brace is None else brace + 1
    if name in ("boxed", "fbox"):
        content = box_content(text, end)
        if content is not None:
            _scan(content, out, roman=roman)
            return text.index(content, end) + len(content) + (1 if text[end : end + 1] == "{" else 0)
    name = _SAME_COMMAND.get(name, name)
    if name in _IGNORED:
        # \left. and \right. print nothing
        return end + 1 if name in ("left", "right") and text[end : end + 1] == "." else end
    if name in _OPAQUE_COMMANDS:
        rest = re.match(r"\s*(?:\{([^{}]*)\}|([A-Za-z]))", text[end:])
        if rest:
            inner = re.sub(r"\s", "", rest[1] or rest[2])
            out.append(Token("sym", f"\\{name}{{{inner}}}", space))
            return end + rest.end()
    if name in ("{", "}", "[", "]"):
        out.append(Token("open" if name in "{[" else "close", "\\" + name if name in "{}" else name, space))
    elif name in ("langle", "lfloor", "lceil"):
        out.append(Token("open", "\\" + name, space))
    elif name in ("rangle", "rfloor", "rceil"):
        out.append(Token("close", "\\" + name, space))
    elif name == "ldots":
        out.append(Token("dots", "ldots", space))
    elif name in ("land", "lor", "wedge", "vee"):
        out.append(Token("sep", _OPERATORS[name], space))
    elif name in _OPERATORS:
        out.append(Token("op", _OPERATORS[name], space))
    elif name in CONSTANTS:
        out.append(Token("sym", CONSTANTS[name], space))
    elif name == "i":
        out.append(Token("sym", "i", space))
    elif name in FUNCTIONS or name in _FUNCTION_NAMES:
        out.append(Token("fn", _FUNCTION_NAMES.get(name, name), space))
    elif name in GREEK:
        out.append(Token("sym", name, space))
    else:
        out.append(Token("cmd", name, space))
    return end


def _word(piece: str, space: bool, out: list[Token], roman: bool) -> int:
    """A run of letters: a function, a constant, a separator, letters to multiply, or a word. Returns how much is used."""
    lower = piece.lower()
    if lower in _SEPARATOR_WORDS and (roman or space or not out):
        out.append(Token("sep", _SEPARATOR_WORDS[lower], space))
    elif piece == "np" and not roman:
        out.append(Token("text", piece, space, roman))
    elif piece in FUNCTIONS or piece in _FUNCTION_NAMES:
        out.append(Token("fn", _FUNCTION_NAMES.get(piece, piece), space))
    elif piece in ("pi", "infty", "infinity", "inf", "oo", "emptyset") and not (roman and piece == "inf"):
        out.append(Token("sym", CONSTANTS[piece], space))
    elif lower in ("percent", "percentage", "pct"):
        out.append(Token("op", "%", space))
    elif piece in GREEK and len(piece) > 2 and not roman:
        out.append(Token("sym", piece, space))
    elif len(piece) == 1:
        out.append(Token("sym", piece, space, roman))
    elif not roman and (split := re.match(r"(?:sqrt|sin|cos|tan|ln|log|pi)(?=[a-z]?\Z)", piece)) and split.end() < len(piece):
        name = split[0]
        out.append(Token("sym" if name == "pi" else "fn", name, space))
        return split.end()
    elif not roman and len(piece) == 2 and piece.islower() and lower not in UNIT_WORDS and lower not in _SHORT_WORDS:
        out.extend(Token("sym", c, space and i == 0) for i, c in enumerate(piece))
    else:
        out.append(Token("text", piece, space, roman))
    return len(piece)


_SHORT_WORDS = frozenset("no is of to in at it if by as on up so be an my we he us do go".split())
UNIT_WORDS = frozenset("mm cm dm km kg mg ml mi ft yd hr hz kj kw kv mv ev nm ms pm am lb oz rd th st nd pt gb mb kb".split())
_CJK_SEPARATOR = re.compile("(以及|或者|[或和与及])")


def _cjk(piece: str, space: bool, out: list[Token]) -> None:
    if piece in _SEPARATOR_WORDS:
        out.append(Token("sep", _SEPARATOR_WORDS[piece], space))
    else:
        out.append(Token("text", piece, space, True))


_PAIR = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "\\langle": "\\rangle", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}


def pairs(found: list[Token] | tuple[Token, ...]) -> dict[int, int] | None:
    """Opening index -> closing index. Round and square ones may close each other (half-open intervals); None where
    the brackets do not balance (sympy#17874: a parser that drops the tail would accept)."""
    stack: list[int] = []
    matched: dict[int, int] = {}
    for i, token in enumerate(found):
        if token.kind == "open":
            stack.append(i)
        elif token.kind == "close":
            if not stack:
                return None
            start = stack.pop()
            fits = _PAIR[found[start].text]
            if token.text != fits and {token.text, fits} != {")", "]"}:
                return None
            matched[start] = i
    return None if stack else matched


def _strip_parentheses(found: list[Token]) -> list[Token]:
    """((x)) is (x), however deep: one of two brackets that open and close together goes."""
    matched = pairs(found)
    if not matched:
        return found
    drop: set[int] = set()
    for start, end in matched.items():
        if found[start].text in ("(", "{") and matched.get(start + 1) == end - 1 and found[start + 1].text == found[start].text:
            drop |= {start, end}
    return [t for i, t in enumerate(found) if i not in drop] if drop else found


def _strip_braces(found: list[Token]) -> list[Token]:
    """{x} around everything groups and prints nothing."""
    while len(found) > 2 and found[0].kind == "open" and found[0].text == "{":
        matched = pairs(found)
        if not matched or matched.get(0) != len(found) - 1:
            break
        found = found[1:-1]
    return found


def _merge_thousands(found: list[Token]) -> list[Token]:
    """3,456 outside of brackets is one number; inside it could be a point or an interval and stays two."""
    out: list[Token] = []
    depth, i = 0, 0
    while i < len(found):
        token = found[i]
        if token.kind in ("open", "close") and token.text not in ("{", "}"):
            depth += 1 if token.kind == "open" else -1
        if depth == 0 and token.kind == "num" and re.fullmatch(r"[1-9]\d{0,2}", token.text) and not _glued(out):
            j, digits = i + 1, token.text
            while (
                j + 1 < len(found)
                and found[j].kind == "sep" and found[j].text == "," and not found[j].space
                and found[j + 1].kind == "num" and not found[j + 1].space
                and re.fullmatch(r"\d{3}(?:\.\d+)?", found[j + 1].text)
                and "." not in digits
            ):  # fmt: skip
                digits += found[j + 1].text
                j += 2
            follows = j + 1 < len(found) and found[j].text == "," and not found[j].space and found[j + 1].kind == "num" and not found[j + 1].space
            if j > i + 1 and not follows:
                out.append(token._replace(text=digits))
                i = j
                continue
        out.append(token)
        i += 1
    return out


def _glued(out: list[Token]) -> bool:
    return len(out) >= 2 and out[-1].text == "," and out[-2].kind == "num" and not out[-1].space


@lru_cache(maxsize=16384)
def key(text: str) -> str:
    """One string per printed form; "" where nothing is printed."""
    parts: list[str] = []
    last_wordy, before = False, ""
    for token in tokens(text):
        # \frac016 and x_{01} are not \frac16 and x_1
        shown = normal_number(token.text) if token.kind == "num" and before not in ("frac", "binom", "_") else token.text
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
    whole, point, part = text.partition(".")
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
    box = None
    for box in re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])", text):
        pass
    if box is not None and (content := box_content(text, box.end())) is not None and content.strip():
        text = content.strip()
    return [text] if text else []


def int_text(value: int) -> str:
    """str() of an int of any length, without the interpreter's limit on digits."""
    if value.bit_length() < 12_000:
        return str(value)
    head, tail = divmod(abs(value), 10 ** (value.bit_length() // 8))
    width = value.bit_length() // 8
    return ("-" if value < 0 else "") + int_text(head) + int_text(tail).zfill(width)
