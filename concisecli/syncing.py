"""After an update the engine gets the new weights, and must show that it holds them."""

from __future__ import annotations

from collections.abc import Sequence

from concisecli import collectives
from concisecli.backends import Backend, sequence_logprobs
from concisecli.rollout import EngineLost, RolloutEngine, check_probe

PROBE_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.2}  # nats between engine and trainer right after a weight sync


def sync(engine: RolloutEngine, backend: Backend, probe: Sequence[int] | None, *, dtype: str) -> EngineLost | None:
    """The sleeping engine wakes with the weights of `backend`; a collective.

    Then the log-probs of the ids `probe` are compared, unless it is None since the engine samples from the very module
    that trains: engines have been seen to keep old weights without a word. Raises ConciseError when they differ. An
    engine that is lost on one rank is told to all of them; the trainer has its weights then and may go on alone.
    """
    expected = sequence_logprobs(backend, probe) if probe is not None else []
    named = iter(backend.named_weights())
    lost = ""
    try:
        engine.wake("weights")
        engine.sync_weights(named)
        engine.wake("kv_cache")
        if probe is not None:
            check_probe(engine, probe, expected, tolerance=PROBE_TOLERANCE[dtype])
    except EngineLost as error:
        lost = str(error)
        for _ in named:  # sharded weights are gathered by all ranks together
            pass
    said = next(filter(None, collectives.gather(lost)), "")
    return EngineLost(said) if said else None
