"""Units after a value: read, compared, converted. A unit on one side only may be left out; units that contradict each
other make quantities differ (Math-Verify tests), unless one converts into the other exactly (5 m and 500 cm)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from concisecli.grader.symbols import words
from concisecli.grader.tokens import Token, pairs

_SCALES: dict[str, tuple[str, str]] = {}  # word -> (base unit, factor)


def _define(base: str, entries: str) -> None:
    for entry in entries.split(";"):
        factor, _, words = entry.strip().partition(":")
        for word in words.split("|"):
            _SCALES[word.strip()] = (base, factor)


_define("m", "1/1000:mm|millimeter|millimetre|毫米; 1/100:cm|centimeter|centimetre|厘米; 1/10:dm|decimeter|分米")
_define("m", "1:m|meter|metre|米; 1000:km|kilometer|kilometre|千米|公里")
_define("m", "254/10000:inch|inche; 3048/10000:ft|foot|feet; 9144/10000:yd|yard; 1609344/1000:mi|mile")
_define(
    "s",
    "1/1000:ms|millisecond; 1:s|sec|second|秒; 60:min|minute|分钟; 3600:h|hr|hour|小时; 86400:day|天; 604800:week|周",
)
_define("g", "1/1000:mg|milligram|毫克; 1:g|gram|克; 1000:kg|kilogram|千克|公斤; 1000000:tonne|吨")
_define("l", "1/1000:ml|milliliter|millilitre|毫升; 1:l|liter|litre|升")
_define("dollar", "1:dollar|usd; 1/100:cent")
_define("euro", "1:euro|eur")
_define("pound", "1:pound|gbp")
_define("rupee", "1:rupee|rs|inr")
_define("yuan", "1:yuan|rmb|元|块; 1/10:jiao|角; 1/100:fen")
_define("deg", "1:deg|degree|度")
_define("rad", "1:rad|radian|弧度")
_define("%", "1:percent")
_define("J", "1:j|joule; 1000:kj|kilojoule")
_define("Hz", "1:hz|hertz; 1000:khz")
_define("year", "1:year|yr|年")
_define("month", "1:month|月|个月")
_GENERIC = {"unit", "单位"}
_MULTIPLIERS = {
    "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "lakh": 10**5, "crore": 10**7,
    "百": 100, "千": 1000, "万": 10**4, "百万": 10**6, "千万": 10**7, "亿": 10**8,
}  # fmt: skip
_CHINESE_MULTIPLIER = re.compile(r"(百万|千万|百|千(?![瓦焦卡赫帕])|万|亿)(.*)")
_CHINESE_NOT_UNITS = re.compile("的|以上|以下|以内|以外|左右|分之|次方|至少|至多|大约|不|非")
# Words that change what the value means.
_NOT_UNITS = words(
    "not or and more less than if when for where except but least most about no at maximum minimum remainder mod with "
    "approximately approx around roughly nearly over under between through to from by is are was were of in the only "
    "either neither both maybe possibly never none plus minus times divided equals equal am pm otherwise "
    "half halves third thirds quarter quarters tenth tenths hundredth hundredths thousandth thousandths squared cubed "
    "power factorial root score gross hundreds thousands millions billions dozens twice double triple doubled tripled "
    "tens ones fifths sixths sevenths eighths ninths fold wrong incorrect impossible false undefined guess etc "
    "below above negative positive inverse reciprocal "
    "余 不 非 约 大约 至少 至多 除 多 几 半"
)
_LETTER_UNITS = set("mghlsLNJKWVACFTBMSHPRGΩ") | {"Omega", "mu"}
_CHINESE_COUNTERS = set("个种人次组条只本张位岁件辆颗块名道台棵间双对层页支枝步盒份题根杯袋箱天篇")


@dataclass(frozen=True, slots=True)
class Unit:
    """Base units with exponents and the factor to them; a noun is a base unit of its own."""

    powers: tuple[tuple[str, int], ...]
    factor: Fraction = Fraction(1)

    def scale_to(self, other: Unit) -> Fraction | None:
        """What a value in this unit is multiplied with to be in the other; None where they contradict each other."""
        if not self.powers or not other.powers:  # "units": any will do
            return Fraction(1)
        if self.powers != other.powers:
            return None
        return self.factor / other.factor


def drop_scale(unit: Unit | None) -> str | None:
    return unit.powers[0][0] if unit and unit.powers == (("deg", 1),) else None


def read_unit(found: list[Token]) -> tuple[list[Token], Unit | None]:
    """Split a value from the unit after (or the currency before) it. Words that change the meaning ("at least",
    "or", "remainder") are no units: the whole is returned as it was."""
    found = list(found)
    if currency := _currency(found):
        return currency
    if degrees := _degrees(found):
        return degrees
    depth, start = 0, None
    for i, token in enumerate(found):
        if start is None and depth == 0 and i > 0 and _begins_unit(token, found[i - 1]):
            start = i
        depth += (token.kind == "open") - (token.kind == "close")
    if start is None:
        return found, None
    value, rest = found[:start], found[start:]
    if value[-1].kind == "op" and value[-1].text in ("*", "-"):  # 5-inch, 5 * cm
        value = value[:-1]
    if not value or pairs(value) is None or pairs(rest) is None:
        return found, None
    times, rest = _multiplier(rest)
    if times:
        value = [Token("open", "("), *value, Token("close", ")"), Token("op", "*"), Token("num", str(times))]
    if not rest:
        return value, None
    unit = _parse(rest)
    return (value, unit) if unit is not None else (found, None)


_PREFIXES = words("dollar euro pound pounds yuan rupee ruble won USD EUR GBP INR RMB Rs")


def _currency(found: list[Token]) -> tuple[list[Token], Unit] | None:
    """$10, -$10, $2.5 million."""
    at = 1 if found and found[0].text == "-" else 0
    if len(found) < at + 2 or found[at].kind not in ("text", "cmd") or found[at].text not in _PREFIXES:
        return None
    after = at + 2 if found[at + 1].text == "." and len(found) > at + 2 else at + 1  # Rs. 300
    amount, more = read_unit([*found[:at], *found[after:]])
    if more is not None:
        return None
    return amount, Unit(((_base(found[at].text)[0], 1),))


def _multiplier(rest: list[Token]) -> tuple[int, list[Token]]:
    """What a number word before the unit multiplies with (0: none), and what follows it: 5 million people, 10 万元."""
    word = rest[0].text if rest and rest[0].kind == "text" else ""
    if word.lower() in _MULTIPLIERS:
        return _MULTIPLIERS[word.lower()], rest[1:]
    chinese = _CHINESE_MULTIPLIER.fullmatch(word)
    if chinese and word not in _SCALES:
        return _MULTIPLIERS[chinese[1]], [rest[0]._replace(text=chinese[2]), *rest[1:]] if chinese[2] else rest[1:]
    return 0, rest


def _degrees(found: list[Token]) -> tuple[list[Token], Unit] | None:
    texts = [t.text for t in found]
    for tail in (["^", "circ"], ["^", "{", "circ", "}"]):
        if len(texts) > len(tail) and texts[-len(tail) :] == tail and texts.count("circ") == 1:
            value = found[: -len(tail)]
            # 30 + 45^o would give the degree to one term only
            if all(t.kind in ("num", "sym", "cmd", "open", "close") or t.text in ("-", "/") for t in value):
                return value, Unit((("deg", 1),))
    for letter in ("C", "F"):
        if texts[-3:] == ["^", "circ", letter] or texts[-5:] == ["^", "{", "circ", "}", letter]:
            return found[: -3 if texts[-3:] == ["^", "circ", letter] else -5], Unit(((f"deg{letter}", 1),))
    return None


def _begins_unit(token: Token, before: Token) -> bool:
    follows_value = before.kind in ("num", "rep", "close", "sym") or before.text in ("!", "*", "-", "%")
    if not follows_value:
        return False
    if token.kind == "text":
        return True
    return (
        token.kind == "sym" and token.roman and token.text in _LETTER_UNITS and before.kind in ("num", "rep", "close")
    )


def _base(word: str) -> tuple[str, Fraction]:
    for name in (word, word.lower(), re.sub(r"s$", "", word.lower()), re.sub(r"es$", "", word.lower())):
        if name in _SCALES:
            base, factor = _SCALES[name]
            return base, Fraction(factor)
    return word, Fraction(1)


def _parse(rest: Sequence[Token]) -> Unit | None:
    """km/h, m^2, square metres, \\text{cm}^{3}, red apples; None where the words are more than a unit."""
    powers: dict[str, int] = {}
    factor = Fraction(1)
    sign, pending, nouns = 1, 1, []
    i = 0
    while i < len(rest):
        token = rest[i]
        word = token.text
        lower = word.lower()
        if token.kind in ("text", "sym"):
            if token.kind == "sym" and i + 1 < len(rest) and rest[i + 1].text == ".":
                return None  # p.m.
            if word == "in" and token.roman and (i + 1 == len(rest) or rest[i + 1].text in ("^", "/")):
                word = lower = "inch"
            if lower in _NOT_UNITS or _CHINESE_NOT_UNITS.search(word) or (token.kind == "sym" and len(word) > 1):
                return None
            if lower in ("square", "sq", "平方"):
                pending = 2
            elif lower in ("cubic", "cu", "立方"):
                pending = 3
            elif lower == "per" or lower == "每":
                sign = -1
            else:
                squared = re.fullmatch(r"(平方|立方)(.+)", word)
                if squared:
                    pending, word = (2 if squared[1] == "平方" else 3), squared[2]
                base, scale = _base(word)
                if base in _GENERIC or re.sub(r"s$", "", base.lower()) in _GENERIC:
                    i += 1
                    while i + 1 < len(rest) and rest[i].text == "^":
                        i += 2 if rest[i + 1].text != "{" else 4
                    continue
                power, used = _power(rest, i + 1)
                if power is None:
                    return None
                power *= pending * sign
                if base == word and word not in _SCALES:
                    if all(c in _CHINESE_COUNTERS for c in word):
                        base = ""  # a counter says nothing about what is counted
                    else:
                        nouns.append(_singular(lower) if token.kind == "text" else word)
                        base = ""
                if base:
                    powers[base] = powers.get(base, 0) + power
                    factor *= scale**power
                pending = 1
                i += used
        elif word == "/":
            sign = -1
        elif word in ("*", ".", "-", "(", ")", "{", "}"):
            pass
        else:
            return None
        i += 1
    if len(nouns) > 3:
        return None
    if nouns:
        powers[" ".join(nouns)] = 1
    return Unit(tuple(sorted((b, p) for b, p in powers.items() if p)), factor)


def _power(rest: Sequence[Token], at: int) -> tuple[int | None, int]:
    """The exponent after a unit and how many tokens it takes."""
    if at >= len(rest) or rest[at].text != "^":
        return 1, 0
    texts = [t.text for t in rest[at + 1 : at + 5]]
    for shape, used in ((1, 2), (3, 4)):
        inner = (
            texts[0]
            if shape == 1 and texts
            else texts[1]
            if len(texts) >= 3 and texts[0] == "{" and texts[2] == "}"
            else ""
        )
        if inner.isdigit() and len(inner) == 1:
            return int(inner), used
    if len(texts) >= 4 and texts[0] == "{" and texts[1] == "-" and texts[2].isdigit() and texts[3] == "}":
        return -int(texts[2]), 5
    if len(texts) >= 2 and texts[0] == "-" and texts[1].isdigit():
        return -int(texts[1]), 3
    return None, 0


def _singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
