"""Repetition of the words of a text, by the rule of GRPO-LEAD's released code and one that needs no alignment.

Words are what whitespace separates, case and punctuation kept. Cost: 30 vectorised passes over the words.
Source: https://github.com/aeroplanepaper/GRPO-LEAD, deepscaler/rewards/math_reward.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from concisecli.records import Bools

LONGEST_NGRAM = 30


def is_repetitive(
    text: str,
    *,
    repetition_run: int = 10,
    repetition_word: int = 120,
    repetition_offsets: Literal["aligned", "all"] = "aligned",
) -> bool:
    """Whether an n-gram (n up to 30) stands `repetition_run` times in a row, or a word is `repetition_word` long."""
    words = text.split()
    if longest_word(words) >= repetition_word:
        return True
    run, _ = longest_run(words, repetition_offsets=repetition_offsets)
    return run >= repetition_run


def longest_word(words: Sequence[str]) -> int:
    return max(map(len, words), default=0)


def longest_run(words: Sequence[str], *, repetition_offsets: Literal["aligned", "all"] = "aligned") -> tuple[int, int]:
    """(run, n): the most equal n-grams in a row and their n; the smallest n wins ties; (0, 0) when nothing repeats.

    aligned  n-grams are cut from word 0 on, the tail dropped, as LEAD's code does: a word in front can hide a loop
    all      n-grams may start at any word
    """
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.fromiter((numbers[word] for word in words), dtype=np.int64, count=len(words))
    longest = _longest_aligned if repetition_offsets == "aligned" else _longest_anywhere
    best, best_n = 0, 0
    for n in range(1, min(LONGEST_NGRAM, len(words) // 2) + 1):
        run = longest(ids[n:] == ids[:-n], n)
        if run > max(best, 1):
            best, best_n = run, n
    return best, best_n


def _longest_aligned(same_as_n_later: Bools, n: int) -> int:
    """`same_as_n_later` [N - n]; chunk i equals chunk i + 1 where its n words all do."""
    pairs = len(same_as_n_later) // n
    whole_chunks: Bools = np.all(same_as_n_later[: pairs * n].reshape(pairs, n), axis=1)
    return 1 + _longest_streak(whole_chunks)


def _longest_anywhere(same_as_n_later: Bools, n: int) -> int:
    return 1 + _longest_streak(same_as_n_later) // n


def _longest_streak(flags: Bools) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max(initial=0))
