"""`mine`: the problems that are still hard for a policy, merged with others that are known to be."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from concisecli import artifacts, collectives, groups, limits, policy, prompts
from concisecli.config import MineConfig
from concisecli.grader.grading import GraderPool
from concisecli.monitor import Monitor
from concisecli.records import ConciseError, PassRate, Problem, StageResult, StageRun
from concisecli.rollout import RolloutEngine, make_engine, sample_groups

CHUNK = 256  # problems between two lines of progress


@dataclass(frozen=True, slots=True)
class Tally:
    """Attempts at one problem so far."""

    right: int = 0
    wrong: int = 0

    @property
    def attempts(self) -> int:
        return self.right + self.wrong


def run(stage: StageRun) -> StageResult:
    """Keep problems with min_pass_rate <= pass rate <= max_pass_rate and add those of the input `extra` that are new.

    `resample` measures with fresh rollouts of the input `model`; `log` reads a training's `pass_rates`, which are of an
    older policy and do not reach every problem: those never seen are listed. Writes problems.parquet (pass rates in
    `extra`), pass_rates.jsonl and, for `log`, unvisited.jsonl.
    """
    config: MineConfig = stage.config
    collectives.init()
    problems = artifacts.read_problems(stage.one("problems"))[: config.limit]
    rates = _resampled(stage, problems) if config.source == "resample" else _logged(stage, problems)
    hard = [_with_rate(p, rates[p.id]) for p in problems if p.id in rates and is_hard(rates[p.id], config)]
    extra = [p for path in stage.inputs.get("extra", ()) for p in artifacts.read_problems(path)]
    merged = list({p.id: p for p in (*extra, *hard)}.values())  # a problem in both is one, with its measured rate
    if not merged:
        raise ConciseError(
            f"none of {len(rates)} problems has a pass rate of at most {config.max_pass_rate}; "
            "mine a larger or harder pool, or raise max_pass_rate"
        )
    first = collectives.rank() == 0
    if first:
        artifacts.write_problems(stage.folder / "problems.parquet", merged)
        artifacts.write_jsonl(stage.folder / "pass_rates.jsonl", map(_row, rates.values()))
    outputs = {"problems": "problems.parquet", "pass_rates": "pass_rates.jsonl"}
    unvisited = [p for p in problems if p.id not in rates]
    if config.source == "log":
        if first:
            artifacts.write_jsonl(stage.folder / "unvisited.jsonl", ({"problem_id": p.id} for p in unvisited))
        outputs["unvisited"] = "unvisited.jsonl"
    collectives.barrier()
    counts = {"measured": len(rates), "hard": len(hard), "extra": len(extra), "unvisited": len(unvisited)}
    return StageResult(outputs, counts, {"problems": len(merged)})


def is_hard(rate: PassRate, config: MineConfig) -> bool:
    low = config.min_pass_rate
    return rate.rate <= config.max_pass_rate and (low is None or rate.rate >= low)


# --- fresh rollouts ---------------------------------------------------------------------------------------------------


def _resampled(stage: StageRun, problems: Sequence[Problem]) -> dict[str, PassRate]:
    config: MineConfig = stage.config
    if "model" not in stage.inputs:
        raise ConciseError("source: resample needs the input 'model'")
    model = stage.one("model")
    tokenizer = policy.load_tokenizer(model)
    fitting = [
        p
        for p in problems
        if len(prompts.prompt_ids(tokenizer, p.prompt, config.prompt)) <= config.sampling.max_prompt_tokens
    ]
    mine = fitting[collectives.rank() :: collectives.world()]
    with ExitStack() as stack:
        grader = stack.enter_context(GraderPool(config.grader))
        monitor = stack.enter_context(
            Monitor(
                stage.folder,
                stage=stage.name,
                total=math.ceil(len(mine) / CHUNK),
                unit="chunk",
                enabled=collectives.rank() == 0,
            )
        )
        engine = make_engine(config.engine, model, longest=config.sampling.longest)
        stack.callback(engine.close)
        attempt = _attempter(engine, grader, tokenizer, config)
        rates: dict[str, PassRate] = {}
        for number, start in enumerate(range(0, len(mine), CHUNK)):
            tallies = decide(mine[start : start + CHUNK], config, attempt)
            rates |= {pid: PassRate(pid, 0, t.right, t.attempts) for pid, t in tallies.items()}
            monitor.log(number, _progress(rates.values()))
    everyone = {pid: rate for share in collectives.gather(rates) for pid, rate in share.items()}
    return {p.id: everyone[p.id] for p in fitting}


def decide(
    problems: Sequence[Problem],
    config: MineConfig,
    attempt: Callable[[Sequence[Problem], Sequence[range]], Sequence[Sequence[bool]]],
) -> dict[str, Tally]:
    """Attempts until each problem is decided, at most `attempts`; never more of them than could decide it.

    `attempt` solves each problem once for every number in its range, which seeds the rollout.
    """
    tallies = {p.id: Tally() for p in problems}
    undecided = list(problems)
    while undecided:
        ranges = [_next_attempts(tallies[p.id], config) for p in undecided]
        for problem, solved in zip(undecided, attempt(undecided, ranges), strict=True):
            tally, right = tallies[problem.id], sum(solved)
            tallies[problem.id] = Tally(tally.right + right, tally.wrong + len(solved) - right)
        undecided = [p for p in undecided if verdict(tallies[p.id], config) is None]
    return tallies


def verdict(tally: Tally, config: MineConfig) -> bool | None:
    """Whether the problem is hard, once no outcome of the attempts left can change it; None before."""
    left = config.attempts - tally.attempts
    totals = range(tally.right, tally.right + left + 1)
    answers = {is_hard(PassRate("", 0, total, config.attempts), config) for total in totals}
    return answers.pop() if len(answers) == 1 else None


def _next_attempts(tally: Tally, config: MineConfig) -> range:
    """Numbers of the next attempts: the fewest after which the problem can be decided."""
    for number in range(1, config.attempts - tally.attempts + 1):
        if any(
            verdict(Tally(tally.right + right, tally.wrong + number - right), config) is not None
            for right in (0, number)
        ):
            return range(tally.attempts, tally.attempts + number)
    return range(tally.attempts, config.attempts)


def _attempter(
    engine: RolloutEngine, grader: GraderPool, tokenizer: Any, config: MineConfig
) -> Callable[[Sequence[Problem], Sequence[range]], list[list[bool]]]:
    think_open = prompts.opens_think(tokenizer, config.prompt)

    def attempt(problems: Sequence[Problem], ranges: Sequence[range]) -> list[list[bool]]:
        sampled = sample_groups(
            engine, tokenizer, problems, config.sampling, config.prompt, seed=config.seed, step=0, samples=ranges
        )
        limits.spend(sum(len(c.token_ids) for _, _, completions in sampled for c in completions))
        graded = groups.grade(grader, sampled, think_open=think_open, policy_step=0)
        return [[bool(c) for c in g.correct] for g in graded]

    return attempt


def _progress(rates: Iterable[PassRate]) -> dict[str, float]:
    seen = list(rates)
    right, attempts = sum(r.correct for r in seen), sum(r.attempts for r in seen)
    return {"accuracy": right / attempts, "problems": float(len(seen)), "rollouts": float(attempts)}


# --- a training's log -------------------------------------------------------------------------------------------------


def _logged(stage: StageRun, problems: Sequence[Problem]) -> dict[str, PassRate]:
    config: MineConfig = stage.config
    if "pass_rates" not in stage.inputs:
        raise ConciseError("source: log needs the input 'pass_rates'")
    visits = [
        PassRate(row["problem_id"], row["step"], row["correct"], row["attempts"])
        for path in stage.inputs["pass_rates"]
        for row in artifacts.iter_jsonl(path)
    ]
    rates = from_log(visits, config)
    return {p.id: rates[p.id] for p in problems if p.id in rates}


def from_log(visits: Iterable[PassRate], config: MineConfig) -> dict[str, PassRate]:
    """Each problem's pass rate over all its visits, or in its last one; problems with fewer than `min_attempts`
    rollouts there are as if never seen."""
    right: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    last: dict[str, int] = {}
    for visit in sorted(visits, key=lambda v: v.step):
        pid = visit.problem_id
        if config.window == "last":
            right[pid] = attempts[pid] = 0
        right[pid] += visit.correct
        attempts[pid] += visit.attempts
        last[pid] = visit.step
    enough = [pid for pid in last if attempts[pid] >= config.min_attempts]
    return {pid: PassRate(pid, last[pid], right[pid], attempts[pid]) for pid in enough}


def _with_rate(problem: Problem, rate: PassRate) -> Problem:
    extra = {**problem.extra, "pass_rate": rate.rate, "attempts": rate.attempts}
    return Problem(problem.id, problem.prompt, problem.answer, problem.source, problem.level, extra)


def _row(rate: PassRate) -> dict[str, Any]:
    return {"problem_id": rate.problem_id, "step": rate.step, "correct": rate.correct, "attempts": rate.attempts}
