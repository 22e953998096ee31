"""Scores from hand-made completions, and recomputed by a script that shares nothing with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concisecli.algo import intervals, metrics
from concisecli.algo.repetition import is_repetitive
from concisecli.config import EvalConfig
from concisecli.records import ConciseError, Problem
from concisecli.reports import attempts, scores

CONFIG = EvalConfig(budgets=(30, 60, 100), samples=4, bootstrap=200, seed=7)


def row(
    problem: str,
    sample: int,
    outcome: str,
    length: int,
    text: str = "x",
    finish: str = "stop",
    answer: str | None = "1",
) -> dict:
    return {
        "problem_id": problem,
        "sample": sample,
        "length": length,
        "text": text,
        "finish_reason": finish,
        "outcome": outcome,
        "extracted": None if outcome == "no_answer" else answer,
        "rule": "hand",
        "correct": outcome == "match" and finish == "stop",
        "cluster": -1 if outcome == "no_answer" or finish == "length" else 0 if outcome == "match" else 1,
    }


PROBLEMS = [
    Problem("a", "1+1", "2", "easy", 1.0, {"subject": "sums", "problem_number": "3"}),
    Problem("b", "1*1", "1", "easy", 2.0, {"subject": "products", "problem_number": 7}),
    Problem("c", "1^1", "1", "hard", 10.0, {"subject": "sums", "problem_number": 12}),
]
ROWS = [
    row("a", 0, "match", 20, "<think>wait, check again</think>2"),
    row("a", 1, "match", 30, "<think></think>2"),
    row("a", 2, "mismatch", 40, "<think>let us verify it</think>3"),
    row("a", 3, "match", 100, "never ends 2", "length"),
    row("b", 0, "no_answer", 50),
    row("b", 1, "mismatch", 50),
    row("b", 2, "timeout", 70),
    row("b", 3, "match", 90, "wait wait"),
    *(row("c", k, "mismatch", 60, r"\boxed{5}") for k in range(4)),
]


def scored(rows: list[dict] = ROWS, config: EvalConfig = CONFIG, problems: list[Problem] = PROBLEMS) -> scores.Scores:
    return scores.score(attempts.gather(rows, problems), config, grader={"version": "1"})


def test_headline_numbers_by_hand() -> None:
    overall = scored()["overall"]
    assert overall["pass_at_1"]["value"] == pytest.approx((2 / 4 + 1 / 4 + 0) / 3)
    assert overall["length"]["value"] == pytest.approx((47.5 + 65 + 60) / 3)
    assert overall["cons_at_k"]["value"] == pytest.approx(1 / 3)  # b: the first answer of a tie of wrong and right wins
    assert overall["pass_at_k"] == {
        "1": pytest.approx(0.25),
        "2": pytest.approx((5 / 6 + 1 / 2) / 3),
        "4": pytest.approx(2 / 3),
    }
    assert overall["tokens_per_correct"]["value"] == pytest.approx(690 / 3)


def test_a_rollout_counts_at_a_budget_when_right_and_ended_within_it() -> None:
    budgets = scored()["overall"]["budgets"]
    assert [budgets[b]["value"] for b in ("30", "60", "100")] == pytest.approx([2 / 12, 2 / 12, 3 / 12])


def test_what_was_cut_off_is_neither_right_nor_votes() -> None:
    found = scored()["overall"]
    assert found["truncated"] == pytest.approx(1 / 12)
    assert found["matched_when_cut"] == pytest.approx(1 / 12)
    assert found["answered"] == pytest.approx(10 / 12)  # of 12: one cut off, one without an answer


def test_rates_of_every_outcome() -> None:
    found = scored()["overall"]
    assert [found[name] for name in ("mismatch", "no_answer", "timeout", "error")] == pytest.approx(
        [6 / 12, 1 / 12, 1 / 12, 0]
    )


def test_precision_is_over_what_was_answered() -> None:
    found = scored()["overall"]
    assert found["precision"]["micro"]["value"] == pytest.approx(3 / 10)
    assert found["precision"]["macro"] == pytest.approx((2 / 3 + 1 / 3 + 0) / 3)
    assert (found["mean_correct"], found["mean_answered"]) == (1.0, pytest.approx(10 / 3))


def test_words_of_reflection_are_split_by_right_and_wrong() -> None:
    words = scored()["words"]
    assert words["wait"]["per_response"]["value"] == pytest.approx(3 / 12)
    assert words["wait"]["per_right_response"] == pytest.approx(3 / 3)
    assert words["wait"]["per_wrong_response"] == 0
    assert words["wait"]["per_1k_tokens"] == pytest.approx(3000 / 690)
    assert (words["check"]["per_response"]["value"], words["check again"]["per_response"]["value"]) == (
        0,
        pytest.approx(1 / 12),
    )
    assert scored()["overall"]["reflection_per_response"] == pytest.approx(5 / 12)


def test_thoughtless_answers_are_counted() -> None:
    found = scored()["overall"]
    assert found["empty_think"] == pytest.approx(1 / 12)
    assert found["answer_only"] == pytest.approx(5 / 12)  # the empty think block and four bare boxes


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("<think></think><answer>3</answer>", True),
        ("<think> \n</think> It is 3", True),
        ("<think>2+1</think>3", False),
        (r"\boxed{3}", True),
        (r"$$\boxed{3}$$", True),
        (r"So \boxed{3}", False),
        ("<answer>3</answer>", True),
        ("</think>3", True),  # the prompt opened the thought
        ("rambling", False),
    ],
)
def test_answer_only_is_an_answer_without_reasoning(text: str, bare: bool) -> None:
    assert attempts.is_answer_only(text) is bare


def test_breakdowns_come_in_natural_order() -> None:
    by = scored()["by"]
    assert [part["value"] for part in by["level"]] == ["1", "2", "10"]
    assert [part["value"] for part in by["problem_number"]] == ["1-5", "6-10", "11-15"]
    assert {part["value"]: part["pass_at_1"]["value"] for part in by["subject"]} == {"products": 0.25, "sums": 0.25}
    assert [part["value"] for part in by["pass_rate"]] == ["0", "25-50", "50-75"]
    assert scored()["suites"].keys() == {"easy", "hard"}


def test_a_suite_alone_scores_as_in_company() -> None:
    alone = scored(ROWS[:8], problems=PROBLEMS[:2])
    assert alone["overall"] == scored()["suites"]["easy"]


def test_pass_rate_bins_hold_their_lower_ends() -> None:
    assert [attempts.pass_rate_bin(r) for r in (0, 0.01, 0.25, 0.5, 0.75, 0.99, 1)] == [
        "0",
        "<25",
        "25-50",
        "50-75",
        "75+",
        "75+",
        "100",
    ]


def test_the_order_of_the_rows_does_not_matter() -> None:
    assert scored(ROWS[::-1]) == scored()


def test_sample_zero_always_wrong_does_not_make_pass_at_1_zero() -> None:
    rows = [row("a", k, "match" if k else "mismatch", 10) for k in range(4)]
    assert scored(rows)["overall"]["pass_at_1"]["value"] == 0.75


def test_intervals_are_those_of_the_plain_bootstrap() -> None:
    """One redraw serves all metrics; each is what intervals.bootstrap_interval gives."""
    found = scored()["overall"]
    correct = [a.correct for a in attempts.gather(ROWS, PROBLEMS)]
    low, high = intervals.bootstrap_interval(correct, resamples=200, seed=7)
    assert (found["pass_at_1"]["low"], found["pass_at_1"]["high"]) == pytest.approx((low, high), abs=1e-12)
    low, high = intervals.bootstrap_interval(correct, resamples=200, seed=7, over="samples")
    assert (found["pass_at_1"]["low_samples"], found["pass_at_1"]["high_samples"]) == (low, high)


def test_without_resamples_there_are_no_intervals() -> None:
    found = scored(config=CONFIG.model_copy(update={"bootstrap": 0}))["overall"]
    assert found["pass_at_1"] == {
        "value": pytest.approx(0.25),
        "low": None,
        "high": None,
        "low_samples": None,
        "high_samples": None,
    }
    assert found["tokens_per_correct"]["low"] is None


def test_nothing_right_has_no_tokens_per_correct() -> None:
    found = scored([row("a", k, "no_answer", 10) for k in range(4)])["overall"]
    assert found["tokens_per_correct"] is None
    assert found["precision"] == {"micro": None, "macro": 0.0}
    assert found["by_correctness"]["right"] is None
    assert found["by_correctness"]["wrong"]["value"] == 10


def test_nothing_to_score_and_strange_problems_are_refused() -> None:
    with pytest.raises(ConciseError, match="no completion to score"):
        scored([])
    with pytest.raises(ConciseError, match="problem 'z'"):
        scored([row("z", 0, "match", 1)])


def test_settings_hold_what_was_asked_and_nothing_of_the_machine() -> None:
    found = scored()["settings"]
    assert found["budgets"] == [30, 60, 100]
    assert "grader" not in found
    vllm = CONFIG.model_copy(update={"engine": EvalConfig(engine={"type": "vllm"}).engine})  # type: ignore[arg-type]
    assert "gpu_memory_utilization" not in scored(config=vllm)["settings"]["engine"]


# --- properties -------------------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(["match", "mismatch", "no_answer"])
ATTEMPTS = st.lists(st.tuples(OUTCOMES, st.integers(1, 100), st.booleans()), min_size=4, max_size=4)


@settings(max_examples=40, deadline=None)
@given(st.lists(ATTEMPTS, min_size=1, max_size=3))
def test_the_curve_rises_and_ends_at_pass_at_1(drawn: list[list[tuple[str, int, bool]]]) -> None:
    rows = [
        row(PROBLEMS[i].id, k, outcome, length, finish="length" if cut else "stop")
        for i, group in enumerate(drawn)
        for k, (outcome, length, cut) in enumerate(group)
    ]
    overall = scored(rows, CONFIG.model_copy(update={"bootstrap": 20}))["overall"]
    curve = overall["curve"]["accuracy"]
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(overall["pass_at_1"]["value"], abs=1e-12)
    assert overall["pass_at_k"]["1"] == pytest.approx(overall["pass_at_1"]["value"], abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.data())
def test_pass_at_1_from_any_k_of_n_samples_has_the_same_mean(n: int, data: st.DataObject) -> None:
    right = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    k = data.draw(st.integers(1, min(n, 4)))
    from itertools import combinations

    means = [np.mean([right[i] for i in chosen]) for chosen in combinations(range(n), k)]
    assert np.mean(means) == pytest.approx(metrics.mean_pass_at_k([right], 1))


def test_all_right_is_one_for_every_k() -> None:
    rows = [row(p.id, k, "match", 10) for p in PROBLEMS for k in range(4)]
    overall = scored(rows)["overall"]
    assert overall["pass_at_k"] == {"1": 1.0, "2": 1.0, "4": 1.0}
    assert overall["cons_at_k"] == {"value": 1.0, "low": 1.0, "high": 1.0}


# --- an independent script --------------------------------------------------------------------------------------------


def test_headline_numbers_are_recomputed_by_a_few_plain_lines() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for p in PROBLEMS:
        for k in range(4):
            outcome = str(rng.choice(["match", "mismatch", "no_answer"]))
            rows.append(
                row(
                    p.id,
                    k,
                    outcome,
                    int(rng.integers(1, 101)),
                    finish=str(rng.choice(["stop", "length"], p=[0.8, 0.2])),
                )
            )
    found = scored(rows)["overall"]

    groups: dict[str, list[dict]] = {}
    for r in rows:
        groups.setdefault(r["problem_id"], []).append(r)
    n = len(groups)
    good = {p: [r["outcome"] == "match" and r["finish_reason"] == "stop" for r in g] for p, g in groups.items()}
    assert found["pass_at_1"]["value"] == pytest.approx(sum(sum(g) / 4 for g in good.values()) / n, abs=1e-15)
    assert found["length"]["value"] == pytest.approx(sum(sum(r["length"] for r in g) / 4 for g in groups.values()) / n)
    for budget in (30, 60, 100):
        hits = [sum(ok and r["length"] <= budget for ok, r in zip(good[p], groups[p], strict=True)) / 4 for p in groups]
        assert found["budgets"][str(budget)]["value"] == pytest.approx(sum(hits) / n, abs=1e-15)
    two = [1 - math.comb(4 - sum(g), 2) / math.comb(4, 2) for g in good.values()]
    assert found["pass_at_k"]["2"] == pytest.approx(sum(two) / n, abs=1e-15)
    wins = 0
    for g in groups.values():
        votes = [r["cluster"] for r in g if r["cluster"] >= 0]
        if votes:
            winner = max(dict.fromkeys(votes), key=votes.count)  # the first seen of the largest
            wins += winner == 0
    assert found["cons_at_k"]["value"] == pytest.approx(wins / n, abs=1e-15)


# --- the fast way to the same measure ---------------------------------------------------------------------------------

GRAM = st.lists(st.sampled_from("abc"), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(GRAM, st.integers(1, 14), st.lists(st.sampled_from("abcd"), max_size=6), st.booleans())
def test_repetition_is_found_as_by_the_rule(gram: list[str], times: int, ahead: list[str], long: bool) -> None:
    text = " ".join([*ahead, *(gram * times), *(["y" * 120] if long else [])])
    assert attempts.is_repeated(text) == is_repetitive(text)
