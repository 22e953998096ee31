"""Log-probs and entropies of the response tokens, without full-vocabulary logits of a batch.

Only the hidden states of response positions reach the output embedding, a chunk of tokens at a time. The gradient of a
chunk is taken while its logits are there, if the caller can say what the loss's slopes will be: then nothing is
recomputed. A wrong guess costs time, never exactness: the backward pass compares it with the slopes that really come.

Shapes: [B, T] a batch of padded rows, [N] its response tokens, [n] those of a chunk, D the hidden size, V the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from concisecli.records import ConciseError

CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**27}  # held at once, in float32: 64 MB, 512 MB
BLOCK_LOGITS = 2**19  # what passes over logits work on at a time on a CPU: 2 MB stay in a core's cache

Slopes = Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor | None]]
"""(log-probs [n], entropies [n], places [n] of the tokens in the flattened [B, T]) -> d loss / d each of the two."""


def token_logprobs(
    module: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    response_mask: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    with_entropy: bool = False,
    slopes: Slopes | None = None,
    packed: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log pi(input_ids[b, t] | input_ids[b, :t]) at every t that `response_mask` marks, 0 elsewhere: [B, T] float32.

    The entropy of the distribution each of those tokens was drawn from comes second, [B, T], when asked for (nats).
    Both are of the distribution at `temperature`. `chunk` tokens at a time meet the output embedding; None chooses a
    number that holds CHUNK_LOGITS logits. `slopes` foretells the derivatives of the loss and saves the recomputation
    of the logits when it is right, up to one factor. `packed` lays the rows end to end instead of padding them, which
    pays where attention knows where a row ends (flash attention). Position 0 has no prediction: a mask there raises
    ValueError.
    """
    if bool(response_mask[:, 0].any()):
        raise ValueError("the first token of a row has no prediction; a prompt needs at least one token")
    places = response_mask.flatten().nonzero()[:, 0]
    rows = _states_before(module, input_ids, attention_mask, places, packed=packed)
    targets = input_ids.flatten()[places]
    head = output_head(module)
    size = chunk or max(1, CHUNK_LOGITS.get(rows.device.type, 2**24) // _config(module).vocab_size)
    if _is_plain(head):
        logprobs, entropy = _through(head, rows, targets, places, temperature, size, slopes)
    else:
        logprobs, entropy = _by_recomputing(head, rows, targets, temperature, size, with_entropy)

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(input_ids.numel()).index_put((places,), values).view_as(input_ids)

    return spread(logprobs), spread(entropy) if with_entropy else None


def packs(module: nn.Module, packing: Literal["auto", "on", "off"]) -> bool:
    """Whether rows are laid end to end. auto: where attention is told by positions where a row ends and skips the rest;
    elsewhere it would look at the whole pack for every row."""
    if packing != "auto":
        return packing == "on"
    return "flash" in str(getattr(_config(module), "_attn_implementation", ""))


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


# --- hidden states ----------------------------------------------------------------------------------------------------


def hidden_states(
    module: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None = None
) -> Tensor:
    """[B, T, D] what the output embedding is applied to."""
    body = cast(Any, module).base_model
    if attention_mask is not None and _causal_alone_is_enough(module, attention_mask):
        attention_mask = None
    given = {} if position_ids is None else {"position_ids": position_ids}
    out = body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **given)
    return cast(Tensor, out.last_hidden_state)


def output_head(module: nn.Module) -> nn.Module:
    """The module that turns hidden states into logits, whatever the architecture calls it."""
    head = cast(Any, module).get_output_embeddings()
    if head is None:
        raise ConciseError(f"{type(module).__name__} has no output embedding, so it is no causal language model")
    return cast(nn.Module, head)


def _states_before(
    module: nn.Module, input_ids: Tensor, attention_mask: Tensor, places: Tensor, *, packed: bool
) -> Tensor:
    """[N, D] the hidden states that predict the tokens at `places`: those one position before."""
    if not packed:
        return hidden_states(module, input_ids, attention_mask).flatten(0, 1)[places - 1]
    real = attention_mask.bool()
    positions = (attention_mask.cumsum(1) - 1)[real]
    # Without a mask and a cache, transformers reads from the positions where a row begins; with either it does not.
    states = hidden_states(module, input_ids[real][None], None, position_ids=positions[None])[0]
    place_in_pack = attention_mask.flatten().cumsum(0) - 1
    return states[place_in_pack[places] - 1]


def _causal_alone_is_enough(module: nn.Module, attention_mask: Tensor) -> bool:
    """Padding on the right is never seen by a causal row, and sdpa without a mask is faster and exact.
    Flash attention keeps the mask: it drops the padding by it."""
    if "flash" in str(getattr(_config(module), "_attn_implementation", "")):
        return False
    return bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())


def _config(module: nn.Module) -> Any:
    return cast(Any, module).config.get_text_config()


# --- from hidden states to log-probs ----------------------------------------------------------------------------------


def _is_plain(head: nn.Module) -> bool:
    """One matrix and nothing else, so that its gradient can be written down."""
    return type(head) is nn.Linear and head.bias is None and head.weight.dtype != torch.float64


def _through(
    head: nn.Module,
    rows: Tensor,
    targets: Tensor,
    places: Tensor,
    temperature: float,
    size: int,
    slopes: Slopes | None,
) -> tuple[Tensor, Tensor]:
    """[N] log-probs and entropies. The head is called as a module, with another forward for once, so that what hangs
    on its call still happens: ZeRO-3 gathers its weight around it."""
    module = cast(Any, head)
    if not torch.is_grad_enabled():
        slopes = None
    module.forward = lambda states: _Scores.apply(states, module.weight, targets, places, temperature, size, slopes)
    try:
        return cast(tuple[Tensor, Tensor], module(rows))
    finally:
        del module.forward


class _Scores(torch.autograd.Function):
    """(rows [N, D], weight [V, D]) -> log-probs of `targets` and entropies, [N] each, `size` tokens at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        targets: Tensor,
        places: Tensor,
        temperature: float,
        size: int,
        slopes: Slopes | None,
    ) -> tuple[Tensor, Tensor]:
        needed = ctx.needs_input_grad[:2]
        ctx.head = _Head(rows, weight, targets, temperature, needed)
        count = rows.shape[0]
        normaliser = torch.empty(count, device=rows.device)
        logprobs, entropy = torch.empty_like(normaliser), torch.empty_like(normaliser)
        foretold, kept = [], None
        for start in range(0, count, size):
            piece = slice(start, start + size)
            logits = ctx.head.logits(piece)
            normaliser[piece], entropy[piece] = _normaliser_and_entropy(logits)
            logprobs[piece] = logits.gather(-1, targets[piece, None])[:, 0] - normaliser[piece]
            if not any(needed):
                continue
            if slopes is not None:
                told = _slope_or_zero(*slopes(logprobs[piece], entropy[piece], places[piece]), like=entropy[piece])
                ctx.head.add_gradient(logits, piece, normaliser, entropy, *told)
                foretold.append(told)
            elif count <= size:
                kept = logits  # recomputing the only chunk would save nothing
        ctx.foretold = tuple(map(torch.cat, zip(*foretold, strict=True))) if foretold else None
        ctx.kept, ctx.size = kept, size
        ctx.save_for_backward(rows, weight, targets, normaliser, entropy)
        ctx.head.forget_inputs()
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprobs: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, targets, normaliser, entropy = ctx.saved_tensors
        foretold, ctx.foretold = ctx.foretold, None
        factor = None if foretold is None else _factor(foretold, (by_logprobs, by_entropy))
        if factor is None:
            ctx.head.restart(rows, weight, targets)
            for start in range(0, rows.shape[0], ctx.size):
                piece = slice(start, start + ctx.size)
                logits = ctx.head.logits(piece) if ctx.kept is None else ctx.kept
                ctx.kept = None
                ctx.head.add_gradient(logits, piece, normaliser, entropy, by_logprobs[piece], by_entropy[piece])
        return (*ctx.head.gradients(rows, weight, factor), None, None, None, None, None)


class _Head:
    """The matrix, the states it is applied to, and the gradients of both as they add up over chunks."""

    def __init__(
        self, rows: Tensor, weight: Tensor, targets: Tensor, temperature: float, needed: tuple[bool, bool]
    ) -> None:
        device = rows.device.type
        lower = torch.is_autocast_enabled(device)
        self._dtype = torch.get_autocast_dtype(device) if lower else weight.dtype
        self._temperature = temperature
        self._needed = needed
        self.restart(rows, weight, targets)

    def restart(self, rows: Tensor, weight: Tensor, targets: Tensor) -> None:
        self._rows, self._weight = rows.detach().to(self._dtype), weight.detach().to(self._dtype)
        self._targets = targets
        self._by_rows: list[Tensor] = []
        self._by_weight: Tensor | None = None

    def forget_inputs(self) -> None:
        """Autograd keeps them; a copy in lower precision is cheaper made again than kept."""
        del self._rows, self._weight, self._targets

    def logits(self, piece: slice) -> Tensor:
        """[n, V] float32, at the temperature."""
        with _plain_arithmetic(self._rows):
            logits = F.linear(self._rows[piece], self._weight).float()
        return logits.div_(self._temperature) if self._temperature != 1.0 else logits

    def add_gradient(
        self,
        logits: Tensor,
        piece: slice,
        normaliser: Tensor,
        entropy: Tensor,
        by_logprobs: Tensor,
        by_entropy: Tensor,
    ) -> None:
        """Overwrites `logits` with the loss's slopes by them and adds what follows from these."""
        scale = 1.0 / self._temperature
        _to_slopes(
            logits, self._targets[piece], normaliser[piece], entropy[piece], by_logprobs * scale, by_entropy * scale
        )
        by_logits = logits.to(self._dtype)
        with _plain_arithmetic(logits):
            if self._needed[0]:
                self._by_rows.append(by_logits @ self._weight)
            if self._needed[1]:
                self._add_by_weight(by_logits, self._rows[piece])

    def _add_by_weight(self, by_logits: Tensor, rows: Tensor) -> None:
        if self._by_weight is None:
            self._by_weight = torch.mm(by_logits.T, rows).float()
        elif self._dtype == torch.float32:
            self._by_weight.addmm_(by_logits.T, rows)
        else:  # many small addends would be lost in lower precision
            self._by_weight += torch.mm(by_logits.T, rows)

    def gradients(self, rows: Tensor, weight: Tensor, factor: float | None) -> tuple[Tensor | None, Tensor | None]:
        """By rows and by weight, each times `factor`; forgotten here."""
        by_rows = torch.cat(self._by_rows) if self._by_rows else torch.zeros_like(rows)
        by_weight = self._by_weight if self._by_weight is not None else torch.zeros_like(weight)
        self._by_rows, self._by_weight = [], None
        if factor is not None and factor != 1.0:
            by_rows, by_weight = by_rows * factor, by_weight.mul_(factor)
        return (
            by_rows.to(rows.dtype) if self._needed[0] else None,
            by_weight.to(weight.dtype) if self._needed[1] else None,
        )


def _plain_arithmetic(like: Tensor) -> Any:
    """Autocast off: the dtypes were chosen already."""
    return torch.autocast(like.device.type, enabled=False)


def _normaliser_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log sum exp and entropy of each row [n]."""
    normaliser, entropy = logits.new_empty(len(logits)), logits.new_empty(len(logits))
    for block in _blocks(logits):
        x = logits[block]
        top = x.amax(-1, keepdim=True)
        weights = (x - top).exp_()
        total = weights.sum(-1)
        normaliser[block] = total.log() + top[:, 0]
        entropy[block] = normaliser[block] - torch.linalg.vecdot(weights, x) / total
    return normaliser, entropy


def _to_slopes(
    logits: Tensor, targets: Tensor, normaliser: Tensor, entropy: Tensor, by_logprobs: Tensor, by_entropy: Tensor
) -> None:
    """In place, from x = logits [n, V] to a (1[target] - p) - b p (log p + H): d log p[target] / dx times a plus
    dH / dx times b, with a = `by_logprobs`, b = `by_entropy`."""
    entropy_counts = bool(by_entropy.any())
    for block in _blocks(logits):
        x, a, b = logits[block], by_logprobs[block, None], by_entropy[block, None]
        x -= normaliser[block, None]
        if entropy_counts:
            p = x.exp()
            x.mul_(-b).sub_(a + b * entropy[block, None]).mul_(p)
        else:
            x.exp_().mul_(-a)
    logits.scatter_add_(-1, targets[:, None], by_logprobs[:, None])


def _blocks(logits: Tensor) -> Iterator[slice]:
    count, vocabulary = logits.shape
    size = max(1, BLOCK_LOGITS // vocabulary) if logits.device.type == "cpu" else max(1, count)
    return (slice(start, start + size) for start in range(0, count, size))


def _slope_or_zero(by_logprobs: Tensor, by_entropy: Tensor | None, *, like: Tensor) -> tuple[Tensor, Tensor]:
    return by_logprobs.detach(), torch.zeros_like(like) if by_entropy is None else by_entropy.detach()


def _factor(foretold: tuple[Tensor, Tensor], came: tuple[Tensor, Tensor]) -> float | None:
    """What the foretold slopes must be multiplied by to be those that came; None when no factor does it."""
    told, real = torch.cat(foretold), torch.cat(came)
    largest = int(told.abs().argmax())
    if not told[largest]:
        return None if bool(real.any()) else 1.0
    factor = float(real[largest] / told[largest])
    off = (real - factor * told).abs().max()
    return factor if bool(off <= 1e-6 * real[largest].abs()) else None


def _by_recomputing(
    head: nn.Module, rows: Tensor, targets: Tensor, temperature: float, size: int, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same for any head (with adapters, quantised): autograd, with the logits of a chunk made again in the
    backward pass."""
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
