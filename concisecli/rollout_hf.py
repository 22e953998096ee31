"""The transformers engine: an own decode loop around any causal model of the library, on CPU or one GPU.

All rows of a batch share one position: the batch is prefilled to its shortest prompt, longer prompts are then forced
token by token. So there is no padding and no mask, and a row never depends on the rows beside it. Every rollout draws
its noise from a counter keyed by its seed, one number a token, so batching, order and limit leave its ids alone.

Shapes: [R] live rows, [V] vocabulary, cache [R, H, T, D] a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from concisecli import kernels
from concisecli.config import HfConfig
from concisecli.endings import StopStrings, texts
from concisecli.logprobs import evaluating, output_head, sequence_logprobs
from concisecli.policy import load_model, load_tokenizer, max_positions, stop_ids
from concisecli.records import Completion, ConciseError
from concisecli.rollout import AsDone, Gathering, MemoryPart, SamplingLike, Wakefulness

COMPACT_BELOW = 0.9  # share of live rows under which the finished ones are taken out of the batch
DRAW_BLOCK = 4096  # tokens of a vocabulary that are summed up before the cumulative distribution is looked at
CACHE_STEP = 64  # positions the cache grows by at least


class HfEngine:
    """Rollouts with a transformers module: its own copy of the weights, or `module` that someone else trains."""

    def __init__(self, config: HfConfig, model: Path, *, module: Any = None) -> None:
        self.config = config
        self.tokenizer = load_tokenizer(model)
        self.shared = module is not None
        self.wakefulness = Wakefulness()
        self.module = module if module is not None else _placed(load_model(model, config.dtype))
        self.stop = tuple(sorted({*stop_ids(self.tokenizer, model), *stop_ids(self.tokenizer, self.module)}))
        _refuse_recurrent(self.module, model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingLike,
        seeds: Sequence[Sequence[int]],
        *,
        as_done: AsDone | None = None,
    ) -> list[list[Completion]]:
        """See RolloutEngine. Rollouts are batched by prompt length, `batch_rollouts` at a time."""
        self.wakefulness.check("generate")
        requests = self._requests(prompts, sampling, seeds)
        gathering = Gathering(seeds, as_done)
        with evaluating(self.module), self._arithmetic():
            for start in range(0, len(requests), self.config.batch_rollouts):
                batch = requests[start : start + self.config.batch_rollouts]
                for request, completion in zip(batch, self._complete(batch, sampling), strict=True):
                    gathering.put(*request.place, completion)
        return gathering.rows()

    def probe(self, ids: Sequence[int]) -> list[float]:
        self.wakefulness.check("generate")
        with self._arithmetic():
            return sequence_logprobs(self.module, ids)

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Copy the weights in place. Nothing to do for a shared module. Raises ConciseError on a name that the model
        lacks, or that never came."""
        with self.wakefulness.during("sync"):
            if not self.shared:
                self._copy(named)

    def _copy(self, named: Iterable[tuple[str, Any]]) -> None:
        own = dict(self.module.named_parameters(remove_duplicate=False))
        came = set()
        with torch.no_grad():
            for name, weight in named:
                if name not in own:
                    raise ConciseError(f"weight sync: the rollout model has no weight '{name}'")
                own[name].copy_(weight)
                came.add(own[name])
        if missing := [name for name, weight in own.items() if weight not in came]:
            raise ConciseError(f"weight sync: nothing came for '{missing[0]}' and {len(missing) - 1} more")

    def sleep(self) -> None:
        """Frees nothing: the module holds no memory between calls beyond its weights."""
        with self.wakefulness.during("sleep"):
            pass

    def wake(self, part: MemoryPart) -> None:
        """Takes nothing; see `sleep`."""
        with self.wakefulness.during(f"wake {part}"):
            pass

    def close(self) -> None:
        """Let go of a module of its own."""
        self.wakefulness.close()
        if not self.shared:
            self.module = None

    def _arithmetic(self) -> Any:
        """A shared module may keep float32 weights and still compute in bfloat16, as its trainer does."""
        lower = self.config.dtype == "bfloat16" and self.module.dtype == torch.float32
        if not lower and self.module.dtype == torch.float32:
            return kernels.float32_attention(self.module)
        return torch.autocast(self.module.device.type, torch.bfloat16, enabled=lower)

    def _requests(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingLike, seeds: Sequence[Sequence[int]]
    ) -> list[_Request]:
        """Sorted by prompt length, the rollouts of a prompt side by side."""
        context = max_positions(self.module)
        found = []
        for i, (prompt, row) in enumerate(zip(prompts, seeds, strict=True)):
            limit = sampling.max_response_tokens
            if context is not None:
                limit = min(limit, context - len(prompt))
            if not prompt:
                raise ConciseError(f"prompt {i} is empty; a rollout needs at least one token to start from")
            if limit < 1:
                raise ConciseError(
                    f"prompt {i} has {len(prompt)} tokens and the model's longest sequence is {context}: nothing is "
                    "left for a response; lower sampling.max_prompt_tokens or choose a model with a longer context"
                )
            found += [_Request((i, j), tuple(prompt), seed, limit) for j, seed in enumerate(row)]
        return sorted(found, key=lambda request: (len(request.prompt), request.place))

    def _complete(self, batch: Sequence[_Request], sampling: SamplingLike) -> list[Completion]:
        strings = StopStrings(self.tokenizer, sampling.stop)
        decoding = _Batch(self.module, batch, sampling, self.stop, strings)
        ids, logprobs = decoding.run()
        return [
            Completion(tuple(row), tuple(lp), text, "stop" if ended else "length")
            for row, lp, text, ended in zip(
                ids, logprobs, texts(self.tokenizer, ids, self.stop, strings), decoding.stopped, strict=True
            )
        ]


@dataclass(frozen=True, slots=True)
class _Request:
    place: tuple[int, int]  # (prompt, sample)
    prompt: tuple[int, ...]
    seed: int
    limit: int  # response tokens


class _Batch:
    """The decoding of one batch. `rows` [R] says which request each live row is; all else is indexed by it."""

    def __init__(
        self,
        module: Any,
        batch: Sequence[_Request],
        sampling: SamplingLike,
        stop: Sequence[int],
        strings: StopStrings,
    ) -> None:
        self.module, self.sampling, self.batch, self.strings = module, sampling, batch, strings
        self.body, self.head = module.base_model, output_head(module)
        self.device = module.device
        self.lengths = torch.tensor([len(r.prompt) for r in batch], device=self.device)
        self.ends = self.lengths + torch.tensor([r.limit for r in batch], device=self.device)
        longest = int(self.ends.max())
        self.ids = torch.zeros(len(batch), longest, dtype=torch.long, device=self.device)
        for i, r in enumerate(batch):
            self.ids[i, : len(r.prompt)] = torch.tensor(r.prompt)
        self.logprobs = torch.zeros(len(batch), longest, dtype=torch.float64, device=self.device)
        self.noise = torch.from_numpy(_noise(batch, longest)).to(self.device)
        self.stop = torch.zeros(module.config.get_text_config().vocab_size, dtype=torch.bool, device=self.device)
        self.stop[[i for i in stop if i < len(self.stop)]] = True
        self.done_at = self.ends.clone()
        self.stopped = [False] * len(batch)  # by a stop token or string, not by the limit
        self.may_complete = strings.may_complete(len(self.stop)).to(self.device) if strings.strings else None

    def run(self) -> tuple[list[list[int]], list[list[float]]]:
        """The sampled ids and log-probs of every request, cut at its stop token or its limit."""
        rows = torch.arange(len(self.batch), device=self.device)
        cache = Cache(layers=[_GrowingLayer() for _ in range(self.module.config.get_text_config().num_hidden_layers)])
        position = int(self.lengths.min())
        hidden = self._prefill(cache, position)
        while True:
            alive = self._advance(rows, hidden, position)
            if not bool(alive.any()):
                break
            if float(alive.float().mean()) < COMPACT_BELOW:
                rows = self._compacted(rows, alive, cache)
            hidden = self._forward(self.ids[rows, position, None], cache)
            position += 1
        return self._cut(self.ids), self._cut(self.logprobs)

    def _compacted(self, rows: Tensor, alive: Tensor, cache: Cache) -> Tensor:
        """The rows that go on: the last of them move into the places of those that ended, so little is copied."""
        count = int(alive.sum())
        holes, movers = (~alive[:count]).nonzero()[:, 0], alive[count:].nonzero()[:, 0] + count
        rows[holes] = rows[movers]
        for layer in cache.layers:
            layer.fill(holes, movers, count)
        return rows[:count]

    def _prefill(self, cache: Cache, position: int) -> Tensor:
        """Run the first `position` tokens, once for all rows that share them."""
        starts = self.ids[:, :position]
        unique, which = torch.unique_consecutive(starts, dim=0, return_inverse=True)
        hidden = self._forward(unique, cache)
        cache.batch_select_indices(which)
        return hidden[which]

    def _forward(self, ids: Tensor, cache: Cache) -> Tensor:
        """[R, D] the last position's hidden states."""
        out = self.body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state[:, -1]

    def _advance(self, rows: Tensor, hidden: Tensor, position: int) -> Tensor:
        """Write the token at `position` of each row, drawn or forced; [R] whether the row still goes on after it."""
        tokens, logprobs = draw(self.head(hidden), self.noise[rows, position], self.sampling)
        forced = position < self.lengths[rows]
        tokens = torch.where(forced, self.ids[rows, position], tokens)
        self.ids[rows, position] = tokens
        self.logprobs[rows, position] = logprobs
        stopped = ~forced & (self.done_at[rows] > position) & (self.stop[tokens] | self._spelt(rows, tokens, position))
        for row in rows[stopped].tolist():
            self.stopped[row] = True
        self.done_at[rows] = torch.where(stopped, position + 1, self.done_at[rows])
        return self.done_at[rows] > position + 1

    def _spelt(self, rows: Tensor, tokens: Tensor, position: int) -> Tensor:
        """[R] whether the token just written completes a stop string of its row's response."""
        spelt = torch.zeros_like(rows, dtype=torch.bool)
        if self.may_complete is None:
            return spelt
        for i in self.may_complete[tokens].nonzero()[:, 0].tolist():
            start, row = int(self.lengths[rows[i]]), self.ids[rows[i]]
            spelt[i] = position >= start and self.strings.completed(row[start : position + 1].tolist())
        return spelt

    def _cut(self, values: Tensor) -> list[list[Any]]:
        return [
            row[start:end].tolist()
            for row, start, end in zip(values.cpu(), self.lengths.tolist(), self.done_at.tolist(), strict=True)
        ]


def draw(logits: Tensor, noise: Tensor, sampling: SamplingLike) -> tuple[Tensor, Tensor]:
    """One token a row and its log-prob under the distribution it was drawn from: ([R] int64, [R] float64).

    `logits` [R, V]; `noise` [R] uniform in [0, 1) picks the token by inverting the float64 cumulative distribution.
    min-p is applied first, then top-p to what is left, as vLLM does. Temperature 0 takes the largest logit and gives
    its log-prob at temperature 1.
    """
    if sampling.temperature == 0:
        logprobs, best = logits.double().log_softmax(-1).max(-1)
        return best, logprobs
    truncates = sampling.top_p < 1 or sampling.min_p > 0
    # In float64, as are all sums; but the exponentials of a large vocabulary cost most of the drawing.
    exact = truncates or logits.shape[-1] <= DRAW_BLOCK
    top = logits.amax(-1, keepdim=True)
    weights = logits.to(torch.float64 if exact else torch.float32) - top
    if sampling.temperature != 1.0:
        weights /= sampling.temperature
    weights = truncate(weights.exp_(), top_p=sampling.top_p, min_p=sampling.min_p)
    tokens, total = _invert(weights, noise)
    above = logits.gather(-1, tokens[:, None]).double() - top
    return tokens, above[:, 0] / sampling.temperature - total.log()


def _invert(weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The token [R] at `noise` of each row's cumulative distribution, and its normaliser [R]. `weights` [R, V] need not
    be normalised: the last entry of the cumulative sum is that of the whole or of what truncation kept."""
    size = weights.shape[-1]
    if size <= DRAW_BLOCK:
        cumulative = weights.double().cumsum(-1)
        total = cumulative[:, -1]
        return _first_above(cumulative, noise * total), total
    whole = size - size % DRAW_BLOCK
    sums = weights[:, :whole].unflatten(-1, (-1, DRAW_BLOCK)).sum(-1)
    ends = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], -1).double().cumsum(-1)
    total = ends[:, -1]
    block = _first_above(ends, noise * total)
    before = torch.where(block > 0, ends.gather(-1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    places = block[:, None] * DRAW_BLOCK + torch.arange(DRAW_BLOCK, device=weights.device)
    inside = torch.where(places < size, weights.gather(-1, places.clamp(max=size - 1)), 0.0).double().cumsum(-1)
    tokens = block * DRAW_BLOCK + _first_above(inside, noise * total - before)
    return tokens.clamp_(max=size - 1), total


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """[R] the first place whose cumulative sum is above `target`, hence one that adds something; where rounding put
    the target at the end or over it, the last such place."""
    below_end = torch.minimum(target, torch.nextafter(cumulative[:, -1], cumulative.new_zeros(())))
    found = torch.searchsorted(cumulative, below_end[:, None], right=True)[:, 0]
    return found.clamp_(max=cumulative.shape[-1] - 1)  # not a number: some token, and a log-prob that says so


def truncate(probabilities: Tensor, *, top_p: float, min_p: float) -> Tensor:
    """[R, V] with the tokens outside the support set to 0, up to a factor: neither given nor returned normalised.

    min-p keeps what has at least `min_p` of the largest probability; top-p then keeps the fewest likely tokens that
    hold `top_p` of the remaining mass, equal ones by lower id.
    """
    if min_p > 0:
        floor = min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.where(probabilities >= floor, 0.0)
    if top_p < 1:
        probabilities = probabilities.where(_nucleus(probabilities, top_p), 0.0)
    return probabilities


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """[R, V] whether a token is in the top-p set."""
    ranked = _sorted_down(probabilities)
    mass = ranked.cumsum(-1)
    size = ((mass - ranked) < top_p * mass[:, -1:]).sum(-1, keepdim=True)
    least = ranked.gather(-1, size - 1)
    above, equal = probabilities > least, probabilities == least
    return above | (equal & (equal.cumsum(-1) <= size - above.sum(-1, keepdim=True)))


def _sorted_down(values: Tensor) -> Tensor:
    """On CPU numpy sorts plain values with vector instructions, eight times as fast as torch."""
    if values.is_cuda:
        return values.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1)[:, ::-1].copy())


def _noise(batch: Sequence[_Request], longest: int) -> np.ndarray:
    """[R, longest] uniforms: the t-th response token of a row uses the t-th number of the stream its seed names."""
    noise = np.zeros((len(batch), longest))
    for row, request in zip(noise, batch, strict=True):
        start = len(request.prompt)
        stream = np.random.Generator(np.random.Philox(key=request.seed))
        row[start : start + request.limit] = stream.random(request.limit)
    return noise


class _GrowingLayer(DynamicLayer):
    """Keys and values in buffers with room to grow: one copy a doubling instead of one a token."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        end = self.length + key_states.shape[2]
        if end > self.keys.shape[2]:
            self.keys, self.values = self._grown(self.keys, end), self._grown(self.values, end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grown(self, old: Tensor, end: int) -> Tensor:
        new = old.new_empty(*old.shape[:2], max(end + CACHE_STEP, 2 * old.shape[2]), old.shape[3])
        new[:, :, : self.length] = old[:, :, : self.length]
        return new

    def batch_select_indices(self, indices: Tensor) -> None:
        self.keys, self.values = self.keys[indices], self.values[indices]

    def fill(self, holes: Tensor, movers: Tensor, count: int) -> None:
        """Move rows into others' places and keep the first `count`."""
        for kept in (self.keys, self.values):
            kept[holes, :, : self.length] = kept[movers, :, : self.length]
        self.keys, self.values = self.keys[:count], self.values[:count]

    def get_seq_length(self) -> int:
        return self.length


def _placed(module: Any) -> Any:
    return module.cuda() if torch.cuda.is_available() else module


def _refuse_recurrent(module: Any, model: Path) -> None:
    kinds = set(getattr(module.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if other := kinds - {"full_attention", "sliding_attention"}:
        raise ConciseError(
            f"{model}: layers of type {sorted(other)[0]} are not for the transformers engine; set engine.type to vllm"
        )
