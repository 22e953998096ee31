"""`train`: THE loop. Sample, grade, score, update, sync."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from concisecli import artifacts, checkpoints, collectives, groups, held_out, limits, policy, prompts, weights
from concisecli.ahead import Ahead
from concisecli.backends import (
    Backend,
    make_backend,
    make_reference,
    write_adapter,
    write_model,
)
from concisecli.collection import Collected, Collector, fitting
from concisecli.config import TrainConfig
from concisecli.grader.grading import GraderPool
from concisecli.monitor import Monitor, Stopwatch, note
from concisecli.ordering import EpochOrder
from concisecli.records import ConciseError, Preempted, Problem, StageResult, StageRun
from concisecli.refilling import Yield, most_problems
from concisecli.rollout import EngineLost, RolloutEngine, make_engine
from concisecli.syncing import sync
from concisecli.trainer import NonFiniteError, Trainer
from concisecli.watch import Watch, sentence

FRESH = {"step": 0, "cursor": 0, "yield": [0.0, 0.0], "offsets": {}, "best": None}  # the state before the first step


@dataclass
class Training:
    """What the loop holds open between steps."""

    stage: StageRun
    config: TrainConfig
    tokenizer: Any
    think_open: bool
    backend: Backend
    engine: RolloutEngine
    grader: GraderPool
    trainer: Trainer
    problems: list[Problem]
    collector: Collector
    ahead: Ahead
    monitor: Monitor
    held_out: held_out.HeldOut | None
    watch: Watch
    clock: Stopwatch
    start: int
    lost: EngineLost | None = None  # an engine that ended in the step at hand


def run(stage: StageRun) -> StageResult:
    """Train the policy on the problems; see `TrainConfig` for every setting.

    Writes model/, metrics.jsonl, pass_rates.jsonl, rollouts/ and, with an `evaluation` input, evaluations/ and best/,
    with an `adapter` adapter/. Resumes from the newest checkpoint bit by bit. Raises NonFiniteError before a step that
    would spoil the weights, Preempted after the state was saved on SIGTERM, ConciseError for an alarm with `on_alarm:
    stop`.
    """
    with ExitStack() as stack:
        asked_to_stop = stack.enter_context(checkpoints.stop_signal())
        training = _open(stage, stack)
        _evaluate_untrained(training)
        metrics: dict[str, float] = {}
        for step in range(training.start, training.config.steps):
            collected = _collect(training, step)
            metrics = collected.metrics() | _update(training, collected, step)
            training.watch.trained(metrics)
            metrics |= _evaluate(training, step + 1)
            alarm = _watch(training, metrics, step)
            _log(training, collected, metrics, step)
            _keep_weights(training, step + 1)
            _leave_if_lost(training, step + 1)
            stop = collectives.any_rank(asked_to_stop())
            if _due(training, step, stop or alarm is not None):
                _save(training, step + 1)
            if stop:
                raise Preempted(limits.stopped(f"after step {step + 1}"))
            if alarm:
                return _act(training, alarm, step)
        return _finish(training, metrics)


def _update(training: Training, collected: Collected, step: int) -> dict[str, float]:
    """One batch through the trainer, then the engine gets the new weights. An empty batch takes part: ranks move
    together. With `async_steps` the next step's groups are sampled before the engine gets them."""
    training.ahead.begin(step + 1)
    rows = [row for s in collected.mine if s.place in collected.chosen for row in groups.rows(s)]
    with training.clock.timed("train"):
        if not training.ahead.beside:  # one that samples beside the update stays awake
            training.engine.sleep()
        try:
            metrics = training.trainer.update(rows, step)
        except NonFiniteError as error:
            dump = training.stage.folder / f"nonfinite-step-{step}.jsonl"
            artifacts.write_jsonl(dump, ({"prompt_ids": r.prompt_ids, "response_ids": r.response_ids} for r in rows))
            raise NonFiniteError(f"{error}; its rows are in {dump}; lower lr, or look at them") from error
    training.ahead.finish()
    with training.clock.timed("sync"):
        if training.ahead.beside:
            training.engine.sleep()
        probe = prompts.prompt_ids(training.tokenizer, training.problems[0].prompt, training.config.prompt)
        training.lost = sync(
            training.engine,
            training.backend,
            None if shares_module(training.config) else probe,
            dtype=training.config.backend.dtype,
        )
    if "loss" in metrics:  # its value says nothing about progress: near 0 on the first pass whatever is learned
        metrics["surrogate"] = metrics.pop("loss")
    return metrics


def _collect(training: Training, step: int) -> Collected:
    """The groups of `step`. Where their engine is lost, the training as it stands is saved first."""
    before = training.collector.state()
    try:
        return training.ahead.groups_of(step)
    except EngineLost as lost:
        raise _saved(training, step, lost, before) from lost


def _leave_if_lost(training: Training, done: int) -> None:
    if training.lost and done < training.config.steps:  # after the last step nobody needs it
        raise _saved(training, done, training.lost, training.collector.state()) from training.lost


def _saved(training: Training, done: int, lost: EngineLost, collector: dict[str, Any]) -> EngineLost:
    """`lost`, saying what a rerun goes on from: the state after `done` updates, which is saved here."""
    if done == 0:
        return EngineLost(f"{lost}; nothing was trained yet")
    _save(training, done, collector)
    return EngineLost(f"{lost} and has saved its state after {done} steps; run the same command again to go on")


def shares_module(config: TrainConfig) -> bool:
    """Whether rollouts are sampled from the very module that trains; one that is in shards cannot be sampled from, as
    ranks would have to generate in step."""
    sharded = config.backend.type == "deepspeed" and config.backend.zero_stage == 3
    return config.engine.type == "transformers" and not sharded


# --- on the side ------------------------------------------------------------------------------------------------------


def _evaluate_untrained(training: Training) -> None:
    """The policy as it was given: row -1 of the metrics, before the first step."""
    if training.held_out and training.start == 0:
        training.monitor.log(-1, _evaluate(training, 0), seconds=training.clock.read())
        training.clock.reset()


def _evaluate(training: Training, done: int) -> dict[str, float]:
    """Where due after `done` updates: the metrics of the held-out problems, with the weights kept in best/ if they are
    the best so far and no alarm is on."""
    evaluation = training.held_out
    if evaluation is None or not evaluation.due(done):
        return {}
    if training.lost:  # a step is logged whole or not at all
        raise EngineLost(f"{training.lost}; run the same command again to go on from the last checkpoint")
    with training.clock.timed("evaluate"):
        found = evaluation.evaluate(
            training.engine, training.grader, training.tokenizer, think_open=training.think_open, done=done
        )
        training.watch.evaluated(held_out.evaluated(found))
        if not training.watch.on and evaluation.improves(found, done):
            _write_model(training, held_out.BEST)
    return evaluation.metrics(found)


def _watch(training: Training, metrics: dict[str, float], step: int) -> str | None:
    """Puts the alarms of this step into its metrics and says the new ones; what they say where they are acted on."""
    on, new = training.watch.look(step)
    metrics |= on
    if not new:
        return None
    said = f"step {step + 1}: {sentence(new)}"
    if collectives.rank() == 0:
        note(f"{training.stage.name}: {said}")
    action, last = training.config.on_alarm, step + 1 == training.config.steps
    return None if action == "warn" or (action == "stop" and last) else said


def _act(training: Training, alarm: str, step: int) -> StageResult:
    """What `on_alarm` asks for: end here, to be gone on with or not, or finish with the best weights."""
    best = training.held_out.best if training.held_out else None
    if training.config.on_alarm == "rollback" and best:
        at = int(best["step"])
        if collectives.rank() == 0:
            artifacts.copy_folder(training.stage.folder / held_out.BEST, training.stage.folder / "model")
            note(f"{training.stage.name}: ends at step {step + 1}; its model is the one after {at} updates")
        collectives.barrier()
        return _result(training, {"ended_at": step + 1, "rolled_back_to": at})
    where = (
        f"the best weights, after {best['step']} updates, are in {training.stage.folder / held_out.BEST}; "
        if best
        else ""
    )
    raise ConciseError(f"{alarm}; stopped, as on_alarm says; {where}to go on all the same run the same command again")


def _keep_weights(training: Training, done: int) -> None:
    """Where due, the weights as a model folder of their own; then the oldest beyond `weights_keep` go."""
    config = training.config
    if not config.weights_every or done % config.weights_every:
        return
    with training.clock.timed("save"):
        weights.keep(
            training.stage.folder,
            done,
            training.config,
            lambda folder: _write_model(training, folder),
            first=collectives.rank() == 0,
        )


def _log(training: Training, collected: Collected, metrics: dict[str, float], step: int) -> None:
    folder = training.stage.folder
    if collectives.rank() == 0:
        rows = groups.rollout_rows(collected.everyone, collected.chosen, step)
        artifacts.write_parquet(folder / "rollouts" / f"part-{step:05d}.parquet", rows)
        rates = groups.pass_rates(collected.everyone, step)
        artifacts.append_jsonl(
            folder / "pass_rates.jsonl",
            ({"problem_id": r.problem_id, "step": r.step, "correct": r.correct, "attempts": r.attempts} for r in rates),
        )
        training.monitor.log(step, metrics, seconds=training.clock.read())
        limits.spend(sum(int(group.lengths.sum()) for group in collected.everyone))
    training.clock.reset()


# --- before and after -------------------------------------------------------------------------------------------------


def _open(stage: StageRun, stack: ExitStack) -> Training:
    config: TrainConfig = stage.config
    collectives.init(alone=config.backend.type == "deepspeed")
    model = stage.one("model")
    tokenizer = policy.load_tokenizer(model)
    backend = make_backend(config.backend, model, config)
    problems = fitting(artifacts.read_problems(stage.one("problems")), tokenizer, config)
    checkpoint = collectives.broadcast(checkpoints.latest(stage.folder / "checkpoints", warn=True))
    state = backend.load(checkpoint) if checkpoint else dict(FRESH)
    if collectives.rank() == 0:
        _forget_after(stage.folder, state["step"])
    collectives.barrier()
    engine = make_engine(
        config.engine, model, module=backend.module if shares_module(config) else None, longest=_longest(config)
    )
    stack.callback(engine.close)
    if checkpoint:
        engine.sync_weights(backend.named_weights())
    think_open = prompts.opens_think(tokenizer, config.prompt)
    grader = stack.enter_context(GraderPool(config.grader, config.reward.custom))
    order = EpochOrder(len(problems), config.seed, window=most_problems(config), cursor=state["cursor"])
    clock = Stopwatch()
    recent = Yield(*state["yield"])
    collector = Collector(config, tokenizer, think_open, engine, grader, problems, order, clock, recent)
    ahead = Ahead(collector)
    if checkpoint:
        ahead.load(checkpoint, state["step"])
    evaluation = held_out.make(stage, config, tokenizer, best=state["best"])
    return Training(
        stage=stage,
        config=config,
        tokenizer=tokenizer,
        think_open=think_open,
        backend=backend,
        engine=engine,
        grader=grader,
        trainer=_trainer(config, backend, tokenizer, model),
        problems=problems,
        collector=collector,
        ahead=ahead,
        monitor=stack.enter_context(
            Monitor(
                stage.folder,
                stage=stage.name,
                total=config.steps,
                resume_from=state["step"],
                offsets=state["offsets"],
                enabled=collectives.rank() == 0,
                clock=clock,
                trackers=config.trackers,
                config=config,
            )
        ),
        held_out=evaluation,
        watch=Watch(config.alarms, stage.folder, state["step"], evaluation.seen(state["step"]) if evaluation else ()),
        clock=clock,
        start=state["step"],
    )


def _longest(config: TrainConfig) -> int:
    """Tokens of the longest sequence that the engine meets, in training or in an evaluation."""
    held_out_longest = config.sampling.max_prompt_tokens + max(config.evaluation.budgets, default=0)
    return max(config.sampling.longest, held_out_longest if config.evaluate_every else 0)


def _trainer(config: TrainConfig, backend: Backend, tokenizer: Any, model: Path) -> Trainer:
    return Trainer(
        backend,
        config,
        tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
        loss=config.loss,
        temperature=config.sampling.temperature,
        reference=make_reference(config, model, backend) if config.loss.kl_coef > 0 else None,
        max_response_tokens=config.sampling.max_response_tokens,
    )


def _forget_after(folder: Path, step: int) -> None:
    """Drop what was logged after the checkpoint that the run goes on from."""
    artifacts.keep_jsonl(folder / "pass_rates.jsonl", lambda row: row["step"] < step)
    held_out.forget_after(folder, step)
    weights.forget_after(folder, step)
    for later in count(step):
        part = folder / "rollouts" / f"part-{later:05d}.parquet"
        if not part.exists():
            return
        part.unlink()


def _due(training: Training, step: int, stop: bool) -> bool:
    return stop or ((step + 1) % training.config.save_every == 0 and step + 1 < training.config.steps)


def _save(training: Training, step: int, collector: dict[str, Any] | None = None) -> None:
    with training.clock.timed("save"):
        checkpoints.save(
            training.stage.folder / "checkpoints",
            step,
            training.backend,
            {
                "step": step,
                **(collector or training.collector.state()),
                "offsets": training.monitor.offsets(),
                "best": training.held_out.best if training.held_out else None,
            },
            beside=training.ahead.save,
        )


def _write_model(training: Training, name: str) -> None:
    write_model(training.backend, training.tokenizer, training.stage.folder / name)


def _say_if_nothing_was_learned(training: Training) -> None:
    if collectives.rank() == 0 and not any(
        row.get("optimiser_steps") for row in artifacts.iter_jsonl(training.stage.folder / "metrics.jsonl")
    ):
        note(
            f"{training.stage.name}: no group could train in any step, so the model is what it was; choose problems it "
            "solves sometimes, or see advantage.keep"
        )


def _finish(training: Training, last: dict[str, float]) -> StageResult:
    _write_model(training, "model")
    extra = {}
    if training.config.adapter:
        write_adapter(training.backend, training.stage.folder / "adapter")
        extra["adapter"] = "adapter"
    _say_if_nothing_was_learned(training)
    shown = ("accuracy", "length", "truncated", "groups/all_right", "signal_share/tokens")
    return _result(training, {name: last[name] for name in shown if name in last}, **extra)


def _result(training: Training, metrics: dict[str, Any], **extra: str) -> StageResult:
    outputs = {
        "model": "model",
        "metrics": "metrics.jsonl",
        "pass_rates": "pass_rates.jsonl",
        "rollouts": "rollouts",
        **extra,
    }
    if training.held_out and training.held_out.best:
        outputs |= {"best": held_out.BEST, "evaluations": held_out.FOLDER}
        metrics |= {
            "best_step": training.held_out.best["step"],
            f"best_{training.config.best_by}": training.held_out.best["value"],
        }
    if training.watch.first_on:
        metrics["alarms"] = {kind: step + 1 for kind, step in training.watch.first_on.items()}
    return StageResult(outputs, metrics)
