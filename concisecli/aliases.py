"""What the same settings are called in TRL, verl, OpenRLHF and open-r1: taken as ours, and said so.

A name is listed only where it means the same thing; a rollout batch, for one, is counted in problems here and in verl,
in completions in TRL, so `per_device_train_batch_size` has no place in the table.
"""

from __future__ import annotations

from concisecli.marked import Marked
from concisecli.records import UsageError

RL = {
    "learning_rate": "lr",
    "num_generations": "sampling.group_size",
    "rollout.n": "sampling.group_size",
    "n_samples_per_prompt": "sampling.group_size",
    "rollout.temperature": "sampling.temperature",
    "rollout.top_p": "sampling.top_p",
    "temperature": "sampling.temperature",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "max_completion_length": "sampling.max_response_tokens",
    "max_response_length": "sampling.max_response_tokens",
    "generate_max_len": "sampling.max_response_tokens",
    "max_prompt_length": "sampling.max_prompt_tokens",
    "prompt_max_len": "sampling.max_prompt_tokens",
    "epsilon": "loss.eps_low",
    "epsilon_low": "loss.eps_low",
    "epsilon_high": "loss.eps_high",
    "clip_ratio_low": "loss.eps_low",
    "clip_ratio_high": "loss.eps_high",
    "beta": "loss.kl_coef",
    "kl_loss_coef": "loss.kl_coef",
    "init_kl_coef": "loss.kl_coef",
    "entropy_coeff": "loss.entropy_coef",
    "loss_agg_mode": "loss.reduce",
    "importance_sampling_level": "loss.ratio",
    "train_batch_size": "batch_problems",
    "rollout_batch_size": "batch_problems",
    "max_steps": "steps",
    "total_training_steps": "steps",
    "num_iterations": "epochs",
    "ppo_epochs": "epochs",
    "max_grad_norm": "clip_norm",
    "grad_clip": "clip_norm",
    "save_steps": "save_every",
    "save_freq": "save_every",
    "eval_steps": "evaluate_every",
    "test_freq": "evaluate_every",
    "lr_warmup_steps": "warmup_steps",
    "lr_scheduler_type": "schedule",
    "vllm_gpu_memory_utilization": "engine.gpu_memory_utilization",
    "vllm_tensor_parallel_size": "engine.tensor_parallel_size",
}
SFT = {name: RL[name] for name in ("learning_rate", "max_steps", "max_grad_norm", "save_steps", "lr_scheduler_type")}
SFT |= {"max_length": "max_tokens", "max_seq_length": "max_tokens", "lr_warmup_steps": "warmup_steps"}
SAMPLING = {name: ours for name, ours in RL.items() if ours.startswith("sampling.")}
EVAL = {"n": "samples", "num_samples": "samples", "num_generations": "samples", "max_tokens": "budgets"}

# Stage kind -> a familiar name (dots for a nested one) -> our field.
ALIASES: dict[str, dict[str, str]] = {"train": RL, "sft": SFT, "mine": SAMPLING, "distill": SAMPLING, "eval": EVAL}
# Values that go by other words as well.
VALUES = {
    "loss_agg_mode": {
        "token-mean": "token",
        "seq-mean-token-mean": "sequence",
        "seq-mean-token-sum-norm": "sequence-sum-norm",
    },
}
AS = " as "


def translated(kind: str, config: Marked) -> Marked:
    """The config of a stage with familiar names replaced by ours; the origin of such a value says what it was called.
    Raises UsageError where a value is given under both names."""
    for familiar, ours in ALIASES.get(kind, {}).items():
        path, target = familiar.split("."), ours.split(".")
        given = found(config, path)
        if given is None:
            continue
        already = found(config, target)
        if already is not None and by_flag(given) == by_flag(already):
            raise UsageError(f"{given.origin}: {familiar} and {ours} are one setting and both are given; take one out")
        if already is not None and by_flag(already):
            config = without(config, path)
            continue
        value = VALUES.get(familiar, {}).get(str(given.value), given.value)
        origin = f"{given.origin}{AS}{familiar}"
        config = without(config, path).with_value(target, Marked(value, origin, given.base))
    return config


def by_flag(value: Marked) -> bool:
    """Whether it was said on the command line, which beats a file."""
    return value.origin.startswith("--set")


def spoken(origins: dict[str, str]) -> list[str]:
    """One line for each value that was given under a familiar name."""
    lines = []
    for name, origin in origins.items():
        place, _, familiar = origin.partition(AS)
        if any(name.endswith(f".{names[familiar]}") for names in ALIASES.values() if familiar in names):
            lines.append(f"{place}: {familiar} is {name} here")
    return lines


def found(node: Marked, path: list[str]) -> Marked | None:
    for part in path:
        if not node.is_mapping or part not in node.value:
            return None
        node = node.value[part]
    return node


def without(node: Marked, path: list[str]) -> Marked:
    """The tree with one value taken out, and the mappings that held nothing else."""
    children = dict(node.value)
    child = children.pop(path[0])
    if len(path) > 1:
        rest = without(child, path[1:])
        if rest.value:
            children[path[0]] = rest
    return Marked(children, node.origin, node.base)
