r"""Written mathematics as tokens: LaTeX, plain text and unicode into one list that keeps every character.

Nothing is dropped on the way except what cannot be seen in print: spaces, sizes of brackets and fractions, fonts,
dollar signs around formulas, a closing full stop.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from concisecli.grader.extraction import box_content, closing_brace, repair
from concisecli.grader.symbols import (
    CONSTANTS,
    CURRENCY,
    FONT_COMMANDS,
    FUNCTION_NAMES,
    FUNCTIONS,
    GREEK,
    IGNORED,
    OPAQUE_COMMANDS,
    OPERATORS,
    SAME_COMMAND,
    SEPARATOR_WORDS,
    SHORT_WORDS,
    SUBSCRIPTS,
    SUPERSCRIPTS,
    UNICODE,
    UNIT_WORDS,
)

REMEMBERED = 400  # characters of a text whose reading is kept
MAX_DEPTH = 20  # of commands in commands, such as \\text{\\textbf{...}}


class Token(NamedTuple):
    """kind: num, rep (repeating decimal), sym, text (a word), fn, cmd, op, open, close, sep, dots, begin, end."""

    kind: str
    text: str
    space: bool = False  # preceded by white space
    roman: bool = False  # written upright, as in \text{m}: a unit rather than a variable


_GROUP_COMMAND = re.compile(
    r"\\(" + "|".join(re.escape(c) for c in sorted(FONT_COMMANDS, reverse=True)) + r")(?![A-Za-z])\s*\{"
)
_TRANSLATE = str.maketrans(UNICODE)
_SUPERS, _SUBS = re.compile(f"[{''.join(SUPERSCRIPTS)}]+"), re.compile(f"[{''.join(SUBSCRIPTS)}]+")
_OVER = re.compile(r"\{([^{}]*?)\\over(?![A-Za-z])([^{}]*)\}|\A([^{}]*?)\\over(?![A-Za-z])([^{}]*)\Z")
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
_REPEATING = re.compile(
    r"(?<![\d.])(\d*\.\d*)\s*\\(?:overline|bar|overset)\s*\{\s*(\d+)\s*\}|(?<![\d.])(\d*\.)\((\d+)\)"
)
_DOTTED = re.compile(r"(?<![\d.])(\d*\.\d*)\s*\\dot\s*\{?(\d)\}?(?:(\d*)\s*\\dot\s*\{?(\d)\}?)?(?!\d)")
_NUMBER = re.compile(r"(?:\d+\.\d+|\d+\.(?!\.)|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.]*[A-Za-z^]))?")
_AMBIGUOUS_E = re.compile(r"[02-9]\d*e-\d\Z|1\d+e-\d\Z")  # 3e-2: three hundredths, or 3e minus 2


def clean(text: str) -> str:
    """Unicode, dollar signs, fonts of digits and thousands separators, before tokens are cut."""
    text = repair(text)
    if not _ASCII.fullmatch(text):
        text = _SUPERS.sub(lambda m: "^{" + "".join(SUPERSCRIPTS[c] for c in m[0]) + "}", text)
        text = _SUBS.sub(lambda m: "_{" + "".join(SUBSCRIPTS[c] for c in m[0]) + "}", text)
        text = _VULGAR.sub(_vulgar, text)
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
    if "\\over" in text:
        text = _OVER.sub(lambda m: f"\\frac{{{m[1] or m[3]}}}{{{m[2] or m[4]}}}", text)
    for pattern, by in _THOUSANDS:
        text = pattern.sub(by, text)
    text = _THIN.sub(lambda m: _THIN_SPACE.sub("", m[0]), text)
    return strip_stop(text)


def _vulgar(found: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", found[0]).partition("⁄")
    return f"\\frac{{{above}}}{{{below}}}"


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
    r"(?P<space>\s+|~|\\[,;:!> ])|(?P<row>\\\\(?:\[[^\]]*\])?)|(?P<cmd>\\[A-Za-z]+\*?)|(?P<esc>\\.)"
    r"|(?P<rep>\d*\.\d*\(\d+r\))"
    r"|(?P<num>\d|\.(?=\d))|(?P<word>[A-Za-z]+)|(?P<cjk>[\u3040-\u30ff\u3400-\u9fff]+)|(?P<dots>\.\.\.*)"
    r"|(?P<rel><=|>=|==|!=|=<|\*\*)|(?P<letter>[^\W\d_])|(?P<other>.)",
    re.DOTALL,
)


def tokens(text: str) -> tuple[Token, ...]:
    """The tokens of an answer, in print order. Short texts are remembered."""
    return _short(text) if len(text) <= REMEMBERED else _read(text)


@lru_cache(maxsize=8192)
def _short(text: str) -> tuple[Token, ...]:
    return _read(text)


def _read(text: str) -> tuple[Token, ...]:
    text = clean(text)
    text = _REPEATING.sub(lambda m: f"{m[1] or m[3]}({m[2] or m[4]}r)", text)
    text = _DOTTED.sub(lambda m: f"{m[1]}({m[2]}{m[3] or ''}{m[4] or ''}r)", text)
    text = _join_spaced(text)
    found: list[Token] = []
    _scan(text, found, roman=False, depth=0)
    return tuple(_merge_thousands(strip_braces(_strip_parentheses(found))))


def _join_spaced(text: str) -> str:
    """1 234 567 is one number."""
    return _SPACED.sub(lambda m: m[0].replace(" ", ""), text)


def _scan(text: str, out: list[Token], *, roman: bool, depth: int) -> None:
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
            end = _command(text, at, piece[1:], space, out, roman, depth)
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
        elif piece in CURRENCY:
            out.append(Token("text", CURRENCY[piece], space, True))
        else:
            out.append(Token("op", piece, space))
        at, space = end, False


def _command(text: str, at: int, name: str, space: bool, out: list[Token], roman: bool, depth: int) -> int:
    """One LaTeX command at `at`; the index after it."""
    end = at + 1 + len(name)
    if depth < MAX_DEPTH and (group := _GROUP_COMMAND.match(text, at)):
        brace = closing_brace(text, group.end() - 1)
        if brace is not None:
            before = len(out)
            _scan(_join_spaced(text[group.end() : brace]), out, roman=True, depth=depth + 1)
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
    if depth < MAX_DEPTH and name in ("boxed", "fbox"):
        content = box_content(text, end)
        if content is not None:
            _scan(content, out, roman=roman, depth=depth + 1)
            return text.index(content, end) + len(content) + (1 if text[end : end + 1] == "{" else 0)
    name = SAME_COMMAND.get(name, name)
    if name in IGNORED:
        # \left. and \right. print nothing
        return end + 1 if name in ("left", "right") and text[end : end + 1] == "." else end
    if name in OPAQUE_COMMANDS:
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
        out.append(Token("sep", OPERATORS[name], space))
    elif name in OPERATORS:
        out.append(Token("op", OPERATORS[name], space))
    elif name in CONSTANTS:
        out.append(Token("sym", CONSTANTS[name], space))
    elif name == "i":
        out.append(Token("sym", "i", space))
    elif name in FUNCTIONS or name in FUNCTION_NAMES:
        out.append(Token("fn", FUNCTION_NAMES.get(name, name), space))
        if name == "sqrt" and (digits := re.match(r"\s*(\d)(?=\d)", text[end:])):  # prints a root of one digit only
            out.extend([Token("open", "{"), Token("num", digits[1]), Token("close", "}")])
            return end + digits.end()
    elif name in GREEK:
        out.append(Token("sym", name, space))
    else:
        out.append(Token("cmd", name, space))
    return end


def _word(piece: str, space: bool, out: list[Token], roman: bool) -> int:
    """A run of letters: a function, a constant, a separator, letters to multiply, or a word. How much was used."""
    lower = piece.lower()
    if lower in SEPARATOR_WORDS and (roman or space or not out):
        out.append(Token("sep", SEPARATOR_WORDS[lower], space))
    elif piece == "np" and not roman:
        out.append(Token("text", piece, space, roman))
    elif piece in FUNCTIONS or piece in FUNCTION_NAMES:
        out.append(Token("fn", FUNCTION_NAMES.get(piece, piece), space))
    elif piece in ("pi", "infty", "infinity", "inf", "oo", "emptyset") and not (roman and piece == "inf"):
        out.append(Token("sym", CONSTANTS[piece], space))
    elif lower in ("percent", "percentage", "pct"):
        out.append(Token("op", "%", space))
    elif piece in GREEK and len(piece) > 2 and not roman:
        out.append(Token("sym", piece, space))
    elif len(piece) == 1:
        out.append(Token("sym", piece, space, roman))
    elif (
        not roman
        and (split := re.match(r"(?:sqrt|sin|cos|tan|ln|log|pi)(?=[a-z]?\Z)", piece))
        and split.end() < len(piece)
    ):
        name = split[0]
        out.append(Token("sym" if name == "pi" else "fn", name, space))
        return split.end()
    elif not roman and len(piece) == 2 and piece.islower() and lower not in UNIT_WORDS and lower not in SHORT_WORDS:
        out.extend(Token("sym", c, space and i == 0) for i, c in enumerate(piece))
    else:
        out.append(Token("text", piece, space, roman))
    return len(piece)


def _cjk(piece: str, space: bool, out: list[Token]) -> None:
    if piece in SEPARATOR_WORDS:
        out.append(Token("sep", SEPARATOR_WORDS[piece], space))
    else:
        out.append(Token("text", piece, space, True))


_PAIR = {
    "(": ")",
    "[": "]",
    "{": "}",
    "\\{": "\\}",
    "\\langle": "\\rangle",
    "\\lfloor": "\\rfloor",
    "\\lceil": "\\rceil",
}


def pairs(found: Sequence[Token]) -> dict[int, int] | None:
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


def nesting(found: Sequence[Token]) -> int:
    """How deep brackets stand in brackets."""
    depth = deepest = 0
    for token in found:
        depth += (token.kind == "open") - (token.kind == "close")
        deepest = max(deepest, depth)
    return deepest


def _strip_parentheses(found: list[Token]) -> list[Token]:
    """((x)) is (x), however deep: one of two brackets that open and close together goes."""
    matched = pairs(found)
    if not matched:
        return found
    drop: set[int] = set()
    for start, end in matched.items():
        if (
            found[start].text in ("(", "{")
            and matched.get(start + 1) == end - 1
            and found[start + 1].text == found[start].text
        ):
            drop |= {start, end}
    return [t for i, t in enumerate(found) if i not in drop] if drop else found


def strip_braces(found: Sequence[Token]) -> Sequence[Token]:
    """{x} around everything groups and prints nothing."""
    while len(found) > 2 and found[0].kind == "open" and found[0].text == "{":
        matched = pairs(found)
        if not matched or matched.get(0) != len(found) - 1:
            break
        found = found[1:-1]
    return found


def _merge_thousands(found: Sequence[Token]) -> list[Token]:
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
            follows = (
                j + 1 < len(found)
                and found[j].text == ","
                and not found[j].space
                and found[j + 1].kind == "num"
                and not found[j + 1].space
            )
            if j > i + 1 and not follows:
                out.append(token._replace(text=digits))
                i = j
                continue
        out.append(token)
        i += 1
    return out


def _glued(out: list[Token]) -> bool:
    return len(out) >= 2 and out[-1].text == "," and out[-2].kind == "num" and not out[-1].space
