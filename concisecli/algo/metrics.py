"""What an evaluation measures: accuracy, votes, lengths, words of reflection, and how sure one may be of each.

Shapes: [n] the samples of one problem; a list with one [n_p] array a problem where problems meet (n may differ).
Lengths are raw response lengths in tokens. Sources: pass@k of Codex (arXiv 2107.03374), the word pool and the analysis
of right and wrong lengths of ConciseR (arXiv 2505.21178), break-even, budget curve and macro precision of GRPO-LEAD
(arXiv 2504.09696).
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from concisecli.records import Bools

Tie = Literal["first", "expected", "pessimistic"]
Answer = TypeVar("Answer", bound=Hashable)
REFLECTION_WORDS = (
    "check",
    "rethink",
    "reassess",
    "evaluate",
    "re-evaluate",
    "evaluation",
    "examine",
    "however",
    "reconsider",
    "analyze",
    "double-check",
    "check again",
    "recheck",
    "verify",
    "wait",
    "python",  # not of the pool: followed beside it for checks by code
)


# --- accuracy ---------------------------------------------------------------------------------------------------------


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that k of the samples, drawn without replacement, hold a right one: 1 - C(n - c, k) / C(n, k).

    Raises ValueError unless 1 <= k <= samples and 0 <= correct <= samples.
    """
    if not (1 <= k <= samples and 0 <= correct <= samples):
        raise ValueError(f"pass@{k} cannot be told from {correct} right of {samples} samples")
    every = math.comb(samples, k)
    return (every - math.comb(samples - correct, k)) / every


def mean_pass_at_k(correct: Sequence[ArrayLike], k: int) -> float:
    """Mean over problems of pass@k; k = 1 is the mean over problems of the share of right samples."""
    rows = [np.asarray(c, dtype=bool) for c in correct]
    return float(np.mean([pass_at_k(len(row), int(row.sum()), k) for row in rows]))


def cons_at_k(
    answers: Sequence[Answer | None],
    correct: Sequence[bool],
    *,
    tie: Tie = "first",
    same: Callable[[Answer, Answer], bool] = operator.eq,
) -> float:
    """Credit of one problem under majority vote over its k samples (Cons@k, maj@k).

    answers (texts, or numbers of clusters found elsewhere), correct: [k] in sampling order. Samples without an answer
    (None) abstain; nobody voting earns 0. An answer joins the first cluster whose first answer is the `same`; that
    first answer's verdict is the cluster's.

    first        the cluster seen first among the largest wins
    expected     a largest cluster drawn by lot: right ones / largest ones
    pessimistic  all of the largest must be right
    """
    votes = _clusters(answers, correct, same)
    most = max((size for size, _ in votes), default=0)
    winners = [right for size, right in votes if size == most]
    if not winners:
        return 0.0
    if tie == "first":
        return float(winners[0])
    return sum(winners) / len(winners) if tie == "expected" else float(all(winners))


def _clusters(
    answers: Sequence[Answer | None], correct: Sequence[bool], same: Callable[[Answer, Answer], bool]
) -> list[tuple[int, bool]]:
    """(votes, right) of each cluster in the order seen. Equal answers are never compared, as `same` may be slow."""
    voted = [(answer, bool(right)) for answer, right in zip(answers, correct, strict=True) if answer is not None]
    counts = Counter(answer for answer, _ in voted)
    verdicts = dict(reversed(voted))  # the first sample of an answer decides
    clusters: dict[Answer, int] = {}
    for answer in counts:
        home = next((first for first in clusters if same(first, answer)), answer)
        clusters[home] = clusters.get(home, 0) + counts[answer]
    return [(size, verdicts[first]) for first, size in clusters.items()]


def accuracy_at_budget(correct: ArrayLike, lengths: ArrayLike, finished: ArrayLike, budget: int) -> Bools:
    """[n] samples that are right and ended within `budget` tokens.

    In distribution what sampling again with max_tokens = budget would give, so one generation at the largest budget
    serves the whole curve. The corner case: an answer boxed early in a response that runs on counts as wrong here.
    """
    right: Bools = np.asarray(correct, dtype=bool) & np.asarray(finished, dtype=bool)
    right &= np.asarray(lengths) <= budget
    return right


def macro_precision(correct: ArrayLike, answered: ArrayLike) -> float:
    """Mean over problems of right / answered samples, both [P] counts; a problem nobody answered counts 0."""
    right, given = np.asarray(correct, dtype=np.float64), np.asarray(answered, dtype=np.float64)
    return float(np.mean(np.divide(right, given, out=np.zeros(len(right)), where=given > 0)))


def break_even(penalty: float) -> float:
    """The chance of being right from which answering pays, if right earns 1, wrong -penalty and silence 0."""
    return penalty / (1 + penalty)


# --- lengths ----------------------------------------------------------------------------------------------------------


def length_summary(lengths: ArrayLike) -> dict[str, float]:
    """Mean, extremes and quantiles; empty without any length."""
    length = np.asarray(lengths, dtype=np.float64)
    if length.size == 0:
        return {}
    quantiles = dict(zip(("p10", "p50", "p90", "p99"), np.quantile(length, (0.1, 0.5, 0.9, 0.99)), strict=True))
    summary = {"mean": length.mean(), "min": length.min(), **quantiles, "max": length.max()}
    return {name: float(value) for name, value in summary.items()}


def lengths_by_correctness(lengths: Sequence[ArrayLike], correct: Sequence[ArrayLike]) -> dict[str, float]:
    """Whether wrong answers are longer, over all samples and within problems; per problem [n_p] arrays.

    `right`, `wrong`: mean length of all right and all wrong samples. `within_gap`: mean over the problems that have
    both of mean wrong minus mean right length, `within_problems` how many those are, `within_wrong_longer` the share
    of them whose wrong samples are longer. What cannot be told is left out.
    """
    rows = [
        (np.asarray(length, dtype=np.float64), np.asarray(right, dtype=bool))
        for length, right in zip(lengths, correct, strict=True)
    ]
    right = [length[c] for length, c in rows if c.any()]
    wrong = [length[~c] for length, c in rows if not c.all()]
    gaps = np.array([length[~c].mean() - length[c].mean() for length, c in rows if c.any() and not c.all()])
    found: dict[str, float] = {"within_problems": float(len(gaps))}
    if right:
        found["right"] = float(np.concatenate(right).mean())
    if wrong:
        found["wrong"] = float(np.concatenate(wrong).mean())
    if len(gaps):
        found |= {"within_gap": float(gaps.mean()), "within_wrong_longer": float(np.mean(gaps > 0))}
    return found


def accuracy_by_finish(correct: ArrayLike, finished: ArrayLike) -> dict[str, float]:
    """`truncated`: share of samples cut off; `accuracy_finished`, `accuracy_truncated` where there are any."""
    right, done = np.asarray(correct, dtype=bool), np.asarray(finished, dtype=bool)
    if right.size == 0:
        return {}
    found = {"truncated": float(np.mean(~done))}
    if done.any():
        found["accuracy_finished"] = float(right[done].mean())
    if not done.all():
        found["accuracy_truncated"] = float(right[~done].mean())
    return found


# --- words ------------------------------------------------------------------------------------------------------------


def _spelling(word: str) -> str:
    """A pattern for the word with its hyphen, or the one that `re` may carry, optional."""
    # No \b in front, for `re` searches fast for first letters only: the first letter looks behind itself instead.
    first, rest = word[0] + r"(?<!\w.)", word[1:]
    if word.startswith("re"):
        return first + "e-?" + rest[1:].lstrip("-")
    return first + rest.replace("ouble-", r"ouble[-\s]?").replace(" ", r"\s+")


def _key(spelt: str) -> str:
    return re.sub(r"[-\s]", "", spelt)


_BY_KEY = {_key(word): word for word in REFLECTION_WORDS}
_ANY_WORD = re.compile("(?:" + "|".join(_spelling(w) for w in sorted(REFLECTION_WORDS, key=len, reverse=True)) + r")\b")


def reflection_words(text: str) -> Counter[str]:
    """How often each of REFLECTION_WORDS stands in the text: whole words, any case, the longest match first (so
    "check again" is not a "check"), "re-check" and "recheck" alike."""
    found: Counter[str] = Counter()
    for spelt, times in Counter(_ANY_WORD.findall(text.lower())).items():
        found[_BY_KEY[_key(spelt)]] += times
    return found


def reflection_rates(texts: Sequence[str], lengths: ArrayLike) -> dict[str, dict[str, float]]:
    """word -> {per_response, per_1k_tokens}, with every word of the pool listed; `lengths` [n] tokens."""
    total: Counter[str] = Counter()
    for text in texts:
        total.update(reflection_words(text))
    responses, thousands = max(len(texts), 1), max(float(np.sum(np.asarray(lengths))), 1.0) / 1000
    return {
        word: {"per_response": total[word] / responses, "per_1k_tokens": total[word] / thousands}
        for word in REFLECTION_WORDS
    }


def think_body(text: str) -> str | None:
    """What stands before the first </think>, an opening tag (which the prompt may have given) removed; None without
    a closing tag."""
    body, closing, _ = text.partition("</think>")
    return body.rpartition("<think>")[2].strip() if closing else None


def empty_think_rate(texts: Sequence[str]) -> float:
    """Share of responses that close a thought without one: the mark of a length reward that bred guessing."""
    return sum(think_body(text) == "" for text in texts) / max(len(texts), 1)


# --- how sure ---------------------------------------------------------------------------------------------------------
