"""From a problem to the token ids a model is given, and from an example to the ids it is trained on.

Everything is passed on as ids. A prompt is what the template renders, tokenised once; a response is tokenised alone and
appended, so that supervised rows have the very shape in which rollouts are sampled: prompt ids, response ids, one eos.
"""

from __future__ import annotations

from typing import Any

from jinja2.exceptions import TemplateError

from concisecli.config import PromptConfig
from concisecli.policy import stop_ids_of, turn_end_id
from concisecli.records import ConciseError, Example

THINK, END_THINK = "<think>", "</think>"

TEMPLATES: dict[str, str] = {
    "raw": "{problem}",
    "math": "{problem}\n\nReason step by step, and put your final answer within \\boxed{}.",
    # For base models, with `chat: false` (the shape of ConciseR's prompt, arXiv 2505.21178, in our own words).
    "conciser": (
        "This is a dialogue between a User and an Assistant. The User poses a problem and the Assistant solves it. "
        "The Assistant thinks the solution through before it answers: its reasoning stands between <think> and "
        "</think>, its answer between <answer> and </answer>, that is, <think> the reasoning </think> "
        "<answer> the answer </answer>. The Assistant reasons step by step and gives the final answer within \\boxed{}."
        "\nUser:\n{problem}\n\nAssistant:\n"
    ),
    # One user message, no system prompt (the shape of GRPO-LEAD's prompt, arXiv 2504.09696, in our own words).
    "lead": "{problem}\nThink step by step and give the final answer within \\boxed{}.",
}


def prompt_ids(tokenizer: Any, problem: str, config: PromptConfig) -> list[int]:
    """The ids a rollout of `problem` starts from, with exactly the BOS that the template or the tokenizer gives.

    Raises ConciseError for a template that is neither a known name nor a text with {problem}, and where the chat
    template refuses the messages.
    """
    text = render(tokenizer, problem, config)
    if _chats(tokenizer, config):
        return list(tokenizer.encode(text, add_special_tokens=False))  # the template wrote the BOS, if there is one
    ids = list(tokenizer.encode(text))
    return _one_bos(_without_end(ids, text, tokenizer), tokenizer)


def render(tokenizer: Any, problem: str, config: PromptConfig) -> str:
    """The prompt as text, up to where the model starts to write."""
    text = _template(config).replace("{problem}", problem)
    if not _chats(tokenizer, config):
        return f"{config.system}\n\n{text}" if config.system else text
    messages = [{"role": "system", "content": config.system}] if config.system else []
    messages.append({"role": "user", "content": text})
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except TemplateError as error:  # some refuse a system message
        raise ConciseError(
            f"the model's chat template refuses the prompt ({error}); leave prompt.system out, or set prompt.chat: "
            "false"
        ) from error


def opens_think(tokenizer: Any, config: PromptConfig) -> bool:
    """Whether the prompt itself ends in an open <think>, so that responses start inside the reasoning."""
    if config.think_prefilled is not None:
        return config.think_prefilled
    return render(tokenizer, "1+1", config).rstrip().endswith(THINK)


def example_ids(tokenizer: Any, example: Example, config: PromptConfig) -> tuple[list[int], list[bool]]:
    """One row of supervised fine-tuning: its ids and which of them carry loss.

    The row ends in exactly one eos (a chat template's own end of turn), which always carries loss, also where the
    tokenizer pads with it. Of the response, the tokens that `loss_spans` touch do, or all. The template never renders
    the answer, so it cannot drop the reasoning from it. Raises ConciseError when the reasoning is missing all the same:
    the prompt opens <think> and the response never closes it.
    """
    prompt = prompt_ids(tokenizer, example.prompt, config)
    opened = opens_think(tokenizer, config)
    skipped = _repeated_opening(example.response) if opened else 0
    response = example.response[skipped:]
    if opened and END_THINK not in response:
        raise ConciseError(
            f"example of problem {example.problem_id}: the prompt opens <think> and the response never closes it, so "
            "its reasoning was lost; give the whole response, or set prompt.think_prefilled: false"
        )
    ids, mask = _response_ids(tokenizer, response, _shifted(example, skipped))
    ends = stop_ids_of(tokenizer)
    while ids and ids[-1] in ends:
        ids.pop()
        mask.pop()
    return prompt + ids + [end_id(tokenizer, config)], [False] * len(prompt) + mask + [True]


def end_id(tokenizer: Any, config: PromptConfig) -> int:
    """The token that ends a response: the chat template's end of turn, else the tokenizer's eos."""
    turn_end = turn_end_id(tokenizer) if _chats(tokenizer, config) else None
    end = turn_end if turn_end is not None else tokenizer.eos_token_id
    if end is None:
        raise ConciseError("the tokenizer has no eos token, so no response could ever end; set one in its config")
    return int(end)


def _template(config: PromptConfig) -> str:
    text = TEMPLATES.get(config.template, config.template)
    if "{problem}" not in text:
        raise ConciseError(
            f"prompt.template '{config.template}' is no template: use {', '.join(TEMPLATES)}, or a text with "
            "{problem} in it"
        )
    return text


def _chats(tokenizer: Any, config: PromptConfig) -> bool:
    return config.chat and bool(tokenizer.chat_template)


def _without_end(ids: list[int], text: str, tokenizer: Any) -> list[int]:
    """Some tokenizers append their eos: a prompt that ends so asks for nothing."""
    added = not text.endswith(tokenizer.eos_token or "\0") and len(ids) > 1 and ids[-1] == tokenizer.eos_token_id
    return ids[:-1] if added else ids


def _one_bos(ids: list[int], tokenizer: Any) -> list[int]:
    """A template text that writes the BOS itself meets a tokenizer that adds one."""
    bos = tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def _repeated_opening(response: str) -> int:
    """Characters of a <think> that the prompt has already written."""
    start = len(response) - len(response.lstrip())
    if not response.startswith(THINK, start):
        return 0
    after = start + len(THINK)
    return after + (1 if response.startswith("\n", after) else 0)


def _shifted(example: Example, by: int) -> tuple[tuple[int, int], ...] | None:
    if example.loss_spans is None:
        return None
    return tuple((max(start - by, 0), max(end - by, 0)) for start, end in example.loss_spans)


def _response_ids(
    tokenizer: Any, response: str, spans: tuple[tuple[int, int], ...] | None
) -> tuple[list[int], list[bool]]:
    if spans is None:
        ids = list(tokenizer.encode(response, add_special_tokens=False))
        return ids, [True] * len(ids)
    if not tokenizer.is_fast:
        raise ConciseError("loss_spans need a tokenizer that knows character offsets; this one does not")
    encoded = tokenizer(response, add_special_tokens=False, return_offsets_mapping=True)
    touched = [any(a < end and b > start for start, end in spans) for a, b in encoded["offset_mapping"]]
    return list(encoded["input_ids"]), touched
