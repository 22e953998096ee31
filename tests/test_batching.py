from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from concisecli.batching import Row, canonical, collate, example_row, micro_batches, minibatches, share

PAD = 9


def row(prompt: int, response: int, key: int = 0, **fields: object) -> Row:
    return Row((key,) * prompt, tuple(range(response)), tuple(-0.1 * i for i in range(response)), **fields)  # type: ignore[arg-type]


rows_of_any_length = st.lists(
    st.builds(row, st.integers(1, 6), st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=40
)


def test_a_batch_is_padded_on_the_right_and_its_masks_come_from_lengths() -> None:
    batch = collate([Row((5, 6), (PAD, 7, PAD), (-1.0, -2.0, -3.0), advantage=0.5), Row((5,), (8,), (-4.0,))], PAD)
    assert batch.input_ids.tolist() == [[5, 6, PAD, 7, PAD], [5, 8, PAD, PAD, PAD]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert batch.response_mask.tolist() == [[False, False, True, True, True], [False, True, False, False, False]]
    assert batch.old_logprobs.tolist() == [[0, 0, -1, -2, -3], [0, -4, 0, 0, 0]]
    assert batch.advantages.tolist() == [0.5, 0.0]
    assert batch.token_counts.tolist() == [3, 1]


def test_a_loss_mask_takes_tokens_out_of_the_response_mask_and_the_count() -> None:
    batch = collate([Row((1,), (2, 3, 4), loss_mask=(True, False, True))], PAD)
    assert batch.response_mask.tolist() == [[False, True, False, True]]
    assert batch.token_counts.tolist() == [2]


def test_the_first_token_of_an_example_is_its_prompt() -> None:
    example = example_row([1, 2, 3], [True, False, True], weight=0.3)
    assert (example.prompt_ids, example.response_ids, example.loss_mask) == ((1,), (2, 3), (False, True))
    assert (example.tokens, example.weight, example.old_logprobs) == (1, 0.3, ())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Row((1,), (2, 3), (-1.0,)), "1 old log-probs for a response of 2"),
        (Row((1,), (2, 3), loss_mask=(True,)), "loss mask of 1"),
        (Row((), (2,)), "needs a prompt"),
        (Row((1,), ()), "needs a prompt"),
    ],
)
def test_a_row_that_does_not_fit_itself_is_refused(bad: Row, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate([bad], PAD)


@given(rows_of_any_length, st.integers(1, 100), st.randoms())
def test_micro_batches_hold_every_row_once_within_the_budget_whatever_the_order(
    rows: list[Row], max_tokens: int, rng: random.Random
) -> None:
    batches = micro_batches(rows, max_tokens)
    assert canonical(r for b in batches for r in b) == canonical(rows)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(r.length for r in batch) <= max_tokens
    shuffled = rng.sample(rows, len(rows))
    assert micro_batches(shuffled, max_tokens) == batches


def test_micro_batches_are_sorted_by_length_so_that_padding_is_small() -> None:
    rows = [row(1, n) for n in (3, 29, 4, 28, 5, 27)]
    assert [[r.length for r in b] for b in micro_batches(rows, 90)] == [[30, 29, 28], [6, 5, 4]]


def test_a_batch_that_fits_is_parted_where_lengths_drop_and_enough_padding_is_saved() -> None:
    long, short = [row(1, 199, key) for key in range(4)], [row(1, 19, key) for key in range(4)]
    assert [len(b) for b in micro_batches([*long, *short], 10**6)] == [4, 4]  # 4 x 180 tokens saved
    assert [len(b) for b in micro_batches([*long, short[0]], 10**6)] == [5]  # 180 are not worth a micro-batch
    assert [len(b) for b in micro_batches([*long, *short, *[row(1, 1, key) for key in range(20)]], 10**6)] == [4, 4, 20]


@given(rows_of_any_length, st.integers(1, 100), st.randoms())
def test_packs_hold_every_row_once_within_the_budget_whatever_the_order(
    rows: list[Row], max_tokens: int, rng: random.Random
) -> None:
    batches = micro_batches(rows, max_tokens, packed=True)
    assert canonical(r for b in batches for r in b) == canonical(rows)
    for batch in batches:
        assert len(batch) == 1 or sum(r.length for r in batch) <= max_tokens
    assert micro_batches(rng.sample(rows, len(rows)), max_tokens, packed=True) == batches


def test_packs_are_filled_first_fit_so_that_short_rows_go_where_long_ones_left_room() -> None:
    rows = [row(1, n) for n in (3, 29, 4, 28, 5, 27)]
    assert [[r.length for r in b] for b in micro_batches(rows, 34, packed=True)] == [[30, 4], [29, 5], [28, 6]]


@given(rows_of_any_length, st.integers(1, 4))
def test_ranks_share_every_row_and_differ_by_at_most_the_longest(rows: list[Row], world: int) -> None:
    shares = share(rows, world)
    assert canonical(r for s in shares for r in s) == canonical(rows)
    loads = [sum(r.length for r in s) for s in shares]
    assert max(loads) - min(loads) <= max(r.length for r in rows)


@given(rows_of_any_length, st.integers(1, 4), st.randoms())
def test_minibatches_keep_groups_whole_and_equal_in_number(rows: list[Row], count: int, rng: random.Random) -> None:
    parts = minibatches(rows, count, seed=1, step=2)
    assert len(parts) == count
    assert canonical(r for p in parts for r in p) == canonical(rows)
    groups = [{r.prompt_ids for r in p} for p in parts]
    assert sum(map(len, groups)) == len({r.prompt_ids for r in rows})
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    again = minibatches(rng.sample(rows, len(rows)), count, seed=1, step=2)
    assert [canonical(p) for p in again] == [canonical(p) for p in parts]


def test_the_split_into_minibatches_changes_with_the_step_and_the_seed() -> None:
    rows = [row(1, 3, key) for key in range(20)]
    splits = [minibatches(rows, 2, seed=seed, step=step) for seed, step in [(0, 0), (0, 1), (1, 0), (0, 0)]]
    assert splits[0] == splits[3]
    assert splits[0] != splits[1]
    assert splits[0] != splits[2]
    assert splits[1] != splits[2]


def test_a_batch_on_the_cpu_is_not_copied() -> None:
    batch = collate([row(1, 2)], PAD)
    assert batch.to(torch.device("cpu")) is batch
