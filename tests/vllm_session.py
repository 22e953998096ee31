"""One real vLLM run in a process of its own: vLLM keeps process-wide state that other tests must not meet.

`python -m tests.vllm_session MODEL` prints one JSON line of what test_rollout_vllm.py looks at.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from concisecli import collectives
from concisecli.backends import Backend, make_backend, sequence_logprobs
from concisecli.config import AdapterConfig, HfConfig, LossConfig, SamplingConfig, TorchConfig, VllmConfig
from concisecli.logprobs import token_logprobs
from concisecli.policy import load_model, load_tokenizer, save_model
from concisecli.records import Completion, ConciseError
from concisecli.rollout import RolloutEngine, Sampling, check_probe, make_engine
from concisecli.syncing import sync
from concisecli.trainer import Trainer
from tests.test_trainer import rollouts, train_config

PROMPTS = [[20, 30, 40, 50, 60], [20, 30, 40], [70, 80]]
SEEDS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 2**63 - 1, 12]]
TEMPERATURE = SamplingConfig(temperature=0.6, max_response_tokens=48)
STOP = ("wait check", "1", "é")  # within one token, and of one byte; the last never comes whole
PROBE = [20, 30, 40, 50]


def session(model: Path) -> dict[str, Any]:
    engine = make_engine(VllmConfig(max_num_seqs=16, max_model_len=96, enforce_eager=True), model)
    engine.stop = (*range(0, 140, 20), *engine.stop)  # type: ignore[attr-defined]
    trained = load_model(model)
    first = engine.generate(PROMPTS, TEMPERATURE, SEEDS)
    facts = {
        "stop": list(engine.stop),  # type: ignore[attr-defined]
        "completions": [[(c.token_ids, c.text, c.finish_reason) for c in group] for group in first],
        "gap_before": gap(trained, first, 0.6),
        "gap_probe": check_probe(engine, PROBE, expected(trained), tolerance=1e-4),
        "gap_top_p": truncated_gap(trained, engine),
        "again": ids(engine.generate(PROMPTS, TEMPERATURE, SEEDS)) == ids(first),
        "reversed": ids(engine.generate(PROMPTS[::-1], TEMPERATURE, SEEDS[::-1])) == ids(first)[::-1],
        "cut": ids(engine.generate(PROMPTS, SamplingConfig(temperature=0.6, max_response_tokens=10), SEEDS))
        == [[row[:10] for row in group] for group in ids(first)],
        "greedy": greedy_is_argmax(trained, engine),
        "near_the_end": finish_near_the_end(engine),
        "refusal": refusal(lambda: engine.generate([[1] * 96], TEMPERATURE, [[0]])),
    }
    move(trained)
    facts["stale"] = refusal(lambda: check_probe(engine, PROBE, expected(trained), tolerance=1e-4))
    engine.sync_weights(trained.state_dict().items())
    second = engine.generate(PROMPTS, TEMPERATURE, SEEDS)
    facts["gap_after"] = gap(trained, second, 0.6)
    facts["gap_probe_after"] = check_probe(engine, PROBE, expected(trained), tolerance=1e-4)
    facts["moved"] = ids(second) != ids(first)
    facts["wrong_order"] = wrong_order(engine, trained)
    for number in range(20):
        move(trained, seed=number + 1, by=0.003)
        engine.sleep()
        engine.wake("weights")
        engine.sync_weights(trained.named_parameters())
        engine.wake("kv_cache")
    facts["gap_after_20"] = gap(trained, engine.generate(PROMPTS, TEMPERATURE, SEEDS), 0.6)
    facts["stop_strings"] = [(w.token_ids, c.token_ids, c.text, c.finish_reason) for w, c in with_stop(engine)]
    facts["adapter"] = adapted(engine, model)
    facts["reopened"] = reopened(engine, trained, model)
    return facts


def adapted(engine: RolloutEngine, model: Path) -> dict[str, Any]:
    """The engine's log-probs beside those of a policy that is an adapter: fresh, trained, and taken up again."""
    policy = adapter_backend(model, seed=3)
    fresh = probe_gap(engine, policy)
    before = sequence_logprobs(policy, PROBE)
    made = Trainer(policy, train_config(lr=1e-2), 0, loss=LossConfig())
    for step in range(2):
        made.update(rollouts(seed=step), step)
    stale = refusal(lambda: check_probe(engine, PROBE, sequence_logprobs(policy, PROBE), tolerance=1e-4))
    facts = {"fresh": fresh, "stale": stale, "trained": probe_gap(engine, policy)}
    after = sequence_logprobs(policy, PROBE)
    facts["moved"] = max(abs(a - b) for a, b in zip(before, after, strict=True))
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder), {"step": 2})
        resumed = adapter_backend(model, seed=4)
        probe_gap(engine, resumed)  # the engine has forgotten the trained weights
        resumed.load(Path(folder))
    engine.sync_weights(resumed.named_weights())
    return facts | {"resumed": check_probe(engine, PROBE, after, tolerance=1e-4)}


def adapter_backend(model: Path, *, seed: int) -> Backend:
    return make_backend(TorchConfig(), model, train_config(adapter=AdapterConfig(rank=4, alpha=8), lr=1e-2, seed=seed))


def probe_gap(engine: RolloutEngine, backend: Backend) -> float:
    """After the sync of a step. Raises ConciseError when the engine's log-probs are not the policy's."""
    engine.sleep()
    assert sync(engine, backend, PROBE, dtype="float32") is None
    return check_probe(engine, PROBE, sequence_logprobs(backend, PROBE), tolerance=1e-4)


def wrong_order(engine: RolloutEngine, trained: Any) -> list[str]:
    """What is refused while asleep, and while the weights are awake but not loaded."""
    engine.sleep()
    asleep = [lambda: engine.generate(PROMPTS, TEMPERATURE, SEEDS), lambda: engine.wake("kv_cache"), engine.sleep]
    found = [refusal(call) for call in (*asleep, lambda: engine.sync_weights(trained.named_parameters()))]
    engine.wake("weights")
    found += [refusal(call) for call in (lambda: engine.probe(PROBE), lambda: engine.wake("kv_cache"))]
    engine.sync_weights(trained.named_parameters())
    engine.wake("kv_cache")
    return found


def with_stop(engine: RolloutEngine) -> Iterator[tuple[Completion, Completion]]:
    """Rollouts without and with stop strings, from the same seeds."""
    seeds = [list(range(16))] * 3
    whole = engine.generate(PROMPTS, Sampling(max_response_tokens=40), seeds)
    cut = engine.generate(PROMPTS, Sampling(max_response_tokens=40, stop=STOP), seeds)
    for one, other in zip(whole, cut, strict=True):
        yield from zip(one, other, strict=True)


def reopened(engine: RolloutEngine, trained: Any, model: Path) -> dict[str, Any]:
    """A second engine in the same process, on a folder with other weights, after a process group of our own."""
    engine.close()
    engine.close()
    closed = refusal(lambda: engine.generate(PROMPTS, TEMPERATURE, SEEDS))
    group_left = torch.distributed.is_initialized()
    collectives.init(alone=True)
    with tempfile.TemporaryDirectory() as folder:
        save_model(trained, load_tokenizer(model), Path(folder) / "other")
        config = VllmConfig(max_num_seqs=16, enforce_eager=True)
        second = make_engine(config, Path(folder) / "other", longest=80)
        hf = make_engine(HfConfig(), Path(folder) / "other")
        greedy = Sampling(temperature=0.0, max_response_tokens=40, stop=STOP)
        facts = {
            "closed": closed,
            "group_left": group_left,
            "gap": gap(trained, second.generate(PROMPTS, TEMPERATURE, SEEDS), 0.6),
            "same_greedy_ids": ids(second.generate(PROMPTS, greedy, [[0]] * 3))
            == ids(hf.generate(PROMPTS, greedy, [[0]] * 3)),
            "context": second.context,  # type: ignore[attr-defined]
        }
        second.close()
    return facts | {"our_group_is_left": torch.distributed.is_initialized()}


def ids(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


@torch.no_grad()
def logits_of(module: Any, prompt: list[int], response: tuple[int, ...]) -> torch.Tensor:
    row = torch.tensor([[*prompt, *response]])
    return torch.as_tensor(module(input_ids=row).logits[0, len(prompt) - 1 : -1].double())


def gap(module: Any, groups: list[list[Completion]], temperature: float) -> float:
    """Largest difference from a plain forward of transformers."""
    worst = 0.0
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for c in group:
            found = (logits_of(module, prompt, c.token_ids) / temperature).log_softmax(-1)
            found = found.gather(-1, torch.tensor(c.token_ids)[:, None])[:, 0]
            worst = max(worst, float((found - torch.tensor(c.logprobs, dtype=torch.float64)).abs().max()))
    return worst


def truncated_gap(module: Any, engine: RolloutEngine) -> float:
    """The same under top-p 0.8: log-probs of the renormalised distribution."""
    worst = 0.0
    for prompt, (c,) in zip(
        PROMPTS, engine.generate(PROMPTS, Sampling(0.6, 0.8, 0.0, 24), [[1], [2], [3]]), strict=True
    ):
        probabilities = (logits_of(module, prompt, c.token_ids) / 0.6).softmax(-1)
        ranked, order = probabilities.sort(-1, descending=True)
        kept = torch.zeros_like(ranked).scatter(-1, order, ranked * ((ranked.cumsum(-1) - ranked) < 0.8))
        found = (kept / kept.sum(-1, keepdim=True)).gather(-1, torch.tensor(c.token_ids)[:, None])[:, 0].log()
        worst = max(worst, float((found - torch.tensor(c.logprobs, dtype=torch.float64)).abs().max()))
    return worst


def greedy_is_argmax(module: Any, engine: RolloutEngine) -> bool:
    groups = engine.generate(PROMPTS, Sampling(temperature=0.0, max_response_tokens=8), [[0]] * 3)
    return all(
        tuple(logits_of(module, prompt, c.token_ids).argmax(-1).tolist()) == c.token_ids
        for prompt, (c,) in zip(PROMPTS, groups, strict=True)
    )


def finish_near_the_end(engine: RolloutEngine) -> list[tuple[int, str]]:
    group = engine.generate([[150] * 90], Sampling(max_response_tokens=20), [list(range(4))])[0]
    return [(len(c.token_ids), c.finish_reason) for c in group]


def expected(module: Any) -> list[float]:
    row = torch.tensor([PROBE])
    mask = torch.ones_like(row)
    mask[:, 0] = 0
    with torch.no_grad():
        return [float(x) for x in token_logprobs(module, row, torch.ones_like(row), mask)[0][0, 1:]]


def refusal(call: Any) -> str:
    try:
        call()
    except ConciseError as error:
        return str(error)
    return ""


def move(module: Any, *, seed: int = 0, by: float = 0.03) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("FACTS " + json.dumps(session(Path(sys.argv[1]))))
