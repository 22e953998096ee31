"""Groups: graded rollouts become rows exactly as sampled, and a step's metrics say what happened."""

import numpy as np
import pytest

from concisecli import groups
from concisecli.config import GraderConfig, TrainConfig
from concisecli.grader.grading import GraderPool
from concisecli.records import Completion, Group, Problem, Verdict


def group(pid, lengths, correct, finished=None):
    finished = finished or [True] * len(lengths)
    completions = tuple(
        Completion(tuple(range(n)), tuple([-0.5] * n), f"text {i}", "stop" if done else "length")
        for i, (n, done) in enumerate(zip(lengths, finished, strict=True))
    )
    verdicts = tuple(Verdict("match" if c else "mismatch", "1", "test") for c in correct)
    return Group(Problem(pid, f"question {pid}", "1", "test"), completions, verdicts, 0, (7, 8))


def config(**settings):
    return TrainConfig.model_validate({"steps": 1, **settings})


def test_rows_are_the_sampled_ids_and_log_probs_with_the_advantage_of_their_rollout():
    scored = groups.score(0, group("a", [3, 5], [True, False]), config())
    first, second = groups.rows(scored)
    assert (first.prompt_ids, first.response_ids, first.old_logprobs) == ((7, 8), (0, 1, 2), (-0.5,) * 3)
    assert second.response_ids == (0, 1, 2, 3, 4)
    assert first.advantage == pytest.approx(0.7071058, abs=1e-6)
    assert second.advantage == -first.advantage


def test_masked_truncated_rollouts_are_left_out_of_the_rows():
    scored = groups.score(
        0,
        group("a", [3, 5, 9], [True, False, False], [True, True, False]),
        config(reward={"overlong": "mask"}),
    )
    assert [row.response_ids[-1] for row in groups.rows(scored)] == [2, 4]


def test_the_first_kept_groups_are_chosen_in_the_order_of_their_places():
    settings = config(advantage={"keep": "mixed"})
    everyone = [
        groups.summary(groups.score(place, group(str(place), [3, 5], correct), settings))
        for place, correct in enumerate([[1, 0], [1, 1], [0, 1], [1, 0]])
    ]
    assert groups.choose(reversed(everyone), 2) == {0, 2}
    assert groups.choose(everyone, 9) == {0, 2, 3}


def test_metrics_of_a_step_by_hand():
    settings = config(advantage={"keep": "mixed"})
    everyone = [
        groups.summary(groups.score(0, group("a", [4, 6], [True, False], [True, False]), settings)),
        groups.summary(groups.score(1, group("b", [10, 20], [True, True]), settings)),
    ]
    metrics = groups.metrics(everyone, groups.choose(everyone, 2))
    assert metrics["accuracy"] == 0.75
    assert metrics["length"] == 10.0
    assert metrics["length_finished"] == pytest.approx(34 / 3)
    assert metrics["length_truncated"] == 6.0
    assert metrics["truncated"] == 0.25
    assert (metrics["groups/all_right"], metrics["groups/mixed"], metrics["groups/all_wrong"]) == (1, 1, 0)
    assert metrics["groups/trained"] == 1
    assert metrics["signal_share/groups"] == 0.5
    assert metrics["signal_share/tokens"] == 10 / 40
    assert sum(metrics[f"grade/{o}"] for o in ("match", "mismatch", "no_answer", "timeout", "error")) == 4


def test_rollout_rows_tell_what_was_trained():
    settings = config(advantage={"keep": "mixed"})
    everyone = [groups.summary(groups.score(0, group("a", [4, 6], [True, False]), settings))]
    first, second = groups.rollout_rows(everyone, {0}, step=3)
    assert (first["step"], first["problem_id"], first["rollout"], first["correct"], first["trained"]) == (
        3,
        "a",
        0,
        True,
        True,
    )
    assert np.isclose(second["advantage"], -first["advantage"])


def test_any_of_several_right_answers_is_right():
    problem = Problem("a", "x^2 = 9?", "3", "test", extra={"answers": ["3", "-3"]})
    sampled = [(problem, [1], [Completion((2,), (-0.1,), rf"so \boxed{{{x}}}", "stop") for x in ("3", "-3", "9")])]
    with GraderPool(GraderConfig(workers=1)) as grader:
        (graded,) = groups.grade(grader, sampled, think_open=False, policy_step=0)
    assert graded.correct.tolist() == [True, True, False]
