"""The shape of a model without loading it: how many parameters, how many bytes a token of its cache.

Sizes are counts of numbers, not bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from concisecli.checks import maker, references
from concisecli.config import NewModel, NewModelConfig, Pipeline, StageSpec

OWN_TOKENS = 258  # 256 bytes, an end and a padding token: what a new model's tokenizer has beside its words


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama and Qwen family: grouped-query attention, a gated MLP, RMS norms."""

    name: str
    source: str  # where the numbers are from, in words
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool  # the output embedding is the input embedding
    positions: int | None = None
    head_width: int = 0  # 0: hidden / heads
    qkv_bias: bool = True
    counted: int | None = None  # parameters, where they are known and not derived

    @property
    def query_width(self) -> int:
        return self.heads * (self.head_width or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Of the keys, and of the values, of one layer."""
        return self.kv_heads * (self.head_width or self.hidden // self.heads)

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * self.query_width + 2 * self.hidden * self.kv_width
        bias = self.query_width + 2 * self.kv_width if self.qkv_bias else 0
        return attention + bias + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        if self.counted is not None:
            return self.counted
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer_parameters + self.hidden

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: all but the input embedding, which is looked up."""
        return self.parameters if self.tied else self.parameters - self.embedding

    @property
    def cache_per_token(self) -> int:
        """Numbers of keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_width


def _qwen(
    name: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    *,
    tied: bool = False,
    vocab: int = 152_064,
    positions: int = 131_072,
) -> ModelShape:
    return ModelShape(name, "its config.json", hidden, layers, heads, kv_heads, intermediate, vocab, tied, positions)


# As in the config.json that each publishes on the hub.
KNOWN = {
    shape.name: shape
    for shape in (
        _qwen("Qwen/Qwen2.5-0.5B", 896, 24, 14, 2, 4864, tied=True, vocab=151_936, positions=32_768),
        _qwen("Qwen/Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, tied=True, vocab=151_936),
        _qwen("Qwen/Qwen2.5-3B", 2048, 36, 16, 2, 11_008, tied=True, vocab=151_936, positions=32_768),
        _qwen("Qwen/Qwen2.5-7B", 3584, 28, 28, 4, 18_944),
        _qwen("Qwen/Qwen2.5-14B", 5120, 48, 40, 8, 13_824),
        _qwen("Qwen/Qwen2.5-32B", 5120, 64, 40, 8, 27_648),
        _qwen("Qwen/Qwen2.5-Math-1.5B", 1536, 28, 12, 2, 8960, tied=True, vocab=151_936, positions=4096),
        _qwen("Qwen/Qwen2.5-Math-7B", 3584, 28, 28, 4, 18_944, positions=4096),
        _qwen("Qwen/QwQ-32B", 5120, 64, 40, 8, 27_648, positions=40_960),
        _qwen("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1536, 28, 12, 2, 8960, vocab=151_936),
        _qwen("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 3584, 28, 28, 4, 18_944),
        _qwen("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 5120, 48, 40, 8, 13_824),
        _qwen("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", 5120, 64, 40, 8, 27_648),
    )
}


def shape_of(reference: str | NewModel) -> ModelShape | None:
    """The shape behind a model input from outside; None where nothing says how large it is."""
    if isinstance(reference, NewModel):
        return of_new(reference.new)
    if not reference.startswith("hf:"):
        return of_folder(Path(reference))
    name = reference.removeprefix("hf:").partition("@")[0]
    return KNOWN.get(name) or _cached(name) or guessed(name)


def root_model(pipeline: Pipeline, spec: StageSpec) -> str | NewModel | None:
    """The model from outside that a stage's model goes back to, through all the stages that trained it."""
    seen: set[str] = set()
    while spec.name not in seen:
        seen.add(spec.name)
        given = spec.inputs.get("model")
        if given is None:
            return None
        reference = references(given)[0]
        name = maker(pipeline, reference)
        if name is None:
            return reference
        spec = pipeline.stages[name]
    return None


def of_new(config: NewModelConfig) -> ModelShape:
    return ModelShape(
        name="new",
        source="the settings of `new`",
        hidden=config.hidden_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.heads,
        intermediate=config.intermediate_size,
        vocab=OWN_TOKENS + len(set(config.words)),
        tied=True,
        positions=config.max_positions,
    )


def of_folder(folder: Path) -> ModelShape | None:
    """From a folder's config.json; the parameters are counted in its safetensors files where it has them."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    shape = of_config(config, str(folder), str(folder / "config.json"))
    return replace(shape, counted=counted(folder)) if shape else None


def of_config(config: Mapping[str, Any], name: str, source: str) -> ModelShape | None:
    """From the keys of a config.json; None where it is no decoder of this family."""
    config = config.get("text_config") or config
    try:
        heads = int(config["num_attention_heads"])
        return ModelShape(
            name=name,
            source=source,
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            positions=config.get("max_position_embeddings"),
            head_width=int(config.get("head_dim") or 0),
            qkv_bias=bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def counted(folder: Path) -> int | None:
    """The numbers in a folder's safetensors files, read from their headers; None without such files."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        return sum(_numbers_in(file) for file in files) or None
    except (OSError, ValueError, KeyError, struct.error):
        return None


def _numbers_in(file: Path) -> int:
    """A safetensors file begins with the length of a JSON header that gives every tensor's shape."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            size = 1
            for side in tensor["shape"]:
                size *= side
            total += size
    return total


def guessed(name: str) -> ModelShape | None:
    """From the number in a name such as "org/Math-8B": the known model of the nearest size, with that many
    parameters."""
    found = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)[bB](?![a-zA-Z])", name)
    if not found:
        return None
    size = float(found[1]) * 1e9
    like = min(KNOWN.values(), key=lambda shape: abs(shape.parameters - size))
    said = f"a guess from the {found[0]} in its name, shaped like {like.name}"
    return replace(like, name=name, source=said, counted=round(size), positions=None)


def _cached(name: str) -> ModelShape | None:
    """From the hub's cache on this machine, where the model was fetched before."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return of_folder(Path(found).parent) if isinstance(found, str) else None
