"""Weights on their way to another process: files in shared memory, a bucket of tensors at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

BUCKET_BYTES = 256 * 2**20
SHARED_MEMORY = Path("/dev/shm")


def buckets(named: Iterable[tuple[str, torch.Tensor]], limit: int) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors on CPU in groups of at most `limit` bytes, or of one tensor."""
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    for name, weight in named:
        if bucket and size + weight.nbytes > limit:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = weight.cpu().contiguous()
        size += weight.nbytes
    if bucket:
        yield bucket


@contextmanager
def written(bucket: dict[str, torch.Tensor]) -> Iterator[Path]:
    """The bucket as a safetensors file that lasts as long as the block. Tied weights come under two names with one
    memory, which safetensors refuses: the first name stands for both."""
    from safetensors.torch import save_file

    seen: dict[int, str] = {}
    first = {name: w for name, w in bucket.items() if seen.setdefault(w.data_ptr(), name) == name}
    where = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where, prefix="concise-weights-") as folder:
        file = Path(folder) / "weights.safetensors"
        save_file(first, str(file))
        yield file
