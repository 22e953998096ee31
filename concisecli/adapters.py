"""LoRA (arXiv 2106.09685) by peft, inside the model that it adapts: same class, same verbs, a few more weights.

The base never changes. Engines and the saved model get W + alpha / rank * B A as fresh tensors. Of the ways to bring an
adapter to an engine this is the fast one that is also safe: the engine runs its ordinary kernels and needs no adapter
slots, a weight sync is the same code with or without LoRA, and no merging in place has to be undone, which in floating
point does not give back the bits of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from concisecli.artifacts import replaced_folder
from concisecli.config import AdapterConfig
from concisecli.records import ConciseError

NAME = "default"  # what peft calls an adapter that was given no name
Whole = Callable[[list[nn.Parameter]], list[Tensor]]


def attach(module: nn.Module, config: AdapterConfig, *, seed: int) -> None:
    """Put an adapter into `module`, in place, and freeze everything else. It starts as no change at all: B is zero; A
    follows from `seed` alone. Raises ConciseError when `target_modules` names nothing that can be adapted."""
    from peft import LoraConfig, inject_adapter_in_model

    targets = config.target_modules
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=cast(int, config.alpha),
        lora_dropout=config.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(lora, module, NAME)
        except ValueError as error:
            raise ConciseError(f"adapter: {str(error).splitlines()[0]}; see adapter.target_modules") from error
    other = [name for name, layer in layers(module).items() if NAME not in layer.lora_A]
    if cast(Any, module).get_output_embeddings() in layers(module).values():
        raise ConciseError("adapter: the output embedding is not adapted; take it out of target_modules")
    if other:
        raise ConciseError(
            f"adapter: {other[0]} is no linear layer, and only those are adapted; take it out of target_modules"
        )


def attached(module: nn.Module) -> bool:
    return bool(getattr(module, "peft_config", None))


def layers(module: nn.Module) -> dict[str, Any]:
    """The adapted layers by the names that they had before."""
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}


@contextmanager
def switched_off(module: nn.Module) -> Iterator[None]:
    """The base model, for as long as the block lasts: the reference of a policy that is an adapter. Peft's own switch
    also freezes the adapter, which optimisers and ZeRO have taken note of, so the flag that its layers read is set."""
    found = list(layers(module).values())
    for layer in found:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in found:
            layer._disable_adapters = False


def trainable(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What the optimiser steps, and what a checkpoint has to keep: the adapter, or every weight where there is none."""
    return ((name, param) for name, param in module.named_parameters() if param.requires_grad)


def merged_weights(module: nn.Module, whole: Whole) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the model as if it had never had an adapter: its names, its dtypes, W + alpha / rank * B A.

    `whole` gives the full, detached tensors of parameters that may be sharded. The base's own tensor comes out where
    nothing was adapted, else a fresh one, added up in float32.
    """
    adapted = layers(module) if attached(module) else {}
    for name, param in module.named_parameters():
        layer_name, at_base, rest = name.rpartition(".base_layer.")
        if not at_base and _of_adapter(name):
            continue
        if rest != "weight" or not at_base:
            yield name.replace(".base_layer.", "."), whole([param])[0]
            continue
        layer = adapted[layer_name]
        base, a, b = whole([param, layer.lora_A[NAME].weight, layer.lora_B[NAME].weight])
        update = b.float() @ a.float()
        if layer.fan_in_fan_out:  # GPT-2 keeps its weights as [in, out]
            update = update.T
        yield f"{layer_name}.weight", (base.float() + layer.scaling[NAME] * update).to(base.dtype)


def adapter_weights(module: nn.Module, whole: Whole) -> Iterator[tuple[str, Tensor]]:
    """The adapter's own weights under the names of peft's files. A collective where they are sharded."""
    for name, param in module.named_parameters():
        if _of_adapter(name):
            yield f"base_model.model.{name.replace(f'.{NAME}.', '.')}", whole([param])[0]


def save(module: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Write the adapter as peft's folder, whole or not at all: `PeftModel.from_pretrained(base, folder)` loads it. The
    base is not named in it: that is the model which the stage was given."""
    from safetensors.torch import save_file

    config = replace(cast(Any, module).peft_config[NAME], base_model_name_or_path=None, inference_mode=True)
    with replaced_folder(folder) as making:
        config.save_pretrained(str(making))
        held = {name: weight.cpu().contiguous() for name, weight in weights.items()}
        save_file(held, str(making / "adapter_model.safetensors"), metadata={"format": "pt"})


def _of_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
