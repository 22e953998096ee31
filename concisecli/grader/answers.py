"""Text to final answer, and the judgement everything else stands on: does the answer equal the gold answer?

`check` is pure: no clock, no limit of its own. `grading` runs it in worker processes with a deadline. Each verdict
names the rule that decided, so that a surprising one can be traced:

- `no_answer`: `no-answer`.
- decided by text alone: `same-text`, `same-number`, `other-number`, `too-long`, `nothing-printed`, `no-gold`.
- decided by what was read: `value`, `list`, `set`, `tuple-or-interval`, `relation`, `matrix`, `ratio`, `base`, `words`,
  `choice`, `choice-content`, `infinity`.
- left to the second reader: `math-verify`; refused by both: `unreadable`, `ellipsis`, `too-deep`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from concisecli.config import GraderConfig
from concisecli.grader.equivalence import Decision, compare, quick_compare
from concisecli.grader.extraction import Extraction as Extraction
from concisecli.grader.extraction import Profile, extract
from concisecli.grader.normalize import gold_texts
from concisecli.records import UsageError, Verdict

GoldList = Literal["any", "set"]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


GRADER = {
    "name": "concise-answers",
    "version": "2",  # raise it when a verdict can change
    "math_verify": _version("math-verify"),
    "latex2sympy2_extended": _version("latex2sympy2-extended"),
    "sympy": _version("sympy"),
}


def check(
    response: str,
    gold: Any,
    *,
    profile: Profile = "lenient",
    think_open: bool = False,
    gold_list: GoldList = "any",
) -> Verdict:
    """The verdict on one response. `gold` is any JSON value; a list means any of its elements, or with
    `gold_list="set"` all of them together. null and the empty string match nothing."""
    found = extract(response, profile=profile, think_open=think_open)
    if found is None:
        return Verdict("no_answer", None, "no-answer")
    return judge(found.text, gold, gold_list=gold_list)


def judge(answer: str, gold: Any, *, gold_list: GoldList = "any") -> Verdict:
    """The verdict on an answer that was already cut out of its response."""
    return _verdict(answer, _first(compare, answer, gold, gold_list))


def quick_judge(answer: str, gold: Any, *, gold_list: GoldList = "any") -> Verdict | None:
    """`judge` where text alone decides, in microseconds; None where a parser is needed."""
    decision = Decision(False, "no-gold")
    for i, (text, slack) in enumerate(_golds(gold, gold_list)):
        quick = quick_compare(text, answer)
        if quick is None or (slack and not quick.equal):
            return None
        if quick.equal:
            return _verdict(answer, quick)
        decision = decision if i else quick
    return _verdict(answer, decision)


def _verdict(answer: str, decision: Decision) -> Verdict:
    return Verdict("match" if decision.equal else "mismatch", answer, decision.rule)


def _golds(gold: Any, gold_list: GoldList) -> list[tuple[str, float]]:
    """Gold texts with the relative tolerance that belongs to them: a binary float of 15 digits and more stands for
    every number it rounds to, any other gold for itself."""
    texts = gold_texts(gold)
    if gold_list == "set" and isinstance(gold, (list, tuple)) and len(texts) > 1:
        texts = [", ".join(texts)]
    digits = repr(gold).replace(".", "").replace("-", "").lstrip("0") if isinstance(gold, float) else ""
    slack = 1e-14 if len(digits) >= 15 else 0.0
    return [(t, slack) for t in texts]


def _first(decide: Callable[..., Decision], answer: str, gold: Any, gold_list: GoldList) -> Decision:
    decision = Decision(False, "no-gold")
    for i, (text, slack) in enumerate(_golds(gold, gold_list)):
        this = decide(text, answer, slack=slack)
        if this.equal:
            return this
        if i == 0:
            decision = this
    return decision


def equivalent(a: str, b: str) -> bool:
    """Whether two extracted answers are one answer (for majority votes). Symmetric."""
    return compare(a, b).equal or compare(b, a).equal


@lru_cache(maxsize=32)
def load_custom(name: str, setting: str = "grader.custom") -> Callable[..., Any]:
    """The user's own function, `module:function`: for `grader.custom` a check called with (response, gold), for
    `reward.custom` a reward called with one group. Raises UsageError where it does not load."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise UsageError(f"{setting} must be module:function, not {name!r}")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{setting} {name!r} cannot be loaded: {error}") from error
    if not callable(found):
        raise UsageError(f"{setting} {name!r} is not a function")
    return found  # type: ignore[no-any-return]


def custom_verdict(function: Callable[[str, Any], Any], response: str, gold: Any) -> Verdict:
    """What a user's check returned, as a verdict: an outcome, a bool, or a whole Verdict."""
    result = function(response, gold)
    if isinstance(result, Verdict):
        return result
    if isinstance(result, bool):
        return Verdict("match" if result else "mismatch", None, "custom")
    if result in ("match", "mismatch", "no_answer", "timeout", "error"):
        return Verdict(result, None, "custom")
    raise TypeError(f"a custom check returns an outcome, a bool or a Verdict, not {result!r}")


def identity(config: GraderConfig) -> dict[str, Any]:
    """Name, version and settings of a grader, to travel with every result it made."""
    settings = {
        "profile": config.profile,
        "gold_list": config.gold_list,
        "deadline_s": config.deadline_s,
        "custom": config.custom,
    }
    custom = None
    if config.custom:
        function = load_custom(config.custom)
        try:
            source = inspect.getsource(inspect.getmodule(function) or function)
        except (OSError, TypeError):
            source = repr(function)
        custom = {"name": config.custom, "sha256": hashlib.sha256(source.encode()).hexdigest()}
    return {**GRADER, "settings": settings, "custom": custom}
