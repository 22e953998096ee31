"""Which rows come when: permutations drawn from (seed, epoch), and a cursor that is all a checkpoint has to keep."""

from __future__ import annotations

import math

import numpy as np

from concisecli.records import Ints


class EpochOrder:
    """An endless walk over `count` rows: every row once an epoch, and no row twice within any `window` rows in a row,
    also where one epoch ends and the next begins. `cursor` counts the rows taken since the start."""

    def __init__(self, count: int, seed: int, *, window: int = 1, cursor: int = 0) -> None:
        if count < 1:
            raise ValueError("an order needs at least one row")
        self.count, self.seed, self.cursor = count, seed, cursor
        self.window = min(window, count // 2)
        self._epoch, self._order = -1, np.arange(0)

    def take(self, number: int) -> list[int]:
        """The next `number` row indices."""
        taken = []
        for position in range(self.cursor, self.cursor + number):
            epoch, place = divmod(position, self.count)
            taken.append(int(self._at(epoch)[place]))
        self.cursor += number
        return taken

    def _at(self, epoch: int) -> Ints:
        if epoch < self._epoch:
            self._epoch = -1
        while self._epoch < epoch:
            self._order = self._next(self._epoch + 1, self._order[len(self._order) - self.window :])
            self._epoch += 1
        return self._order

    def _next(self, epoch: int, tail: Ints) -> Ints:
        """A permutation whose first `window` rows are not among the last ones of the epoch before."""
        order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        late = np.isin(order, tail)
        early = np.flatnonzero(late[: self.window])
        free = self.window + np.flatnonzero(~late[self.window :])
        swaps = free[: len(early)]
        order[early], order[swaps] = order[swaps], order[early]
        return order


def short_first(lengths: Ints, number: int, *, step: int, steps: int, share: float, seed: int) -> list[int]:
    """`number` row indices for a step of the opening `share` of training, in which rows are drawn from the shortest
    ones only: a part that grows linearly to all of them. `lengths` [N], in tokens."""
    progress = (step + 1) / max(1.0, share * steps)
    open_rows = min(len(lengths), max(number, math.ceil(progress * len(lengths))))
    shortest = np.argsort(lengths, kind="stable")[:open_rows]
    rng = np.random.default_rng((seed, step))
    return [int(i) for i in rng.choice(shortest, size=number, replace=number > open_rows)]
