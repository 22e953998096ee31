"""YAML to a checked pipeline: precedence, inheritance, includes, and one line with file and line for each fault."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from concisecli.config import KINDS, NewModel, Pipeline
from concisecli.did_you_mean import tree
from concisecli.loading import find_pipeline, load_pipeline, load_pipeline_with_origins, packaged, pipeline_of
from concisecli.marked import parse, read_yaml
from concisecli.records import UsageError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "p.yaml") -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write_file


SMALL = """\
run: t
stages:
  d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
  rl1:
    uses: train
    inputs: {model: ./base, problems: d.problems}
    config:
      stage: 1
      steps: 3
      reward: {alpha: 0.1}
"""


def faults(write: Write, text: str, sets: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(UsageError) as caught:
        load_pipeline(write(text), sets)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("-2", -2),
        ("+3.", 3.0),
        ("1_000", 1000),
        ("0010", 10),
        ("off", "off"),
        ("no", "no"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ('"1e-6"', "1e-6"),
        ("1e-6x", "1e-6x"),
        ("e5", "e5"),
        ("-", None),
    ],
)
def test_scalars_are_read_as_a_reader_takes_them(text: str, value: Any) -> None:
    if text == "-":  # a lone dash is a list with an empty entry, as in every YAML
        assert [child.value for child in parse(text, "x", Path()).value] == [None]
    else:
        found = parse(text, "x", Path()).value
        assert (found, type(found)) == (value, type(value))


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_every_float_comes_back_as_python_prints_it(value: float) -> None:
    assert parse(repr(value), "x", Path()).value == value


def test_a_learning_rate_without_a_dot_is_a_number(write: Write) -> None:
    text = SMALL.replace("steps: 3", "steps: 3\n      lr: 1e-6")
    assert load_pipeline(write(text)).stages["rl1"].config.lr == 1e-6


def test_the_word_off_needs_no_quotes(write: Write) -> None:
    text = SMALL.replace("{alpha: 0.1}", "{length: off}")
    assert load_pipeline(write(text)).stages["rl1"].config.reward.length == "off"


def test_merge_keys_and_anchors_work_and_the_own_key_wins(write: Write) -> None:
    path = write(
        SMALL.replace("config:\n", "config: &rl\n")
        + "  rl2:\n    uses: train\n    inputs: {model: rl1.model, problems: d.problems}\n"
        + "    config:\n      <<: *rl\n      stage: 2\n"
    )
    pipeline, origins = load_pipeline_with_origins(path)
    second = pipeline.stages["rl2"].config
    assert (second.stage, second.steps, second.reward.alpha) == (2, 3, 0.1)
    assert origins["rl2.stage"] == "p.yaml:16"
    assert origins["rl2.steps"] == "p.yaml:9"


# --- precedence -------------------------------------------------------------------------------------------------------


def test_flag_beats_file_beats_default(write: Write) -> None:
    path = write(SMALL)
    assert load_pipeline(path).stages["rl1"].config.reward.alpha == 0.1
    assert load_pipeline(path, ["rl1.reward.alpha=0.2"]).stages["rl1"].config.reward.alpha == 0.2
    assert load_pipeline(path).stages["rl1"].config.reward.wrong == 0.0


CANDIDATES: list[Any] = [1, 2, 3, 0.25, "x", [1, 2], [0.5, 0.25], ["x"], True, False, None, 512]


def other_value(kind: str, path: tuple[str, ...], default: Any, base: dict[str, Any]) -> Any:
    """A valid value of the field that is not its default, by trial."""
    cls: Any = KINDS[kind]
    field: Any = None
    for name in path:
        field = cls.model_fields[name]
        cls = next(
            iter([c for c in (field.annotation, *get_args(field.annotation)) if hasattr(c, "model_fields")]), None
        )
    literals = [v for v in get_args(field.annotation) if isinstance(v, str)]
    for value in [*literals, *CANDIDATES]:
        nested: Any = value
        for name in reversed(path):
            nested = {name: nested}
        try:
            made: Any = KINDS[kind].model_validate(base | nested)
        except ValidationError:
            continue
        for name in path:
            made = getattr(made, name)
        if made != default:
            return value
    return None


BASES: dict[str, dict[str, Any]] = {
    "sft": {"steps": 7},
    "train": {"steps": 7},
    "mine": {},
    "eval": {},
    "report": {},
    "data": {"sources": {"c": {"type": "chains", "count": 3}}},
}


def single_paths(kind: str) -> list[tuple[str, ...]]:
    """Fields that can be reached without choosing a type: those of the defaults."""
    default = KINDS[kind].model_validate(BASES[kind])
    found = []
    for path in tree(KINDS[kind]):
        value: Any = default
        for name in path:
            value = getattr(value, name, ...) if value is not ... else ...
        if value is not ... and not hasattr(value, "model_fields") and not isinstance(value, dict):
            found.append(path)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("kind", list(BASES))
def test_a_flag_wins_for_every_field_even_when_it_says_the_default(kind: str) -> None:
    tried = 0
    for path in single_paths(kind):
        default: Any = KINDS[kind].model_validate(BASES[kind])
        for name in path:
            default = getattr(default, name)
        other = other_value(kind, path, default, BASES[kind])
        if other is None or path[-1] in ("type", "kind") or path == ("recipe",):
            continue
        said: Any = other
        for name in reversed(path):
            said = {name: said}
        config = BASES[kind] | (said if len(path) == 1 or path[0] not in BASES[kind] else {})
        stages = {"s": {"uses": kind, "config": config, "inputs": {}}}
        value = yaml.safe_dump(default if not isinstance(default, tuple) else list(default), default_flow_style=True)
        flag = f"s.{'.'.join(path)}={value.removesuffix('...' + chr(10)).strip()}"
        pipeline, origins = pipeline_of({"run": "t", "stages": stages}, [flag])
        found: Any = pipeline.stages["s"].config
        for name in path:
            found = getattr(found, name)
        assert found == default, flag
        assert origins["s." + ".".join(path)] == f"--set {flag}"
        tried += 1
    assert tried >= min(4, len(single_paths(kind)))


def test_the_seed_of_the_pipeline_reaches_every_stage_that_pins_none(write: Write) -> None:
    path = write(SMALL.replace("run: t", "run: t\nseed: 5").replace("count: 3}}}", "count: 3}}, seed: 9}"))
    pipeline = load_pipeline(path)
    assert (pipeline.seed, pipeline.stages["rl1"].config.seed, pipeline.stages["d"].config.seed) == (5, 5, 9)
    flagged = load_pipeline(path, ["seed=6"])
    assert (flagged.seed, flagged.stages["rl1"].config.seed, flagged.stages["d"].config.seed) == (6, 6, 9)


def test_shared_settings_are_inherited_key_by_key_and_the_stage_wins(write: Write) -> None:
    text = SMALL.replace("run: t", "run: t\nprompt: {chat: false, system: hello}\nengine: {batch_rollouts: 8}")
    text = text.replace("steps: 3", "steps: 3\n      prompt: {system: other}")
    config = load_pipeline(write(text)).stages["rl1"].config
    assert (config.prompt.chat, config.prompt.system, config.engine.batch_rollouts) == (False, "other", 8)


def test_settings_of_two_engine_types_are_not_mixed(write: Write) -> None:
    text = SMALL.replace("run: t", "run: t\nengine: {type: vllm, max_num_seqs: 4}")
    text = text.replace("steps: 3", "steps: 3\n      engine: {type: transformers}")
    config = load_pipeline(write(text)).stages["rl1"].config
    assert config.engine.type == "transformers"


def test_a_new_model_takes_the_seed_of_the_pipeline(write: Write) -> None:
    text = SMALL.replace("run: t", "run: t\nseed: 4").replace("model: ./base", "model: {new: {layers: 1}}")
    model = load_pipeline(write(text)).stages["rl1"].inputs["model"]
    assert isinstance(model, NewModel)
    assert (model.new.layers, model.new.seed) == (1, 4)
    pinned = load_pipeline(write(text.replace("layers: 1", "layers: 1, seed: 2"))).stages["rl1"].inputs["model"]
    assert isinstance(pinned, NewModel)
    assert pinned.new.seed == 2


# --- origins ----------------------------------------------------------------------------------------------------------


def test_every_value_knows_where_it_was_said(write: Write) -> None:
    _, origins = load_pipeline_with_origins(write(SMALL), ["rl1.reward.wrong=-1", "seed=1"])
    assert origins["rl1.reward.alpha"] == "p.yaml:10"
    assert origins["rl1.reward.wrong"] == "--set rl1.reward.wrong=-1"
    assert origins["rl1.reward.correct"] == "default"
    assert origins["seed"] == origins["rl1.seed"] == "--set seed=1"
    assert origins["rl1.inputs.problems"] == "p.yaml:6"


def test_every_field_of_every_stage_has_an_origin(write: Write) -> None:
    pipeline, origins = load_pipeline_with_origins(write(SMALL))
    for name, spec in pipeline.stages.items():
        for field in type(spec.config).model_fields:
            assert any(key == f"{name}.{field}" or key.startswith(f"{name}.{field}.") for key in origins), field


# --- recipes ----------------------------------------------------------------------------------------------------------

RECIPE = "sources:\n  c: {type: chains, count: 5, top: 9}\nlimit: 4\n"


def test_what_stands_beside_a_recipe_wins_and_the_rest_is_kept(write: Write) -> None:
    write(RECIPE, "data_recipes/r.yaml")
    text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", "{recipe: r.yaml, sources: {c: {count: 7}}}")
    pipeline, origins = load_pipeline_with_origins(write(text), ["d.limit=2"])
    config = pipeline.stages["d"].config
    assert (config.sources["c"].count, config.sources["c"].top, config.limit) == (7, 9, 2)
    assert origins["d.sources.c.count"] == "p.yaml:3"
    assert origins["d.sources.c.top"] == "data_recipes/r.yaml:2"
    assert origins["d.limit"] == "--set d.limit=2"


def test_a_recipe_can_be_named_by_its_path_or_without_its_ending(write: Write) -> None:
    write(RECIPE, "data_recipes/r.yaml")
    for name in ("data_recipes/r.yaml", "r", "r.yaml"):
        text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", f"{{recipe: {name}}}")
        assert load_pipeline(write(text)).stages["d"].config.sources["c"].count == 5


def test_a_recipe_is_never_the_pipeline_itself(write: Write) -> None:
    write(RECIPE, "data_recipes/p.yaml")
    text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", "{recipe: p.yaml}")
    assert load_pipeline(write(text)).stages["d"].config.limit == 4


def test_a_fault_in_a_recipe_names_the_recipes_line(write: Write) -> None:
    write(RECIPE + "limt: 3\n", "data_recipes/r.yaml")
    text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", "{recipe: r.yaml}")
    assert faults(write, text) == ["data_recipes/r.yaml:4: d: unknown key 'limt'; did you mean 'limit'?"]


def test_a_missing_recipe_is_named_with_the_line_that_wants_it(write: Write) -> None:
    text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", "{recipe: nowhere.yaml}")
    assert "p.yaml:3: d.recipe: there is no recipe file nowhere.yaml" in faults(write, text)


def test_paths_are_relative_to_the_file_that_says_them(write: Write, tmp_path: Path) -> None:
    write("sources:\n  f: {type: file, path: rows.jsonl}\n", "sub/data_recipes/r.yaml")
    text = SMALL.replace("{sources: {c: {type: chains, count: 3}}}", "{recipe: r.yaml}")
    pipeline = load_pipeline(write(text, "sub/p.yaml"))
    assert pipeline.stages["d"].config.sources["f"].path == tmp_path / "sub/data_recipes/rows.jsonl"
    assert pipeline.stages["rl1"].inputs["model"] == str(tmp_path / "sub/base")
    flagged = load_pipeline(Path("sub/p.yaml"), ["d.sources.f.path=mine.jsonl"])
    assert flagged.stages["d"].config.sources["f"].path == tmp_path / "mine.jsonl"


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("alpha:", "alfa:", "p.yaml:10: rl1.reward: unknown key 'alfa'; did you mean 'alpha'?"),
        ("alpha:", "eps_high:", "p.yaml:10: rl1.reward: unknown key 'eps_high'; did you mean 'loss.eps_high'?"),
        ("stage: 1", "alpha: 1", "p.yaml:8: rl1: unknown key 'alpha'; did you mean 'reward.alpha'?"),
        ("stage: 1", "learning_rtae: 1", "p.yaml:8: rl1: unknown key 'learning_rtae'; did you mean 'lr'?"),
        (
            "stage: 1",
            "num_generation: 8",
            "p.yaml:8: rl1: unknown key 'num_generation'; did you mean 'sampling.group_size'?",
        ),
        ("stage: 1", "stage: one", "p.yaml:8: rl1.stage: should be a valid integer, unable to parse string as an"),
        ("0.1", "-1", "p.yaml:10: rl1.reward.alpha: should be greater than or equal to 0, not -1"),
        ("0.1", "true", "p.yaml:10: rl1.reward.alpha: should be a valid number"),
        ("0.1", ".nan", "p.yaml:10: .nan is not a finite number"),
        ("      steps: 3\n", "", "p.yaml:7: rl1.steps is missing"),
        ("uses: train", "uses: trian", "p.yaml:5: stage 'rl1': uses: there is no stage of kind 'trian'; did you mean"),
        ("    uses: train\n", "", "p.yaml:4: stage 'rl1': the key 'uses' is missing"),
        ("run: t", "rnu: t", "p.yaml:1: unknown key 'rnu'; did you mean 'run'?"),
        ("run: t", "run: t\nreward: {}", "p.yaml:2: unknown key 'reward'; it belongs into the config of a stage that"),
        ("run: t", "run: a/b", "'a/b' cannot be a folder name"),
        ("    inputs:", "    input:", "p.yaml:6: stage 'rl1': unknown key 'input'; did you mean 'inputs'?"),
        ("    inputs:", "    reward: {}\n    inputs:", "unknown key 'reward'; did you mean 'config.reward'?"),
        ("d.problems", "{of: d}", "p.yaml:6: rl1.inputs.problems: give STAGE.OUTPUT, a path"),
        ("./base", "{new: {layer: 2}}", "p.yaml:6: rl1.inputs.model.new: unknown key 'layer'; did you mean 'layers'?"),
        ("type: chains", "type: chain", "p.yaml:3: d.sources.c.type should be"),
        ("{alpha: 0.1}", "[1]", "p.yaml:10: rl1.reward:"),
    ],
)
def test_a_fault_is_one_line_with_file_line_field_and_advice(write: Write, old: str, new: str, message: str) -> None:
    assert old in SMALL
    found = faults(write, SMALL.replace(old, new, 1))
    assert any(message in line for line in found), found


def test_all_faults_are_told_at_once(write: Write) -> None:
    text = SMALL.replace("alpha", "alfa").replace("steps: 3", "steps: x").replace("count: 3", "cuont: 3")
    found = faults(write, text, ("rl1.loss.eps_hgih=1",))
    wanted = ("'alfa'", "rl1.steps", "'cuont'", "'eps_hgih'")
    assert [any(word in line for line in found) for word in wanted] == [True] * 4


def test_a_shared_value_that_is_wrong_is_told_once(write: Write) -> None:
    assert len(faults(write, SMALL.replace("run: t", "run: t\nseed: x"))) == 1


def test_a_key_said_twice_is_refused_with_both_lines(write: Write) -> None:
    found = faults(write, SMALL + "      steps: 4\n")
    assert found == ["p.yaml:11: the key 'steps' was said in line 9 already"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: [", "p.yaml:1: not readable as YAML"),
        ("run: t\n\tstages: 1", "p.yaml:2: not readable as YAML"),
        ("- 1\n", "a pipeline is a mapping"),
        ("", "a pipeline is a mapping"),
        ("run: t\n", "the key 'stages' is missing"),
        ("run: t\nstages: {}\n", "stages is a mapping"),
        ("run: t\nstages: {a: 3}\n", "stage 'a' is a mapping"),
        ("a: &x\n  b: *x\n", "an alias contains itself"),
        ("run: *x\n", "not readable as YAML"),
        ("run: t\n---\nrun: u\n", "not readable as YAML"),
        ("run: !!python/name:os.system t\n", "not readable as YAML"),
        ("run: !!int x\n", "p.yaml:1: not readable as YAML"),
        ("? [a]\n: b\n", "a key must be a word"),
    ],
)
def test_files_that_are_no_pipeline_get_one_line(write: Write, text: str, message: str) -> None:
    found = faults(write, text)
    assert any(message in line for line in found), found


def test_files_that_cannot_be_read_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run: \xe9\n")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_yaml(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("rl1.reward.alpha", "write it as --set STAGE.FIELD=VALUE"),
        ("=3", "write it as --set STAGE.FIELD=VALUE"),
        ("rl2.reward.alpha=1", "'rl2' is neither a stage nor a key of the pipeline; did you mean 'rl1'?"),
        ("rl1.reward.alpha.x=1", "there is no 'x' inside the value 0.1"),
        ("rl1.reward.alpha=[", "not readable as YAML"),
        ("rl1.reward.alhpa=1", "rl1.reward: unknown key 'alhpa'; did you mean 'alpha'?"),
        ("seed=x", "seed: should be a valid integer"),
    ],
)
def test_a_wrong_set_names_the_flag(write: Write, flag: str, message: str) -> None:
    found = faults(write, SMALL, (flag,))
    assert any(message in line and "--set" in line for line in found), found


def test_a_set_can_change_an_input(write: Write) -> None:
    pipeline = load_pipeline(write(SMALL), ["rl1.inputs.model=hf:org/name@abc"])
    assert pipeline.stages["rl1"].inputs["model"] == "hf:org/name@abc"


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_whatever_makes_the_reader_fail_otherwise(text: str) -> None:
    refused = ""
    try:
        parse(text, "x.yaml", Path())
    except UsageError as error:
        refused = str(error)
    assert not refused or refused.startswith("x.yaml")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_tree_whatever_makes_the_checks_fail_otherwise(value: Any) -> None:
    for holder in (
        {"run": value, "stages": value},
        {"run": "t", "stages": {"rl1": {"uses": "train", "config": value}}},
    ):
        with contextlib.suppress(UsageError):
            assert isinstance(pipeline_of(holder)[0], Pipeline)


# --- where the file is ------------------------------------------------------------------------------------------------


def test_the_pipeline_of_the_current_folder_is_the_default(write: Write) -> None:
    with pytest.raises(UsageError, match="concise init"):
        find_pipeline(None)
    write(SMALL, "concise.yaml")
    assert find_pipeline(None) == Path("concise.yaml")


def test_a_mistyped_pipeline_file_gets_the_nearest_one(write: Write) -> None:
    write(SMALL, "lead.yaml")
    with pytest.raises(UsageError, match=r"did you mean lead\.yaml\?"):
        find_pipeline(Path("laed.yaml"))


def test_shipped_files_are_found_by_name() -> None:
    assert packaged("pipelines", "tiny").name == packaged("pipelines", "tiny.yaml").name == "tiny.yaml"
    assert packaged("data_recipes", "tiny").is_file()
    with pytest.raises(UsageError, match="did you mean 'tiny'"):
        packaged("pipelines", "tinny")


def test_every_shipped_pipeline_loads() -> None:
    paths = sorted(packaged("pipelines", "tiny").parent.glob("*.yaml"))
    assert paths
    for path in paths:
        load_pipeline(path)


def test_the_shown_path_does_not_depend_on_how_it_was_given(write: Write) -> None:
    path = write(SMALL)
    for given_as in (path, Path(os.path.abspath(path))):
        assert load_pipeline_with_origins(given_as)[1]["rl1.steps"] == "p.yaml:9"
