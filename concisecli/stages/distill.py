"""`data distill`: examples for SFT by a teacher: several solutions a problem, correct ones kept (GRPO-LEAD's QwQ step).

Writes examples.parquet, and dropped.jsonl.zst with the problems that no solution was kept of.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from concisecli import artifacts, collectives, limits, policy, prompts
from concisecli.building.tables import DroppedWriter
from concisecli.config import DistillConfig
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.monitor import Monitor
from concisecli.records import Completion, ConciseError, Example, Group, Preempted, Problem, StageResult, StageRun
from concisecli.rollout import RolloutEngine, make_engine, sample_groups

PARTS = "parts"


def run(stage: StageRun) -> StageResult:
    """Ask the input `model` for solutions of the input `problems`; finished parts of an earlier try are taken as they
    are, since every rollout has its own seed."""
    config: DistillConfig = stage.config
    collectives.init()
    problems = artifacts.read_problems(stage.one("problems"))[: config.limit]
    model = stage.one("model")
    tokenizer = policy.load_tokenizer(model)
    chunks = [problems[i : i + config.chunk_problems] for i in range(0, len(problems), config.chunk_problems)]
    paths = [stage.folder / PARTS / f"{config.chunk_problems}-{n:05d}.json" for n in range(len(chunks))]
    missing = [n for n, path in enumerate(paths) if not path.exists()]
    # The first rank's look decides: another may write a part meanwhile.
    todo = collectives.gather(missing)[0][collectives.rank() :: collectives.world()]
    if todo:
        with (
            closing(make_engine(config.engine, model, longest=config.sampling.longest)) as engine,
            GraderPool(config.grader) as grader,
            Monitor(
                stage.folder, stage=stage.name, total=len(todo), unit="chunk", enabled=collectives.rank() == 0
            ) as monitor,
        ):
            for done, n in enumerate(todo):
                rows = [_row(group, config) for group in _groups(engine, tokenizer, grader, chunks[n], config)]
                artifacts.write_json(paths[n], rows)
                monitor.log(done, _progress(rows))
                if limits.reached():
                    break
    if left := sum(collectives.gather(sum(not paths[n].exists() for n in todo))):
        raise Preempted(limits.stopped(f"with {left} chunks left"))
    if collectives.rank() > 0:
        return collectives.gather(None)[0]
    rows = [row for path in paths for row in artifacts.read_json(path)]
    made = _write(stage.folder, rows, problems)
    return collectives.gather(made)[0]


def _groups(
    engine: RolloutEngine, tokenizer: Any, grader: GraderPool, problems: Sequence[Problem], config: DistillConfig
) -> list[Group]:
    """The problems' solutions, graded. Prompts that are too long are left without any."""
    limit = config.sampling.max_prompt_tokens
    fitting = [p for p in problems if len(prompts.prompt_ids(tokenizer, p.prompt, config.prompt)) <= limit]
    sampled = sample_groups(engine, tokenizer, fitting, config.sampling, config.prompt, seed=config.seed, step=0)
    limits.spend(sum(len(c.token_ids) for _, _, completions in sampled for c in completions))
    think_open = prompts.opens_think(tokenizer, config.prompt)
    verdicts = iter(grader.grade([GradeItem(c.text, p.gold, think_open) for p, _, cs in sampled for c in cs]))
    graded = {
        p.id: Group(p, tuple(cs), tuple(next(verdicts) for _ in cs), prompt_ids=tuple(ids)) for p, ids, cs in sampled
    }
    return [graded.get(p.id, Group(p, (), ())) for p in problems]


def choose(group: Group, config: DistillConfig) -> list[Completion]:
    """The solutions of one group that are kept: correct, ended by themselves, not too long; the shortest of these, or
    some drawn by a hash of seed, problem and number, so that no other problem changes the draw."""
    limit = math.inf if config.max_tokens is None else config.max_tokens
    good = [
        (number, completion)
        for number, (completion, verdict) in enumerate(zip(group.completions, group.verdicts, strict=True))
        if verdict.correct and completion.finished and len(completion.token_ids) <= limit
    ]
    unique = list({completion.text: (number, completion) for number, completion in reversed(good)}.values())

    def rank(item: tuple[int, Completion]) -> tuple[Any, ...]:
        number, completion = item
        drawn = hashlib.sha256(f"{config.seed}:{group.problem.id}:{number}".encode()).digest()
        return (drawn,) if config.keep == "random" else (len(completion.token_ids), number)

    return [completion for _, completion in sorted(unique, key=rank)[: config.per_problem]]


def _row(group: Group, config: DistillConfig) -> dict[str, Any]:
    chosen = choose(group, config)
    correct = int(group.correct.sum())
    reason = "" if chosen else _why_none(group, correct)
    return {
        "problem_id": group.problem.id,
        "prompt": group.problem.prompt,
        "responses": [c.text for c in chosen],
        "tokens": [len(c.token_ids) for c in chosen],
        "correct": correct,
        "attempts": len(group.completions),
        "reason": reason,
    }


def _why_none(group: Group, correct: int) -> str:
    if not group.completions:
        return "prompt-too-long"
    return "too-long" if correct else "never-correct"


def _progress(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    attempts = sum(row["attempts"] for row in rows)
    tokens = [n for row in rows for n in row["tokens"]]
    return {
        "accuracy": sum(row["correct"] for row in rows) / attempts if attempts else 0.0,
        "length": sum(tokens) / len(tokens) if tokens else 0.0,
        "kept": float(len(tokens)),
    }


def _write(folder: Path, rows: Sequence[dict[str, Any]], problems: Sequence[Problem]) -> StageResult:
    examples = [Example(row["problem_id"], row["prompt"], text) for row in rows for text in row["responses"]]
    if not examples:
        raise ConciseError(
            f"the teacher solved none of {len(rows)} problems; give it a larger sampling.max_response_tokens, another "
            "prompt.template, or easier problems"
        )
    artifacts.write_examples(folder / "examples.parquet", examples)
    with DroppedWriter(folder / "dropped.jsonl.zst") as dropped:
        for row, problem in zip(rows, problems, strict=True):
            if row["reason"]:
                dropped.add(
                    {"source": problem.source, "place": problem.id, "reason": row["reason"],
                     "detail": f"{row['correct']} of {row['attempts']} correct",
                     "row": {"problem": problem.prompt, "answer": problem.answer}}
                )  # fmt: skip
    shutil.rmtree(folder / PARTS)
    metrics = _progress(rows) | {"problems": float(len(rows)), "unsolved": float(dropped.rows)}
    return StageResult(
        {"examples": "examples.parquet", "dropped": "dropped.jsonl.zst", "metrics": "metrics.jsonl"},
        metrics,
        {"examples": len(examples), "dropped": dropped.rows},
    )
