"""Read the answer out of a worked solution and keep a row where it equals the given one (ConciseR's filter).

The last box alone is parsed, never the whole solution: that is what costs time, and several boxes read together match
nothing. Text decides most rows; only the rest goes to the grader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from concisecli.building.cleaning import Drop, bare_answer
from concisecli.building.columns import Row
from concisecli.config import AgreementConfig
from concisecli.grader.answers import quick_judge
from concisecli.grader.extraction import box_content, extract
from concisecli.records import Verdict

JudgeMany = Callable[[Sequence[tuple[str, str]]], list[Verdict]]  # (answer, gold) pairs -> verdicts, hostile ones too

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
TAIL = 200  # characters at the end of a solution without a box in which its last number is looked for
STYLE = r"(?:\\(?:text|textbf|textrm|mathrm|mathbf|mathsf|bf|rm)\s*)"
CHOICE = re.compile(
    rf"^\s*{STYLE}?\{{?\s*{STYLE}?\{{?\s*(?:\(\s*([A-J])\s*\)|([A-J])\s*(?=[).:}}]|\s*$))\s*[).:]?\s*\}}?\s*\}}?"
    r"(?:\\[ ,;:!]|\\q?quad|~|\s|[:.)])*(.*)$",
    re.DOTALL,
)
TRAILING_CHOICE = re.compile(rf"(.*?\S)(?:\\[ ,;]|\\q?quad|~|\s)+{STYLE}?\{{?\(([A-J])\)\}}?", re.DOTALL)
ASKS_FOR_ALL = re.compile(
    r"separated by|\b(?:find|list|enter|give|determine|compute|what are)\s+(?:\w+\s+){0,2}all\b|\blist the\b"
    r"|\bfind both\b"
    r"|\ball (?:the |of the )?(?:possible |real |such |complex |integer )*"
    r"(?:values|solutions|roots|points|pairs|angles|numbers)"
    r"|\bpoints where they\b|smallest solutions",
    re.IGNORECASE,
)
ASKS_FOR_ONE = re.compile(r"\b(?:only one|either of|any one|one of the|not both|a unit vector)\b", re.IGNORECASE)
PLAIN = re.compile(
    r"-?\d{1,30}(?:\.\d{1,30})?|-?\\d?frac\{-?\d{1,9}\}\{\d{1,9}\}|-?\d{1,9}/\d{1,9}|\(?-?\d+, ?-?\d+\)?"
)
UNREADABLE = frozenset(("unreadable", "too-deep", "ellipsis"))
MOST_WORDS = 6  # of an answer in words: `no solution`, `red and blue`
STRANGER = "-7919/7907"  # equals no answer: against it, a gold shows by the deciding rule whether it was read at all

ASKS_TO_CHOOSE = re.compile(
    r"which (?:one )?(?:of|choice|option|statement|answer)|\bfollowing\b.*\b(?:is|are)\b|choose|select"
    r"|the correct (?:option|choice|answer|statement)"
    r"|[（(]\s*[)）]|____|下列|选项|正确的是",
    re.IGNORECASE | re.DOTALL,
)
ASKS_FOR_LETTER = re.compile(
    r"\b(?:letter|point|vertex|variable|name|who|which (?:person|team|player|region|graph))\b", re.IGNORECASE
)
CHOICE_IN_TEXT = (
    r"(?:\(\s*{0}\s*\)|(?<![A-Za-z0-9]){0}\s*[.)：:、．]|\\text(?:bf|rm)?\s*\{{\s*\(?\s*{0}\b|[（]\s*{0}\s*[）])"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a solution says its answer is: `texts` any of which may be meant, the first one preferred."""

    texts: tuple[str, ...]
    flags: tuple[str, ...] = ()


def agree(rows: Iterable[Row], config: AgreementConfig, judge: JudgeMany) -> list[Row | Drop]:
    """Each row with its answer settled and flagged `verified` where its solution says the same; or why it goes."""
    settled = [settle(row, config) for row in rows]
    whole = [pair for pair in settled if not isinstance(pair, Drop)]
    results = iter(agree_settled(whole, config, judge))
    return [pair if isinstance(pair, Drop) else next(results) for pair in settled]


def agree_settled(
    pairs: Sequence[tuple[Row, Reading | None]], config: AgreementConfig, judge: JudgeMany
) -> list[Row | Drop]:
    """`agree` for rows that `settle` has passed: the grader is asked about all of them at once."""
    asked = questions(pairs)
    return decided(pairs, config, dict(zip(asked, judge(asked), strict=True)))


def questions(pairs: Sequence[tuple[Row, Reading | None]]) -> list[tuple[str, str]]:
    """What the grader must be asked, as (answer, gold), where text alone does not decide: whether a gold can be read
    at all, and whether a solution's answer equals it."""
    asked: dict[tuple[str, str], None] = {}
    for row, reading in pairs:
        gold = row.answer or ""
        if not PLAIN.fullmatch(gold):
            asked[STRANGER, gold] = None
        if reading:
            asked |= {(text, gold): None for text in reading.texts if quick_verdict(text, gold) is None}
    return list(asked)


def decided(
    pairs: Sequence[tuple[Row, Reading | None]],
    config: AgreementConfig,
    verdicts: Mapping[tuple[str, str], Verdict],
) -> list[Row | Drop]:
    """What becomes of each row, given the verdicts on `questions`."""
    results = [_decide(row, reading, verdicts) for row, reading in pairs]
    if config.check == "drop":
        return results
    return [
        replace(row, flags=(*row.flags, result.reason)) if isinstance(result, Drop) else result
        for (row, _), result in zip(pairs, results, strict=True)
    ]


def settle(row: Row, config: AgreementConfig) -> tuple[Row, Reading | None] | Drop:
    """The row with an answer in its final form and what its solution says, before any two are compared."""
    reading = read_solution(row.solution, row.problem or "", config) if row.solution else None
    if isinstance(reading, Drop):
        return reading
    answer = choice_value(row.answer, config) if row.answer else None
    if row.answer is None:
        if reading is None or "last-formula" in reading.flags:
            return Drop("no-answer", "" if reading is None else "and its solution boxes none")
        answer = bare_answer(reading.texts[0])
        if answer is None:
            return Drop("no-answer", "the box is empty")
        row = replace(row, answers=reading.texts if "one-of-several" in reading.flags else ())
    if row.solution is None and config.without_solution == "drop":
        return Drop("no-solution")
    refused = refuse_choice(row.problem or "", answer or "", row.choices, config)
    if refused:
        return refused
    return replace(row, answer=answer), reading


def quick_verdict(answer: str, gold: str) -> bool | None:
    """Whether two answers are equal where the texts alone show it; None where they must be parsed."""
    if answer == gold:
        return True
    verdict = quick_judge(answer, gold)
    return None if verdict is None else verdict.correct


def _decide(row: Row, reading: Reading | None, verdicts: Mapping[tuple[str, str], Verdict]) -> Row | Drop:
    gold = row.answer or ""
    stranger = verdicts.get((STRANGER, gold))
    if stranger is not None and (stranger.rule in UNREADABLE or stranger.outcome in ("timeout", "error")):
        return Drop("unparseable-answer", gold[:80])
    if stranger is not None and stranger.rule == "words" and len(gold.split()) > MOST_WORDS:
        return Drop("unparseable-answer", "a sentence, not an answer")
    if reading is None or (all(map(bare_letter, reading.texts)) and bare_letter(gold) is None):
        letter = () if reading is None else ("choice-letter-only",)  # the solution names a choice, not its value
        return replace(row, flags=(*row.flags, *letter, "unverified"))
    for text in reading.texts:
        same = quick_verdict(text, gold)
        if same is None:
            same = verdicts[text, gold].correct
        if same:
            sure = "last-formula" not in reading.flags
            return replace(row, flags=(*row.flags, *reading.flags, *(("verified",) if sure else ())))
    return Drop("answer-mismatch", f"given {gold[:60]}, solution {' | '.join(reading.texts)[:80]}")


def read_solution(solution: str, problem: str, config: AgreementConfig) -> Reading | Drop:
    """The answer that a worked solution ends with, by the recipe's policies. Of a reasoning model's response only what
    follows the last </think> counts."""
    if "<think>" in solution and "</think>" not in solution:
        return Drop("solution-cut", "its <think> is never closed")
    solution = solution.rpartition("</think>")[2]
    boxes = [box_content(solution, match.end()) for match in BOX.finditer(solution)]
    if not boxes:
        return _without_box(solution, config)
    if boxes[-1] is None:
        return Drop("solution-cut", "its last box is never closed")
    filled = [value for box in boxes if box is not None and (value := choice_value(box.strip(), config))]
    if not filled or not boxes[-1].strip():
        return Drop("no-answer", "the box is empty")
    distinct = list(dict.fromkeys(filled))
    if len(distinct) == 1 or config.several_boxes == "last":
        return Reading((filled[-1],))
    if config.several_boxes == "drop":
        return Drop("several-boxes", " | ".join(distinct)[:120])
    if ASKS_FOR_ONE.search(problem):
        return Reading(tuple(dict.fromkeys([filled[-1], *distinct])), ("one-of-several",))
    if ASKS_FOR_ALL.search(problem):
        return Reading((", ".join(distinct),), ("several-boxes",))
    return Reading(
        (filled[-1], ", ".join(distinct)), ("several-boxes",)
    )  # the second only where it is the answer given


def _without_box(solution: str, config: AgreementConfig) -> Reading | Drop:
    """The closing line's value, the last formula, what it says after its last equals sign, or the last number: right in
    part by luck, which is why the row is flagged and not verified."""
    if config.without_box == "drop":
        return Drop("no-box")
    found = extract(solution)
    texts = [found.text] if found else []
    formulas = [next(g for g in match.groups() if g is not None).strip() for match in FORMULA.finditer(solution)]
    telling = [
        formula for formula in formulas if re.search(r"\w", re.sub(r"\\[a-z]+", "", formula)) and "\n\n" not in formula
    ]
    if telling:
        texts += [telling[-1].rstrip(".,"), *_right_side(telling[-1])]
    texts += NUMBER.findall(solution[-TAIL:])[-1:]
    values = [text for text in dict.fromkeys(texts) if text]
    return Reading(tuple(values), ("last-formula",)) if values else Drop("no-box", "nor a formula at its end")


def _right_side(formula: str) -> list[str]:
    side = re.sub(r"\\end\{[a-z*]+\}|\\\\|&", " ", formula.rsplit("=", 1)[-1]).strip().rstrip(".,")
    return [side] if "=" in formula and side else []


def choice_value(answer: str, config: AgreementConfig) -> str:
    r"""What stands behind a choice letter: `\textbf{(D)}\; 192` is 192, not d times 192. A bare letter stays."""
    if config.choice_letters == "keep":
        return answer
    behind = TRAILING_CHOICE.fullmatch(answer)
    if behind:
        return behind.group(1).strip()
    match = CHOICE.match(answer)
    rest = _balanced(match.group(3).strip().strip("$").strip()) if match else ""
    if match and rest and not re.match(r"[-+=^*/,]", rest) and (match.group(1) or re.match(r"^[A-J]\s*[).:]", answer)):
        return rest
    return answer


def _balanced(text: str) -> str:
    r"""What is left of `{(D)} 192` or `\textbf{(D) 192}` once the letter is gone, without the braces left over."""
    while text.endswith("}") and text.count("}") > text.count("{"):
        text = text[:-1].rstrip()
    while text.startswith("{") and text.count("{") > text.count("}"):
        text = text[1:].lstrip()
    return text


def bare_letter(answer: str) -> str | None:
    match = CHOICE.match(answer.strip().strip("$"))
    return (match.group(1) or match.group(2)) if match and not match.group(3).strip("{}$. ") else None


def refuse_choice(problem: str, answer: str, choices: Sequence[Any], config: AgreementConfig) -> Drop | None:
    """Why a row whose answer is a choice letter goes: the choices are missing, or the recipe wants none of these."""
    letter = bare_letter(answer)
    if letter is None:
        return None
    listed = len(choices) > 1 or all(re.search(CHOICE_IN_TEXT.format(x), problem) for x in "AB")
    if listed:
        return Drop("choice-letter", letter) if config.choice_letters == "drop" else None
    if ASKS_TO_CHOOSE.search(problem) and not ASKS_FOR_LETTER.search(problem):
        return Drop("choice-without-choices", letter)
    named = re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", problem)
    return None if named or ASKS_FOR_LETTER.search(problem) else Drop("choice-without-choices", letter)
