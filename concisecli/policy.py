"""The policy: load it, make a small one from nothing, ask it for log-probs without full-vocabulary logits, save it.

Shapes: [B, T] a batch of padded rows, [N] the response tokens of a batch, V the vocabulary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from transformers.utils import logging as transformers_logging

from concisecli.artifacts import sync_file, sync_folder
from concisecli.config import NewModelConfig
from concisecli.records import ConciseError

transformers_logging.disable_progress_bar()  # stderr belongs to the stage's own progress line

EOS, PAD = "<|endoftext|>", "<pad>"
CHUNK_ELEMENTS = 2**25  # logits held at once by token_logprobs: 128 MB in float32
HEAD_TOLERANCE = 1e-3  # relative; what a rounding of bfloat16 or another kernel cannot reach is a transformed logit


# --- load and make ----------------------------------------------------------------------------------------------------


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder. Raises ConciseError when the folder has none that loads."""
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(str(path)))
    except (OSError, ValueError, KeyError) as error:
        raise ConciseError(f"{path}: no tokenizer loads from here ({_first_line(error)})") from error


def load_model(path: str | Path, dtype: str = "float32") -> PreTrainedModel:
    """The causal language model of a Hugging Face folder, in `float32` or `bfloat16`, in eval mode.

    Raises ConciseError when nothing loads, or when the model changes its logits after the output embedding (soft caps,
    scales): log-probs computed from hidden states would then be those of another model.
    """
    try:
        module = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype))
    except (OSError, ValueError, KeyError) as error:
        raise ConciseError(f"{path}: no causal language model loads from here ({_first_line(error)})") from error
    module.eval()
    _check_head(module, path)
    return cast(PreTrainedModel, module)


def new_model(config: NewModelConfig, seed: int, folder: Path) -> Path:
    """Write a small random Qwen2 with its own tokenizer as an ordinary Hugging Face folder; returns `folder`.

    One token a byte, no merges, and every word of `config.words` one token wherever it occurs (longest first), so
    that AutoTokenizer, vLLM and transformers give the same ids. Same config and seed: same bytes.
    """
    tokenizer = _byte_tokenizer(config.words, config.max_positions)
    model_config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.intermediate_size,
        max_position_embeddings=config.max_positions,
        initializer_range=config.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if config.seed is not None else seed)
        module = Qwen2ForCausalLM(model_config)
    module.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    save_model(module, tokenizer, folder)
    return folder


def _byte_tokenizer(words: Iterable[str], max_positions: int) -> Qwen2Tokenizer:
    """256 bytes in GPT-2's printable alphabet, the two specials, then the words as ordinary added tokens."""
    vocab = {symbol: index for index, symbol in enumerate(_byte_alphabet())}
    tokenizer = Qwen2Tokenizer(
        vocab=vocab | {EOS: len(vocab), PAD: len(vocab) + 1},
        merges=[],
        unk_token=EOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=max_positions,
    )
    tokenizer.add_tokens([AddedToken(w, special=False, normalized=False) for w in words])
    return tokenizer


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level BPE writes for each byte 0..255 (GPT-2's `bytes_to_unicode`)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


# --- where a rollout ends ---------------------------------------------------------------------------------------------


def stop_ids(tokenizer: PreTrainedTokenizerBase, source: PreTrainedModel | str | Path) -> tuple[int, ...]:
    """Every id that ends a rollout, sorted: the union of the tokenizer's eos, the generation config's, the model
    config's and the token with which the chat template ends a turn. `source` is the model or its folder."""
    found = set(stop_ids_of(tokenizer))
    for given in _configs_of(source):
        if given is not None:
            found.update([given] if isinstance(given, int) else given)
    return tuple(sorted(found))


def stop_ids_of(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The part of `stop_ids` that the tokenizer alone knows."""
    return {i for i in (tokenizer.eos_token_id, turn_end_id(tokenizer)) if i is not None}


def turn_end_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that the chat template writes right after what the assistant said; None without a template."""
    if not tokenizer.chat_template:
        return None
    said = "ANSWER"
    turns = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": said}]
    text = str(tokenizer.apply_chat_template(turns, tokenize=False))
    after = text[text.rindex(said) + len(said) :] if said in text else ""
    ids = tokenizer.encode(after, add_special_tokens=False)
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def _configs_of(source: PreTrainedModel | str | Path) -> tuple[Any, Any]:
    """eos_token_id of (generation config, model config)."""
    if isinstance(source, nn.Module):
        generation = getattr(source, "generation_config", None)
        return getattr(generation, "eos_token_id", None), getattr(_config(source), "eos_token_id", None)
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(source)).get_text_config()
    try:
        generation = GenerationConfig.from_pretrained(str(source))
    except OSError:  # the file is optional
        generation = None
    return getattr(generation, "eos_token_id", None), getattr(config, "eos_token_id", None)


def max_positions(module: PreTrainedModel) -> int | None:
    """The longest sequence the model was made for, prompt and response together; None when it says nothing."""
    return getattr(_config(module), "max_position_embeddings", None)


def _config(module: nn.Module) -> Any:
    return cast(Any, module).config.get_text_config()


# --- log-probs --------------------------------------------------------------------------------------------------------


def token_logprobs(
    module: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log pi(input_ids[b, t] | input_ids[b, :t]) at every t that `response_mask` marks, 0 elsewhere: [B, T] float32.

    The entropy of the distribution each of those tokens was drawn from comes second, [B, T], when asked for (nats).
    Both are of the distribution at `temperature`. Only response positions reach the output embedding, `chunk` tokens
    at a time with the logits recomputed in the backward pass, so that [B, T, V] never exists; None chooses a chunk
    of CHUNK_ELEMENTS logits. Position 0 has no prediction: a mask there raises ValueError.
    """
    if bool(response_mask[:, 0].any()):
        raise ValueError("the first token of a row has no prediction; a prompt needs at least one token")
    hidden = hidden_states(module, input_ids, attention_mask)
    wanted = response_mask[:, 1:].bool()
    rows, targets = hidden[:, :-1][wanted], input_ids[:, 1:][wanted]
    size = chunk or max(1, CHUNK_ELEMENTS // _config(module).vocab_size)
    logprobs, entropy = _in_chunks(output_head(module), rows, targets, temperature, size, with_entropy)

    def spread(values: Tensor) -> Tensor:
        full = values.new_zeros(input_ids.shape)
        where = torch.zeros_like(response_mask, dtype=torch.bool)
        where[:, 1:] = wanted
        return full.masked_scatter(where, values)

    return spread(logprobs), spread(entropy) if entropy is not None else None


def sequence_logprobs(module: nn.Module, ids: Sequence[int]) -> list[float]:
    """log pi(ids[t] | ids[:t]) at temperature 1 for t = 1.., without a gradient and without dropout."""
    rows = torch.tensor([list(ids)], device=next(module.parameters()).device)
    mask = torch.ones_like(rows)
    mask[:, 0] = 0
    with evaluating(module):
        logprobs, _ = token_logprobs(module, rows, torch.ones_like(rows), mask)
    return [float(x) for x in logprobs[0, 1:]]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without gradients (not inference mode: a table first built in it could never be trained through) and dropout."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)


def hidden_states(module: nn.Module, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[B, T, D] what the output embedding is applied to."""
    body = cast(Any, module).base_model
    if attention_mask is not None and _causal_alone_is_enough(module, attention_mask):
        attention_mask = None
    return cast(Tensor, body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state)


def output_head(module: nn.Module) -> nn.Module:
    """The module that turns hidden states into logits, whatever the architecture calls it."""
    head = cast(Any, module).get_output_embeddings()
    if head is None:
        raise ConciseError(f"{type(module).__name__} has no output embedding, so it is no causal language model")
    return cast(nn.Module, head)


def _causal_alone_is_enough(module: nn.Module, attention_mask: Tensor) -> bool:
    """Padding on the right is never seen by a causal row, and sdpa without a mask is faster and exact.
    Flash attention keeps the mask: it drops the padding by it."""
    if "flash" in str(getattr(_config(module), "_attn_implementation", "")):
        return False
    return bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())


def _in_chunks(
    head: nn.Module, rows: Tensor, targets: Tensor, temperature: float, size: int, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """[N] log-probs and entropies of `rows` [N, D] and `targets` [N], `size` tokens at a time."""
    # One chunk that fits is kept for the backward pass: recomputing it would save nothing.
    recompute = torch.is_grad_enabled() and rows.shape[0] > size
    parts = []
    for start in range(0, max(rows.shape[0], 1), size):
        piece = (head, rows[start : start + size], targets[start : start + size], temperature, with_entropy)
        parts.append(
            checkpoint(_score, *piece, use_reentrant=False, preserve_rng_state=False) if recompute else _score(*piece)
        )
    logprobs = torch.cat([p[0] for p in parts])
    return logprobs, torch.cat([p[1] for p in parts]) if with_entropy else None


def _score(
    head: nn.Module, rows: Tensor, targets: Tensor, temperature: float, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    logits = head(rows).float()
    if temperature != 1.0:
        logits = logits / temperature
    normaliser = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    if not with_entropy:
        return logprobs, None
    expected = (torch.exp(logits - normaliser[:, None]) * logits).sum(-1)
    return logprobs, normaliser - expected


@torch.no_grad()
def _check_head(module: PreTrainedModel, path: str | Path) -> None:
    ids = torch.arange(min(4, module.config.get_text_config().vocab_size))[None].to(module.device)
    whole = module(input_ids=ids, use_cache=False).logits.float()
    ours = output_head(module)(hidden_states(module, ids, None)).float()
    if (whole - ours).abs().max() > HEAD_TOLERANCE * (1 + whole.abs().max()):
        raise ConciseError(
            f"{path}: {type(module).__name__} changes its logits after the output embedding (a soft cap or a scale), "
            "which is not supported; choose a model without one"
        )


# --- save -------------------------------------------------------------------------------------------------------------


def save_model(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Iterable[tuple[str, Tensor]] | Mapping[str, Tensor] | None = None,
) -> None:
    """Write an ordinary Hugging Face folder (safetensors, config, generation config, tokenizer) whole or not at all.

    `weights` are saved in the place of the policy's own, for backends that gather shards. An existing folder at
    `folder` is replaced after the new one is durable.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(making, ignore_errors=True)
    state = None if weights is None else dict(weights.items() if isinstance(weights, Mapping) else weights)
    policy.save_pretrained(making, state_dict=state)
    tokenizer.save_pretrained(making)
    for file in making.iterdir():
        sync_file(file)
    sync_folder(making)
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        os.rename(folder, old)
    os.rename(making, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
