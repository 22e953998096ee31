"""From a problem to graded rollouts: prompt, sampling, engine, grader."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from concisecli.config.base import Config, runtime


def _no_empty_string(stop: tuple[str, ...]) -> tuple[str, ...]:
    if "" in stop:
        raise ValueError("an empty string would end every rollout at its first token")
    return stop


StopStrings = Annotated[tuple[str, ...], AfterValidator(_no_empty_string)]


class PromptConfig(Config):
    template: str = "math"  # a name in `prompts.TEMPLATES`, or a text that holds {problem}
    chat: bool = True  # wrap in the tokenizer's chat template where it has one; base models: false
    system: str | None = None  # a system message; needs a chat template
    think_prefilled: bool | None = None  # the prompt itself opens <think>; None: looked up in the rendered prompt


class GraderConfig(Config):
    # Where the answer stands: strict tags (ConciseR), any usual form, or a box in the thought (LEAD's code)
    profile: Literal["strict", "lenient", "inside-think"] = "lenient"
    deadline_s: float = Field(5.0, gt=0)  # seconds for one judgement, then it is `timeout`
    workers: int = runtime(0, ge=0)  # 0: one per core
    memory_mb: int = runtime(2048, ge=256)  # of one worker, beyond what it starts with
    gold_list: Literal["any", "set"] = "any"  # several gold answers: any of them, or all as a set
    # Share of judgements on which the grader itself may fail before the stage stops
    max_error_share: float = Field(0.05, ge=0, le=1)
    custom: str | None = None  # "module:function" (response, gold) -> outcome


class SamplingConfig(Config):
    group_size: int = Field(8, ge=2)  # rollouts a problem, G
    temperature: float = Field(1.0, gt=0)  # of the softmax; 1: the policy as it is trained
    top_p: float = Field(1.0, gt=0, le=1)  # share of probability that is drawn from
    min_p: float = Field(0.0, ge=0, lt=1)  # tokens below this share of the likeliest are not drawn; 0: off
    max_prompt_tokens: int = Field(1024, ge=1)  # longer prompts are left out and counted, never cut
    max_response_tokens: int = Field(3072, ge=1)  # L_max: longer rollouts are cut off and count as unfinished
    stop: StopStrings = ()  # strings that end a rollout and stay in its text; LEAD's code: ["</think>"]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and response together."""
        return self.max_prompt_tokens + self.max_response_tokens


class HfConfig(Config):
    type: Literal["transformers"] = "transformers"  # transformers with an own decode loop; any device
    batch_rollouts: int = Field(256, ge=1)  # rollouts decoded side by side
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the sampling copy of the weights


class VllmConfig(Config):
    type: Literal["vllm"] = "vllm"  # vLLM, on the trainer's devices or on others: `placement`
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"  # of the sampling copy of the weights; auto: the model's own
    tensor_parallel_size: int = Field(1, ge=1)  # devices that share one copy of the weights
    gpu_memory_utilization: float = runtime(0.5, gt=0, le=1)  # share of a device's memory that vLLM may take
    max_model_len: int | None = None  # longest sequence; None: what the stage's lengths need
    max_num_seqs: int = Field(256, ge=1)  # rollouts decoded side by side, at most
    enforce_eager: bool = runtime(False)  # no CUDA graphs: starts sooner, decodes slower
    placement: Literal["colocated", "split"] = runtime("colocated")  # split: a process of its own, on `devices`
    devices: tuple[int, ...] = runtime(())  # split: tensor_parallel_size of them a rank; (): those in sight
    start_timeout_s: float = runtime(1800.0, gt=0)  # split: until the engine has loaded the model
    answer_timeout_s: float = runtime(3600.0, gt=0)  # split: of silence, after which the engine counts as lost


EngineConfig = Annotated[HfConfig | VllmConfig, Field(discriminator="type")]
