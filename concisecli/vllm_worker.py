"""What runs inside vLLM's worker: loading new weights in place. vLLM imports this module by name in each worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import vllm._custom_ops as custom_ops

# THE oneDNN switch. On CPU vLLM hands linear weights to oneDNN, which packs them away and leaves `layer.weight` empty:
# an update in place then fails, or says it worked and serves the old weights. Set before the model is loaded.
if not torch.cuda.is_available():
    custom_ops._supports_onednn = False


class WeightLoader:
    """Mixed into vLLM's worker by `worker_extension_cls`; its methods are called by `collective_rpc`."""

    model_runner: Any

    @torch.no_grad()
    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load tensors into the running model, fused and sharded as the model holds it. Others stay as they are."""
        self.model_runner.model.load_weights(named)

    def load_weights_file(self, path: str) -> None:
        """The same from a safetensors file, for a worker in another process."""
        from safetensors.torch import load_file

        self.load_weights(load_file(path).items())
