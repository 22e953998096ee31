"""Rows of token ids to padded batches: who trains what, in which minibatch, in which micro-batch.

Everything here is a pure function of the rows, whatever order they come in. Shapes: [B, T] a batch of rows, padded on
the right. Masks come from lengths, never from token values: a pad id inside a response is a token like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PART_SAVES = 256  # padded tokens; a micro-batch more costs about as much as so many tokens do


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to train on: a rollout as it was sampled, or an example.

    `old_logprobs` (one a response token) are the sampler's, empty for an example; `advantage` is the rollout's;
    `weight` multiplies the loss of the row's tokens; `loss_mask` (one a response token) tells which carry loss, None
    means all; `correction` (one a response token) are factors on the policy term, empty for 1. Rows with equal
    `prompt_ids` are a group.
    """

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...] = ()
    advantage: float = 0.0
    weight: float = 1.0
    loss_mask: tuple[bool, ...] | None = None
    correction: tuple[float, ...] = ()

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def tokens(self) -> int:
        """Tokens that carry loss."""
        return len(self.response_ids) if self.loss_mask is None else sum(self.loss_mask)


def example_row(ids: Sequence[int], loss_mask: Sequence[bool], weight: float = 1.0) -> Row:
    """An SFT row from a whole rendered example. The first token has nothing before it to be predicted from, so it
    is the prompt and carries no loss."""
    return Row(tuple(ids[:1]), tuple(ids[1:]), weight=weight, loss_mask=tuple(map(bool, loss_mask[1:])))


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """[B, T] tensors; `advantages`, `weights` and `token_counts` (tokens that carry loss) are [B]."""

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor  # bool: position t holds a response token that carries loss
    old_logprobs: Tensor  # of the token at t; zero outside the response
    advantages: Tensor
    weights: Tensor
    token_counts: Tensor
    correction: Tensor  # factor on the policy term of the token at t; 1 where nothing is corrected

    def to(self, device: torch.device) -> TrainBatch:
        if device.type == "cpu":
            return self
        return TrainBatch(*(getattr(self, name).to(device, non_blocking=True) for name in self.__slots__))


def collate(rows: Sequence[Row], pad_id: int) -> TrainBatch:
    """Right-padded to the longest row.

    Raises ValueError for a row whose log-probs or mask do not match its response.
    """
    width = max(row.length for row in rows)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    attention = np.zeros((len(rows), width), dtype=np.int64)
    response = np.zeros((len(rows), width), dtype=bool)
    old = np.zeros((len(rows), width), dtype=np.float32)
    correction = np.ones((len(rows), width), dtype=np.float32)
    for i, row in enumerate(rows):
        _check(row)
        start, end = len(row.prompt_ids), row.length
        ids[i, :start] = row.prompt_ids
        ids[i, start:end] = row.response_ids
        attention[i, :end] = 1
        response[i, start:end] = True if row.loss_mask is None else row.loss_mask
        if row.old_logprobs:
            old[i, start:end] = row.old_logprobs
        if row.correction:
            correction[i, start:end] = row.correction
    return TrainBatch(
        input_ids=torch.from_numpy(ids),
        attention_mask=torch.from_numpy(attention),
        response_mask=torch.from_numpy(response),
        old_logprobs=torch.from_numpy(old),
        advantages=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32),
        token_counts=torch.from_numpy(response.sum(1)),
        correction=torch.from_numpy(correction),
    )


def canonical(rows: Iterable[Row]) -> list[Row]:
    """Longest first, ties by content: the same list whatever the order the rows were made in."""
    return sorted(rows, key=lambda row: (-row.length, row.prompt_ids, row.response_ids, row.advantage))


def minibatches(rows: Sequence[Row], count: int, *, seed: int, step: int) -> list[list[Row]]:
    """`count` parts of whole groups, as equal in groups as can be, drawn by (seed, step). Parts may be empty."""
    if count == 1:
        return [list(rows)]
    prompts = sorted({row.prompt_ids for row in rows})
    order = np.random.default_rng((seed, step)).permutation(len(prompts))
    part_of = {prompts[g]: part for part, groups in enumerate(np.array_split(order, count)) for g in groups}
    return [[row for row in rows if part_of[row.prompt_ids] == part] for part in range(count)]


def share(rows: Sequence[Row], world: int) -> list[list[Row]]:
    """The rows of each rank: longest first, each to the rank that holds the fewest tokens so far."""
    shares: list[list[Row]] = [[] for _ in range(world)]
    load = [0] * world
    for row in canonical(rows):
        lightest = load.index(min(load))
        shares[lightest].append(row)
        load[lightest] += row.length
    return shares


def micro_batches(rows: Sequence[Row], max_tokens: int, *, packed: bool = False) -> list[list[Row]]:
    """Longest first, each of at most `max_tokens` tokens (its padding among them unless `packed`) or of one row."""
    return _first_fit(canonical(rows), max_tokens) if packed else _cut(canonical(rows), max_tokens)


def _cut(ordered: list[Row], max_tokens: int) -> list[list[Row]]:
    """Neighbours in length share a batch; what fits one is still parted where that saves enough padding."""
    batches: list[list[Row]] = []
    while ordered:
        fits = max(1, max_tokens // ordered[0].length)
        batches += _parted(ordered[:fits])
        ordered = ordered[fits:]
    return batches


def _parted(ordered: list[Row]) -> list[list[Row]]:
    """Cut in two, again and again, where that leaves the least padding, as long as PART_SAVES tokens are saved."""
    count, longest = len(ordered), ordered[0].length
    saved = [(count - i) * (longest - row.length) for i, row in enumerate(ordered)]
    most = max(saved)
    if most < PART_SAVES:
        return [ordered]
    first = saved.index(most)
    return _parted(ordered[:first]) + _parted(ordered[first:])


def _first_fit(ordered: list[Row], max_tokens: int) -> list[list[Row]]:
    """Each row into the first batch that has room for it (first-fit decreasing)."""
    batches: list[list[Row]] = []
    room: list[int] = []
    for row in ordered:
        place = next((i for i, left in enumerate(room) if row.length <= left), len(batches))
        if place == len(batches):
            batches.append([])
            room.append(max_tokens)
        batches[place].append(row)
        room[place] -= row.length
    return batches


def _check(row: Row) -> None:
    size = len(row.response_ids)
    if not row.prompt_ids or not size:
        raise ValueError("a row needs a prompt and a response of at least one token")
    if row.old_logprobs and len(row.old_logprobs) != size:
        raise ValueError(f"{len(row.old_logprobs)} old log-probs for a response of {size} tokens")
    if row.loss_mask is not None and len(row.loss_mask) != size:
        raise ValueError(f"a loss mask of {len(row.loss_mask)} for a response of {size} tokens")
