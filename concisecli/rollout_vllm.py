"""The vLLM engine: one request a rollout with its own seed, weights replaced in place after each update.

Real on CPU and GPU; what differs there is said where it differs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from concisecli.config import VllmConfig
from concisecli.policy import load_tokenizer, stop_ids
from concisecli.records import Completion, ConciseError
from concisecli.rollout import SamplingLike

# One process starts in seconds instead of half a minute and gives the same ids. Read when vllm is imported.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
# Training shares the process: pinning its threads to cores is the launcher's business, not the engine's.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
CPU_CACHE_GIB = "1"  # of keys and values, where VLLM_CPU_KVCACHE_SPACE says nothing


class VllmEngine:
    """Rollouts by vLLM on the model folder. Raises ConciseError when vLLM is not installed or refuses the model."""

    def __init__(self, config: VllmConfig, model: Path) -> None:
        self.tokenizer = load_tokenizer(model)
        self.stop = stop_ids(self.tokenizer, model)
        self.cpu = not torch.cuda.is_available()
        if self.cpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GIB)
        self.llm = _start(config, model, cpu=self.cpu)
        self.context: int = self.llm.llm_engine.model_config.max_model_len

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingLike, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """See RolloutEngine. The rollouts of a prompt are neighbours, so that its cached prefix is shared."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        requests, settings = [], []
        for i, (prompt, row) in enumerate(zip(prompts, seeds, strict=True)):
            limit = self._limit(i, len(prompt), sampling.max_response_tokens)
            for seed in row:
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
                        detokenize=False,
                    )
                )
        outputs = iter(self._run(requests, settings))
        return [[self._completion(next(outputs).outputs[0]) for _ in row] for row in seeds]

    def probe(self, ids: Sequence[int]) -> list[float]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        settings = SamplingParams(temperature=1.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        (output,) = self._run([TokensPrompt(prompt_token_ids=list(ids))], [settings])
        return [at[token].logprob for token, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Load the weights in place through a file in memory, and forget the cached prefixes of the old ones."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in named}
        shared = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None, prefix="concise-weights-") as folder:
            file = Path(folder) / "weights.safetensors"
            _save(weights, file)
            self.llm.collective_rpc("load_weights_file", args=(str(file),))
        if not self.llm.reset_prefix_cache():
            raise ConciseError("vLLM kept the prefix cache of the old weights; rollouts would mix two policies")

    def sleep(self) -> None:
        """Nothing on CPU, where training and rollouts share the memory anyway; on a GPU the memory is kept too."""

    def wake(self) -> None:
        """Nothing; see `sleep`."""

    def _run(self, requests: list[Any], settings: list[Any]) -> list[Any]:
        # On CPU vLLM would spend half a minute compiling one small function of its sampler.
        stance = torch.compiler.set_stance("force_eager") if self.cpu else nullcontext()
        with stance:
            return list(self.llm.generate(requests, settings, use_tqdm=False)) if requests else []

    def _limit(self, index: int, length: int, wanted: int) -> int:
        if length >= self.context:
            raise ConciseError(
                f"prompt {index} has {length} tokens and the engine's longest sequence is {self.context}: nothing is "
                "left for a response; lower sampling.max_prompt_tokens or raise engine.max_model_len"
            )
        return min(wanted, self.context - length)

    def _completion(self, output: Any) -> Completion:
        ids = tuple(output.token_ids)
        logprobs = tuple(at[token].logprob for token, at in zip(ids, output.logprobs, strict=True))
        ended = output.finish_reason == "stop"
        text = self.tokenizer.decode(
            list(ids[:-1] if ended else ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Completion(ids, logprobs, str(text), "stop" if ended else "length")


def _start(config: VllmConfig, model: Path, *, cpu: bool) -> Any:
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
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            tensor_parallel_size=config.tensor_parallel_size,
            gpu_memory_utilization=config.gpu_memory_utilization,
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


def _saved_dtype(model: Path) -> str:
    """What `auto` means on CPU: vLLM's own rule would halve a float32 model that is trained in float32 beside it."""
    from transformers import AutoConfig

    return str(AutoConfig.from_pretrained(str(model)).dtype or torch.float32).removeprefix("torch.")


def _save(weights: dict[str, torch.Tensor], file: Path) -> None:
    """Tied weights come under two names with one memory, which safetensors refuses: the first name stands for both."""
    from safetensors.torch import save_file

    seen: dict[int, str] = {}
    save_file({name: w for name, w in weights.items() if seen.setdefault(w.data_ptr(), name) == name}, str(file))
