"""`eval`: model + problems -> completions.parquet, scores.json, from one generation pass at the largest budget.

    completions/part-00003.parquet   what was sampled, as it came; an interrupted run goes on behind the last part
    completions.parquet              the same with verdicts, once all parts are there
    sampling.json                    what they were sampled from and how: another grader or budget samples nothing anew
    scores.json                      derived from it; see `scores`

A rollout's seed comes from (seed, problem id, sample index) alone, so neither the order of the problems nor how they
are cut into parts or shared over ranks changes a byte.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from concisecli import collectives
from concisecli.artifacts import json_line, read_json, read_parquet, read_problems, write_json, write_parquet
from concisecli.config import EvalConfig, GraderConfig
from concisecli.grader import answers
from concisecli.grader.extraction import extract
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.monitor import note, progress
from concisecli.policy import load_tokenizer
from concisecli.prompts import opens_think, prompt_ids
from concisecli.records import ConciseError, Problem, StageResult, StageRun, Verdict
from concisecli.reports import attempts, scores
from concisecli.rollout import Sampling, make_engine, sample_groups
from concisecli.store import HashCache
from concisecli.trackers import Tracked, log_once

PART_ROLLOUTS = 2048  # in one part: enough to keep an engine busy, little enough to lose
PARTS, COMPLETIONS, SCORES, SAMPLING = "completions", "completions.parquet", "scores.json", "sampling.json"
SAMPLED = ("problem_id", "sample", "length", "text", "finish_reason", "think_open")  # what the engine gave
Row = dict[str, Any]


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
    fitting, left_out = fit(tokenizer, model, problems, config)
    if not (stage.folder / COMPLETIONS).exists():
        earlier = sampled_before(stage)
        if not earlier:
            generate(stage, tokenizer, model, fitting)
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


def fit(
    tokenizer: Any, model: Path, problems: Sequence[Problem], config: EvalConfig
) -> tuple[list[Problem], list[dict[str, str]]]:
    """(problems whose prompt is at most max_prompt_tokens long, the others with the reason)."""
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
    if collectives.rank() == 0:
        write_json(stage.folder / SAMPLING, asked)
    return []


def parts_of(folder: Path) -> list[Path]:
    return sorted((folder / PARTS).glob("part-*.parquet"))


def generate(stage: StageRun, tokenizer: Any, model: Path, problems: Sequence[Problem]) -> None:
    """Sample the parts that are not there yet; this rank's share of them."""
    config: EvalConfig = stage.config
    size = max(1, PART_ROLLOUTS // config.samples)
    chunks = [problems[start : start + size] for start in range(0, len(problems), size)]
    paths = [stage.folder / PARTS / f"part-{i:05}.parquet" for i in range(len(chunks))]
    # By number, not by what is missing: another rank may write a part while this one is looking.
    missing = [i for i in range(collectives.rank(), len(chunks), collectives.world()) if not paths[i].exists()]
    if not missing:
        return
    sampling = Sampling(config.temperature, config.top_p, config.min_p, max(config.budgets), config.stop)
    think_open = opens_think(tokenizer, config.prompt)
    engine = make_engine(config.engine, model, longest=config.max_prompt_tokens + max(config.budgets))
    for i in progress(missing, what=stage.name, unit="parts"):
        began = time.monotonic()
        sampled = sample_groups(
            engine, tokenizer, chunks[i], sampling, config.prompt, seed=config.seed, step=0, samples=config.samples
        )
        rows: list[Row] = [
            {
                "problem_id": problem.id,
                "sample": sample,
                "length": len(completion.token_ids),
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "think_open": think_open,
            }
            for problem, _, completions in sampled
            for sample, completion in enumerate(completions)
        ]
        write_parquet(paths[i], rows)
        _note(stage.folder, "generate", time.monotonic() - began, tokens=sum(row["length"] for row in rows))
    engine.close()


# --- grading ----------------------------------------------------------------------------------------------------------


def grade(folder: Path, parts: Sequence[Path], problems: Sequence[Problem], grader: GraderConfig) -> None:
    """All parts, judged, as completions.parquet; then the folder's own parts are no longer needed."""
    began = time.monotonic()
    rows = [{name: row[name] for name in SAMPLED} for part in parts for row in _read(part)]
    write_parquet(folder / COMPLETIONS, judge(rows, problems, grader))
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    _note(folder, "grade", time.monotonic() - began)


def judge(rows: Sequence[Row], problems: Sequence[Problem], grader: GraderConfig) -> list[Row]:
    """The rows with `outcome`, `extracted`, `rule`, `correct` and `cluster`."""
    gold = {problem.id: problem.gold for problem in problems}
    with GraderPool(grader) as pool:
        verdicts = pool.grade([GradeItem(row["text"], gold[row["problem_id"]], row["think_open"]) for row in rows])
        judged = [
            row
            | {
                "outcome": verdict.outcome,
                "extracted": _extracted(row, verdict, grader),
                "rule": verdict.rule,
                "correct": attempts.is_correct(verdict.outcome, row["finish_reason"]),
            }
            for row, verdict in zip(rows, verdicts, strict=True)
        ]
        places = iter(_clusters(judged, pool))
    return [row | {"cluster": next(places)} for row in judged]


def _extracted(row: Row, verdict: Verdict, grader: GraderConfig) -> str | None:
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
