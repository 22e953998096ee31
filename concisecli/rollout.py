"""What a rollout engine is, how one is made, and how groups are sampled with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from concisecli.config import HfConfig, PromptConfig, SamplingConfig, VllmConfig
from concisecli.records import Completion, ConciseError, Problem

SampledGroup = tuple[Problem, list[int], list[Completion]]


class SamplingLike(Protocol):
    """What `generate` reads: `SamplingConfig` in training, `Sampling` elsewhere."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def max_response_tokens(self) -> int: ...
    @property
    def stop(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw outside training. Temperature 0 is greedy; its log-probs are those of temperature 1."""

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    max_response_tokens: int = 3072
    stop: tuple[str, ...] = ()


class EngineLost(ConciseError):
    """An engine in another process ended, broke or stopped answering. The trainer is as it was."""


AsDone = Callable[[int, list[Completion]], None]
MemoryPart = Literal["weights", "kv_cache"]


class RolloutEngine(Protocol):
    """A rollout depends on the weights, its prompt, its seed and the sampling settings, and on
    nothing else: neither batch order nor batch size nor `max_response_tokens` changes the ids drawn before the limit.

    Around an update: `sleep`, the update, `wake("weights")`, `sync_weights`, `wake("kv_cache")`. Another order raises
    ConciseError; `Wakefulness` says which is allowed.
    """

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingLike,
        seeds: Sequence[Sequence[int]],
        *,
        as_done: AsDone | None = None,
    ) -> list[list[Completion]]:
        """One list of completions a prompt, one completion a seed; `as_done` hears of each list, with the number of
        its prompt, as soon as it is whole. Log-probs are those of the distribution that was
        sampled from (temperature and truncation applied), the stop token's included. A rollout that reaches the
        model's longest sequence ends there with `length`; a prompt that fills it raises ConciseError. One that ends
        at a stop token or with a stop string (see `endings`) says `stop`."""
        ...

    def probe(self, ids: Sequence[int]) -> list[float]:
        """log pi(ids[t] | ids[:t]) at temperature 1 for t = 1.., as the engine computes it now."""
        ...

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Take every weight over, in place; `named` is read one tensor after the other."""
        ...

    def sleep(self) -> None:
        """Give up memory that rollouts alone need: the weights, which a sync must bring back, and the cache."""
        ...

    def wake(self, part: MemoryPart) -> None:
        """Take memory again, the weights' before the cache's, so that a sync fits beside the trainer's state."""
        ...

    def close(self) -> None:
        """Free everything, so that another engine can start in this process. Nothing else may follow."""
        ...


class Gathering:
    """Puts completions where they belong as they come in any order, and tells of each prompt that has all of its."""

    def __init__(self, seeds: Sequence[Sequence[int]], as_done: AsDone | None) -> None:
        self._rows: list[list[Completion | None]] = [[None] * len(row) for row in seeds]
        self._missing = [len(row) for row in seeds]
        self._as_done = as_done

    def put(self, prompt: int, sample: int, completion: Completion) -> None:
        self._rows[prompt][sample] = completion
        self._missing[prompt] -= 1
        if self._as_done is not None and not self._missing[prompt]:
            self._as_done(prompt, [c for c in self._rows[prompt] if c is not None])

    def rows(self) -> list[list[Completion]]:
        return [[c for c in row if c is not None] for row in self._rows]


class Wakefulness:
    """The states of an engine and the order they may follow each other in, whether memory is really freed or not.

        awake -sleep-> asleep -wake weights-> weights awake, not loaded -sync-> weights loaded -wake kv_cache-> awake

    `close` is allowed anywhere.
    """

    NEXT: ClassVar[dict[tuple[str, str], str]] = {
        ("awake", "generate"): "awake",
        ("awake", "sync"): "awake",
        ("awake", "sleep"): "asleep",
        ("asleep", "wake weights"): "weights awake, not loaded",
        ("weights awake, not loaded", "sync"): "weights loaded",
        ("weights loaded", "sync"): "weights loaded",
        ("weights loaded", "wake kv_cache"): "awake",
    }

    def __init__(self) -> None:
        self.state = "awake"

    def check(self, action: str) -> str:
        """The state that `action` leads to. Raises ConciseError where it is not allowed."""
        if (self.state, action) not in self.NEXT:
            allowed = [a for state, a in self.NEXT if state == self.state]
            then = f"what may follow: {', '.join(allowed)}" if allowed else "start another one"
            raise ConciseError(f"the rollout engine is {self.state}, so it cannot {action}; {then}")
        return self.NEXT[self.state, action]

    @contextmanager
    def during(self, action: str) -> Iterator[None]:
        """Do `action` in the block; the state changes when it succeeded."""
        after = self.check(action)
        yield
        self.state = after

    def close(self) -> bool:
        """Whether there was anything to close."""
        was_open = self.state != "closed"
        self.state = "closed"
        return was_open


def make_engine(
    config: HfConfig | VllmConfig, model: Path, *, module: Any = None, longest: int | None = None
) -> RolloutEngine:
    """The engine that `config.type` names, on the model folder. `module` lets the transformers engine share the
    weights of a module that is being trained (its sync is then nothing). `longest` is the longest sequence, prompt
    and response, that will be asked for: vLLM keeps room for no longer ones unless `max_model_len` says otherwise."""
    if config.type == "vllm" and config.placement == "split":
        from concisecli.rollout_split import SplitEngine

        return SplitEngine(config, model, longest=longest)
    if config.type == "vllm":
        from concisecli.rollout_vllm import VllmEngine

        return VllmEngine(config, model, longest=longest)
    from concisecli.rollout_hf import HfEngine

    return HfEngine(config, model, module=module)


def rollout_seed(seed: int, step: int, problem_id: str, sample: int) -> int:
    """63 bits that name one rollout of a run. The rank is left out, so any division over ranks samples the same."""
    named = f"{seed}\x1f{step}\x1f{problem_id}\x1f{sample}".encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 1


def sample_groups(
    engine: RolloutEngine,
    tokenizer: Any,
    problems: Sequence[Problem],
    sampling: SamplingLike,
    prompt: PromptConfig,
    *,
    seed: int,
    step: int,
    samples: int | Sequence[Sequence[int]] | None = None,
    as_done: Callable[[int, SampledGroup], None] | None = None,
) -> list[SampledGroup]:
    """Per problem, in order: the problem, its prompt ids, and its rollouts, ungraded.

    `samples` rollouts a problem, or the numbers of the rollouts of each, or `sampling.group_size`. The same (seed,
    step, problem, number) gives the same rollout whatever else is in the list. Prompts are taken as they are; leaving
    out overlong ones is the caller's. `as_done` hears of each group, with its place in the list, while others are still
    being sampled.
    """
    from concisecli.prompts import prompt_ids

    if not isinstance(samples, Sequence):
        samples = [range(samples if samples is not None else _group_size(sampling))] * len(problems)
    prompts = [prompt_ids(tokenizer, problem.prompt, prompt) for problem in problems]
    seeds = [
        [rollout_seed(seed, step, problem.id, i) for i in numbers]
        for problem, numbers in zip(problems, samples, strict=True)
    ]

    def whole(i: int, completions: list[Completion]) -> None:
        if as_done is not None:
            as_done(i, (problems[i], prompts[i], completions))

    completions = engine.generate(prompts, sampling, seeds, as_done=whole)
    return list(zip(problems, prompts, completions, strict=True))


def check_probe(engine: RolloutEngine, ids: Sequence[int], expected: Sequence[float], *, tolerance: float) -> float:
    """The largest difference between the engine's and the trainer's log-probs of `ids[1:]`; asked after each sync.

    Raises ConciseError above `tolerance`: the engine would be sampling from other weights than those trained.
    """
    found = engine.probe(ids)
    gap = max((abs(f - e) for f, e in zip(found, expected, strict=True)), default=0.0)
    if not gap <= tolerance:  # a NaN must not pass
        raise ConciseError(
            f"after a weight sync the engine's log-probs differ from the trainer's by {gap:.3g}, more than "
            f"{tolerance:.3g}: it does not hold the trained weights; set engine.type to transformers, or report it"
        )
    return gap


def _group_size(sampling: SamplingLike) -> int:
    if not isinstance(sampling, SamplingConfig):
        raise ValueError("`samples` is needed when the sampling settings carry no group_size")
    return sampling.group_size
