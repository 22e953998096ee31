"""`placement: split`: a real vLLM in a process of its own, ended and stopped in mid-run."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from concisecli import checkpoints, policy
from concisecli.collection import Collector
from concisecli.config import VllmConfig
from concisecli.logprobs import sequence_logprobs
from concisecli.records import ConciseError
from concisecli.rollout import EngineLost, Sampling, make_engine
from concisecli.rollout_split import devices_of
from concisecli.stages import train
from concisecli.weight_files import buckets, written
from tests.test_train import hashes, rows, stage  # noqa: F401

SPLIT = {"type": "vllm", "placement": "split", "max_num_seqs": 32, "enforce_eager": True}
PROMPTS, SEEDS = [[20, 30, 40, 50], [60, 70]], [[1, 2, 3], [4, 5, 6]]


def test_each_rank_gets_as_many_devices_as_its_model_is_cut_over():
    config = VllmConfig(devices=(4, 5, 6, 7), tensor_parallel_size=2)
    assert [devices_of(config, rank) for rank in range(2)] == [(4, 5), (6, 7)]
    assert devices_of(VllmConfig(), 3) == ()
    with pytest.raises(ConciseError, match="names 4 devices, too few for the engine of rank 2"):
        devices_of(config, 2)


def test_weights_go_in_buckets_and_leave_no_file_behind():
    named = [(f"w{i}", torch.full((10,), float(i))) for i in range(5)]  # 40 bytes each
    parts = list(buckets(iter(named), limit=100))
    assert [list(part) for part in parts] == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    assert [list(part) for part in buckets(iter(named[:1]), limit=1)] == [["w0"]]
    from safetensors.torch import load_file

    with written(parts[0]) as file:
        assert load_file(file)["w1"].tolist() == [1.0] * 10
    assert not file.parent.exists()


def test_tied_weights_are_written_once():
    tied = torch.ones(3)
    from safetensors.torch import load_file

    with written({"a": tied, "b": tied}) as file:
        assert set(load_file(file)) == {"a"}


@pytest.mark.slow
def test_an_engine_of_its_own_samples_syncs_stops_and_ends(tiny_model):
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    config = VllmConfig(**{**SPLIT, "answer_timeout_s": 600})
    engine = make_engine(config, tiny_model, longest=80)
    heard = {}
    found = engine.generate(PROMPTS, Sampling(0.6, max_response_tokens=40), SEEDS, as_done=heard.__setitem__)
    assert [heard[i] for i in range(2)] == found
    module = policy.load_model(tiny_model)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.02)
    before = engine.probe([20, 30, 40])
    engine.sync_weights(module.named_parameters())
    assert engine.probe([20, 30, 40]) == pytest.approx(sequence_logprobs(module, [20, 30, 40]), abs=5e-6)
    assert engine.probe([20, 30, 40]) != pytest.approx(before, abs=1e-4)
    with pytest.raises(ConciseError, match="prompt 0 has 90 tokens and the engine's longest sequence is 80"):
        engine.generate([[1] * 90], Sampling(), [[1]])

    object.__setattr__(engine, "config", config.model_copy(update={"answer_timeout_s": 2.0}))
    os.kill(engine._process.pid, signal.SIGSTOP)
    with pytest.raises(EngineLost, match=r"process \d+\) is alive but has not answered to probe for 2 s; the trainer"):
        engine.probe([20, 30])
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match="ended by signal 9 at probe; the trainer is alive"):
        engine.probe([20, 30])
    engine.close()
    with pytest.raises(ConciseError, match="the rollout engine is closed"):
        engine.generate(PROMPTS, Sampling(), SEEDS)


@pytest.mark.slow
def test_a_run_whose_engine_was_killed_says_so_and_ends_in_the_same_bits(stage, monkeypatch):  # noqa: F811
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    straight = stage("straight", engine=SPLIT, steps=3, save_every=100)
    train.run(straight)
    assert all(m["mismatch_max"] < 1e-5 for m in rows(straight.folder / "metrics.jsonl"))

    killed = stage("killed", engine=SPLIT, steps=3, save_every=100)
    collect = Collector.collect

    def kill_before_the_third_step(self, step):
        if step == 2:
            os.kill(self.engine._process.pid, signal.SIGKILL)
            time.sleep(0.2)
        return collect(self, step)

    monkeypatch.setattr(Collector, "collect", kill_before_the_third_step)
    with pytest.raises(EngineLost, match="ended by signal 9 at generate; the trainer is alive and has saved its state"):
        train.run(killed)
    assert checkpoints.latest(killed.folder / "checkpoints").name == "step-000002"
    monkeypatch.undo()
    train.run(killed)
    assert hashes(killed.folder) == hashes(straight.folder)
