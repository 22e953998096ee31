"""Seeds, groups in their order, and the check after a weight sync, on the real transformers engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from concisecli.config import HfConfig, PromptConfig, SamplingConfig
from concisecli.policy import load_tokenizer
from concisecli.records import ConciseError, Problem
from concisecli.rollout import (
    RolloutEngine,
    SampledGroup,
    Sampling,
    check_probe,
    make_engine,
    rollout_seed,
    sample_groups,
)
from concisecli.rollout_hf import HfEngine

RAW = PromptConfig(template="raw", chat=False)
PROBLEMS = [Problem(f"p{i}", f"{10 + i}A-{i}=", str(10 + i), "test") for i in range(5)]
SAMPLING = SamplingConfig(group_size=3, max_response_tokens=12)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> RolloutEngine:
    return make_engine(HfConfig(), tiny_model)


def sampled(
    engine: RolloutEngine, tiny_model: Path, problems: list[Problem], seed: int = 0, step: int = 0
) -> list[SampledGroup]:
    return sample_groups(engine, load_tokenizer(tiny_model), problems, SAMPLING, RAW, seed=seed, step=step)


def test_a_rollouts_seed_is_sixty_three_bits_of_a_hash_of_its_name() -> None:
    # printf '0\x1f3\x1fabc\x1f2' | sha256sum: the first eight bytes, halved
    assert rollout_seed(0, 3, "abc", 2) == 125848800800030984
    assert all(0 <= rollout_seed(0, s, "abc", 0) < 2**63 for s in range(1000))


def test_seeds_differ_in_every_part_of_the_name() -> None:
    names = [
        (0, 0, "p", 0),
        (1, 0, "p", 0),
        (0, 1, "p", 0),
        (0, 0, "q", 0),
        (0, 0, "p", 1),
        (0, 11, "p", 0),
        (0, 1, "p", 1),
    ]
    assert len({rollout_seed(*name) for name in names}) == len(names)
    assert rollout_seed(0, 1, "1", 0) != rollout_seed(0, 11, "", 0)


def test_a_group_has_its_problem_its_prompt_and_group_size_rollouts(engine: RolloutEngine, tiny_model: Path) -> None:
    groups = sampled(engine, tiny_model, PROBLEMS)
    assert [problem for problem, _, _ in groups] == PROBLEMS
    assert groups[1][1] == load_tokenizer(tiny_model).encode("11A-1=")
    assert [len(completions) for _, _, completions in groups] == [3] * 5
    assert len({c.token_ids for _, _, completions in groups for c in completions}) == 15


def test_rollouts_do_not_depend_on_the_problems_beside(engine: RolloutEngine, tiny_model: Path) -> None:
    together = {p.id: [c.token_ids for c in cs] for p, _, cs in sampled(engine, tiny_model, PROBLEMS)}
    reversed_halves = sampled(engine, tiny_model, PROBLEMS[::-1][:2]) + sampled(engine, tiny_model, PROBLEMS[::-1][2:])
    assert {p.id: [c.token_ids for c in cs] for p, _, cs in reversed_halves} == together


def test_the_same_seed_and_step_sample_the_same_and_others_do_not(engine: RolloutEngine, tiny_model: Path) -> None:
    first = sampled(engine, tiny_model, PROBLEMS)
    assert sampled(engine, tiny_model, PROBLEMS) == first
    assert sampled(engine, tiny_model, PROBLEMS, seed=1) != first
    assert sampled(engine, tiny_model, PROBLEMS, step=1) != first


def test_outside_training_the_number_of_samples_is_said(engine: RolloutEngine, tiny_model: Path) -> None:
    tokenizer, sampling = load_tokenizer(tiny_model), Sampling(max_response_tokens=4)
    groups = sample_groups(engine, tokenizer, PROBLEMS, sampling, RAW, seed=0, step=0, samples=2)
    assert [len(completions) for _, _, completions in groups] == [2] * 5
    with pytest.raises(ValueError, match="`samples` is needed"):
        sample_groups(engine, tokenizer, PROBLEMS, sampling, RAW, seed=0, step=0)


def test_more_samples_leave_the_first_ones_as_they_are(engine: RolloutEngine, tiny_model: Path) -> None:
    tokenizer, sampling = load_tokenizer(tiny_model), Sampling(max_response_tokens=8)
    few, many = (
        sample_groups(engine, tokenizer, PROBLEMS[:2], sampling, RAW, seed=0, step=0, samples=n) for n in (2, 4)
    )
    assert [[c.token_ids for c in cs] for _, _, cs in few] == [[c.token_ids for c in cs[:2]] for _, _, cs in many]


def test_the_later_rollouts_of_a_problem_can_be_asked_for_by_number(engine: RolloutEngine, tiny_model: Path) -> None:
    tokenizer, sampling = load_tokenizer(tiny_model), Sampling(max_response_tokens=8)
    whole, later = (
        sample_groups(engine, tokenizer, PROBLEMS[:2], sampling, RAW, seed=0, step=0, samples=numbers)
        for numbers in (4, [range(2, 4), [3]])
    )
    assert [c.token_ids for c in later[0][2]] == [c.token_ids for c in whole[0][2][2:]]
    assert [c.token_ids for c in later[1][2]] == [whole[1][2][3].token_ids]


def test_a_sync_that_reached_the_engine_passes_and_one_that_did_not_stops(tiny_model: Path) -> None:
    trained, engine = HfEngine(HfConfig(), tiny_model), HfEngine(HfConfig(), tiny_model)
    with torch.no_grad():
        trained.module.model.norm.weight.mul_(1.5)
    ids = [20, 30, 40, 50]
    with pytest.raises(ConciseError, match="differ from the trainer's by"):
        check_probe(engine, ids, trained.probe(ids), tolerance=1e-4)
    engine.sync_weights(trained.module.named_parameters())
    assert check_probe(engine, ids, trained.probe(ids), tolerance=1e-4) == 0.0


def test_a_probe_that_is_not_a_number_stops(engine: RolloutEngine) -> None:
    with pytest.raises(ConciseError, match="differ from the trainer's by nan"):
        check_probe(engine, [20, 30], [float("nan")], tolerance=1e-4)
