r"""One spelling for equal problem texts: tokens, the key of exact repeats, the id, and what must agree in near repeats.

Cosmetics go (`$`, `\left`, `\dfrac`, thousands separators, punctuation, case of words); numbers, operators, figures and
the case of single letters stay, so that k>0 and k<0 remain different problems.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
SYMBOLS = {
    "≤": "<=", "⩽": "<=", "≦": "<=", "≥": ">=", "⩾": ">=", "≧": ">=", "≠": "!=", "×": "*", "·": "·", "⋅": "·", "∙": "·",
    "÷": "/", "−": "-", "–": "-", "—": " — ", "∞": " infty ", "√": " sqrt ", "°": " deg ", "∠": " angle ",
    "△": " triangle ", "∈": " elem ", "∪": " cup ", "∩": " cap ", "⊂": " subset ", "⊆": " subseteq ", "→": " to ",
    "⊥": " perp ", "∥": " parallel ", "≡": " equiv ", "≅": " cong ", "±": " pm ", "…": " ... ", "’": "'", "‘": "'",
    "′": "'", "“": " ", "”": " ", "∑": " sum ", "∏": " prod ", "∫": " int ", "∅": " emptyset ",
}  # fmt: skip
SYMBOL = re.compile("|".join(map(re.escape, SYMBOLS)))


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


GREEK = {chr(c): f" {unicodedata.name(chr(c)).split()[-1].lower()} " for c in range(0x3B1, 0x3CA) if c != 0x3C2}

RELATIONS = {
    "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=",
    "lt": "<", "gt": ">", "times": "*", "cdot": "·", "div": "/", "ldots": "...", "dots": "...", "cdots": "...",
    "dotsc": "...", "dotsb": "...", "lbrace": "{", "rbrace": "}", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|",
    "circ": "deg", "degree": "deg", "prime": "'", "varnothing": "emptyset", "bigtriangleup": "triangle",
    "in": "elem", "notin": "notelem", "rightarrow": "to",
    "longrightarrow": "to", "sim": "~", "colon": ":", "ast": "*", "varphi": "phi",
    "varepsilon": "epsilon", "vartheta": "theta", "backslash": " ", "pmod": "mod", "bmod": "mod", "cfrac": "frac",
    "dfrac": "frac", "tfrac": "frac", "overline": "bar", "dbinom": "binom", "tbinom": "binom",
}  # fmt: skip
COSMETIC = words_of(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle textstyle scriptstyle limits "
    "nolimits quad qquad enspace thinspace text textbf textit textrm texttt textsf textnormal emph mathrm mathbf "
    "mathit mathsf mathcal mathbb mathfrak mbox hbox operatorname boldsymbol bf rm it noindent par newline hline "
    "hfill vspace hspace phantom overrightarrow underline vec"
)
FENCES = re.compile(r"\\[()\[\]]|\$|\\\\(?:\[[^\]]*\])?|(?<!\\)&|~|\\[,;:! ]")
COMMAND = re.compile(r"\\([a-zA-Z]+)\*?|\\(.)", re.DOTALL)
FORMULA = re.compile(r"\$[^$]{1,400}\$|\\\(.{1,400}?\\\)|\\\[.{1,800}?\\\]", re.DOTALL)
# Not \\name, and nothing inside \\text{...}.
PRODUCT_OF_LETTERS = re.compile(
    r"\\(?:text|textrm|textbf|textit|mathrm|mbox|operatorname)\*?\s*\{[^{}]*\}|(?<![\\a-zA-Z{])[a-z]{2,3}(?![a-zA-Z}])"
)
POINTS = re.compile(r"(?<![A-Za-z\\])[A-Z](?: [A-Z])+(?![A-Za-z])")
HYPHEN_AFTER_FORMULA = re.compile(r"(\$|\\\))\s*-(?=[A-Za-z]{3})")
DISPLAY = re.compile(r"\\(?:begin|end)\{(?:equation|align(?:ed)?|gather(?:ed)?|split|multline|eqnarray|center)\*?\}")
DEGREE = re.compile(r"\^\s*(?:\{\s*)?(deg|')(?:\s*\})?")
THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|\\!,|,\\!)(?=\d{3}(?!\d))")
SINGLE = re.compile(r"\{\s*([A-Za-z0-9.]+|[+-]\s*\d+)\s*\}")
FRACTION = re.compile(r"\bfrac\s*(?:(\d)\s*(\d)(?!\d)|\{\s*(\w+)\s*\}\s*\{\s*(\w+)\s*\}|\s(\w+)\s+(\w+)\b)")
SEGMENT = re.compile(r"\b(?:overline|bar|vec|widehat)\s*\{?\s*(?=[A-Z]{2})")
WORD_HYPHEN = re.compile(r"(?<=[A-Za-z]{2})-(?=[A-Za-z]{2})|(?<=\d)-(?=[A-Za-z]{3})|(?<=[A-Za-z])-(?=[a-z]{3})")
NON_HYPHEN = re.compile(r"\b([Nn]on|[Cc]o|[Rr]e)-(?=[a-z]{3})")
PRODUCT = re.compile(r"(?<=[\d)])\s*[·*]\s*(?=[\d(])")
LATEX_BRACES = re.compile(r"\\|[\^_]\s*\{|[a-z]\s*\{|\}\s*\{")
CHOOSE = re.compile(r"\{\s*([^{}\\]{1,20}?)\s*\\choose\s*([^{}\\]{1,20}?)\s*\}")
GREATER = re.compile(r"\b(?:(?:that |which )?(?:is|are) )?(?:strictly )?greater than( or equal to)?(?=[\s$\\(]*-?\d)")
SPEED = re.compile(r"(?<![A-Za-z])(?:(km)\s*/\s*hr?|(m)\s*/\s*s|(mi)les?\s*/\s*h(?:ou)?r|(kph)|(mph))(?![A-Za-z])")
SPEEDS = ("kilometer per hour", "meter per second", "mile per hour", "kilometer per hour", "mile per hour")
LITRE = re.compile(r"(?<=\d)\s*L(?![A-Za-z_^=+*/'])(?=\s+[a-z]|\s*[.,;?!]|\s*$)")
MODULUS = re.compile(r"\(\s*mod\s+([^()]{1,12})\)")
APOSTROPHE = re.compile(r"(?<=[A-Za-z]{2})'(?:s\b)?")
MONEY = re.compile(r"\\\$|\bUS\$")
TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|[A-Za-z]+|[\u3400-\u9fff]|<=|>=|!=|\.\.\.|[^\s\w]|\w")
# Punctuation; of the last three, `_counts` judges.
JUDGED = frozenset(".,;?\"`“”。，；？、：—_#:!'")
STOP_WORDS = words_of(
    "a an the of is are be was were been being that this these those it its and in on at to for from by with as if "
    "then let we you your our us i there here given suppose assume consider such where which when what whats find "
    "determine compute calculate evaluate solve give express write state obtain get value values please answer final "
    "result following also have has had do does can could must should will would may might may denote denoted define "
    "defined so now hence thus therefore each so-called say called problem question help me simplest form possible "
    "exactly need needs know known knowing into out up having expressed terms way ways whose"
)
EMPHASISED = STOP_WORDS | words_of("not and or except least most all exactly no only true false any every each")
NUMERALS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
NUMBER_WORDS = (
    {
        word: str(n)
        for n, word in enumerate(NUMERALS)
        if word != "one"  # as often a pronoun as a number
    }
    | {"thirty": "30", "forty": "40", "fifty": "50", "sixty": "60", "percent": "%", "degree": "deg", "degrees": "deg"}
    | {
        "twice": "2",
        "thrice": "3",
    }
)
# Words of one meaning where a problem is told; in content alone, never in keys.
SYNONYMS = {
    "smallest": "least", "largest": "greatest", "biggest": "greatest", "maximal": "maximum", "minimal": "minimum",
    "pick": "choose", "picks": "choose", "picked": "choose", "picking": "choose", "select": "choose",
    "selects": "choose", "selected": "choose", "selecting": "choose", "chosen": "choose", "choosing": "choose",
    "containing": "contain", "holds": "contain", "hold": "contain", "holding": "contain", "bought": "buy",
    "purchased": "buy", "purchase": "buy", "purchases": "buy", "tossed": "flipped", "thrown": "rolled",
    "divides": "divisor", "lying": "lie", "drawn": "draw", "drawing": "draw", "begins": "start", "begin": "start",
    "intersects": "meet", "intersect": "meet", "wishes": "want", "altogether": "total", "formed": "made",
    "costing": "cost", "tens": "tensplace",
}  # fmt: skip
# Units of one name: abbreviated, plural, British. `min` and `sec` are functions, single letters are variables.
UNITS = {
    "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "kg": "kilogram", "mg": "milligram", "ml": "milliliter",
    "ft": "foot", "feet": "foot", "lb": "pound", "lbs": "pound", "oz": "ounce", "hr": "hour", "hrs": "hour",
    "mins": "minute", "secs": "second", "inches": "inch", "mi": "mile", "yd": "yard", "yds": "yard",
}  # fmt: skip
UNITS |= {
    spelled: unit
    for unit in ("kilometer", "centimeter", "millimeter", "meter", "liter", "milliliter")
    for spelled in (f"{unit}s", f"{unit[:-2]}re", f"{unit[:-2]}res")
}
UNITS |= {f"{unit}s": unit for unit in words_of("kilogram gram mile pound ounce hour minute second yard")}
FUNCTIONS = words_of(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp lim gcd lcm max min mod floor ceil lfloor "
    "rfloor lceil rceil sqrt frac binom sum prod int deg det infty pi cup cap subset subseteq elem notelem perp "
    "parallel equiv cong pm overline vec bar hat forall exists alpha beta gamma delta epsilon zeta eta theta iota "
    "kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega"
)


def tokens(text: str) -> tuple[str, ...]:
    r"""The text's words, numbers, letters and operators in one spelling.

    >>> tokens(r"Find $\dfrac{1}{2}+x^{2}$.") == tokens(r"find \( \frac12 + x^2 \)")
    True
    """
    return _tokens(text)


def key(text: str) -> bytes:
    """16 bytes that are equal for texts which differ in cosmetics alone."""
    return hashlib.blake2b("\x1f".join(tokens(text)).encode(), digest_size=16).digest()


def problem_id(text: str) -> str:
    """The id of a problem: the same on every machine, for every copy that differs in cosmetics alone."""
    return key(text).hex()[:16]


def shingles(words: tuple[str, ...], size: int = 3) -> list[str]:
    """Runs of `size` tokens; a shorter text is one shingle."""
    if len(words) <= size:
        return [" ".join(words)] if words else []
    return [" ".join(words[i : i + size]) for i in range(len(words) - size + 1)]


def content(words: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens that carry the problem: no articles, auxiliaries and verbs that ask. `how many` is `number`, and `at
    least` another word than the `least` that also stands for `smallest`."""
    if "how" in words:
        words = _with_number(words)
    if "at" in words:
        words = tuple(
            f"at{w}" if before == "at" and w in ("least", "most") else w
            for w, before in zip(words, ("", *words[:-1]), strict=True)
        )
    return tuple(found for word in words if (found := _content_word(word)))


def plain(words: tuple[str, ...]) -> tuple[str, ...]:
    """The content words that are no quantities."""
    return tuple(word for word in content(words) if not _quantity(word))


def _with_number(words: tuple[str, ...]) -> tuple[str, ...]:
    pairs = zip(words, (*words[1:], ""), strict=True)
    kept = ["number" if pair == ("how", "many") else pair[0] for pair in pairs]
    return tuple(
        w for w, before in zip(kept, ("", *kept[:-1]), strict=True) if not (w == "many" and before == "number")
    )


def quantities(words: tuple[str, ...]) -> tuple[str, ...]:
    """What must agree before two texts are one problem, in order: numbers (words too), operators, letters, names of
    functions and words in capitals."""
    return tuple(found for word in words if (found := _quantity(word)))


def firm_quantities(words: tuple[str, ...]) -> tuple[str, ...]:
    """`quantities` without the lower-case letters that stand alone between words: `for $x$` may be said or not."""
    marked = ["", *(_quantity(word) for word in words), ""]
    alone = [len(m) == 1 and m.islower() and not marked[i - 1] and not marked[i + 1] for i, m in enumerate(marked[:-1])]
    return tuple(found for found, loose in zip(marked, alone, strict=False) if found and not loose)


def is_quantity(word: str) -> bool:
    return bool(_quantity(word))


def formulas(words: tuple[str, ...], in_order: bool = False) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The quantities in two parts: whole formulas (runs of three tokens and more), in whatever order they are told
    unless `in_order`, and in order all others but lower-case letters that stand alone."""
    runs: list[list[str]] = [[]]
    for word in words:
        if word in ("(", ")") or (found := _quantity(word)):
            if runs[-1] and len(word) > 1 and word.isupper() and runs[-1][-1].isalnum():
                runs.append([])  # `in triangle ABC, AB = 13`: tokens have no commas
            runs[-1].append(word if word in ("(", ")") else found)
        elif runs[-1]:
            runs.append([])
    runs = [without_outer_fences(run) for run in runs]
    whole = [tuple(run) for run in runs if len(run) > 2]
    rest = [
        word for run in runs if len(run) < 3 for word in run if len(word) > 1 or not (word.islower() and len(run) == 1)
    ]
    return tuple(whole if in_order else sorted(whole)), tuple(rest)


def without_outer_fences(run: list[str]) -> list[str]:
    """A formula without parentheses that have no partner in it, or that hold all of it."""
    opened: list[int] = []
    partner: dict[int, int] = {}
    for i, word in enumerate(run):
        if word == "(":
            opened.append(i)
        elif word == ")" and opened:
            partner[opened[-1]] = i
            partner[i] = opened.pop()
    kept = [i for i, word in enumerate(run) if word not in ("(", ")") or i in partner]
    while len(kept) > 1 and run[kept[0]] == "(" and partner[kept[0]] == kept[-1]:
        kept = kept[1:-1]
    return [run[i] for i in kept]


@lru_cache(maxsize=65536)
def _content_word(word: str) -> str:
    if word.lower() in STOP_WORDS and len(word) > 1:
        return ""
    word = SYNONYMS.get(word, word)
    return stem(NUMBER_WORDS.get(word, word))


@lru_cache(maxsize=65536)
def _quantity(word: str) -> str:
    word = NUMBER_WORDS.get(word, word)
    counts = not word.isalpha() or len(word) == 1 or word in FUNCTIONS or word.isupper()
    return word if counts and word not in ("a", "A", "I", "(", ")", "'") else ""


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """A word without its plural or verb ending, roughly: enough to see that `ball` and `balls` are one word."""
    if len(word) < 4 or not word.isalpha() or word.isupper():
        return word
    for ending, rest in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", "")):
        if word.endswith(ending) and not word.endswith(("ss", "us", "is")) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + rest
    return word


@lru_cache(maxsize=1024)
def _tokens(text: str) -> tuple[str, ...]:
    if not text.isascii():
        text = _ascii(text.translate(SUBSCRIPTS))
    if text.isupper():
        text = text.lower()
    if "\\choose" in text:
        text = CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = LITRE.sub(" liter", SPEED.sub(lambda m: SPEEDS[(m.lastindex or 1) - 1], text))
    if "\\begin" in text:
        text = DISPLAY.sub(" ", text)
    if "\\" in text or "$" in text:
        text = HYPHEN_AFTER_FORMULA.sub(r"\1 ", MONEY.sub(" ", text))
    if "greater than" in text:
        text = GREATER.sub(lambda m: " >= " if m.group(1) else " > ", text)
    if "$" in text or "\\(" in text or "\\[" in text:
        text = FORMULA.sub(_letters_apart, text)
    if "'" in text:
        text = APOSTROPHE.sub("", text)
    text = FENCES.sub(" ", THOUSANDS.sub("", text.replace("**", " ")))
    if "\\" in text:
        text = DEGREE.sub(r" \1 ", COMMAND.sub(_command, text))
    if "{" in text or "frac" in text:
        text = _without_braces(text)
    if "mod" in text:
        text = MODULUS.sub(r" mod \1 ", text)
    if "-" in text:
        text = WORD_HYPHEN.sub(" ", NON_HYPHEN.sub(r"\1", text))
    if "·" in text or "*" in text:
        text = PRODUCT.sub(" * ", text)
    if "{" in text and not LATEX_BRACES.search(text):
        text = text.replace("{", " lset ").replace("}", " rset ")
    found = _without_argument_fences(TOKEN.findall(text))
    return tuple(_case(word) for i, word in enumerate(found) if word not in JUDGED or _counts(found, i, word))


def _without_argument_fences(found: list[str]) -> list[str]:
    """`sin ( 30 deg )` as `sin 30 deg`: parentheses around one term after the name of a function."""
    if "(" not in found:
        return found
    out: list[str] = []
    skip = -1
    for i, word in enumerate(found):
        if word == "(" and i and found[i - 1] in FUNCTIONS and found[i - 1].isalpha() and len(found[i - 1]) > 2:
            end = next((j for j in (i + 2, i + 3) if found[j : j + 1] == [")"]), -1)
            if end > 0 and (end == i + 2 or found[i + 2] == "deg"):
                skip = end
                continue
        if i != skip:
            out.append(word)
    return out


def _without_braces(text: str) -> str:
    """Numeric fractions as a/b, and braces around a single token gone; those that hold a formula stay."""
    while True:
        plain = SINGLE.sub(r" \1 ", FRACTION.sub(_fraction, text))
        if plain == text:
            return SEGMENT.sub(" ", text)
        text = plain


def _ascii(text: str) -> str:
    """Full-width forms, fractions, superscripts, Greek and operators in the spelling of LaTeX without backslashes."""
    text = re.sub(
        "[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+",
        lambda m: "^" + ("{%s}" if len(m.group()) > 1 else "%s") % m.group().translate(SUPERSCRIPTS),
        text,
    )
    text = SYMBOL.sub(lambda m: SYMBOLS[m.group()], text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    return "".join(GREEK.get(c, c) for c in text)


def _command(match: re.Match[str]) -> str:
    name, other = match.group(1), match.group(2)
    if other is not None:
        return {"{": " lset ", "}": " rset ", "|": "|", "%": "%", "#": "#", "_": " ", "&": " "}.get(other, " ")
    if name in COSMETIC:
        return " "
    return f" {RELATIONS.get(name, name)} "


def _letters_apart(match: re.Match[str]) -> str:
    """A formula with products of variables as single letters and points of a figure as one name: `k x`, `ABC`."""
    text = match.group()
    text = PRODUCT_OF_LETTERS.sub(
        lambda m: m.group() if m.group()[0] == "\\" or m.group() in FUNCTIONS else " ".join(m.group()), text
    )
    return POINTS.sub(lambda m: m.group().replace(" ", ""), text)


def _fraction(match: re.Match[str]) -> str:
    top, bottom = [group for group in match.groups() if group is not None]
    return f" {top}/{bottom} "


@lru_cache(maxsize=65536)
def _case(word: str) -> str:
    if len(word) > 1 and word.isalpha() and not (word.isupper() and word.lower() not in EMPHASISED):
        return UNITS.get(word.lower(), word.lower())
    return "*" if word == "·" else word


def _counts(found: list[str], i: int, word: str) -> bool:
    """Whether a token is more than punctuation: `:` between numbers is a ratio, `!` after one a factorial."""
    if word not in ":!'":
        return False
    before = found[i - 1] if i else ""
    after = found[i + 1] if i + 1 < len(found) else ""
    if word == ":":
        return before[-1:].isalnum() and after[:1].isalnum() and len(before) < 4 and not before.islower()
    if word == "!":
        return before[-1:].isdigit() or len(before) == 1 or before == ")"
    return len(before) == 1 and after != "s"
