"""`async_steps: 1`: rollouts one update old, whoever samples them when, and the same bits after a resume."""

import copy
import json
import shutil

import pytest
import torch

from concisecli import artifacts, checkpoints, groups, policy
from concisecli.backends import make_backend
from concisecli.checks import check_pipeline
from concisecli.config import HfConfig
from concisecli.grader.grading import GraderPool
from concisecli.loading import load_pipeline_with_origins
from concisecli.ordering import EpochOrder
from concisecli.records import ConciseError, Preempted
from concisecli.reports import cost
from concisecli.rollout import EngineLost, make_engine, sample_groups
from concisecli.stages import train
from tests.test_ranks import assert_equal_up_to_rounding, concise, workplace  # noqa: F401
from tests.test_ranks import stage as made_by
from tests.test_train import _asking, hashes, rows, stage  # noqa: F401

ASYNC = {
    "async_steps": 1,
    "loss": {"old_logprobs": "trainer", "correction": "token"},
    "steps": 3,
    "lr": 1e-2,
}
SET = ("async_steps=1", "loss.correction=token", "loss.old_logprobs=trainer", "steps=3")
WORDS = ("run", "--only", "rl1", *(f"rl1.{value}" for value in SET))


def trained_by_hand(run, *, age):
    """The weights after the steps of `run`, each on rollouts of the weights that were there `age` updates before."""
    config, model = run.config, run.one("model")
    tokenizer, problems = policy.load_tokenizer(model), artifacts.read_problems(run.one("problems"))
    backend = make_backend(config.backend, model, config)
    trainer = train._trainer(config, backend, tokenizer, model)
    order, before = EpochOrder(len(problems), config.seed, window=config.batch_problems), []
    with GraderPool(config.grader) as grader:
        for step in range(config.steps):
            before.append(copy.deepcopy(backend.module))
            engine = make_engine(HfConfig(), model, module=before[max(step - age, 0)])
            asked = [problems[i] for i in order.take(config.batch_problems)]
            sampled = sample_groups(
                engine, tokenizer, asked, config.sampling, config.prompt, seed=config.seed, step=step
            )
            graded = groups.grade(grader, sampled, think_open=False, policy_step=step)
            scored = [groups.score(place, group, config) for place, group in enumerate(graded)]
            trainer.update([row for s in scored if s.kept for row in groups.rows(s)], step)
    return backend.module


def test_every_step_but_the_first_trains_on_rollouts_of_the_weights_one_update_older(stage):  # noqa: F811
    run = stage("ahead", **ASYNC)
    train.run(run)
    metrics = rows(run.folder / "metrics.jsonl")
    assert [m["rollout_age"] for m in metrics] == [0, 1, 1]
    assert metrics[0]["mismatch_max"] < 1e-5
    assert all(m["mismatch_max"] > 1e-3 for m in metrics[1:])
    weights = list(policy.load_model(run.folder / "model").parameters())
    for age, same in ((1, True), (0, False)):
        expected = trained_by_hand(run, age=age)
        assert all(torch.equal(a, b) for a, b in zip(weights, expected.parameters(), strict=True)) == same


def test_on_policy_rollouts_have_no_age(stage):  # noqa: F811
    run = stage("on-policy", steps=2)
    train.run(run)
    assert [m["rollout_age"] for m in rows(run.folder / "metrics.jsonl")] == [0, 0]


@pytest.mark.parametrize("refill", [{}, {"refill_rounds": 1, "oversample": "adaptive", "oversample_cap": 2}])
def test_a_run_stopped_after_its_first_step_goes_on_with_the_rollouts_that_wait(stage, monkeypatch, refill):  # noqa: F811
    settings = ASYNC | ({"advantage": {"keep": "nonzero"}} | refill if refill else {})
    straight, stopped = stage("straight", **settings), stage("stopped", **settings)
    train.run(straight)
    monkeypatch.setattr(checkpoints, "stop_signal", _asking(iter([True])))
    with pytest.raises(Preempted):
        train.run(stopped)
    checkpoint = checkpoints.latest(stopped.folder / "checkpoints")
    waiting = artifacts.read_parquet(checkpoint / "ahead-00000.parquet")
    assert {row["policy_step"] for row in waiting} == {0}
    assert "ahead-00000.parquet" in json.loads((checkpoint / checkpoints.MARKER).read_text())
    monkeypatch.undo()
    train.run(stopped)
    assert hashes(stopped.folder) == hashes(straight.folder)


def test_a_checkpoint_without_its_waiting_rollouts_is_not_gone_on_from(stage, monkeypatch):  # noqa: F811
    run = stage("stopped", **ASYNC)
    monkeypatch.setattr(checkpoints, "stop_signal", _asking(iter([True])))
    with pytest.raises(Preempted):
        train.run(run)
    monkeypatch.undo()
    checkpoint = checkpoints.latest(run.folder / "checkpoints")
    sizes = json.loads((checkpoint / checkpoints.MARKER).read_text())
    del sizes["ahead-00000.parquet"]
    (checkpoint / checkpoints.MARKER).write_text(json.dumps(sizes))
    (checkpoint / "ahead-00000.parquet").unlink()
    with pytest.raises(ConciseError, match="lacks the rollouts of step 2; remove it to go on from an older one"):
        train.run(run)


def test_it_needs_a_correction_and_says_where_it_saves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def faults(settings):
        (tmp_path / "p.yaml").write_text(
            "run: t\nstages:\n  rl1:\n    uses: train\n    inputs: {model: {new: {}}, problems: p.yaml}\n"
            f"    config: {{steps: 1, async_steps: 1, sampling: {{max_response_tokens: 40}}, {settings}}}\n"
        )
        return [f"{f.level} {f}" for f in check_pipeline(*load_pipeline_with_origins(tmp_path / "p.yaml"))]

    split = "engine: {type: vllm, placement: split}"
    (fault,) = [f for f in faults(split) if f.startswith("error")]
    assert "rollouts are one update old when they train; set loss.correction: token (or sequence)" in fault
    assert [f for f in faults(split + ", loss: {correction: token}") if "set loss.old_logprobs: trainer" in f]
    sound = "loss: {correction: sequence, old_logprobs: trainer}"
    assert [f for f in faults(f"{split}, {sound}") if "async" in f] == []
    (warning,) = faults(sound)
    assert warning.startswith("warning")
    assert "async_steps 1 saves no time with an engine that shares the trainer's device" in warning


def test_what_the_update_hid_counts_as_generation_and_not_twice_as_time():
    timings = [{"step": 0, "time": 5.0, "generate": 1.0, "overlapped": 3.0, "train": 4.0}]
    log = [{"step": 0, "grade/match": 4.0, "length": 10.0}]
    (row,) = cost.cost([cost.Spent("rl1", "train", timings, log)])["rows"]
    assert row["total_seconds"] == 5.0
    assert row["sampled_per_second"] == 10.0


@pytest.mark.slow
def test_two_ranks_stopped_after_a_step_go_on_in_the_same_bits_also_alone(workplace):  # noqa: F811
    straight = concise(workplace, *WORDS, "processes=2", "--runs", "straight")
    stopped = concise(workplace, *WORDS, "processes=2", "--runs", "stopped", "--max-tokens", "1")
    assert (straight.returncode, stopped.returncode) == (0, 75), straight.stderr + stopped.stderr
    folder = made_by(workplace, "stopped", "rl1")
    checkpoint = checkpoints.latest(folder / "checkpoints")
    parts = [artifacts.read_parquet(checkpoint / f"ahead-0000{rank}.parquet") for rank in range(2)]
    assert [sorted({row["place"] for row in part}) for part in parts] == [[0, 2, 4], [1, 3]]
    shutil.copytree(workplace / "stopped", workplace / "alone")
    again = concise(workplace, *WORDS, "processes=2", "--runs", "stopped")
    alone = concise(workplace, *WORDS, "--runs", "alone")
    assert (again.returncode, alone.returncode) == (0, 0), again.stderr + alone.stderr
    assert_equal_up_to_rounding(folder, made_by(workplace, "alone", "rl1"))
    assert hashes(folder) == hashes(made_by(workplace, "straight", "rl1"))
    assert [m["rollout_age"] for m in rows(folder / "metrics.jsonl")] == [0, 1, 1]


@pytest.mark.slow
def test_vllm_beside_the_update_and_before_it_gives_the_same_run(stage):  # noqa: F811
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    engine = {"type": "vllm", "max_num_seqs": 32, "enforce_eager": True}
    colocated = stage("colocated", **ASYNC, engine=engine)
    split = stage("split", **ASYNC, engine=engine | {"placement": "split"})
    train.run(split)
    train.run(colocated)
    assert hashes(split.folder) == hashes(colocated.folder)
    timings = rows(split.folder / "timings.jsonl")
    assert ["overlapped" in row for row in timings] == [True, True, False]
    assert not any("overlapped" in row for row in rows(colocated.folder / "timings.jsonl"))


@pytest.mark.slow
def test_an_engine_lost_while_it_samples_ahead_costs_the_steps_since_the_checkpoint(stage, monkeypatch):  # noqa: F811
    pytest.importorskip("vllm", reason="needs vLLM: make setup")
    settings = ASYNC | {
        "engine": {"type": "vllm", "max_num_seqs": 32, "enforce_eager": True, "placement": "split"},
        "save_every": 1,
    }
    straight, killed = stage("straight", **settings), stage("killed", **settings)
    train.run(straight)
    begin = train.Ahead.begin

    def kill_before_sampling_the_third_step(self, step):
        if step == 2:
            self._collector.engine._process.kill()
            self._collector.engine._process.wait()
        begin(self, step)

    monkeypatch.setattr(train.Ahead, "begin", kill_before_sampling_the_third_step)
    with pytest.raises(EngineLost, match=r"ended by signal 9 at generate; .* to go on from the last checkpoint"):
        train.run(killed)
    assert checkpoints.latest(killed.folder / "checkpoints").name == "step-000001"
    monkeypatch.undo()
    train.run(killed)
    assert hashes(killed.folder) == hashes(straight.folder)
