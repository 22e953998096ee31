"""`reward.custom`: the user's own reward, called on one group at a time in the grader's killable processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from concisecli.config import TrainConfig
from concisecli.grader.grading import GraderPool
from concisecli.records import ConciseError, Floats, Group

ERRORS_AT_LEAST = 100  # groups over which the share of failures is taken


def custom_rewards(grader: GraderPool, config: TrainConfig, groups: Sequence[Group]) -> list[Floats | None]:
    """[G] what the function adds to each rollout, for each group; None everywhere where no function is set.

    A group on which it fails or overruns `grader.deadline_s` gets NaN and does not train. Raises ConciseError once it
    fails on more groups than `grader.max_error_share` allows, with what went wrong first.
    """
    name = config.reward.custom
    if name is None:
        return [None] * len(groups)
    budget = config.sampling.max_response_tokens
    return rewards_of(grader, name, [described(group, budget) for group in groups], config.grader.max_error_share)


def rewards_of(
    grader: GraderPool, name: str, groups: Sequence[Mapping[str, Any]], max_error_share: float
) -> list[Floats | None]:
    replies = grader.rewards(name, groups)
    values = [numbers(reply, len(group["rollouts"])) for reply, group in zip(replies, groups, strict=True)]
    failed = [i for i, value in enumerate(values) if np.isnan(value).all()]
    if len(failed) > max_error_share * max(len(groups), ERRORS_AT_LEAST) or len(failed) == len(groups) > 0:
        outcome, rule, _, trace = replies[failed[0]]
        why = trace.strip().splitlines()[-1] if trace else "took too long" if outcome == "timeout" else rule
        raise ConciseError(
            f"reward.custom {name} failed on {len(failed)} of {len(groups)} groups, first on problem "
            f"{groups[failed[0]]['problem_id']}: {why}"
        )
    return list(values)


def numbers(reply: tuple[str, str, float, str], count: int) -> Floats:
    """[G] of a reply; all NaN unless it holds one finite number a rollout."""
    values = np.array(json.loads(reply[1]), dtype=np.float64) if reply[0] == "match" else np.empty(0)
    return values if values.shape == (count,) and np.isfinite(values).all() else np.full(count, np.nan)


def described(group: Group, budget: int) -> dict[str, Any]:
    """A group as the function is given it."""
    return {
        "problem_id": group.problem.id,
        "problem": group.problem.prompt,
        "gold": group.problem.gold,
        "budget": budget,
        "rollouts": [
            {
                "text": completion.text,
                "length": len(completion.token_ids),
                "finished": completion.finished,
                "outcome": verdict.outcome,
                "correct": verdict.correct,
            }
            for completion, verdict in zip(group.completions, group.verdicts, strict=True)
        ],
    }
