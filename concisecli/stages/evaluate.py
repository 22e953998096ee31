"""`eval`: model + problems -> completions.parquet, scores.json, from one generation pass at the largest budget.

    completions/part-00128.parquet   what was sampled from its 129th problem on, as it came; an interrupted run goes on
    completions.parquet              the same with verdicts, once all parts are there
    sampling.json                    what they were sampled from and how: another grader or budget samples nothing anew
    scores.json                      derived from it; see `scores`

Ranks share the problems; the parts are whole problems, so a run may go on with another number of ranks.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from concisecli import collectives, evaluation, limits
from concisecli.artifacts import json_line, read_json, read_parquet, read_problems, write_json, write_parquet
from concisecli.config import EvalConfig, GraderConfig
from concisecli.evaluation import SAMPLED, Row, fit, in_order
from concisecli.grader import answers
from concisecli.grader.grading import GraderPool
from concisecli.monitor import note, progress
from concisecli.policy import load_tokenizer
from concisecli.prompts import opens_think
from concisecli.records import ConciseError, Preempted, Problem, StageResult, StageRun
from concisecli.reports import attempts, scores
from concisecli.rollout import make_engine
from concisecli.store import HashCache
from concisecli.trackers import Tracked, log_once

PART_ROLLOUTS = 2048  # in one part: enough to keep an engine busy, little enough to lose
T = TypeVar("T")
PARTS, COMPLETIONS, SCORES, SAMPLING = "completions", "completions.parquet", "scores.json", "sampling.json"


def run(stage: StageRun) -> StageResult:
    """Raises ConciseError for an empty problem file, a budget that the model's context cannot hold, and completions
    that cannot be read."""
    config: EvalConfig = stage.config
    if not config.budgets or min(config.budgets) < 1:
        raise ConciseError("budgets needs at least one number of tokens, and none below 1")
    collectives.init()
    model, problems = stage.one("model"), read_problems(stage.one("problems"))
    if not problems:
        raise ConciseError(
            f"{stage.one('problems')} holds no problem; look at the stage that made it: concise data show"
        )
    tokenizer = load_tokenizer(model)
    if config.prompt.chat and not tokenizer.chat_template and collectives.rank() == 0:
        note(
            f"{stage.name}: {model} has no chat template; problems are asked as plain text, as with prompt.chat: false"
        )
    fitting, left_out = fit(tokenizer, model, problems, config)
    if not (stage.folder / COMPLETIONS).exists():
        earlier = first_decides(lambda: sampled_before(stage))
        if not earlier:
            left = generate(stage, tokenizer, model, fitting)
            if any(collectives.gather(left)):
                raise Preempted(limits.stopped(f"with {sum(collectives.gather(left))} parts left to sample"))
        collectives.barrier()
        if collectives.rank() == 0:
            grade(stage.folder, earlier or parts_of(stage.folder), fitting, config.grader)
    collectives.barrier()
    found = _score(stage.folder, fitting, config, left_out)
    collectives.barrier()
    if collectives.rank() == 0:
        log_once(config.trackers, Tracked(stage.folder, config.model_dump(mode="json")), headline(found))
    rows = found["overall"]["rollouts"]
    return StageResult({"completions": COMPLETIONS, "scores": SCORES}, headline(found), {"completions": rows})


def regrade(folder: Path, grader: GraderConfig, out: Path) -> scores.Scores:
    """Judge the completions of a finished eval with the present grader and score them, without a model. Writes both
    files to `out`; says on stderr when the grader is another than before."""
    before = read_json(folder / SCORES)
    asked = [
        Problem(p["id"], p["prompt"], p["answer"], p["source"], p["level"], p["extra"]) for p in before["problems"]
    ]
    if (now := answers.identity(grader)) != before["grader"]:
        changed = [f"{k} {before['grader'].get(k)} -> {now[k]}" for k in now if before["grader"].get(k) != now[k]]
        note(f"another grader than before: {'; '.join(changed)}")
    rows = _read(folder / COMPLETIONS)
    write_parquet(out / COMPLETIONS, judge(rows, asked, grader))
    return _score(out, asked, EvalConfig(**before["settings"], grader=grader), before["left_out"])


def headline(found: scores.Scores) -> dict[str, float]:
    """The numbers worth a line."""
    overall = found["overall"]
    budgets = {f"accuracy_at_{budget}": point["value"] for budget, point in overall["budgets"].items()}
    return {
        "pass_at_1": overall["pass_at_1"]["value"],
        f"cons_at_{overall['samples']}": overall["cons_at_k"]["value"],
        "length": overall["length"]["value"],
        "truncated": overall["truncated"],
        **budgets,
    }


# --- sampling ---------------------------------------------------------------------------------------------------------


def sampled_before(stage: StageRun) -> list[Path]:
    """The completions that another eval of the same run sampled from the same model and problems in the same way, so
    that only verdicts and scores are left to make; none where there is no such. Notes how this stage samples."""
    config: EvalConfig = stage.config
    hashes = HashCache(stage.folder.parent.parent / ".hashes.json")
    settings = scores.settings_of(config)
    asked = {role: hashes.of(stage.one(role)) for role in ("model", "problems")} | {
        name: settings[name]
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "samples",
            "seed",
            "max_prompt_tokens",
            "stop",
            "engine",
            "prompt",
        )
    }
    asked["limit"] = max(config.budgets)
    for path in sorted(stage.folder.parent.glob(f"*/{SAMPLING}")):
        found = path.parent / COMPLETIONS
        if path.parent != stage.folder and found.is_file() and read_json(path) == asked:
            note(f"{stage.name}: the completions of {path.parent.name} are judged anew, nothing is sampled")
            return [found]
    write_json(stage.folder / SAMPLING, asked)
    return []


def first_decides(question: Callable[[], T]) -> T:
    """The first rank's answer, on every rank: files may change between two looks."""
    answer: T = collectives.gather(question() if collectives.rank() == 0 else None)[0]
    return answer


def parts_of(folder: Path) -> list[Path]:
    return sorted((folder / PARTS).glob("part-*.parquet"))


def generate(stage: StageRun, tokenizer: Any, model: Path, problems: Sequence[Problem]) -> int:
    """Sample the problems that no part holds yet, this rank's share of them; how many parts a limit left."""
    config: EvalConfig = stage.config
    parts = share_of(problems, first_decides(lambda: sampled_in(parts_of(stage.folder))), config.samples)
    if not parts:
        return 0
    sampled = 0
    think_open = opens_think(tokenizer, config.prompt)
    made = make_engine(config.engine, model, longest=config.max_prompt_tokens + max(config.budgets))
    with closing(made) as engine:
        for place, some in progress(parts, what=stage.name, unit="parts") if collectives.rank() == 0 else parts:
            began = time.monotonic()
            rows = evaluation.sample(engine, tokenizer, some, config, think_open=think_open)
            write_parquet(stage.folder / PARTS / f"part-{place:05}.parquet", rows)
            tokens = sum(row["length"] for row in rows)
            limits.spend(tokens)
            _note(stage.folder, "generate", time.monotonic() - began, tokens=tokens)
            sampled += 1
            if limits.reached():
                break
    return len(parts) - sampled


def sampled_in(parts: Iterable[Path]) -> set[str]:
    """Ids of the problems in the parts that are there."""
    return {row["problem_id"] for part in parts for row in _read(part)}


def share_of(problems: Sequence[Problem], done: set[str], samples: int) -> list[tuple[int, list[Problem]]]:
    """(place of its first problem, problems) of each part that this rank samples. Parts are small enough that every
    rank has one."""
    left = [(place, problem) for place, problem in enumerate(problems) if problem.id not in done]
    size = max(1, min(PART_ROLLOUTS // samples, math.ceil(len(left) / collectives.world())))
    parts = [left[start : start + size] for start in range(0, len(left), size)]
    mine = parts[collectives.rank() :: collectives.world()]
    return [(part[0][0], [problem for _, problem in part]) for part in mine]


# --- grading ----------------------------------------------------------------------------------------------------------


def grade(folder: Path, parts: Sequence[Path], problems: Sequence[Problem], grader: GraderConfig) -> None:
    """All parts, judged, as completions.parquet; then the folder's own parts are no longer needed."""
    began = time.monotonic()
    rows = [{name: row[name] for name in SAMPLED} for part in parts for row in _read(part)]
    write_parquet(folder / COMPLETIONS, judge(in_order(rows, problems), problems, grader))
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    _note(folder, "grade", time.monotonic() - began)


def judge(rows: Sequence[Row], problems: Sequence[Problem], grader: GraderConfig) -> list[Row]:
    """`evaluation.judge` by a pool of its own."""
    with GraderPool(grader) as pool:
        return evaluation.judge(rows, problems, grader, pool)


def _read(path: Path) -> list[Row]:
    """A file of completions. Raises ConciseError saying what to do with one that is spoilt."""
    try:
        rows = read_parquet(path)
    except ConciseError as error:
        raise ConciseError(f"{error}; delete it and run the same command again to sample it anew") from error
    missing = [name for name in SAMPLED if rows and name not in rows[0]]
    if missing:
        raise ConciseError(f"{path} has no column {', '.join(missing)}; it is not a file of completions")
    return rows


def _score(
    folder: Path, problems: Sequence[Problem], config: EvalConfig, left_out: list[dict[str, str]]
) -> scores.Scores:
    rows = _read(folder / COMPLETIONS)
    found = scores.score(
        attempts.gather(rows, problems), config, grader=answers.identity(config.grader), left_out=left_out
    )
    if collectives.rank() == 0:
        write_json(folder / SCORES, found)
    return found


def _note(folder: Path, phase: str, seconds: float, **counts: int) -> None:
    with (folder / "timings.jsonl").open("a", encoding="utf-8") as file:
        file.write(json_line({"phase": phase, "seconds": round(seconds, 3), **counts}))
