"""Keys, manifests, locks and remembered hashes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from concisecli.artifacts import sha256_path, write_json
from concisecli.config import (
    AdvantageConfig,
    ChainsSource,
    DataConfig,
    EvalConfig,
    FileSource,
    GraderConfig,
    HfConfig,
    LogisticDifficulty,
    RewardConfig,
    StepDifficulty,
    TrainConfig,
    VllmConfig,
)
from concisecli.records import ConciseError
from concisecli.store import (
    MANIFEST,
    TIMINGS,
    HashCache,
    Output,
    RunManifest,
    Store,
    key_of,
    read_manifest,
    said,
    split_config,
)


def manifest(store: Store, stage: str, key: str, **changes: Any) -> RunManifest:
    """A finished stage with one output file."""
    folder = store.begin(stage, key)
    (folder / "out.txt").write_text("made")
    made = RunManifest(
        stage=stage,
        kind="data",
        version=1,
        key=key,
        config={},
        runtime={},
        inputs={},
        sources={},
        files={},
        outputs={"problems": Output(path="out.txt", sha256=store.hashes.of(folder / "out.txt"))},
        metrics={},
        seed=0,
        code={},
        env={},
        **changes,
    )
    store.commit(folder, made)
    return made


KEY = "a" * 64


# --- keys -------------------------------------------------------------------------------------------------------------


def key(config: Any, **changes: Any) -> str:
    parts: dict[str, Any] = {"kind": "train", "version": 1, "inputs": {"model": ["h"]}, "files": {}}
    return key_of(config=said(config), **(parts | changes))


def test_a_setting_that_changes_speed_only_does_not_change_the_key() -> None:
    base = TrainConfig(steps=3)
    for other in (
        TrainConfig(steps=3, save_every=7),
        TrainConfig(steps=3, grader=GraderConfig(workers=3, memory_mb=512)),
    ):
        assert key(other) == key(base)
    fast = TrainConfig(steps=3, engine=VllmConfig(gpu_memory_utilization=0.9))
    assert key(fast) == key(TrainConfig(steps=3, engine=VllmConfig()))


def test_any_other_setting_input_file_kind_or_version_changes_the_key() -> None:
    base = TrainConfig(steps=3)
    keys = [
        key(base),
        key(TrainConfig(steps=4)),
        key(TrainConfig(steps=3, seed=1)),
        key(TrainConfig(steps=3, grader=GraderConfig(deadline_s=9))),
        key(TrainConfig(steps=3, engine=HfConfig(batch_rollouts=7))),
        key(base, kind="sft"),
        key(base, version=2),
        key(base, inputs={"model": ["other"]}),
        key(base, inputs={"problems": ["h"]}),
        key(base, files={"x": "h"}),
    ]
    assert len(set(keys)) == len(keys)


def test_a_path_is_no_part_of_a_key_but_its_content_is(tmp_path: Path) -> None:
    one, two = FileSource(path=tmp_path / "one"), FileSource(path=tmp_path / "two")
    assert split_config(one)[0] == split_config(two)[0]
    assert split_config(one)[1] == {"path": str(tmp_path / "one")}


def test_a_setting_at_its_default_is_no_part_of_the_key_so_that_later_ones_change_nothing() -> None:
    assert said(EvalConfig()) == {}
    assert said(EvalConfig(samples=4, engine=HfConfig())) == {"samples": 4}
    assert said(EvalConfig(engine=VllmConfig())) == {"engine": {"type": "vllm"}}
    assert said(TrainConfig(steps=1)) == {"steps": 1}
    assert said(TrainConfig(steps=1, reward=RewardConfig(wrong=-1))) == {"steps": 1, "reward": {"wrong": -1.0}}
    assert said(TrainConfig(steps=1, grader=GraderConfig(workers=3))) == {"steps": 1}


def test_what_is_not_at_its_default_tells_two_configs_apart() -> None:
    sources = [{"c": ChainsSource(count=n)} for n in (3, 4)]
    assert said(DataConfig(sources=sources[0])) != said(DataConfig(sources=sources[1]))
    logistic, step = (AdvantageConfig(difficulty=d) for d in (LogisticDifficulty(), StepDifficulty()))
    assert said(logistic) != said(step) != said(AdvantageConfig())
    assert said(DataConfig(sources=sources[0])) != said(DataConfig(sources=sources[0], dedup=None))


def test_the_key_of_today_is_the_key_of_tomorrow() -> None:
    made = key_of("eval", 1, {"samples": 4, "budgets": [40]}, {"model": ["m"], "problems": ["p"]}, {})
    assert made == "6ea7d986f5771f819fbfdc988fe0fc966d838b977d6ae58cb28dffdf9b2c91b4"


def test_keyed_and_runtime_settings_are_all_settings() -> None:
    keyed, rest = split_config(EvalConfig())
    assert set(keyed["grader"]) | set(rest["grader"]) == set(GraderConfig.model_fields)


# --- folders and manifests --------------------------------------------------------------------------------------------


def test_a_folder_without_a_manifest_is_unfinished(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs" / "t")
    folder = store.begin("d", KEY)
    assert folder == tmp_path / "runs" / "t" / ("d-" + "a" * 12)
    assert store.find("d", KEY) is None
    made = manifest(store, "d", KEY)
    assert store.find("d", KEY) == made
    assert store.find("d", "b" * 64) is None
    assert store.find("other", KEY) is None


def test_the_manifest_holds_no_time_and_timings_do(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        store = Store(tmp_path / name / "t")
        manifest(store, "d", KEY)
        texts.append((store.folder("d", KEY) / MANIFEST).read_bytes())
        time.sleep(0.01)
        events = [json.loads(line)["event"] for line in (store.folder("d", KEY) / TIMINGS).read_text().splitlines()]
        assert events == ["begin", "end"]
    assert texts[0] == texts[1]


def test_begin_keeps_what_an_earlier_attempt_left_unless_told_otherwise(tmp_path: Path) -> None:
    store = Store(tmp_path / "t")
    (store.begin("d", KEY) / "part").write_text("x")
    assert (store.begin("d", KEY) / "part").exists()
    assert not (store.begin("d", KEY, anew=True) / "part").exists()


def test_the_newest_manifest_of_a_stage_is_found_whatever_its_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "t")
    assert store.newest("d") is None
    for number, letter in enumerate("ab"):
        manifest(store, "d", letter * 64)
        os.utime(store.folder("d", letter * 64) / MANIFEST, (number, number))
    manifest(store, "d-x", "c" * 64)
    found = store.newest("d")
    assert found is not None
    assert found.key == "b" * 64
    (store.folder("d", "b" * 64) / MANIFEST).write_text("{")
    found = store.newest("d")
    assert found is not None
    assert found.key == "a" * 64


def test_an_output_edited_by_hand_is_noticed(tmp_path: Path) -> None:
    store = Store(tmp_path / "t")
    made = manifest(store, "d", KEY)
    assert store.changed_outputs(made) == []
    (store.folder("d", KEY) / "out.txt").write_text("Made")
    assert Store(tmp_path / "t").changed_outputs(made) == ["problems"]
    (store.folder("d", KEY) / "out.txt").unlink()
    assert Store(tmp_path / "t").changed_outputs(made) == ["problems"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 0}, "has manifest schema 0, this concise reads 1"),
        ({"schema_version": None}, "has manifest schema None"),
        ({"seed": "x"}, "seed: .*; it was edited by hand"),
        ({"more": 1}, "more: "),
    ],
)
def test_a_manifest_of_another_schema_or_edited_is_told_in_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    store = Store(tmp_path / "t")
    manifest(store, "d", KEY)
    path = store.folder("d", KEY) / MANIFEST
    write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(ConciseError, match=message) as caught:
        store.find("d", KEY)
    assert "\n" not in str(caught.value)
    path.write_text("{")
    with pytest.raises(ConciseError, match="is not valid JSON"):
        read_manifest(path)


def test_a_manifest_under_another_key_is_told(tmp_path: Path) -> None:
    store = Store(tmp_path / "t")
    manifest(store, "d", KEY)
    path = store.folder("d", KEY) / MANIFEST
    write_json(path, json.loads(path.read_text()) | {"key": KEY[:-1] + "b"})
    with pytest.raises(ConciseError, match="belongs to another key"):
        store.find("d", KEY)


# --- one writer at a time ---------------------------------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from concisecli.store import Store
with Store(Path(sys.argv[1])).lock("d-aaa"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_writes_and_may_go_on_afterwards(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / "t")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        store = Store(tmp_path / "t")
        with pytest.raises(ConciseError) as caught, store.lock("d-aaa"):
            pass
        assert f"process {holder.pid} on {socket.gethostname()}" in str(caught.value)
        with store.lock("d-bbb"):
            pass
        holder.kill()
        holder.wait()
    with store.lock("d-aaa"):
        pass


# --- remembered hashes ------------------------------------------------------------------------------------------------


def test_a_file_is_hashed_again_only_when_size_or_time_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "w").write_text("one")
    os.utime(tmp_path / "m" / "w", (1, 1))
    cache = HashCache(tmp_path / ".hashes.json")
    first = cache.of(tmp_path / "m")
    assert first == sha256_path(tmp_path / "m")
    cache.save()

    def never(path: Path) -> str:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr("concisecli.store.sha256_file", never)
    assert HashCache(tmp_path / ".hashes.json").of(tmp_path / "m") == first
    monkeypatch.undo()
    (tmp_path / "m" / "w").write_text("two")
    assert HashCache(tmp_path / ".hashes.json").of(tmp_path / "m") == sha256_path(tmp_path / "m") != first


def test_a_file_written_a_moment_ago_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("one")
    cache = HashCache(tmp_path / ".hashes.json")
    cache.of(tmp_path / "w")
    assert cache.known == {}


def test_a_broken_cache_is_only_a_slow_one(tmp_path: Path) -> None:
    (tmp_path / ".hashes.json").write_text("{ broken")
    (tmp_path / "w").write_text("one")
    assert HashCache(tmp_path / ".hashes.json").of(tmp_path / "w") == sha256_path(tmp_path / "w")
