"""What a rollout engine is, how one is made, and how groups are sampled with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from concisecli.config import HfConfig, SamplingConfig, VllmConfig
from concisecli.records import Completion


class RolloutEngine(Protocol):
    """Four verbs. A rollout depends on the weights, its prompt, its seed and the sampling settings, and on nothing
    else: neither batch order nor batch size nor `max_response_tokens` changes the ids drawn before the limit."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """One list of completions a prompt, one completion a seed. Log-probs are those of the distribution that was
        sampled from (temperature applied), the stop token's included."""
        ...

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None: ...

    def sleep(self) -> None: ...

    def wake(self) -> None: ...


def make_engine(config: HfConfig | VllmConfig, model: Path, *, module: Any = None) -> RolloutEngine:
    """The engine that `config.type` names, on the model folder. `module` lets the transformers engine share the
    weights of a module that is being trained (its sync is then nothing)."""
    if config.type == "vllm":
        from concisecli.rollout_vllm import VllmEngine

        return VllmEngine(config, model)
    from concisecli.rollout_hf import HfEngine

    return HfEngine(config, model, module=module)
