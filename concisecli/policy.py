"""The policy: load it, make a small one from nothing, know where its rollouts end, save it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
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
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils import logging as transformers_logging

from concisecli.artifacts import replaced_folder, write_json
from concisecli.config import NewModelConfig
from concisecli.logprobs import hidden_states, output_head
from concisecli.records import ConciseError

transformers_logging.disable_progress_bar()  # stderr belongs to the stage's own progress line

EOS, PAD = "<|endoftext|>", "<pad>"
SHARD_BYTES = 5 * 10**9  # of one safetensors file, and of what the rank that writes holds in memory
HEAD_TOLERANCE = 1e-3  # relative; what a rounding of bfloat16 or another kernel cannot reach is a transformed logit


# --- load and make ----------------------------------------------------------------------------------------------------


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder. Raises ConciseError when the folder has none that loads."""
    try:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(str(path)))
    except (OSError, ValueError, KeyError) as error:
        raise ConciseError(f"{path}: no tokenizer loads from here ({_first_line(error)})") from error


def load_model(path: str | Path, dtype: str = "float32", *, check: bool = True) -> PreTrainedModel:
    """The causal language model of a Hugging Face folder, in `float32` or `bfloat16`, in eval mode. `check` is off for
    a model that lies in shards, which is looked at (`check_head`) when it can be run.

    Raises ConciseError when nothing loads, or when the model changes its logits after the output embedding (soft caps,
    scales): log-probs computed from hidden states would then be those of another model.
    """
    try:
        module = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype))
    except (OSError, ValueError, KeyError) as error:
        raise ConciseError(f"{path}: no causal language model loads from here ({_first_line(error)})") from error
    module.eval()
    if check:
        check_head(module)
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


@torch.no_grad()
def check_head(module: PreTrainedModel) -> None:
    """Raises ConciseError when log-probs from hidden states would not be the model's own; see `load_model`."""
    ids = torch.arange(min(4, module.config.get_text_config().vocab_size))[None].to(module.device)
    whole = module(input_ids=ids, use_cache=False).logits.float()
    ours = output_head(module)(hidden_states(module, ids, None)).float()
    if (whole - ours).abs().max() > HEAD_TOLERANCE * (1 + whole.abs().max()):
        raise ConciseError(
            f"{module.name_or_path}: {type(module).__name__} changes its logits after the output embedding (a soft cap "
            "or a scale), which is not supported; choose a model without one"
        )


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


# --- save -------------------------------------------------------------------------------------------------------------


def save_model(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    weights: Iterable[tuple[str, Tensor]] | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write an ordinary Hugging Face folder (safetensors, config, generation config, tokenizer) whole or not at all.

    `weights` are saved in the place of the policy's own, for backends that gather shards: they are taken one by one and
    written a file of at most `shard_bytes` at a time, so that no more than that is ever held. An existing folder at
    `folder` is replaced after the new one is durable.
    """
    with replaced_folder(Path(folder)) as making:
        if weights is None:
            policy.save_pretrained(making)
        elif getattr(policy, "_weight_conversions", None):
            # Files that name weights otherwise than the module does are for transformers, and only whole.
            policy.save_pretrained(making, state_dict=dict(weights))
        else:
            _save_configs(policy, making)
            _save_in_shards(weights, making, shard_bytes)
        tokenizer.save_pretrained(making)


def _save_configs(policy: PreTrainedModel, folder: Path) -> None:
    policy.config.dtype = str(policy.dtype).removeprefix("torch.")
    policy.config.architectures = [type(policy).__name__]
    policy.config.save_pretrained(folder)
    if policy.generation_config is not None:
        policy.generation_config.save_pretrained(folder)


def _save_in_shards(weights: Iterable[tuple[str, Tensor]], folder: Path, limit: int) -> None:
    """model.safetensors, or several files and the index by which transformers and vLLM find them."""
    parts: list[list[str]] = []
    held: dict[str, Tensor] = {}
    total = 0

    def write() -> None:
        save_file(held, str(folder / f"part-{len(parts)}"), metadata={"format": "pt"})
        parts.append(list(held))
        held.clear()

    for name, weight in weights:
        if held and sum(w.nbytes for w in held.values()) + weight.nbytes > limit:
            write()
        held[name] = weight.detach().cpu().contiguous()
        total += weight.nbytes
    write()
    names = [SAFE_WEIGHTS_NAME]
    if len(parts) > 1:
        names = [f"model-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
        where = {weight: name for part, name in zip(parts, names, strict=True) for weight in part}
        write_json(folder / SAFE_WEIGHTS_INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": where})
    for i, name in enumerate(names):
        (folder / f"part-{i}").rename(folder / name)
