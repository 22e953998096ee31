"""Where a rollout ends: at a stop token, or with the token that completes a stop string.

Both engines follow one rule, so that they give equal ids: a rollout ends with the first token after which its decoded
response contains a stop string. That token is kept whole and trained; the text contains the string. A stop token is
kept in the ids and left out of the text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

SLACK = 4  # tokens: a tokenizer may drop a space at the start of what it decodes
BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a token that holds part of a character decodes to


class StopStrings:
    """`strings` as tokens of `tokenizer` meet them; empty, nothing ever ends."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self.strings = tuple(strings)
        self._tokenizer = tokenizer
        # A token is at least one byte, so the string lies within as many of the last tokens.
        self._window = max((len(s.encode()) for s in self.strings), default=0) + SLACK

    def in_text(self, text: str) -> str | None:
        return next((s for s in self.strings if s in text), None)

    def completed(self, ids: Sequence[int]) -> bool:
        """Whether the last of `ids` completes a string, for a response that held none before it."""
        return self.in_text(self._decode(ids[-self._window :])) is not None

    def end(self, ids: Sequence[int]) -> int | None:
        """Number of tokens up to and with the one that completes a string; None where none is complete."""
        if not self.strings or not self.in_text(self._decode(ids)):
            return None
        below, enough = 0, len(ids)
        while enough - below > 1:
            middle = (below + enough) // 2
            if self.in_text(self._decode(ids[:middle])):
                enough = middle
            else:
                below = middle
        return enough

    def may_complete(self, vocabulary: int) -> Tensor:
        """[V] whether a token could be the last of a string, so that others need no decoding."""
        able = torch.zeros(vocabulary, dtype=torch.bool)
        if self.strings:
            last = {s[-1] for s in self.strings} | {BROKEN}
            words = self._tokenizer.batch_decode([[i] for i in range(min(vocabulary, len(self._tokenizer)))])
            able[: len(words)] = torch.tensor([not last.isdisjoint(word) for word in words])
        return able

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def texts(
    tokenizer: Any, responses: Sequence[Sequence[int]], stop_ids: Collection[int], strings: StopStrings
) -> list[str]:
    """The text of each response: without its stop token, with its stop string even where that is a special token."""
    said = [ids[:-1] if ids and ids[-1] in stop_ids else ids for ids in map(list, responses)]
    plain = tokenizer.batch_decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if not strings.strings:
        return [str(text) for text in plain]
    return [_with_string(str(text), ids, strings) for text, ids in zip(plain, said, strict=True)]


def _with_string(text: str, ids: Sequence[int], strings: StopStrings) -> str:
    if strings.in_text(text) or not ids or not strings.completed(ids):
        return text
    return text + str(strings.in_text(strings._decode(ids)))
