"""The policy on held-out problems while it trains, by the code of the `eval` stage, and which weights were best.

    evaluations/step-000050/completions.parquet, scores.json      after 50 updates; 0: before the first

The files are those that `eval` would write for the same weights and settings, byte by byte.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from concisecli import collectives, evaluation, limits
from concisecli.algo.alarms import Evaluated
from concisecli.artifacts import read_json, read_problems, write_json, write_parquet
from concisecli.config import EvalConfig, TrainConfig
from concisecli.did_you_mean import nearest
from concisecli.grader import answers
from concisecli.grader.grading import GraderPool
from concisecli.monitor import note
from concisecli.records import ConciseError, Problem, StageRun
from concisecli.reports import attempts, scores
from concisecli.rollout import RolloutEngine

FOLDER, BEST = "evaluations", "best"
SHARES = ("truncated", "answered", "repeated", "empty_think", "answer_only")


@dataclass
class HeldOut:
    """Evaluates before the first update, every `evaluate_every` of them and after the last one, always with the same
    seeds, so that two steps differ by their weights alone. `best` is {"step", "value"} of the best weights so far."""

    config: TrainConfig
    settings: EvalConfig
    folder: Path
    problems: Sequence[Problem]
    left_out: list[dict[str, str]]
    best: dict[str, float] | None

    def due(self, done: int) -> bool:
        """Whether the weights after `done` updates are evaluated."""
        return done % self.config.evaluate_every == 0 or done == self.config.steps

    def evaluate(
        self, engine: RolloutEngine, grader: GraderPool, tokenizer: Any, *, think_open: bool, done: int
    ) -> scores.Scores:
        """Scores of the policy as the engine holds it, after `done` updates; ranks share the problems. What lies in
        the folder already is taken as it is: it was made by the same weights."""
        folder = self.folder / f"step-{done:06}"
        found: scores.Scores | None = collectives.gather(_scores_in(folder))[0]
        if found is not None:
            return found
        mine = self.problems[collectives.rank() :: collectives.world()]
        sampled = evaluation.sample(engine, tokenizer, mine, self.settings, think_open=think_open)
        judged = evaluation.judge(sampled, mine, self.settings.grader, grader)
        rows = [row for rank in collectives.gather(judged) for row in rank]
        rows = evaluation.in_order(rows, self.problems)
        found = scores.score(
            attempts.gather(rows, self.problems),
            self.settings,
            grader=answers.identity(self.settings.grader),
            left_out=self.left_out,
        )
        if collectives.rank() == 0:
            limits.spend(sum(row["length"] for row in rows))
            write_parquet(folder / "completions.parquet", rows)
            write_json(folder / "scores.json", found)
        return found

    def metrics(self, found: scores.Scores) -> dict[str, float]:
        """The headline of each suite as it stands in metrics.jsonl: eval/aime24/pass_at_1 and so on."""
        return {
            f"eval/{suite}/{name}": value
            for suite, summary in found["suites"].items()
            for name, value in _headline(summary).items()
        }

    def improves(self, found: scores.Scores, done: int) -> bool:
        """Whether these are the best weights so far by `best_by` over `best_on`; if so they are remembered."""
        chosen = [found["suites"][name] for name in self.config.best_on or found["suites"]]
        value = float(np.mean([summary["pass_at_1"]["value"] for summary in chosen]))
        if self.config.best_by == "accuracy_per_token":
            value /= float(np.mean([summary["length"]["value"] for summary in chosen]))
        if self.best is not None and value <= self.best["value"]:
            return False
        self.best = {"step": done, "value": value}
        return True

    def seen(self, until: int) -> list[tuple[int, Evaluated]]:
        """(updates, what an alarm looks at) of the evaluations up to `until` updates that lie on disk, in order."""
        found = [(int(path.name.removeprefix("step-")), path) for path in sorted(self.folder.glob("step-*"))]
        return [(done, evaluated(read_json(path / "scores.json"))) for done, path in found if done <= until]


def _headline(summary: dict[str, Any]) -> dict[str, float]:
    several = summary["budgets"] if len(summary["budgets"]) > 1 else {}
    return {
        **{name: summary[name]["value"] for name in ("pass_at_1", "cons_at_k", "length")},
        **{name: summary[name] for name in SHARES},
        **{f"accuracy_at_{budget}": point["value"] for budget, point in several.items()},
    }


def evaluated(found: scores.Scores) -> Evaluated:
    """[P] a problem: what an alarm compares between two evaluations of the same problems."""
    rows, overall = found["problems"], found["overall"]
    return Evaluated(
        accuracy=tuple(float(np.mean(row["correct"])) for row in rows),
        length=tuple(float(np.mean(row["lengths"])) for row in rows),
        truncated=tuple(1 - float(np.mean(row["finished"])) for row in rows),
        repetition=overall["repeated"],
        empty_think=max(overall["empty_think"], overall["answer_only"]),
    )


def _scores_in(folder: Path) -> scores.Scores | None:
    path = folder / "scores.json"
    return read_json(path) if path.is_file() else None


def forget_after(folder: Path, done: int) -> None:
    """Drop the evaluations of weights that a resumed run has yet to make; those of its checkpoint stay."""
    for path in (folder / FOLDER).glob("step-*"):
        if int(path.name.removeprefix("step-")) > done:
            shutil.rmtree(path)


def make(stage: StageRun, config: TrainConfig, tokenizer: Any, best: dict[str, float] | None) -> HeldOut | None:
    """The evaluation that a stage asks for; None where it asks for none. Raises ConciseError when only half of one is
    asked for, when its problems cannot be sampled, and when best_on names a suite that is not among them."""
    given = bool(stage.inputs.get("evaluation"))
    if given != bool(config.evaluate_every):
        missing = "evaluate_every is 0" if given else "the stage has no input 'evaluation'"
        raise ConciseError(f"half of an evaluation is asked for: {missing}; set both or neither")
    if not given:
        return None
    settings = settings_of(config)
    every = [problem for path in stage.inputs["evaluation"] for problem in read_problems(path)]
    first: dict[str, Problem] = {}
    for problem in every:
        first.setdefault(problem.id, problem)
    problems = list(first.values())
    if not problems:
        raise ConciseError("the input 'evaluation' holds no problems")
    if len(problems) < len(every):
        note(f"{stage.name}: {len(every) - len(problems)} evaluation problems stand in two suites; the first counts")
    fitting, left_out = evaluation.fit(tokenizer, stage.one("model"), problems, settings)
    _refuse_unknown_suites(config, {problem.source or "unnamed" for problem in fitting})
    return HeldOut(config, settings, stage.folder / FOLDER, fitting, left_out, best)


def settings_of(config: TrainConfig) -> EvalConfig:
    """The settings of an `eval` stage that would sample and judge the same."""
    asked = config.evaluation
    return EvalConfig(
        seed=config.seed,
        budgets=asked.budgets or (config.sampling.max_response_tokens,),
        samples=asked.samples,
        temperature=asked.temperature,
        top_p=asked.top_p,
        min_p=asked.min_p,
        stop=config.sampling.stop,
        tie=asked.tie,
        bootstrap=asked.bootstrap,
        max_prompt_tokens=config.sampling.max_prompt_tokens,
        engine=config.engine,
        grader=config.grader,
        prompt=config.prompt,
    )


def _refuse_unknown_suites(config: TrainConfig, known: set[str]) -> None:
    for name in config.best_on:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean '{near}'?" if near else f"the suites are {', '.join(sorted(known))}"
            raise ConciseError(f"best_on names '{name}', which is no suite of the input 'evaluation'; {hint}")
