"""Orders: each row once an epoch, none twice in a window, and a cursor is enough to go on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from concisecli.ordering import EpochOrder, short_first


@given(count=st.integers(1, 60), seed=st.integers(0, 5), epochs=st.integers(1, 4))
def test_every_row_comes_once_an_epoch(count, seed, epochs):
    order = EpochOrder(count, seed, window=8)
    for _ in range(epochs):
        assert sorted(order.take(count)) == list(range(count))


@given(count=st.integers(16, 60), seed=st.integers(0, 5), batch=st.integers(1, 8))
def test_no_row_comes_twice_within_a_window_even_across_epochs(count, seed, batch):
    order = EpochOrder(count, seed, window=batch)
    rows = order.take(4 * count)
    for start in range(len(rows) - batch + 1):
        assert len(set(rows[start : start + batch])) == batch


def test_a_cursor_is_enough_to_go_on():
    whole = EpochOrder(37, 3, window=10).take(200)
    first = EpochOrder(37, 3, window=10)
    assert first.take(90) == whole[:90]
    assert EpochOrder(37, 3, window=10, cursor=first.cursor).take(110) == whole[90:]


def test_seeds_give_different_orders():
    assert EpochOrder(50, 0).take(50) != EpochOrder(50, 1).take(50)


def test_short_rows_come_first_and_all_rows_at_the_end():
    lengths = np.arange(1000)[::-1].copy()
    early = short_first(lengths, 20, step=0, steps=100, share=0.5, seed=0)
    late = short_first(lengths, 20, step=49, steps=100, share=0.5, seed=0)
    assert max(lengths[i] for i in early) <= 20
    assert max(lengths[i] for i in late) > 500
    assert len(set(early)) == 20
