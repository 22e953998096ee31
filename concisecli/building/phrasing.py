"""How a problem is put, apart from what it says: words on the form of the answer, choices, the order of its clauses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

# Sentences and clauses on how an answer is to be written. What changes the answer (rounding, a base) is not among them.
FORM = re.compile(
    r"(?:(?<=[.?!。])\s*|^|,?\s+and\s+|\n)(?:please\s+)?"
    r"(?:express|give|write|enter|leave|report|state|submit|provide|put|box)\s+(?:me\s+)?(?:your|the)\s+(?:final\s+)?"
    r"answers?\b(?![^.?!]*(?:nearest|round|base|decimal place|modul))[^.?!]*[.?!]?"
    r"|(?:(?<=[.?!。])\s*|^|\n)please\s+(?:reason|think|solve|show|answer|explain)\b[^.?!]*[.?!]?"
    r"|,?\s*(?:where|with|for|such that|if)\s+\S{1,6}(?:\s*,\s*\S{1,6})*\s*,?\s*and\s+\S{1,6}\s+are\s+"
    r"(?:both\s+)?(?:pairwise |relatively |prime |coprime |positive |integers|numbers|and |distinct )+"
    r"|,?\s*(?:where|with|and)\s+\S{1,6}\s+(?:is|being)\s+(?:not divisible by the square of any prime|square-?free)"
    r"(?:\s+number)?|,?\s*(?:and\s+)?\S{1,6}\s+is\s+(?:not divisible by the square of any prime|square-?free)"
    r"|,?\s*(?:expressed |written |as a fraction )?in (?:its )?(?:lowest|simplest|reduced) (?:terms|form)",
    re.IGNORECASE,
)
SOLVE_FOR = re.compile(
    r"\b(?:solve|find)(?: (?:the|this|following|equation|inequality|system)){0,3} for (\$?[a-zA-Z]\$?)\s*[:,]",
    re.IGNORECASE,
)
APPOSITION = re.compile(r"\bthe (?:product|sum|expression|number|fraction|polynomial|quotient) (?=\$|\\\()")
STYLE = r"\\(?:text|textbf|textrm|mathrm|mathbf|bf|rm)\s*\{?\s*"
LABEL = rf"(?:{STYLE})?[(\[]?\s*(?:{STYLE})?%s\s*\}}?\s*[)\].:]"
CHOICES = re.compile(r"[\s$~\\]*(?:qquad|quad)?\s*" + LABEL % "A" + r"(?P<body>.*?" + LABEL % "B" + r".*)$", re.DOTALL)
BOUNDARY = re.compile(
    r"\s*[.,;:?!，。？；]\s+|\s*[.?!。？]$"
    r"|\b(?:and|if|when|whose|where|with|which|that|given|such|suppose|let)\b",
    re.IGNORECASE,
)
# Relations between two that turn round when these are told the other way round, and what belongs to one clause alone.
DIRECTED = re.compile(
    r"\b(?:than|older|younger|taller|shorter|faster|slower|heavier|convert\w*|before|after|into|gives?|gave|owes?|sells?|"
    r"sold|buys?|bought|subtract\w*|minus|less|exceeds?|per|ahead|behind|between|beats?|follows?|precedes?|"
    r"not|no|never|but|neither|only|except|without)\b",
    re.IGNORECASE,
)
CAPITALISED = re.compile(r"\b[A-Z][a-z]{2,}\b")


def without_form(text: str) -> str:
    """The problem without words on how its answer is to be written."""
    text = APPOSITION.sub(" ", SOLVE_FOR.sub(r"find \1 from", text))
    return FORM.sub(" ", text).strip() or text


def choices(text: str) -> tuple[str, str]:
    """A problem and the choices at its end, empty where it has none."""
    found = CHOICES.search(text)
    return (text[: found.start()], found.group("body")) if found and found.start() > 10 else (text, "")


def bare(text: str) -> str:
    """What a problem says: without the form of its answer, without choices."""
    return choices(without_form(text))[0]


def reordered(a: str, b: str, words: Callable[[str], Sequence[str]], is_quantity: Callable[[str], bool]) -> bool:
    """Whether two texts have the same clauses in another order, a word moved from one to the next at most. `words` are
    the telling ones of a text."""
    if Counter(words(a)) != Counter(words(b)) or DIRECTED.search(a) or DIRECTED.search(b):
        return False
    if len({name for name in CAPITALISED.findall(a) if name.lower() in words(a)} - _openers(a)) > 1:
        return False
    left = [set(found) for part in BOUNDARY.split(b) if any(map(is_quantity, found := words(part)))]
    for part in BOUNDARY.split(a):
        own = set(words(part))
        if any(map(is_quantity, own)):
            match = next((other for other in left if _same_quantities(own, other, is_quantity)), None)
            if match is None:
                return False
            left.remove(match)
    return not left


def _same_quantities(a: set[str], b: set[str], is_quantity: Callable[[str], bool]) -> bool:
    return {w for w in a if is_quantity(w)} == {w for w in b if is_quantity(w)} and (a <= b or b <= a)


def _openers(text: str) -> set[str]:
    return {match.group(1) for match in re.finditer(r"(?:^|[.?!]\s+)([A-Z][a-z]+)", text)}
