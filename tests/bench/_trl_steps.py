"""GRPO steps of TRL, run by `step` with the Python of an environment that has TRL and nothing of ours.

    python _trl_steps.py MODEL '{"prompts": [...], "lengths": [...], "limit": 64, "steps": 6}'

prints the CPU-seconds of each step. Every row of a batch ends at its length of `lengths`, whatever it would have said: a
logits processor keeps the end-of-sequence token away until then.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class EndAt(LogitsProcessor):
    def __init__(self, lengths: list[int], end: int) -> None:
        self.lengths, self.end, self.prompt = torch.tensor(lengths), end, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.prompt or input_ids.shape[1] < self.prompt:
            self.prompt = input_ids.shape[1]
        over = self.lengths <= input_ids.shape[1] - self.prompt + 1
        scores[:, self.end] = -torch.inf
        scores[over] = -torch.inf
        scores[over, self.end] = 0.0
        return scores


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ends = [time.process_time()]

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ends.append(time.process_time())


def main(model: str, job: dict) -> list[float]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    lengths = job["lengths"]
    original = module.generate

    @functools.wraps(original)
    def generate(*args: object, **kwargs: object) -> torch.Tensor:
        return original(*args, **kwargs, logits_processor=LogitsProcessorList([EndAt(lengths, tokenizer.eos_token_id)]))

    module.generate = generate
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=module,
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                per_device_train_batch_size=job["micro_batch"],
                gradient_accumulation_steps=len(lengths) // job["micro_batch"],
                num_generations=len(lengths) // len(job["prompts"]),
                max_completion_length=job["limit"],
                max_steps=job["steps"],
                learning_rate=1e-5,
                beta=0.0,
                gradient_checkpointing=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": job["prompts"]}),
            callbacks=[clock],
        )
        clock.ends = [time.process_time()]
        trainer.train()
    return [b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)]


if __name__ == "__main__":
    print("@" + json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
