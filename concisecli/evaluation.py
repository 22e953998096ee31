"""From problems to judged rollouts: what the `eval` stage and an evaluation in the middle of a training share.

A rollout's seed comes from (seed, problem id, sample index) alone, so neither the order of the problems nor how they
are cut into parts or shared over ranks changes a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from concisecli.config import EvalConfig, GraderConfig
from concisecli.grader.extraction import extract
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.prompts import prompt_ids
from concisecli.records import ConciseError, Problem, Verdict
from concisecli.reports import attempts
from concisecli.rollout import RolloutEngine, Sampling, sample_groups

SAMPLED = ("problem_id", "sample", "length", "text", "finish_reason", "think_open")  # what the engine gave
Row = dict[str, Any]


def fit(
    tokenizer: Any, model: Path, problems: Sequence[Problem], config: EvalConfig
) -> tuple[list[Problem], list[dict[str, str]]]:
    """(problems whose prompt is at most max_prompt_tokens long, the others with the reason). Raises ConciseError when
    none is left, and when the largest budget does not fit behind the longest prompt in the model's context."""
    fitting, left_out, longest = [], [], 0
    for problem in problems:
        length = len(prompt_ids(tokenizer, problem.prompt, config.prompt))
        if length > config.max_prompt_tokens:
            reason = f"prompt of {length} tokens, more than max_prompt_tokens {config.max_prompt_tokens}"
            left_out.append({"problem_id": problem.id, "reason": reason})
        else:
            longest = max(longest, length)
            fitting.append(problem)
    if not fitting:
        raise ConciseError(f"every prompt is longer than max_prompt_tokens {config.max_prompt_tokens}; raise it")
    context, budget = context_of(model), max(config.budgets)
    if context and longest + budget > context:
        raise ConciseError(
            f"a budget of {budget} tokens after a prompt of {longest} is more than the {context} positions of {model}; "
            f"the largest budget it can hold is {context - longest}"
        )
    return fitting, left_out


def context_of(model: Path) -> int | None:
    """The longest sequence, in tokens, that the model was made for."""
    from transformers import AutoConfig

    return getattr(AutoConfig.from_pretrained(model).get_text_config(), "max_position_embeddings", None)


def sample(
    engine: RolloutEngine, tokenizer: Any, problems: Sequence[Problem], config: EvalConfig, *, think_open: bool
) -> list[Row]:
    """One row a rollout, ungraded, problem by problem; one pass at the largest budget serves all of them."""
    sampling = Sampling(config.temperature, config.top_p, config.min_p, max(config.budgets), config.stop)
    sampled = sample_groups(
        engine, tokenizer, problems, sampling, config.prompt, seed=config.seed, step=0, samples=config.samples
    )
    return [
        {
            "problem_id": problem.id,
            "sample": number,
            "length": len(completion.token_ids),
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "think_open": think_open,
        }
        for problem, _, completions in sampled
        for number, completion in enumerate(completions)
    ]


def judge(rows: Sequence[Row], problems: Sequence[Problem], grader: GraderConfig, pool: GraderPool) -> list[Row]:
    """The rows with `outcome`, `extracted`, `rule`, `correct` and `cluster`."""
    gold = {problem.id: problem.gold for problem in problems}
    verdicts = pool.grade([GradeItem(row["text"], gold[row["problem_id"]], row["think_open"]) for row in rows])
    judged = [
        row
        | {
            "outcome": verdict.outcome,
            "extracted": extracted(row, verdict, grader),
            "rule": verdict.rule,
            "correct": attempts.is_correct(verdict.outcome, row["finish_reason"]),
        }
        for row, verdict in zip(rows, verdicts, strict=True)
    ]
    places = iter(_clusters(judged, pool))
    return [row | {"cluster": next(places)} for row in judged]


def in_order(rows: Sequence[Row], problems: Sequence[Problem]) -> list[Row]:
    """The rows in the order of the problems, each problem's by number, however they came."""
    places = {problem.id: place for place, problem in enumerate(problems)}
    if strange := {row["problem_id"] for row in rows} - set(places):
        raise ConciseError(
            f"completions of problem {min(strange)!r}, which is not among the problems; delete the folder and run again"
        )
    return sorted(rows, key=lambda row: (places[row["problem_id"]], row["sample"]))


def extracted(row: Row, verdict: Verdict, grader: GraderConfig) -> str | None:
    """The answer that the verdict is about; a custom check names none, so it is looked for."""
    if not grader.custom:
        return verdict.extracted
    found = extract(row["text"], profile=grader.profile, think_open=row["think_open"])
    return found.text if found else None


def _clusters(rows: Sequence[Row], pool: GraderPool) -> list[int]:
    """[rows] the same number for equivalent answers of one problem, ABSTAINS for rows without a vote."""
    places: dict[str, list[int]] = {}
    for i in sorted(range(len(rows)), key=lambda i: rows[i]["sample"]):
        places.setdefault(rows[i]["problem_id"], []).append(i)
    given = [[rows[i]["extracted"] if attempts.votes(rows[i]) else None for i in at] for at in places.values()]
    found = [attempts.ABSTAINS] * len(rows)
    for at, numbers in zip(places.values(), pool.cluster(given), strict=True):
        for i, number in zip(at, numbers, strict=True):
            found[i] = number
    return found
