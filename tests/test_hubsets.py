"""Data sets of the hub, read out of a cache laid out as the hub's client lays it out: no network, no stand-in."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from concisecli.building import hubsets, places, recipes, sources
from concisecli.config import DataConfig, HubSource
from concisecli.records import ConciseError

OLD, NEW, SUITE = "a" * 40, "b" * 40, "c" * 40
CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: train.jsonl}\n---\n"


def put(home, name, commit, files, ref="main"):
    """A data set in the hub's cache, `ref` pointing at the commit."""
    root = home / "hub" / f"datasets--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).write_text(commit)
    folder = root / "snapshots" / commit
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return folder


def lines(count):
    return "".join(json.dumps({"problem": f"What is ${i}+{i}$?", "answer": str(2 * i)}) + "\n" for i in range(count))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hf"


def test_a_name_stands_for_the_commit_of_the_cache_where_there_is_no_network(home):
    put(home, "org/sums", OLD, {"README.md": CARD, "train.jsonl": lines(5)})
    put(home, "org/sums", NEW, {"README.md": CARD, "train.jsonl": lines(9)}, ref="v2")
    assert hubsets.commit_of("s", HubSource(name="org/sums")) == OLD
    assert hubsets.commit_of("s", HubSource(name="org/sums", revision="v2")) == NEW
    assert hubsets.commit_of("s", HubSource(name="org/unheard-of", revision=SUITE)) == SUITE


def test_the_rows_are_those_of_the_commit_and_of_the_split_that_the_card_names(home):
    put(home, "org/sums", OLD, {"README.md": CARD, "train.jsonl": lines(5), "test.jsonl": lines(2)})
    put(home, "org/sums", NEW, {"README.md": CARD, "train.jsonl": lines(9)})
    for commit, count in ((OLD, 5), (NEW, 9), (None, 9)):
        rows = list(sources.read("s", HubSource(name="org/sums", revision=commit)))
        assert [row.place for row in rows] == [f"row {i}" for i in range(1, count + 1)]
    with pytest.raises(ConciseError, match=r"source 's': .*org/sums.*cannot be read \(.*test.*sources\.s\.path"):
        list(sources.read("s", HubSource(name="org/sums", split="test")))


def test_a_local_folder_as_the_hub_has_it_is_read_like_the_hub(home):
    folder = put(home, "org/sums", OLD, {"README.md": CARD, "train.jsonl": lines(5), "test.jsonl": lines(2)})
    assert len(list(sources.read("s", HubSource(name="org/other", path=folder)))) == 5


def test_what_cannot_be_had_says_so_in_one_line_with_the_ways_out(home):
    with pytest.raises(ConciseError) as caught:
        hubsets.commit_of("dapo", HubSource(name="nobody/no-such-set"))
    message = str(caught.value)
    for text in ("source 'dapo'", "nobody/no-such-set", "nobody has looked up", "sources.dapo.path", "local: MAP.yaml"):
        assert text in message
    assert "\n" not in message


def recipe(**said):
    given = {"sources": {"sums": {"type": "hub", "name": "org/sums"}}, "decontaminate": {"against": ["aime24"]}}
    return DataConfig.model_validate(given | said)


def test_sources_and_suites_are_pinned_and_what_is_known_is_not_asked_again(home):
    put(home, "org/sums", OLD, {"train.jsonl": lines(5)})
    put(home, "HuggingFaceH4/aime_2024", SUITE, {"data.jsonl": lines(1)})
    pinned = recipes.pinned(recipe())
    assert pinned.commits == {"hf:datasets/org/sums": OLD, "hf:datasets/HuggingFaceH4/aime_2024": SUITE}
    assert places.row_sources(pinned)["sums"].revision == OLD
    assert places.suite_sources(pinned)["aime24"][0].revision == SUITE
    put(home, "org/sums", NEW, {"train.jsonl": lines(6)})
    assert recipes.pinned(pinned) is pinned


def test_a_column_that_is_missing_is_told_before_the_hub_is_asked_for_anything(home, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "Q", "label": "1"}\n')
    own = {"mine": {"type": "file", "path": str(tmp_path / "rows.jsonl")}}
    with pytest.raises(ConciseError, match=r"source 'mine': no column for problem; found label, text"):
        recipes.pinned(recipe(sources=own))


@pytest.mark.slow
def test_the_first_run_pins_the_commits_and_the_key_holds_them(tmp_path):
    home = tmp_path / "hf"
    put(home, "org/sums", OLD, {"train.jsonl": lines(5)})
    put(home, "HuggingFaceH4/aime_2024", SUITE, {"data.jsonl": lines(1)})
    (tmp_path / "r.yaml").write_text(
        "sources: {sums: {type: hub, name: org/sums}}\ndecontaminate: {against: [aime24]}\n"
    )

    def concise(*words):
        environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "concisecli", "data", "build", "r.yaml", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert "hf:datasets/org/sums has not been fetched yet" in concise("--dry-run")
    assert not (tmp_path / "runs").exists()
    assert "kept 4" in concise()
    (lock,) = tmp_path.glob("runs/*/lock.yaml")
    commits = {"hf:datasets/org/sums": OLD, "hf:datasets/HuggingFaceH4/aime_2024": SUITE}
    assert yaml.safe_load(lock.read_text()) == commits
    (path,) = tmp_path.glob("runs/*/*/manifest.json")
    manifest = json.loads(path.read_text())
    assert manifest["files"] == {"sums": f"org/sums@{OLD}", "suite aime24": f"HuggingFaceH4/aime_2024@{SUITE}"}
    assert manifest["metrics"]["revisions"] == {"sums": OLD, "suite aime24": SUITE}
    put(home, "org/sums", NEW, {"train.jsonl": lines(6)})
    assert "skip: same settings and inputs" in concise("--dry-run")
    lock.write_text(yaml.safe_dump(commits | {"hf:datasets/org/sums": NEW}))
    assert "file sums is another" in concise("--dry-run")
