"""Problems and examples in the schemas of other tools: verl, TRL, and ConciseR's own JSON Lines."""

from __future__ import annotations

from typing import Any

from concisecli.records import Example, Problem


def verl_row(problem: Problem, index: int) -> dict[str, Any]:
    """A row as verl's RLHFDataset reads it (github.com/volcengine/verl, docs/preparation/prepare_data.rst)."""
    return {
        "data_source": problem.source,
        "prompt": [{"role": "user", "content": problem.prompt}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"split": "train", "index": index, "id": problem.id},
    }


def trl_row(problem: Problem, index: int) -> dict[str, Any]:
    """A prompt-only conversational row for TRL's GRPOTrainer; `solution` is what its accuracy_reward compares with."""
    return {
        "prompt": [{"role": "user", "content": problem.prompt}],
        "solution": f"$\\boxed{{{problem.answer}}}$",
        "id": problem.id,
    }


def trl_example(example: Example, index: int) -> dict[str, Any]:
    """A conversational prompt-completion row for TRL's SFTTrainer."""
    return {
        "prompt": [{"role": "user", "content": example.prompt}],
        "completion": [{"role": "assistant", "content": example.response}],
    }


def conciser_row(problem: Problem, index: int) -> dict[str, Any]:
    """A line of ConciseR's input (github.com/nick7nlp/ConciseR, examples/data_preprocess)."""
    return {"query": problem.prompt, "ans_box": problem.answer, "critic_method": problem.source}


PROBLEM_ROWS = {"verl": verl_row, "trl": trl_row, "conciser": conciser_row}
EXAMPLE_ROWS = {"trl": trl_example}
