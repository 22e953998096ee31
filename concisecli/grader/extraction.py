r"""Where in a response the final answer stands: text -> the answer's own characters, never a judgement about them.

One reading per profile:

- `lenient`: the text after the last `</think>`; there the last `<answer>` block, else the last box, else a closing
  line ("Answer: ...", "答案：...", bold or a display formula at the end), else a text that is only a value.
- `strict`: `<think>...</think><answer>...</answer>` and nothing else, each tag once (ConciseR).
- `inside-think`: the last box before the first `</think>` (the released code of GRPO-LEAD, which stops there).

A thought that was opened and never closed holds no answer (lm-evaluation-harness#3382), and neither does a text whose
last box is empty or cut off: an earlier box is not revived (tinker-cookbook#895, marin#9163). Everything here is one
or two passes over the text and raises on no string at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Profile = Literal["strict", "lenient", "inside-think"]

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"

# JSON that was written without doubling its backslashes turns \boxed into backspace + "oxed" and \frac into form
# feed + "rac" (643 rows of the published DAPO set).
_DAMAGE = re.compile("\x08(?=oxed|inom|egin|ar\\b)|\x0c(?=rac|box)|\t(?=ext\\b|imes\\b|heta\\b|frac\\b|ext[a-z]{2}\\{)")
_DAMAGED = {"\x08": "\\b", "\x0c": "\\f", "\t": "\\t"}

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_STRICT = re.compile(
    r"\s*(?:<think>)?(?P<think>.*?)</think>\s*<answer>(?P<answer>.*?)</answer>\s*(?:<\|[a-z_]+\|>\s*)*", re.DOTALL
)

_WORDS = (
    r"final\s+answers?|correct\s+answer|correct\s+option|correct\s+choice|answers?"
    r"|最终答案|正确答案|【答案】|答案|故应选|故选|应选|(?<![回解])答(?=\s*[:：])|答え"
    r"|respuesta|réponse|antwort|ответ|risposta|resposta"
)
# "Answer: 5", "The answer is 5", "**Final Answer**\n5", "Answer $5$", "答案为 5"; `_closing_value` reads on from there.
_MARKER = re.compile(
    rf"(?i)(?:{_WORDS})(?P<link>(?:\s+(?:to\s+the\s+(?:problem|question)|of\s+the\s+(?:problem|question)))?"
    r"[\s*_`]*(?:\b(?:is|are|would\s+be|will\s+be|must\s+be|es|est|ist|è|é)\b(?!\s+not\b)|是|为|為|=)?[\s*_`]*[:：]?[\s*_`]*)"
)
_GSM8K = re.compile(r"(?m)^\s*####\s*(?P<value>\S.*?)\s*$")
_DISPLAY_END = re.compile(r"(?:\$\$(?P<dollar>[^$]+)\$\$|\\\[(?P<bracket>(?:[^\\]|\\(?![\[\]]))+)\\\])[\s.。,*]*\Z")
_BOLD_END = re.compile(r"(?:\*\*|__)(?P<value>[^*\n_]{1,200})(?:\*\*|__)[\s.。!]*\Z")
_FORMULA_START = re.compile(
    r"(?:\$\$(?P<a>[^$]+)\$\$|\\\[(?P<b>(?:[^\\]|\\(?![\[\]]))+)\\\]|\$(?P<c>(?:[^$\\\n]|\\.)+)\$|\\\((?P<d>(?:[^\\\n]|\\(?!\)))+)\\\))"
)
_HOPE = re.compile(r"(?i)[.,;]?\s*\bI hope (?:it|this)\b.*\Z", re.DOTALL)
_SECOND_THOUGHTS = re.compile(
    r"(?i)\b(?:wait|but|however|actually|hmm+|mistake|wrong|incorrect|recheck|re-check|recompute|still|not|next)\b|不对|等等|但是|然而|重新"
)
_REASON = re.compile(
    r"(?i),?\s+(?:because|since|as\s+(?:required|desired|claimed|expected|needed))\b.*\Z|[,，]?\s*因为.*\Z"
)
_ADVERB = re.compile(
    r"(?i)\A(?:therefore|thus|hence|then|simply|just|exactly|precisely|clearly|indeed|equal\s+to)\s+(?=\S)"
)
_AROUND = ' 。,，;；:："“”'
_END_TOKENS = re.compile(r"(?:<\|[A-Za-z_]+\|>|</s>|<eos>|</answer>)\s*\Z")
TAIL = 20_000  # characters at the end in which closing lines are looked for


@dataclass(frozen=True, slots=True)
class Extraction:
    """The answer as written, and which rule found it."""

    text: str
    rule: str


def extract(response: str | None, *, profile: Profile = "lenient", think_open: bool = False) -> Extraction | None:
    """The final answer of a response, or None. `think_open`: the prompt itself ended in `<think>`."""
    if not isinstance(response, str):
        return None
    response = repair(response)
    if profile == "strict":
        return _strict(response, think_open)
    if profile == "inside-think":
        return _inside_think(response)
    return _lenient(response, think_open)


def repair(text: str) -> str:
    """Control characters that once were LaTeX commands become those commands again."""
    if not any(c in text for c in "\x08\x0c\t"):
        return text
    return _DAMAGE.sub(lambda m: _DAMAGED[m[0]], text)


def _strict(response: str, think_open: bool) -> Extraction | None:
    counts = [response.count(tag) for tag in (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)]
    if counts[1:] != [1, 1, 1] or counts[0] > 1 or (counts[0] == 0 and not think_open):
        return None
    found = _STRICT.fullmatch(response)
    if not found or (counts[0] and not response.lstrip().startswith(THINK_OPEN)):
        return None
    return _in_answer_block(found["answer"])


def _inside_think(response: str) -> Extraction | None:
    thought, closed, _ = response.partition(THINK_CLOSE)
    return _boxed(thought) if closed else None


def _lenient(response: str, think_open: bool) -> Extraction | None:
    close = response.rfind(THINK_CLOSE)
    opened = response.rfind(THINK_OPEN)
    if opened > close or (close < 0 and think_open):
        return None
    tail = response[close + len(THINK_CLOSE) :] if close >= 0 else response
    start = tail.rfind(ANSWER_OPEN)
    if start >= 0:
        block, closed, _ = tail[start + len(ANSWER_OPEN) :].partition(ANSWER_CLOSE)
        # An engine that stops at </answer> may strip it; then only a complete box says that the answer is whole.
        return _in_answer_block(block) if closed else _boxed(block)
    if _BOX.search(tail):
        return _boxed(tail)
    return _closing(tail)


def _in_answer_block(block: str) -> Extraction | None:
    if _BOX.search(block):
        return _boxed(block)
    block = block.strip()
    if not block:
        return None
    if len(block) <= TAIL and _MARKER.search(block):
        return _closing(block) or Extraction(block, "answer-tag")
    return Extraction(block, "answer-tag")


def _boxed(text: str) -> Extraction | None:
    """The content of the last \\boxed or \\fbox; None where that one is empty or never ends."""
    starts = [found.end() for found in _BOX.finditer(text)]
    if not starts:
        return None
    content = box_content(text, starts[-1])
    if content is None or not content.replace("~", " ").strip(" \t\r\n$\u200b\u00a0\\,;"):
        return None
    return Extraction(content.strip(), "box")


def box_content(text: str, at: int) -> str | None:
    """What a box command that ends before `at` holds: a brace group, or without braces the next number, letter or
    command ("\\boxed 72" is read as 72)."""
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    if at >= len(text):
        return None
    if text[at] == "{":
        end = closing_brace(text, at)
        return None if end is None else text[at + 1 : end]
    found = re.match(r"[-+]?\d[\d.,]*\d|[-+]?\d|\\[A-Za-z]+|[A-Za-z]", text[at:])
    if not found:
        return None
    end = at + found.end()
    while found[0].startswith("\\") and end < len(text) and text[end] == "{":
        brace = closing_brace(text, end)
        if brace is None:
            return None
        end = brace + 1
    return text[at:end]


def closing_brace(text: str, at: int) -> int | None:
    """The index of the brace that closes the one at `at`; escaped braces are characters, not braces."""
    depth = 0
    for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, at):
        if found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if depth == 0:
                return found.start()
    return None


def _closing(tail: str) -> Extraction | None:
    """An answer without box or tag: it has to stand in a closing line, or be all there is."""
    tail = tail[-TAIL:].strip()
    while shorter := _END_TOKENS.sub("", tail).strip():
        if shorter == tail:
            break
        tail = shorter
    if not tail:
        return None
    found = [m for m in _GSM8K.finditer(tail) if not m["value"].startswith("#")]
    if found and re.search(r"\d", found[-1]["value"]) and found[-1].end() == len(tail):
        return Extraction(found[-1]["value"], "closing-line")
    for marker in reversed(list(_MARKER.finditer(tail))):
        link = marker["link"] if marker[0][0] not in "【故应" else ":"  # these introduce an answer by themselves
        value = _closing_value(tail[marker.end() :], link)
        if value:
            after = _HOPE.sub("", tail[marker.end() :]).partition(value)[2]
            if len(after) > 300 or _SECOND_THOUGHTS.search(after):
                break  # said on the way, not at the end
            return Extraction(value, "closing-line")
        if value == "":  # a marker that promises an answer and gives none: nothing earlier is revived
            return None
    if display := _DISPLAY_END.search(tail):
        return Extraction((display["dollar"] or display["bracket"]).strip(), "display")
    if bold := _BOLD_END.search(tail):
        return Extraction(bold["value"].strip(" :"), "bold")
    return Extraction(tail, "bare") if _is_bare(tail) else None


_ON_THE_WAY = re.compile(
    r"(?i)(?:let|suppose|assume|consider|if|first|since|because|given|take|try|then|when|where|now|note|we|say|set|for)\b"
    r"|.*(?<!\d)[.。]\s+\S|.*\d[.。]\s+[A-Za-z]"
    r"|.*(?:\b(?:and|or|then|so|is|are|we|the|a|to|of|with|for|that|which|but|if|by|get)|[=+*/<>^(\[{,:-])\s*\Z"
)


def _is_bare(text: str) -> bool:
    """Whether a text is only a value, a word or two: no sentence, none that breaks off."""
    if "\n" in text or len(text) > 200 or _ON_THE_WAY.match(text):
        return False
    return len(re.findall(r"[^\W\d_]{2,}", re.sub(r"\\[A-Za-z]+", "", text))) <= 3


def _closing_value(rest: str, link: str) -> str | None:
    """What the text after a marker names. "" where it ends at once, None where the marker was only a word in a
    sentence ("the answer depends on ...")."""
    rest = _HOPE.sub("", rest)
    linked = bool(re.search(r"\b(?:is|are|be|es|est|ist)\b|[:：=是为為èé]", link)) or "\n" in link or "*" in link
    if not rest.strip(" *_`.\n"):
        return "" if linked else None
    formula = _FORMULA_START.match(rest)
    if not linked and not formula:
        return None
    line = rest.split("\n", 1)[0]
    if formula and re.match(r"[\s*_`]*(?:[.。;!](?!\d)|\Z|\n)", rest[formula.end() :]):
        return next(g for g in formula.groups() if g is not None).strip()
    line = re.sub(r"\*\*|__|`", "", line).strip()
    # The sentence ends at a full stop that is not a decimal point or part of "a.m."; what follows explains.
    line = re.split(r"(?<=[)\w%$}°。!])[.。](?=\s+[A-Z(]|\s*$)|[。；]", line, maxsplit=1)[0].strip()
    # "Final Answer: The largest n is 34": the sentence names its value after the verb.
    sentence = not re.search(r"[A-Za-z是为為]", link) and re.match(r"(?!.*[=:])[A-Za-z]{2,}\s", line)
    if sentence and (inner := re.search(r"\b(?:is|are|equals)\b\s*(?P<value>\S.*)\Z", line)):
        line = inner["value"]
    line = _ADVERB.sub("", _REASON.sub("", line).strip(_AROUND))
    line = line.rstrip(" .") if re.match(r"\.\d", line) else line.strip(" .")
    line = line.strip(_AROUND)
    if line.endswith("}") and line.count("}") > line.count("{"):  # \\textbf{Answer: 71}
        line = line[:-1].rstrip(" .")
    return line
