"""`concise schema`: editors accept what loads and mark what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from concisecli.config import KINDS
from concisecli.upkeep.schema import comments, schema

ROOT = Path(__file__).parent.parent
SMALL = """
run: t
engine: {max_num_seqs: 4, type: vllm}
stages:
  base: {uses: data, config: {recipe: tiny}}
  rl1: {uses: train, inputs: {model: {new: {layers: 1}}, problems: [base.problems]}, config: {steps: 3, loss: {eps_high: 0.28}}}
  rl2: {like: rl1}
"""


def faults(text: str) -> list[str]:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema())
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


def test_the_schema_is_one_itself() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("path", sorted((ROOT / "pipelines").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_pipeline_is_valid(path: Path) -> None:
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("run: t", "rnu: t"),
        ("uses: train", "uses: trian"),
        ("steps: 3", "stpes: 3"),
        ("steps: 3", "steps: many"),
        ("eps_high: 0.28", "eps_high: -1"),
        ("eps_high", "epsilon_heigh"),
        ("layers: 1", "layer: 1"),
        ("{like: rl1}", "{likes: rl1}"),
        ("max_num_seqs: 4", "max_num_seqs: 0"),
        ("{recipe: tiny}", "{steps: 3}"),
    ],
)
def test_a_slip_is_marked(old: str, new: str) -> None:
    assert faults(SMALL) == []
    assert old in SMALL
    assert faults(SMALL.replace(old, new)) != []


def test_every_field_of_every_kind_is_there_with_its_comment() -> None:
    made = schema()
    then = {rule["if"]["properties"]["uses"]["const"]: rule["then"] for rule in _stage(made)["allOf"]}
    for kind, cls in KINDS.items():
        properties = then[kind]["properties"]["config"]["anyOf"][1]["properties"]
        assert set(cls.model_fields) <= set(properties)
        for name, note in comments(cls).items():
            if note:
                assert properties[name]["description"] == note


def _stage(made: dict[str, Any]) -> dict[str, Any]:
    return made["properties"]["stages"]["additionalProperties"]["anyOf"][1]


def test_the_command_prints_one_line_or_writes_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "concisecli", "schema"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.count("\n") == 1
    subprocess.run([*command, "--out", str(tmp_path / "s.json")], capture_output=True, env=env, check=True)
    assert json.loads(done.stdout) == json.loads((tmp_path / "s.json").read_bytes()) == schema()
