"""Supervised fine-tuning: a fixed mix in every batch, short rows first, whole epochs afterwards, and it learns."""

import json

import numpy as np
import pytest

from concisecli import artifacts
from concisecli.batching import Row
from concisecli.building import arithmetic_chains
from concisecli.config import ChainsSource, SftConfig
from concisecli.records import ConciseError, StageRun
from concisecli.stages import sft


def examples(count, number):
    rows = [Row((1,), tuple(range(1 + i))) for i in range(count)]
    return sft.Examples(rows, np.array([row.length for row in rows]), number)


def test_every_batch_holds_the_mix_and_each_row_comes_once_an_epoch():
    mix = {"a": examples(12, 3), "b": examples(8, 2)}
    config = SftConfig(steps=4, mix={"a": 3, "b": 2})
    batches = [sft.batch(mix, config, step) for step in range(4)]
    assert [len(rows) for rows in batches] == [5] * 4
    assert sorted(len(r.response_ids) for rows in batches for r in rows[:3]) == list(range(1, 13))
    assert sorted(len(r.response_ids) for rows in batches for r in rows[3:]) == list(range(1, 9))


def test_a_batch_depends_on_seed_and_step_alone():
    mix = {"a": examples(50, 5)}
    config = SftConfig(steps=10, mix={"a": 5}, short_first=0.5, seed=1)
    backwards = [sft.batch(mix, config, step) for step in reversed(range(10))][::-1]
    assert backwards == [sft.batch(mix, config, step) for step in range(10)]
    assert sft.batch(mix, config.model_copy(update={"seed": 2}), 0) != backwards[0]


def test_short_rows_come_first():
    mix = {"a": examples(100, 5)}
    config = SftConfig(steps=10, mix={"a": 5}, short_first=1.0)
    longest = [max(row.length for row in sft.batch(mix, config, step)) for step in range(10)]
    assert longest[0] <= 12
    assert longest[-1] > 60


@pytest.fixture
def stage(tiny_model, tmp_path):
    source = ChainsSource(rows="traces", count=64, operations=(2, 3))
    artifacts.write_examples(tmp_path / "examples.parquet", arithmetic_chains.examples(source, 0))

    def make(name, **settings):
        config = SftConfig.model_validate(
            {
                "steps": 6,
                "mix": {"examples": 8},
                "lr": 1e-2,
                "save_every": 2,
                "prompt": {"template": "raw", "chat": False},
                **settings,
            }
        )
        inputs = {"model": (tiny_model,), "examples": (tmp_path / "examples.parquet",)}
        return StageRun("sft", tmp_path / name, config, inputs)

    return make


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_loss_falls(stage):
    run = stage("run", steps=25)
    sft.run(run)
    values = losses(run.folder)
    assert len(values) == 25
    assert values[-1] < 0.7 * values[0]


def test_examples_over_max_tokens_leave_nothing_is_one_clear_sentence(stage):
    with pytest.raises(ConciseError, match="no example of 'examples' is within max_tokens = 5"):
        sft.run(stage("run", max_tokens=5))


def test_a_role_in_the_mix_that_is_no_input_is_named(stage):
    with pytest.raises(ConciseError, match="mix names the input 'facts'"):
        sft.run(stage("run", mix={"facts": 3}))
