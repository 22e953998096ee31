"""Mend or refuse the text of one row: control characters, instruction text, forum tails, what is empty or cut off.

Every refusal has a reason from `REASONS`, so that a card can count them. Nothing here looks at a second row.
"""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass, replace

from concisecli.building.columns import Row
from concisecli.config import CleaningConfig
from concisecli.grader.extraction import box_content, extract

REASONS = {
    "bad-row": "no row of the format",
    "no-problem": "the problem is empty",
    "no-answer": "the answer is empty or a placeholder",
    "no-response": "the response of an example is empty",
    "control-characters": "damaged characters that could not be repaired",
    "too-long": "longer than a problem can be",
    "incomplete": "the problem is cut off",
    "image-missing": "speaks of a picture that is only a link",
    "proof": "asks for a proof, not for an answer",
    "choice-without-choices": "the answer is a choice letter and the choices are missing",
    "choice-letter": "the answer is a choice letter, which the recipe drops",
    "unparseable-answer": "the grader cannot read the answer",
    "no-solution": "no worked solution to check the answer against",
    "no-box": "the solution boxes no answer",
    "several-boxes": "the solution boxes several answers",
    "solution-cut": "the solution is cut off before its answer",
    "answer-mismatch": "the solution's answer is another one",
    "duplicate": "the same problem as a row that is kept",
    "near-duplicate": "the same problem in other words as a row that is kept",
    "conflict": "one problem with different answers",
    "contaminated": "holds a problem of an evaluation suite",
    "not-selected": "outside of what the recipe selects",
    "not-drawn": "left out by a weight or a limit",
}


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a row goes; `reason` is a key of REASONS."""

    reason: str
    detail: str = ""


INSTRUCTION_PREFIXES = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.",
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: \\boxed{$Answer} where $Answer is the answer to the problem.",
    "Solve the following math problem efficiently and clearly.",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Please solve this math problem step by step:",
    "Problem:",
    "Question:",
    "Q:",
    "User:",
    "Human:",
    "### Instruction:",
    "### Problem:",
    "[INST]",
    "<|im_start|>user",
    "<|begin_of_text|>",
)
INSTRUCTION_SUFFIXES = (
    'Remember to put your answer on its own line after "Answer:".',
    "Let's think step by step and output the final answer within \\boxed{}.",
    "Let's think step by step and output the final answer within \\boxed{}",
    "Please reason step by step, and put your final answer within \\boxed{}.",
    "Please reason step by step, and put your final answer within \\boxed{}",
    "Please think step by step and put your final answer within \\boxed{}.",
    "Put your final answer within \\boxed{}.",
    "Put your answer within \\boxed{}.",
    "Put your final answer in \\boxed{}.",
    "Please put your final answer within \\boxed{}.",
    "Please provide the final answer within \\boxed{}.",
    "Think step by step.",
    "Let's think step by step.",
    "Answer:",
    "Solution:",
    "Assistant:",
    "### Response:",
    "[/INST]",
    "<|im_start|>assistant",
    "<|im_end|>",
)

# An unescaped `\f` in a JSON string became a form feed, and so on: control character -> the letter it swallowed.
SWALLOWED = {"\x07": "a", "\x08": "b", "\t": "t", "\n": "n", "\x0b": "v", "\x0c": "f", "\r": "r"}
COMMANDS = (
    "alpha angle approx arcsin arccos arctan arc ast atop bar begin beta big bigg bigl bigr binom bmod bot boxed bf "
    "bullet bigcup bigcap tan tanh tau text textbf textit texttt textrm tfrac theta times to top triangle tilde "
    "vec varphi varepsilon vartheta vdots vee vert vmatrix frac forall flat rho right rangle rceil rfloor rm "
    "rightarrow Rightarrow"
)
AFTER_LINE_FEED = ("eq", "abla", "otin", "leq", "geq")  # `\neq`; a line may begin with `u` or `e` for other reasons


def _swallowed_command(char: str, letter: str) -> str:
    tails = sorted((c[1:] for c in COMMANDS.split() if c[0] == letter), key=len, reverse=True)
    return f"{re.escape(char)}(?=(?:{'|'.join(tails)})(?![a-z]))"


SWALLOWED_COMMAND = re.compile("|".join(_swallowed_command(c, x) for c, x in SWALLOWED.items() if c != "\n"))
SWALLOWING = re.compile("[\x07\x08\t\x0b\x0c\r]")
SWALLOWED_N = re.compile(rf"\n(?=(?:{'|'.join(AFTER_LINE_FEED[:3])})(?![a-zA-Z]))")
# In TeX's old fonts the form feed is the ligature fi, the vertical tab ff.
LIGATURES = {"\x0c": "fi", "\x0b": "ff"}
AFTER_LIGATURE = re.compile(
    r"(?:nd|nds|nding|rst|ve|ves|ne|ned|nes|gure|gures|nite|nitely|nal|nally|xed|es|ed|er|eld|elds|ll|lled|lls|ts|"
    r"tting|fth|fty|cient|ciently|erence|erent|ect|ects)(?![a-z])"
)
INVISIBLE = re.compile("[\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f]")
# A line feed that was escaped twice: a backslash and an n in front of a sentence. `\\nRightarrow` and the like stay.
ESCAPED_LINE_FEED = re.compile(r"\\n(?=[A-Z(（①-⑩\u3400-\u9fff])(?!Right|Left|V|Up|Down)")
ENTITY = re.compile(
    r"&(?:lt|gt|le|ge|ne|amp|nbsp|quot|apos|times|divide|minus|deg|pi|radic|infin|#\d{2,5}|#x[0-9a-fA-F]{2,5});"
)
TAGS = re.compile(r"<(p|div|span|b|i|u|em|strong|li|ul|ol)(?:\s[^<>]*)?>(.*?)</\1>", re.DOTALL)
MOJIBAKE = re.compile("[ÃÂ][\u00a0-\u00bf]|â[€‰ˆ†]|Ã[—·]|Ï[€„†‰]")
TYPESET = re.compile("[\ufb00-\ufb06]")  # ligatures of a typeset page: fi, fl, ff
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
DAMAGED = re.compile("[\ud800-\udfff\ufffd\ue000-\uf8ff\x00]")

NUMBERING = re.compile(
    r"^(?:(?:Problem|Question|Exercise|Example)\s*#?\d{1,3}(?:\s*[.:)]|\s+(?=[A-Z$\\(\[]))|\(?\d{1,2}[.)](?=\s+[A-Z(]))?\s*"
    r"(?:[(\[]\s*\d{1,2}\s+(?:points?|marks?|pts?)\.?\s*[)\]]|[(\[](?:19|20)\d\d,?\s+[A-Z][\w ,.#-]{2,40}[)\]])?\s*"
)
IMAGE_MARKS = ("![", "[img", "[IMG", "<img", "<IMG", "\\includegraphics", "data:image/")
IMAGE = re.compile(r"data:image/|!\[[^\]]*\]\(|\[img\b|<img\b|\\includegraphics", re.IGNORECASE)
FORUM_TAIL = re.compile(
    r"^\s*(?:[~–—]\s*\S.{0,60}|-\s?[A-Za-z][\w.]{2,30}|\(?\s*(?:editor|edited by|minor edits?|latex)\b.{0,120}"
    r"|(?:image|diagram|solution|video solution|proposed|written|credit)s?\s+(?:from|by|to)\b.{0,100}"
    r"|https?://\S+|\[/?hide.*\]|\[/?i\])\s*$",
    re.IGNORECASE,
)
PROPOSED = re.compile(r"\s*(?:\[i\]|\*|\(|\\textit\{)\s*Proposed by [^\n]{2,80}?(?:\[/i\]|\*|\)|\})\s*$", re.IGNORECASE)
PLACEHOLDERS = frozenset(
    {"", "n/a", "na", "none", "null", "nan", "?", "??", "-", "--", "...", "…", "tbd", "unknown", "omitted", "\\boxed{}"}
    | {"see solution", "see above", "see the solution", "not provided", "no answer", "answer omitted", "not available"}
)
FENCES = (("\\[", "\\]"), ("\\(", "\\)"), ("$$", "$$"), ("$", "$"))
SAID = re.compile(r"(?:the\s+)?(?:final\s+)?answer\b|\*\*", re.IGNORECASE)
PROOF_ANSWERS = re.compile(
    r"(?:proof|q\.?e\.?d\.?|proved|proven|see proof|as desired|证明.{0,4}|略)[.\s]*", re.IGNORECASE
)
ASKS_PROOF = re.compile(
    r"\b(?:prove|disprove)\b|\b(?:show|verify|demonstrate) that\b|\bexplain why\b|\bjustify your\b|证明|求证",
    re.IGNORECASE,
)
ASKS_VALUE = re.compile(
    r"[?？]|\b(?:find|determine|compute|calculate|evaluate|what|how (?:many|much)|please provide|please give)\b"
    r"|求(?!证)|多少|计算|请给出|请提供",
    re.IGNORECASE,
)
# What a whole problem has somewhere: a question, a request, a blank, choices, or an end to be completed. Of 40,000 rows
# of the published sets, about ten have none of these, and most of those are cut off.
ASKS_SOMETHING = re.compile(
    r"[?？]|_{2,}|(?:\\_)+|\\underline|\\qquad|\\boxed|\\square|\bthen\b|\(A\)|\bA[.)]|[\u4e00-\u9fff]|^\W*\\(?:int|sum|frac|lim)"
    r"|\b(?:find\w*|determines?|compute|calculate|evaluate|what|how|which|who|why|give|express|solve|list|simplify|factor)\b"
    r"|\b(?:convert|graph|write|prove|show|expand|multiply|add|rationali[sz]e|enter|name|estimate|order|state|provide)\b"
    r"|\b(?:count|describe|decide|identify|sketch|answer|approximate|round|reduce|divide|subtract|complete|choose)\b"
    r"|\b(?:select|rewrite|obtain|differentiate|integrate|verify|construct|specify|predict|locate|derive|report)\b"
    r"|\b(?:deduce|arrange|minimi[sz]e|maximi[sz]e|build|draw|place|study|investigate|fill|submit|tell|define|denote)\b"
    r"|\b(?:is|are|be|equals?|was|were|to|of|has|than|at|by|in|most|least|contains?|becomes|digit)\s*[:.$]*\s*$"
    r"|=\s*[$.\\\]:)]*\s*$",
    re.IGNORECASE,
)
HANGING = re.compile(
    r"\b(?:that|the|and|if|where|let|for|with|a|an|to|by|such|then|or|when|find|from)\s*$", re.IGNORECASE
)
FIGURE_CODE = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL | re.IGNORECASE)


def clean(row: Row, config: CleaningConfig) -> Row | Drop:
    """The row with its texts mended, or why it goes."""
    long = _too_long(row, config)
    if long:
        return long
    texts = []
    for name in ("problem", "answer", "solution"):
        text = getattr(row, name)
        mended = mend(text, config.control) if text else text
        if text and mended is None:
            if name != "solution":
                return Drop("control-characters", name)
            mended = None  # an answer can stand without its solution
        texts.append(mended)
    problem = strip_instructions(texts[0] or "", config.strip_prefixes, config.strip_suffixes)
    problem = PROPOSED.sub("", problem).strip()
    solution = strip_forum_tail(texts[2]) if texts[2] else None
    return replace(row, problem=problem, answer=bare_answer(texts[1]), solution=solution)


def refuse(row: Row) -> Drop | None:
    """Why a cleaned row cannot be trained on, as far as its texts alone say it."""
    problem, answer = row.problem or "", row.answer or ""
    words = FIGURE_CODE.sub("", problem) if "[asy]" in problem else problem
    if not re.search(r"\w", words):
        return Drop("no-problem")
    if any(mark in problem for mark in IMAGE_MARKS) and IMAGE.search(problem):
        return Drop("image-missing")
    if is_proof(words, answer):
        return Drop("proof")
    cut = incomplete(words)
    if cut:
        return Drop("incomplete", cut)
    return None


def mend(text: str, control: str = "repair") -> str | None:
    """Unicode in composed form, line feeds only, no control characters; None where that would lose something.

    >>> mend("in the form \\x0crac{m}{n}")
    'in the form \\\\frac{m}{n}'
    """
    if control == "repair" and SWALLOWING.search(text):
        text = SWALLOWED_COMMAND.sub(lambda m: "\\" + SWALLOWED[m.group()], text)
    if control == "repair":
        text = ESCAPED_LINE_FEED.sub("\n", text)
    if control == "repair" and "\n" in text:
        text = SWALLOWED_N.sub(lambda m: "\\n", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    if CONTROL.search(text):
        repaired = _without_control(text) if control == "repair" else None
        if repaired is None:
            return None
        text = repaired
    text = _without_markup(text)
    if text.isascii():
        return text.replace("\t", " ").strip()
    text = _decoded_again(text)
    if DAMAGED.search(text):
        return None
    text = TYPESET.sub(lambda m: unicodedata.normalize("NFKC", m.group()), text)
    text = INVISIBLE.sub("", text).replace("\u00a0", " ").replace("\t", " ")
    return unicodedata.normalize("NFC", text).strip()


def _without_markup(text: str) -> str:
    """HTML's entities, line breaks, super- and subscripts and paired tags of plain text as what they stand for."""
    if "&" in text and ENTITY.search(text):
        text = ENTITY.sub(lambda m: html.unescape(m.group()), text)
    if "</" in text or "<br" in text:
        text = re.sub(r"<br\s*/?>", "\n", text)
        for tag, mark in (("sup", "^"), ("sub", "_")):
            text = re.sub(rf"<{tag}>([^<]*)</{tag}>", rf"{mark}{{\1}}", text)
        bare = TAGS.sub(r"\2", text)
        while bare != text:  # tags within tags
            text, bare = bare, TAGS.sub(r"\2", bare)
    return text


def _decoded_again(text: str) -> str:
    """UTF-8 that was once read as Windows-1252 (`â‰¤` for ≤) read as UTF-8; any other text as it is."""
    if not MOJIBAKE.search(text):
        return text
    try:
        return text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return text


def _without_control(text: str) -> str | None:
    """Ligatures spelled out, stray control characters gone; None where one stands for something that is lost."""
    pieces, last = [], 0
    for match in CONTROL.finditer(text):
        at, char = match.start(), match.group()
        pieces.append(text[last:at])
        last = match.end()
        if char in LIGATURES:
            pieces.append(_ligature(text, at, LIGATURES[char]))
        elif not _beside_its_command(text, at):
            return None
    return "".join([*pieces, text[last:]])


def _ligature(text: str, at: int, letters: str) -> str:
    tail = text[at + 1 :]
    if tail.startswith(letters) or text[:at].endswith(letters):
        return ""  # spelled out beside the character
    return letters if AFTER_LIGATURE.match(tail) else ""


def _beside_its_command(text: str, at: int) -> bool:
    r"""Whether the character is an echo of the command next to it (`\le` and \x14) or stands outside of formulas."""
    before, after = CONTROL.sub("", text[:at]), CONTROL.sub("", text[at + 1 :])
    if before.count("$") % 2 == 0 and (not before or not after or before[-1] in "$ \n" or after[0] in "$ \n"):
        return True
    return bool(re.match(r"\s*\\", after) or re.search(r"\\[a-z]+\s*$", before))


def strip_instructions(text: str, prefixes: tuple[str, ...] = (), suffixes: tuple[str, ...] = ()) -> str:
    """The problem without the instruction text around it, matched whole and exactly."""
    text = NUMBERING.sub("", text.strip())
    changed = True
    while changed:
        changed = False
        for prefix in (*prefixes, *INSTRUCTION_PREFIXES):
            if text.startswith(prefix) and len(text) > len(prefix):
                text, changed = text[len(prefix) :].strip(), True
        for suffix in (*suffixes, *INSTRUCTION_SUFFIXES):
            if text.endswith(suffix) and len(text) > len(suffix):
                text, changed = text[: -len(suffix)].strip(), True
    return text


def strip_forum_tail(solution: str) -> str:
    """The solution without the signatures, credits and links that forum posts end with."""
    lines = solution.rstrip().split("\n")
    while len(lines) > 1 and (not lines[-1].strip() or FORUM_TAIL.match(lines[-1])) and "\\boxed" not in lines[-1]:
        lines.pop()
    return "\n".join(lines).rstrip()


def is_proof(problem: str, answer: str) -> bool:
    """Whether a problem asks for a proof and for nothing else."""
    if PROOF_ANSWERS.fullmatch(answer.strip()):
        return True
    return "?" not in problem and bool(ASKS_PROOF.search(problem)) and not ASKS_VALUE.search(problem)


def incomplete(problem: str) -> str:
    """What shows that a problem is cut off, or an empty text."""
    text = problem.rstrip()
    if text.endswith(("...", "…")) and not re.search(r"(?:\\l?dots|,\s*|\+\s*)(?:\.\.\.|…)$", text):
        return "ends in an ellipsis"
    if HANGING.search(text):
        return f"ends in '{text.split()[-1]}'"
    if re.search(r"[(\[{+\\<]$", text):
        return f"ends in '{text[-1]}'"
    if "?" not in text and not ASKS_SOMETHING.search(text):
        return "asks nothing"
    if text.endswith(",") and not ASKS_VALUE.search(text):
        return "ends in a comma and asks nothing"
    return "its last formula is never closed" if _ends_in_a_formula(text) else ""


def _ends_in_a_formula(text: str) -> bool:
    r"""Whether a text ends inside an open formula that also lacks a brace or an \end: a lone missing brace or dollar
    sign further up is a slip of the typist, not a cut."""
    opened = max(text.rfind("\\["), text.rfind("\\("))
    if opened >= 0 and not re.search(r"\\[\])]", text[opened:]):
        tail = text[opened:]
    elif text.replace("\\$", "").count("$") % 2:
        tail = text[text.rfind("$") :]
    else:
        return False
    braces = tail.replace("\\{", "").replace("\\}", "")
    return braces.count("{") > braces.count("}") or tail.count("\\begin{") > tail.count("\\end{")


def bare_answer(answer: str | None) -> str | None:
    """The answer without delimiters, box or words around it; None where nothing or a placeholder is left."""
    if answer is None:
        return None
    text = answer.strip()
    if SAID.match(text) and (found := extract(text)):
        text = found.text
    before = None
    while text != before:
        before = text
        for opened, closed in FENCES:
            inner = text[len(opened) : -len(closed)]
            if len(text) >= len(opened) + len(closed) and text.startswith(opened) and text.endswith(closed):
                text = text if closed in inner else inner.strip()
        boxed = box_content(text, len("\\boxed")) if text.startswith("\\boxed") else None
        if boxed and text.endswith(boxed + "}"):
            text = boxed.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
    said = text.lower()
    return None if said in PLACEHOLDERS or said.rstrip(".") in PLACEHOLDERS else text


def _too_long(row: Row, config: CleaningConfig) -> Drop | None:
    limits = {"problem": 1, "answer": 1, "solution": 5}
    for name, factor in limits.items():
        text = getattr(row, name)
        if text and len(text) > config.max_characters * factor:
            return Drop("too-long", f"{name} of {len(text)} characters")
    return None
