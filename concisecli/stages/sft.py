"""`sft`: supervised fine-tuning on a fixed mix of examples, short ones first where asked."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from concisecli import artifacts, checkpoints, collectives, limits, policy, prompts
from concisecli.backends import make_backend, write_adapter, write_model
from concisecli.batching import Row, example_row
from concisecli.config import SftConfig
from concisecli.monitor import Monitor, note
from concisecli.ordering import EpochOrder, short_first
from concisecli.records import ConciseError, Ints, Preempted, StageResult, StageRun
from concisecli.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Examples:
    """One input of the mix: `number` of its rows stand in every batch."""

    rows: list[Row]
    lengths: Ints
    number: int


def run(stage: StageRun) -> StageResult:
    """Train the model on the examples; see `SftConfig`. Writes model/, metrics.jsonl and, where one is trained,
    adapter/; resumes bit by bit."""
    config: SftConfig = stage.config
    with ExitStack() as stack:
        asked_to_stop = stack.enter_context(checkpoints.stop_signal())
        collectives.init(alone=config.backend.type == "deepspeed")
        tokenizer = policy.load_tokenizer(stage.one("model"))
        mix = {role: _examples(stage, role, tokenizer, number) for role, number in config.mix.items()}
        backend = make_backend(config.backend, stage.one("model"), config)
        trainer = Trainer(backend, config, tokenizer.pad_token_id or 0)
        folder = stage.folder / "checkpoints"
        checkpoint = collectives.broadcast(checkpoints.latest(folder, warn=True))
        state = backend.load(checkpoint) if checkpoint else {"step": 0, "offsets": {}}
        monitor = stack.enter_context(
            Monitor(
                stage.folder,
                stage=stage.name,
                total=config.steps,
                resume_from=state["step"],
                offsets=state["offsets"],
                enabled=collectives.rank() == 0,
                trackers=config.trackers,
                config=config,
            )
        )
        for step in range(state["step"], config.steps):
            rows = batch(mix, config, step)
            began = time.perf_counter()
            metrics = trainer.update(rows[collectives.rank() :: collectives.world()], step)
            monitor.log(step, metrics, seconds={"train": time.perf_counter() - began})
            stop = collectives.any_rank(asked_to_stop())
            if stop or ((step + 1) % config.save_every == 0 and step + 1 < config.steps):
                checkpoints.save(folder, step + 1, backend, {"step": step + 1, "offsets": monitor.offsets()})
            if stop:
                raise Preempted(limits.stopped(f"after step {step + 1}"))
        write_model(backend, tokenizer, stage.folder / "model")
        outputs = {"model": "model", "metrics": "metrics.jsonl"}
        if config.adapter:
            write_adapter(backend, stage.folder / "adapter")
            outputs["adapter"] = "adapter"
        return StageResult(outputs, {"loss": metrics["loss"]})


def batch(mix: dict[str, Examples], config: SftConfig, step: int) -> list[Row]:
    """The rows of a step: `mix` rows of each input. While short examples come first they are drawn afresh every step;
    afterwards each input is walked through in epochs."""
    opening = round(config.short_first * config.steps)
    rows = []
    for i, examples in enumerate(mix.values()):
        seed = (config.seed, i)
        if step < opening:
            chosen = short_first(
                examples.lengths,
                examples.number,
                step=step,
                steps=config.steps,
                share=config.short_first,
                seed=seed,
            )
        else:
            cursor = (step - opening) * examples.number
            order = EpochOrder(len(examples.rows), seed, window=examples.number, cursor=cursor)
            chosen = order.take(examples.number)
        rows += [examples.rows[c] for c in chosen]
    return rows


def _examples(stage: StageRun, role: str, tokenizer: Any, number: int) -> Examples:
    if role not in stage.inputs:
        raise ConciseError(f"mix names the input '{role}', which the stage does not have")
    config: SftConfig = stage.config
    rows = [row for path in stage.inputs[role] for row in _rows(path, tokenizer, config)]
    fitting = [row for row in rows if row.length <= config.max_tokens]
    if len(fitting) < len(rows):
        note(f"{role}: {len(rows) - len(fitting)} of {len(rows)} examples over {config.max_tokens} tokens left out")
    if not fitting:
        raise ConciseError(f"no example of '{role}' is within max_tokens = {config.max_tokens}")
    return Examples(fitting, np.array([row.length for row in fitting]), number)


def _rows(path: Path, tokenizer: Any, config: SftConfig) -> list[Row]:
    return [
        example_row(*prompts.example_ids(tokenizer, example, config.prompt), example.weight)
        for example in artifacts.read_examples(path)
    ]
