"""Find training rows that hold a problem of an evaluation suite.

"Any shared 13-gram" flags hundreds of rows for stock phrases ("where m and n are relatively prime positive integers")
and is blind to short problems. Here a row must hold most of the eval problem, or most of what comes before its closing
question and the gist of the question, and numbers, operators and letters must be there too, in their order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from concisecli.building import canonical, phrasing
from concisecli.building.cleaning import FIGURE_CODE
from concisecli.building.dedup import CRITICAL, letter_for_letter, one_for_another, quantity_mark, same_problem

RAREST = 24  # shingles of an eval problem, the rarest of its suites, by which rows are looked up
MIN_BODY = 14  # content words before the closing question, from which they alone identify a problem
MIN_NUMBERS = 4  # numbers in a row, from which a paraphrase is looked for
MIN_INSIDE = 4  # content words of a problem that may be found word for word inside a longer one

# How an answer is to be written; said of any problem, and what DAPO and others change.
ANSWER_FORM = re.compile(
    r"(?:the |your )?(?:original )?answer (?:is |can be |should be )?(?:given |expressed |written )?"
    r"(?:in|as|of)\b[^.]*\.?"
    r"|(?:please |and )?(?:provide|give|report|write|express|enter|submit|leave) (?:me )?(?:the |your |its )?"
    r"(?:final )?(?:answer|value|sum|result)?\b[^.]*\.?$"
    r"|(?:can|may) be (?:written|expressed) (?:uniquely )?(?:in the form|as)"
    r"|,?\s*(?:where|with|for|such that|if)\s+\S{1,12}(?:\s*,\s*\S{1,8})*\s*,?\s*and\s+\S{1,12}\s+are\s+"
    r"(?:pairwise |relatively |prime |coprime |positive |integers|numbers|and |distinct )+"
    r"|is not divisible by the square of any prime"
    r"|(?:is |equals |as )?\$?\\?[dt]?frac\s*\{?\s*[a-z]\s*\}?\s*\{?\s*[a-z]\s*\}?\$?"
    r"|(?:find|compute|what is|determine|evaluate|calculate)?\s*(?:the value of )?"
    r"\$?\s*[a-zA-Z](?:\s*[+*]\s*[a-zA-Z]){1,3}\s*\$?[.?]?$",
    re.IGNORECASE,
)
ASKS = re.compile(
    r"\?|？|\b(?:can|may) be (?:written|expressed)\b"
    r"|\b(?:find|determine|compute|calculate|evaluate|what|how (?:many|much))\b|求|多少",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.!?。？！])(?<!\b[A-Z]\.)\s+|(?<=[。？！])|\n\n")
MILD = canonical.words_of(
    "positive real integer all each any some and or same total distinct none exactly quadrilateral triangle length"
)
OPERATORS = (
    *("+", "-", "*", "/", "^", "<", ">", "<=", ">=", "!=", "=", "!", "sqrt", "%"),
    *("sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "cup", "cap", "lfloor", "lceil"),
)
INSERTED = canonical.words_of(
    "not no never without except even odd prime distinct consecutive nonnegative or atleast atmost"
)


@dataclass(frozen=True, slots=True)
class EvalProblem:
    """One problem of a suite, as it is looked for."""

    suite: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """One training row that holds one eval problem, by which rule, and how much of it."""

    suite: str
    name: str
    rule: str
    share: float


class Wording:
    """A text taken apart: content words, quantities and numbers in order, shingles of content words."""

    def __init__(self, text: str) -> None:
        self.figure = FIGURE_CODE.findall(text) if "[asy]" in text else []
        self.text = phrasing.APPOSITION.sub(" ", FIGURE_CODE.sub(" ", text) if self.figure else text)
        self.words = words = canonical.tokens(self.text)
        self.content = canonical.content(words)
        self.quantities = tuple(q for q in canonical.quantities(words) if q != "=")  # `O = (0,0)` and `O(0,0)`
        self.numbers = tuple(w for w in self.quantities if w[:1].isdigit())
        self.shingles = frozenset(canonical.shingles(self.content, 3))

    @cached_property
    def mark(self) -> bytes:
        return quantity_mark(self.text)

    @cached_property
    def plain(self) -> tuple[str, ...]:
        return canonical.plain(self.words)

    @cached_property
    def count(self) -> Counter[str]:
        return Counter(self.content)


@dataclass(frozen=True, slots=True)
class Part:
    """An eval problem, whole or its body, with the content words of the question that the body lacks."""

    of: EvalProblem
    whole: bool
    wording: Wording
    question: Wording


class SuiteIndex:
    """The eval problems, found by their rarest shingles and by runs of numbers."""

    def __init__(self, problems: Iterable[EvalProblem], containment: float) -> None:
        self.containment = containment
        self.parts = [part for problem in problems for part in _parts(problem)]
        self.same: dict[tuple[str, ...], Part] = {}
        self.where: dict[str, list[int]] = defaultdict(list)
        self.by_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self.by_quantities: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self.by_mark: dict[bytes, list[int]] = defaultdict(list)
        frequency = Counter(s for part in self.parts for s in part.wording.shingles)
        for at, part in enumerate(self.parts):
            if part.whole:
                self.same.setdefault(part.wording.content, part)
                self.by_mark[part.wording.mark].append(at)
                if part.wording.quantities:
                    self.by_quantities[part.wording.quantities].append(at)
                for i in range(min(3, len(part.wording.numbers) - MIN_NUMBERS + 1)):
                    run = part.wording.numbers[i : i + MIN_NUMBERS]
                    if len(set(run)) > 2 or max(map(len, run)) > 2:
                        self.by_numbers[run].append(at)
            for shingle in sorted(part.wording.shingles, key=lambda s: (frequency[s], s))[:RAREST]:
                self.where[shingle].append(at)

    def hit(self, text: str) -> Hit | None:
        """The eval problem that a row holds, or None."""
        row = Wording(text)
        same = self.same.get(row.content)
        if same and not _other_figure(same.wording, row):
            return Hit(same.of.suite, same.of.name, "same words", 1.0)
        found = [hit for at in self._candidates(row) if (hit := self._judge(self.parts[at], row))]
        return max(found, key=lambda h: h.share, default=None)

    def _candidates(self, row: Wording) -> list[int]:
        shared = Counter(at for s in row.shingles if s in self.where for at in self.where[s])
        found = {at for at, n in shared.items() if n >= min(RAREST, len(self.parts[at].wording.shingles)) * 0.2}
        for i in range(len(row.numbers) - MIN_NUMBERS + 1):
            found.update(self.by_numbers.get(row.numbers[i : i + MIN_NUMBERS], ()))
        if row.quantities in self.by_quantities:
            found.update(self.by_quantities[row.quantities])
        found.update(self.by_mark.get(row.mark, ()))
        return sorted(found)

    def _judge(self, part: Part, row: Wording) -> Hit | None:
        eval_words = part.wording
        share = len(eval_words.shingles & row.shingles) / len(eval_words.shingles)
        rule = None
        if _other_figure(eval_words, row):
            return None
        if part.whole:
            if len(eval_words.content) >= MIN_INSIDE and _inside(eval_words.content, row.content):
                rule, share = "whole inside", 1.0
            elif share >= self.containment and _agrees(eval_words, row):
                rule = "most inside"
            elif (
                (share >= 0.4 and _reordered(eval_words, row))
                or _shuffled(eval_words, row)
                or _retold(eval_words, part.question, row)
            ):
                rule = "same quantities, other order"
            elif (
                share >= 0.3
                and _paraphrased(eval_words, row, 3 if share >= 0.8 else 1)
                and _asks_the_same(part.question, row)
            ):
                rule = "same numbers, other words"
        elif share >= (1 + self.containment) / 2 and _agrees(eval_words, row) and _asks_the_same(part.question, row):
            rule = "body inside"
        if rule and rule != "whole inside" and _another_question(eval_words, row):
            rule = None
        if rule is None and part.whole and eval_words.mark == row.mark and _in_other_words(eval_words, row):
            rule = "same in other words"
        return Hit(part.of.suite, part.of.name, rule, round(share, 3)) if rule else None


def _other_figure(part: Wording, row: Wording) -> bool:
    """Whether two texts that say little beside their figures have different ones."""
    return bool(part.figure and row.figure) and len(part.content) < MIN_BODY and part.figure != row.figure


def _in_other_words(part: Wording, row: Wording) -> bool:
    """Whether dedup would take the two for one problem, were their answers equal."""
    return max(len(part.content), 2 * len(part.plain)) >= 6 and same_problem(part.text, row.text, "equal")


def _another_question(part: Wording, row: Wording) -> bool:
    """Whether a row of much the same length has one thing, letter or person in the place of another."""
    if len(row.content) > 1.25 * len(part.content) + 2:
        return False
    if one_for_another(part.plain, row.plain) or letter_for_letter(part.words, row.words):
        return True
    moved = part.plain != row.plain and Counter(part.plain) == Counter(row.plain)
    return moved and bool(phrasing.DIRECTED.search(part.text))


def _parts(problem: EvalProblem) -> list[Part]:
    whole = Wording(problem.text)
    if not whole.content:
        return []
    body, question = split_question(problem.text)
    parts = [Part(problem, True, whole, Wording(question))]
    plain = Wording(f"{body} {question}")
    if MIN_INSIDE < len(plain.content) < len(whole.content):
        parts.append(Part(problem, True, plain, Wording(question)))
    inside = Wording(body)
    if len(inside.content) >= MIN_BODY and sum(w.isalpha() and len(w) > 1 for w in inside.content) >= 6:
        parts.append(Part(problem, False, inside, Wording(question)))
    return parts


def split_question(text: str) -> tuple[str, str]:
    """What a problem tells and what it asks, without the words on how an answer is to be written."""
    sentences = [s for s in SENTENCE_END.split(text) if s and s.strip()]
    plain = [ANSWER_FORM.sub(" ", s) for s in sentences]
    asks = [bool(ASKS.search(s)) and i > 0 for i, s in enumerate(sentences)]
    told = " ".join(s for s, asked in zip(plain, asks, strict=True) if not asked)
    return told, " ".join(s for s, asked in zip(plain, asks, strict=True) if asked)


def _agrees(part: Wording, row: Wording) -> bool:
    """Quantities are there in their order, and no word that changes the question is missing or put in."""
    if not inside(part.quantities, row.quantities):
        return False
    if _changes_the_question(part, row) or any(word.isupper() and word not in row.count for word in part.count):
        return False
    near = len(row.content) <= 1.25 * len(part.content)
    return not (near and any(word in INSERTED for word in row.count - part.count))


def _changes_the_question(part: Wording, row: Wording) -> bool:
    """Whether a telling word of the eval problem is gone: one rarely left out, or one with another in its place."""
    lost = {word for word in part.count if word in CRITICAL and word not in row.count}
    return bool(lost - MILD) or (bool(lost) and any(w in CRITICAL and w not in part.count for w in row.count))


def _reordered(part: Wording, row: Wording) -> bool:
    """All quantities in their order, the row no longer than half as much again, and next to no word missing."""
    if len(row.content) > 1.5 * len(part.content) or not _agrees(part, row):
        return False
    most = 0.2 if len(part.quantities) >= 8 else 0.15 if len(part.plain) >= 12 else 0
    return (part.count - row.count).total() <= most * len(part.content)


def _shuffled(part: Wording, row: Wording) -> bool:
    """The same quantities, in their order, and the same words in another one."""
    if part.quantities != row.quantities or sum(w.isalpha() and len(w) > 1 for w in part.content) < 4:
        return False
    missing, extra = (part.count - row.count).total(), (row.count - part.count).total()
    if any(w in INSERTED for w in row.count - part.count):
        return False
    return missing + extra <= 0.15 * len(part.content) and not _changes_the_question(part, row)


def _retold(part: Wording, question: Wording, row: Wording) -> bool:
    """The same formulas in whatever order, all other numbers in theirs, and most words; of a problem with numbers like
    no other's, half of the words are enough, as long as it asks for the same."""
    if part.mark != row.mark or any(w in INSERTED for w in row.count - part.count):
        return False
    (whole, rest), (row_whole, row_rest) = canonical.formulas(part.words), canonical.formulas(row.words)
    if whole != row_whole or [w for w in rest if w[:1].isdigit()] != [w for w in row_rest if w[:1].isdigit()]:
        return False
    plain, told = Counter(part.plain), Counter(row.plain)
    missing, extra = (plain - told).total(), (told - plain).total()
    telling = sum(w.isalpha() and len(w) > 1 for w in part.content)
    if telling >= 4 and missing + extra <= 0.15 * len(part.content) and not _changes_the_question(part, row):
        return True
    if len({n for n in part.numbers if len(n) > 1}) < 3 or part.quantities != row.quantities or missing > 0.5 * telling:
        return False
    return not _changes_the_question(question, Wording(split_question(row.text)[1] or row.text))


def _asks_the_same(question: Wording, row: Wording) -> bool:
    """Whether a row holds the gist of an eval problem's question; a question of stock words alone always is."""
    if any(n not in row.numbers for n in question.numbers):
        return False
    plain = [w for w in question.count if w.isalpha() and len(w) > 1]
    return not plain or sum(w in row.count for w in plain) > 0.5 * len(plain)


def _paraphrased(part: Wording, row: Wording, more_numbers: int) -> bool:
    """The same telling numbers in order, and most of the words, none missing that changes the question."""
    if len(part.numbers) < 3 or not subsequence(part.numbers, row.numbers):
        return False
    if len(row.numbers) > len(part.numbers) + more_numbers or (
        len(set(part.numbers)) < 3 and max(map(len, part.numbers)) < 3
    ):
        return False
    lost, put_in = ({op for op in OPERATORS if a.count[op] > b.count[op]} for a, b in ((part, row), (row, part)))
    if lost and put_in:  # one operator in place of another
        return False
    fewer = sum(max(part.count[op] - row.count[op], 0) for op in lost if op not in "=-")  # a minus may be a hyphen
    if fewer > (0.2 * len(part.quantities) if len(part.quantities) >= 40 else 0):
        return False
    if len(row.content) <= 1.25 * len(part.content) and any(w in INSERTED for w in row.count - part.count):
        return False
    plain = Counter({w: n for w, n in part.count.items() if w.isalpha() and len(w) > 1})
    missing = plain - row.count
    return plain.total() >= 6 and missing.total() <= 0.4 * plain.total() and not _changes_the_question(part, row)


def inside(part: Sequence[str], of: Sequence[str]) -> bool:
    """Whether a sequence is found in order with next to nothing in between: more terms make another formula."""
    end = _last(part, of)
    if end is None:
        return False
    backwards = _last(part[::-1], of[: end + 1][::-1])
    assert backwards is not None
    return backwards + 1 <= len(part) + max(2, len(part) // 10)


def _last(part: Sequence[str], of: Sequence[str]) -> int | None:
    """Where the leftmost embedding of `part` into `of` ends."""
    at = -1
    for word in part:
        at += 1
        while at < len(of) and of[at] != word:
            at += 1
        if at == len(of):
            return None
    return at


def subsequence(part: Sequence[str], of: Sequence[str]) -> bool:
    rest = iter(of)
    return all(word in rest for word in part)


def _inside(part: Sequence[str], of: Sequence[str]) -> bool:
    return len(part) <= len(of) and _line(part) in _line(of)


def _line(words: Sequence[str]) -> str:
    return "\x1f" + "\x1f".join(words) + "\x1f"


def overlaps(texts: Mapping[str, str], suites: Iterable[EvalProblem], containment: float) -> list[tuple[str, Hit]]:
    """Which named texts hold a problem of the suites: for two evaluation sets that should be strangers."""
    index = SuiteIndex(suites, containment)
    return [(name, hit) for name, text in texts.items() if (hit := index.hit(text))]
