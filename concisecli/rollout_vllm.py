"""The vLLM engine: one request a rollout with its own seed, weights replaced in place after each update.

Real on CPU and GPU; what differs there is said where it differs.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from concisecli import collectives
from concisecli.config import VllmConfig
from concisecli.endings import StopStrings, texts
from concisecli.policy import load_tokenizer, stop_ids
from concisecli.records import Completion, ConciseError
from concisecli.rollout import AsDone, Gathering, MemoryPart, SamplingLike, Wakefulness
from concisecli.weight_files import BUCKET_BYTES, buckets, written

# One process starts in seconds instead of half a minute and gives the same ids. Read when vllm is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Training shares the process: pinning its threads to cores is the launcher's business, not the engine's.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
CPU_CACHE_GIB = "1"  # of keys and values, where VLLM_CPU_KVCACHE_SPACE says nothing
# The trainer sends every weight after an update, so the old ones need no copy in host memory (level 1 keeps one).
SLEEP_LEVEL = 2


class VllmEngine:
    """Rollouts by vLLM on the model folder. Raises ConciseError when vLLM is not installed or refuses the model."""

    def __init__(self, config: VllmConfig, model: Path, *, longest: int | None = None) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(model)
        self.stop = stop_ids(self.tokenizer, model)
        self.cpu = not torch.cuda.is_available()
        self.wakefulness = Wakefulness()
        if self.cpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GIB)
        self._group_is_ours = torch.distributed.is_initialized()
        self.llm = _start(config, model, cpu=self.cpu, longest=longest)
        self.context: int = self.llm.llm_engine.model_config.max_model_len

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingLike,
        seeds: Sequence[Sequence[int]],
        *,
        as_done: AsDone | None = None,
    ) -> list[list[Completion]]:
        """See RolloutEngine. The rollouts of a prompt are neighbours, so that its cached prefix is shared."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self.wakefulness.check("generate")
        places, requests, settings = [], [], []
        for i, (prompt, row) in enumerate(zip(prompts, seeds, strict=True)):
            limit = self._limit(i, len(prompt), sampling.max_response_tokens)
            for j, seed in enumerate(row):
                places.append((i, j))
                requests.append(TokensPrompt(prompt_token_ids=list(prompt)))
                settings.append(
                    SamplingParams(
                        temperature=sampling.temperature,
                        top_p=sampling.top_p,
                        min_p=sampling.min_p,
                        max_tokens=limit,
                        seed=seed,
                        logprobs=0,  # of the sampled token only
                        ignore_eos=True,  # the union of all eos sources decides, below
                        stop_token_ids=list(self.stop),
                        stop=list(sampling.stop) or None,
                        include_stop_str_in_output=True,
                        skip_special_tokens=False,  # else a stop string that is a special token is never seen
                        detokenize=bool(sampling.stop),
                    )
                )
        strings = StopStrings(self.tokenizer, sampling.stop)
        gathering = Gathering(seeds, as_done)
        with closing(self._run(requests, settings)) as outputs:
            for number, output in outputs:
                gathering.put(*places[number], self._completion(output.outputs[0], strings))
        return gathering.rows()

    def probe(self, ids: Sequence[int]) -> list[float]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self.wakefulness.check("generate")
        settings = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        ((_, output),) = self._run([TokensPrompt(prompt_token_ids=list(ids))], [settings])
        return [at[token].logprob for token, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Load the weights in place, and forget the cached prefixes of the old ones.

        A worker in this process takes each tensor from where it lies, one after the other, so that of gathered shards
        one is whole at a time. Workers in other processes read files in memory, a bucket of tensors at a time.
        """
        with self.wakefulness.during("sync"):
            detached = ((name, weight.detach()) for name, weight in named)
            if self._in_process:
                self.llm.collective_rpc("load_weights", args=(detached,))
            else:
                for bucket in buckets(detached, BUCKET_BYTES):
                    with written(bucket) as file:
                        self.llm.collective_rpc("load_weights_file", args=(str(file),))
            if not self.llm.reset_prefix_cache():
                raise ConciseError("vLLM kept the prefix cache of the old weights; rollouts would mix two policies")

    def sleep(self) -> None:
        """On a GPU: discard the weights and the cache of keys and values. On CPU vLLM frees nothing."""
        with self.wakefulness.during("sleep"):
            if not self.cpu:
                self.llm.sleep(level=SLEEP_LEVEL)

    def wake(self, part: MemoryPart) -> None:
        with self.wakefulness.during(f"wake {part}"):
            if not self.cpu:
                self.llm.wake_up(tags=[part])

    def close(self) -> None:
        if not self.wakefulness.close():
            return
        with _keeping_our_group() if self._group_is_ours else nullcontext():
            self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()
        if not self.cpu:
            torch.cuda.empty_cache()

    @property
    def _in_process(self) -> bool:
        return self.config.tensor_parallel_size == 1 and os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"

    def _run(self, requests: list[Any], settings: list[Any]) -> Generator[tuple[int, Any], None, None]:
        """(number of the request, its output) as they come to an end: `LLM.generate` without its wait for the last."""
        # On CPU vLLM would spend half a minute compiling one small function of its sampler.
        stance = torch.compiler.set_stance("force_eager") if self.cpu else nullcontext()
        with stance:
            names = self.llm.enqueue(requests, settings, use_tqdm=False) if requests else []
            # An output comes under its request's name without the random suffix that vLLM gave it.
            numbers = {name.partition("-")[0]: number for number, name in enumerate(names)}
            try:
                while numbers:
                    for output in self.llm.llm_engine.step():
                        if output.finished:
                            yield numbers.pop(output.request_id), output
            finally:
                if numbers:  # the caller failed: what it no longer waits for must not come out of the next call
                    self.llm.llm_engine.abort_request(list(numbers))

    def _limit(self, index: int, length: int, wanted: int) -> int:
        if length >= self.context:
            raise ConciseError(
                f"prompt {index} has {length} tokens and the engine's longest sequence is {self.context}: nothing is "
                "left for a response; lower sampling.max_prompt_tokens or raise engine.max_model_len"
            )
        return min(wanted, self.context - length)

    def _completion(self, output: Any, strings: StopStrings) -> Completion:
        ids = tuple(output.token_ids)
        end = strings.end(ids)
        ids = ids[:end]
        stopped = end is not None or output.finish_reason == "stop"
        logprobs = tuple(at[token].logprob for token, at in zip(ids, output.logprobs, strict=False))
        (text,) = texts(self.tokenizer, [ids], self.stop, strings)
        return Completion(ids, logprobs, text, "stop" if stopped else "length")


def _start(config: VllmConfig, model: Path, *, cpu: bool, longest: int | None) -> Any:
    _refuse_shared_workers(config)
    try:
        from vllm import LLM
    except ImportError as error:
        raise ConciseError(
            f"engine.type is vllm, which does not import here ({error}); install the [gpu] extra, or set engine.type "
            "to transformers"
        ) from error
    try:
        return LLM(
            str(model),
            dtype=_saved_dtype(model) if cpu and config.dtype == "auto" else config.dtype,
            max_model_len=config.max_model_len or _needed(model, longest),
            max_num_seqs=config.max_num_seqs,
            tensor_parallel_size=config.tensor_parallel_size,
            # Each of several training processes runs an engine of its own on its own device, inside their group.
            distributed_executor_backend="external_launcher" if not cpu and collectives.world() > 1 else None,
            gpu_memory_utilization=config.gpu_memory_utilization,
            enable_sleep_mode=not cpu,
            enforce_eager=config.enforce_eager or cpu,  # compiling costs more than a CPU run gains
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",  # of the distribution that was sampled from
            worker_extension_cls="concisecli.vllm_worker.WeightLoader",
            generation_config="vllm",  # sampling settings come from here alone, not from the model's folder
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
    except ValueError as error:
        raise ConciseError(f"{model}: vLLM refuses the model ({str(error).strip().splitlines()[0]})") from error


def _refuse_shared_workers(config: VllmConfig) -> None:
    if config.tensor_parallel_size > 1 and collectives.world() > 1:
        raise ConciseError(
            f"engine.tensor_parallel_size {config.tensor_parallel_size} with {collectives.world()} training processes: "
            "a model that is cut over devices needs devices of its own; set placement: split, or tensor_parallel_size 1"
        )


def _needed(model: Path, longest: int | None) -> int | None:
    """The longest sequence the stage needs, as far as the model goes; None: whatever the model says."""
    from transformers import AutoConfig

    positions = getattr(AutoConfig.from_pretrained(str(model)).get_text_config(), "max_position_embeddings", None)
    return longest if longest is None or positions is None else min(longest, positions)


def _saved_dtype(model: Path) -> str:
    """What `auto` means on CPU: vLLM's own rule would halve a float32 model that is trained in float32 beside it."""
    from transformers import AutoConfig

    return str(AutoConfig.from_pretrained(str(model)).dtype or torch.float32).removeprefix("torch.")


@contextmanager
def _keeping_our_group() -> Iterator[None]:
    """vLLM ends the default process group when it shuts down, which here is the one that training goes on with."""
    destroy = torch.distributed.destroy_process_group

    def destroy_theirs(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_theirs
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy
