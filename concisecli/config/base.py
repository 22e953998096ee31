"""What every settings class has: frozen, strict about keys, some fields marked as changing speed only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# Ranks that a stage runs on; auto: one a GPU, 1 on a CPU. Left out of the key as threads are: sums are rounded in
# another order, and nothing else differs. The manifest says how many there were. Under torchrun, deepspeed or SLURM
# the launcher's number counts.
Processes = Literal["auto"] | Annotated[int, Field(ge=1)]


def runtime(default: Any, **constraints: Any) -> Any:
    """A field that changes speed or comfort only: it is left out of the stage's key."""
    return Field(default, json_schema_extra={"runtime": True}, **constraints)


class Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Trackers = tuple[Literal["tensorboard", "wandb", "trackio"], ...]  # where metrics are shown besides metrics.jsonl


class StageConfig(Config):
    seed: int = 0  # unset in a stage: the pipeline's
