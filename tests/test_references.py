"""Inputs from outside: a folder hashes by what decides what the model says, a hub model by its commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from concisecli.artifacts import write_text
from concisecli.config import NewModel, NewModelConfig
from concisecli.records import ConciseError
from concisecli.references import LOCK_FILE, bring, hub_name, look_up
from concisecli.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs" / "t")


def model(folder: Path) -> Path:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        write_text(folder / name, name)
    write_text(folder / "model-00001-of-00001.safetensors", "weights")
    return folder


def digest(folder: Path, store: Store) -> str | None:
    return look_up(str(folder), store).digest


def test_a_model_folder_hashes_by_what_decides_what_it_says(tmp_path: Path, store: Store) -> None:
    folder = model(tmp_path / "m")
    before = digest(folder, store)
    write_text(folder / "README.md", "a card")
    write_text(folder / "optimizer.pt", "state")
    assert digest(folder, store) == before
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model-00001-of-00001.safetensors"):
        write_text(folder / name, name + "!")
        after = digest(folder, store)
        assert after != before, name
        before = after
    write_text(folder / "generation_config.json", "{}")
    assert digest(folder, store) != before


def test_a_model_without_safetensors_says_what_to_do(tmp_path: Path, store: Store) -> None:
    write_text(tmp_path / "m" / "config.json", "{}")
    write_text(tmp_path / "m" / "pytorch_model.bin", "x")
    with pytest.raises(ConciseError, match=r"holds no \.safetensors file; save the model once with save_pretrained"):
        digest(tmp_path / "m", store)


def test_a_file_hashes_by_its_bytes(tmp_path: Path, store: Store) -> None:
    write_text(tmp_path / "p.parquet", "one")
    before = digest(tmp_path / "p.parquet", store)
    write_text(tmp_path / "p.parquet", "two")
    assert digest(tmp_path / "p.parquet", store) != before
    with pytest.raises(ConciseError, match="there is no file or folder"):
        look_up(str(tmp_path / "none"), store)


def test_a_hub_model_is_known_by_its_pinned_commit_without_the_network(store: Store) -> None:
    assert hub_name("hf:org/name@rev") == ("hf:org/name", "rev")
    assert look_up("hf:org/name", store).digest is None
    write_text(store.root / LOCK_FILE, "hf:org/name: abc123\n")
    found = look_up("hf:org/name", store)
    assert (found.digest, found.label) == ("abc123", "hf:org/name@abc123")
    write_text(store.root / LOCK_FILE, "{")
    with pytest.raises(ConciseError, match="cannot read"):
        look_up("hf:org/name", store)


def test_a_hub_model_out_of_reach_is_one_line(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConciseError, match="cannot fetch hf:no-such-org/no-such-model") as caught:
        bring("hf:no-such-org/no-such-model", store)
    assert "\n" not in str(caught.value)
    assert "give a local folder" in str(caught.value)


def test_a_new_model_is_keyed_by_its_settings_and_seed_and_made_once(store: Store) -> None:
    small = NewModelConfig(hidden_size=16, layers=1, heads=1, intermediate_size=16, max_positions=64, seed=0)
    before = look_up(NewModel(new=small), store)
    assert before.path is None
    assert not store.root.exists()
    made = bring(NewModel(new=small), store)
    assert made.path is not None
    assert made.digest == before.digest
    stamp = (made.path / "model.safetensors").stat().st_mtime_ns
    assert bring(NewModel(new=small), store) == made
    assert (made.path / "model.safetensors").stat().st_mtime_ns == stamp
    other = look_up(NewModel(new=small.model_copy(update={"seed": 1})), store)
    assert other.digest != made.digest
    assert not list(store.root.glob("*.partial"))
