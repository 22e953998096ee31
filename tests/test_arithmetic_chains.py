"""The demo's task: problems whose answers are right, traces whose checks are right, splits that never meet."""

import re

import pytest

from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource
from concisecli.records import ConciseError

EQUATION = re.compile(r"([A-L])(\d+)((?:[A-L]?[+-]\d)+)=(\d+)")


def value(start: str, steps: str) -> int:
    return int(start) + sum(int(v) for v in re.findall(r"[+-]\d", steps))


def test_every_running_total_stays_in_range_and_the_answer_is_the_sum():
    for problem in arithmetic_chains.problems(ChainsSource(count=300, split="pool"), seed=1):
        start, *operands = map(int, re.findall(r"^\d+|[+-]\d", problem.prompt))
        totals = [start + sum(operands[: i + 1]) for i in range(len(operands))]
        assert all(0 <= t <= 29 for t in totals)
        assert problem.answer == str(totals[-1])
        assert problem.level == len(operands)
        assert 2 <= len(operands) <= 6


def test_splits_are_disjoint_for_every_seed_and_the_same_seed_gives_the_same_problems():
    test, pool, train = (
        {p.prompt for seed in (0, 1) for p in arithmetic_chains.problems(ChainsSource(count=400, split=split), seed)}
        for split in ("test", "pool", "train")
    )
    assert not test & pool
    assert not test & train
    assert not pool & train
    again = arithmetic_chains.problems(ChainsSource(count=400, split="pool"), 1)
    assert again == arithmetic_chains.problems(ChainsSource(count=400, split="pool"), 1)
    assert len({p.id for p in again}) == 400


def test_a_check_is_always_right_and_says_whether_the_line_was():
    checks = 0
    for example in arithmetic_chains.examples(ChainsSource(rows="traces", count=500), seed=2):
        for line in re.finditer(r"([A-L][^;]*)=(\d+);wait check \1=(\d+) (ok|no) ;", example.response):
            label = EQUATION.match(line[0])
            assert value(label[2], label[3]) == int(line[3])
            assert (line[2] == line[3]) == (line[4] == "ok")
            checks += 1
    assert checks > 500


def test_traces_slip_at_about_the_rate_asked_for_and_most_end_right():
    source = ChainsSource(rows="traces", count=1500)
    gold = {}
    lines = slips = right = 0
    for example in arithmetic_chains.examples(source, seed=3):
        start, *operands = map(int, re.findall(r"^\d+|[+-]\d", example.prompt))
        gold = str(start + sum(operands))
        right += example.response.endswith(f"<answer>{gold}</answer>")
        first_pass = re.sub(r"wait check [^;]*;", "", example.response)
        for _, begin, steps, result in EQUATION.findall(first_pass):
            lines += 1
            slips += value(begin, steps) != int(result)
    assert 0.12 < slips / lines < 0.17
    assert 0.65 < right / 1500 < 0.85


def test_fact_rows_carry_loss_on_the_results_alone():
    (row,) = arithmetic_chains.examples(ChainsSource(rows="facts", count=1, weight=0.3), seed=0)
    equations = row.response.split(";")[:-1]
    assert len(equations) == len(row.loss_spans) == 10
    for equation, (start, end) in zip(equations, row.loss_spans, strict=True):
        left, _, result = equation.partition("=")
        assert row.response[start:end] == result
        assert eval(left) == int(result)
    assert row.weight == 0.3


def test_more_problems_than_exist_is_one_clear_sentence():
    with pytest.raises(ConciseError, match="do not give 500 different problems"):
        arithmetic_chains.problems(ChainsSource(count=500, operations=(1, 1), split="test"), seed=0)
