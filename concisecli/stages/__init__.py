"""The list of commands: what each kind of stage reads and writes. Strings only, so that nothing heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """`version` goes into the key: raise it when the meaning of the stage's output changes."""

    entry: str  # "module:function", called with a StageRun, returns a StageResult
    inputs: tuple[str, ...]  # roles that must be given
    optional: tuple[str, ...] = ()  # roles that may be given; "*" allows any other role
    outputs: tuple[str, ...] = ()
    version: int = 1
    ranks: bool = False  # whether several processes can share its work


STAGES: dict[str, Stage] = {
    "data": Stage("concisecli.stages.data:run", (), (), ("problems", "examples", "dropped", "card")),
    "distill": Stage(
        "concisecli.stages.distill:run", ("model", "problems"), (), ("examples", "dropped", "metrics"), ranks=True
    ),
    "sft": Stage("concisecli.stages.sft:run", ("model",), ("*",), ("model", "adapter", "metrics"), ranks=True),
    "train": Stage(
        "concisecli.stages.train:run",
        ("model", "problems"),
        ("evaluation",),
        ("model", "best", "adapter", "evaluations", "pass_rates", "metrics", "rollouts"),
        ranks=True,
    ),
    "mine": Stage(
        "concisecli.stages.mine:run",
        ("problems",),
        ("model", "pass_rates", "extra"),
        ("problems", "pass_rates"),
        ranks=True,
    ),
    "eval": Stage("concisecli.stages.evaluate:run", ("model", "problems"), (), ("completions", "scores"), ranks=True),
    "report": Stage("concisecli.stages.report:run", (), ("scores", "metrics"), ("report", "page", "tables")),
}
