"""The training loop on a tiny random model: exact on resume, bounded in refilling, careful with what it writes."""

import json

import pytest
import torch

from concisecli import artifacts, checkpoints, policy
from concisecli.artifacts import sha256_path
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource, TrainConfig
from concisecli.records import ConciseError, Preempted, StageRun
from concisecli.stages import train
from concisecli.trainer import NonFiniteError

# A random model is always wrong: rewarding short siblings is what gives it something to learn from.
SHORTEN = {"length": "relative", "relative_weight": 1.0}


@pytest.fixture
def stage(tiny_model, tmp_path):
    problems = arithmetic_chains.problems(ChainsSource(count=12, operations=(2, 3), split="pool"), 0)
    artifacts.write_problems(tmp_path / "problems.parquet", problems)

    def make(name, model=tiny_model, inputs=None, **settings):
        config = TrainConfig.model_validate(
            {
                "steps": 4,
                "batch_problems": 4,
                "updates_per_batch": 2,
                "lr": 1e-3,
                "save_every": 2,
                "sampling": {"group_size": 4, "max_response_tokens": 120, "temperature": 0.6},
                "reward": SHORTEN,
                "prompt": {"template": "raw", "chat": False},
                "grader": {"profile": "strict"},
                **settings,
            }
        )
        roles = {"model": (model,), "problems": (tmp_path / "problems.parquet",), **(inputs or {})}
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return StageRun(name, folder, config, roles)

    return make


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def hashes(folder, names=("model", "metrics.jsonl", "pass_rates.jsonl", "rollouts")):
    return {name: sha256_path(folder / name) for name in names}


def test_a_stage_trains_and_writes_what_the_next_one_reads(stage, tiny_model):
    run = stage("whole", loss={"entropy_coef": 0.001, "kl_coef": 0.01})
    result = train.run(run)
    assert set(result.outputs) == {"model", "metrics", "pass_rates", "rollouts"}
    before, after = policy.load_model(tiny_model), policy.load_model(run.folder / "model")
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    metrics = rows(run.folder / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [0, 1, 2, 3]
    assert all(m["signal_share/groups"] > 0 for m in metrics)
    rates = rows(run.folder / "pass_rates.jsonl")
    assert len(rates) == 16
    assert all(r["attempts"] == 4 for r in rates)
    assert len({r["problem_id"] for r in rates[:12]}) == 12  # every problem once an epoch


def test_before_the_first_update_the_samplers_log_probs_are_the_trainers(stage):
    run = stage("ratio", steps=1, updates_per_batch=1)
    train.run(run)
    (metrics,) = rows(run.folder / "metrics.jsonl")
    assert metrics["mismatch_max"] < 1e-5
    assert metrics["ratio_min"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)


def test_a_stage_stopped_on_request_and_run_again_ends_in_the_same_bits(stage, monkeypatch):
    straight = stage("straight")
    train.run(straight)

    stopped = stage("stopped")
    asked = iter([False, False, True])
    monkeypatch.setattr(checkpoints, "stop_signal", _asking(asked))
    with pytest.raises(Preempted):
        train.run(stopped)
    assert checkpoints.latest(stopped.folder / "checkpoints").name == "step-000003"
    monkeypatch.undo()
    train.run(stopped)
    assert hashes(stopped.folder) == hashes(straight.folder)


def _asking(answers):
    from contextlib import contextmanager

    @contextmanager
    def signal():
        yield lambda: next(answers)

    return signal


def test_a_crash_between_two_checkpoints_leaves_nothing_doubled(stage, monkeypatch):
    straight = stage("straight")
    train.run(straight)

    crashed = stage("crashed")
    log = train._log
    calls = []

    def crash_after_logging(*arguments):
        log(*arguments)
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(train, "_log", crash_after_logging)
    with pytest.raises(KeyboardInterrupt):
        train.run(crashed)
    assert len(rows(crashed.folder / "pass_rates.jsonl")) == 16
    monkeypatch.undo()
    train.run(crashed)
    assert hashes(crashed.folder) == hashes(straight.folder)


def test_refilling_stops_at_its_cap_and_goes_on_with_what_there_is(stage, tiny_model):
    run = stage("partial", steps=1, refill_rounds=2, reward={}, advantage={"keep": "mixed"})
    train.run(run)
    (metrics,) = rows(run.folder / "metrics.jsonl")
    assert metrics["groups/sampled"] == 12
    assert metrics["groups/trained"] == 0
    before, after = policy.load_model(tiny_model), policy.load_model(run.folder / "model")
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_refilling_takes_no_problem_twice_in_a_step(stage):
    run = stage("once", steps=1, refill_rounds=2, reward={}, advantage={"keep": "mixed"})
    train.run(run)
    rates = rows(run.folder / "pass_rates.jsonl")
    assert len({r["problem_id"] for r in rates}) == len(rates) == 12


def test_refill_at_cap_stop_says_what_to_change(stage):
    run = stage("stop", refill_rounds=1, refill_at_cap="stop", reward={}, advantage={"keep": "mixed"})
    with pytest.raises(ConciseError, match="2 rounds gave 0 of 4 groups that may train; raise refill_rounds"):
        train.run(run)


def test_grading_while_sampling_changes_nothing_but_the_speed(stage):
    made = {}
    for overlap in (False, True):
        run = stage(
            f"overlap-{overlap}", steps=2, overlap_grading=overlap, engine={"type": "transformers", "batch_rollouts": 3}
        )
        train.run(run)
        made[overlap] = hashes(run.folder)
    assert made[False] == made[True]


def test_oversampling_counts_what_it_drops_and_resumes_bit_by_bit(stage, monkeypatch):
    settings = {"oversample": "adaptive", "oversample_cap": 2, "refill_rounds": 1, "advantage": {"keep": "nonzero"}}
    straight = stage("straight", **settings)
    train.run(straight)
    for m in rows(straight.folder / "metrics.jsonl"):
        assert m["groups/sampled"] <= 16
        assert m["groups/trained"] <= 4
        assert m["groups/surplus"] >= 0
        assert m["groups/sampled_per_trained"] == m["groups/sampled"] / m["groups/trained"]
    stopped = stage("stopped", **settings)
    asked = iter([False, True])
    monkeypatch.setattr(checkpoints, "stop_signal", _asking(asked))
    with pytest.raises(Preempted):
        train.run(stopped)
    state = json.loads((checkpoints.latest(stopped.folder / "checkpoints") / "state.json").read_text())
    assert state["yield"][1] > 0
    monkeypatch.undo()
    train.run(stopped)
    assert hashes(stopped.folder) == hashes(straight.folder)


def test_a_batch_that_is_full_at_once_is_not_refilled(stage):
    run = stage("full", steps=1, refill_rounds=3)
    train.run(run)
    (metrics,) = rows(run.folder / "metrics.jsonl")
    assert metrics["groups/sampled"] == metrics["groups/trained"] == 4


def test_a_gradient_that_is_not_finite_stops_before_the_step_and_keeps_the_rows(stage, monkeypatch):
    from concisecli.backend_torch import TorchBackend

    backward = TorchBackend.backward

    def spoil(self, loss):
        backward(self, loss)
        next(iter(self.module.parameters())).grad[0, 0] = float("nan")

    monkeypatch.setattr(TorchBackend, "backward", spoil)
    run = stage("nan")
    with pytest.raises(NonFiniteError, match="nothing was updated; its rows are in"):
        train.run(run)
    assert rows(run.folder / "nonfinite-step-0.jsonl")
    assert not (run.folder / "model").exists()


def test_problems_that_are_too_long_are_left_out_never_cut(stage, capsys):
    settings = {"group_size": 4, "max_response_tokens": 8, "max_prompt_tokens": 8}
    run = stage("short", steps=1, batch_problems=2, sampling=settings)
    train.run(run)
    assert "problems left out: prompt over 8 tokens" in capsys.readouterr().err
    with pytest.raises(ConciseError, match="no problem's prompt is within max_prompt_tokens = 2"):
        train.run(stage("none", sampling={**settings, "max_prompt_tokens": 2}))


def test_the_loop_fits_on_one_screen():
    import inspect

    assert len(inspect.getsource(train.run).splitlines()) <= 40
