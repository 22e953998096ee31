"""Where a recipe's rows come from: local copies, suites, references."""

import pytest

from concisecli import artifacts
from concisecli.building import places, recipes
from concisecli.config import DataConfig
from concisecli.loading import load_pipeline
from concisecli.records import ConciseError, UsageError

SUITES = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


def recipe(**said):
    return DataConfig.model_validate({"sources": {"a": {"type": "hub", "name": "org/a"}}} | said)


def test_a_local_map_puts_copies_in_the_place_of_hub_data_sets(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "local.yaml").write_text("a: ../a.jsonl\naime24: ../suite.jsonl\n")
    config = recipe(local=str(tmp_path / "maps" / "local.yaml"))
    assert places.row_sources(config)["a"].path == tmp_path / "a.jsonl"
    suites = places.suite_sources(config)
    assert suites["aime24"][0].path == tmp_path / "suite.jsonl"
    assert suites["amc23"][0].path is None
    with pytest.raises(ConciseError, match=r"source 'a': .*a\.jsonl does not exist.*sources\.a\.path"):
        places.key_files(config)
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert places.key_files(config) == {"a": tmp_path / "a.jsonl", "suite aime24": tmp_path / "suite.jsonl"}


def test_a_path_said_in_the_recipe_wins_over_the_map(tmp_path):
    (tmp_path / "local.yaml").write_text("a: there.jsonl\n")
    said = {"a": {"type": "hub", "name": "org/a", "path": str(tmp_path / "here.jsonl")}}
    config = recipe(sources=said, local=str(tmp_path / "local.yaml"))
    assert places.row_sources(config)["a"].path == tmp_path / "here.jsonl"


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1]\n", "a: {b: c\n"])
def test_a_map_that_is_none_is_one_clear_line(tmp_path, text):
    (tmp_path / "local.yaml").write_text(text)
    with pytest.raises(ConciseError, match=r"local\.yaml"):
        places.local_copies(recipe(local=str(tmp_path / "local.yaml")))
    with pytest.raises(ConciseError, match=r"nowhere\.yaml"):
        places.local_copies(recipe(local=str(tmp_path / "nowhere.yaml")))


def test_sources_are_worked_through_in_order_of_trust():
    named = {name: {"type": "hub", "name": f"org/{name}"} for name in ("a", "b", "c")}
    config = recipe(sources=named, dedup={"prefer": ["c", "a"]})
    assert list(places.row_sources(config)) == ["c", "a", "b"]
    with pytest.raises(ConciseError, match=r"dedup\.prefer names d"):
        places.row_sources(recipe(sources=named, dedup={"prefer": ["d"]}))


def test_the_six_suites_are_checked_by_default_and_only_for_real_rows():
    assert set(places.suite_sources(recipe())) == set(SUITES)
    assert places.suite_sources(recipe(decontaminate=None)) == {}
    assert places.suite_sources(recipe(sources={"c": {"type": "chains", "count": 5}})) == {}


def test_suites_are_read_mended_and_without_instructions(tmp_path):
    artifacts.write_jsonl(
        tmp_path / "suite.jsonl",
        [
            {"problem": "Find $\x0crac{1}{2}$. Let's think step by step.", "answer": 1, "id": "q7"},
            {"problem": " ", "answer": 2},
        ],
    )
    (tmp_path / "local.yaml").write_text("aime24: suite.jsonl\n")
    config = recipe(local=str(tmp_path / "local.yaml"), decontaminate={"against": ["aime24"]})
    (problem,) = recipes.load_suites(config)
    assert (problem.suite, problem.name, problem.text) == ("aime24", "q7", "Find $\\frac{1}{2}$.")


def test_an_unknown_suite_names_the_nearest():
    with pytest.raises(ConciseError, match="aime24"):
        places.suite_sources(recipe(decontaminate={"against": ["aime2024"]}))


def test_suites_with_a_file_of_their_own_are_found_beside_the_map(tmp_path):
    artifacts.write_jsonl(tmp_path / "v.jsonl", [{"problem": "Find $x$ if $x=2$.", "answer": 2}])
    (tmp_path / "local.yaml").write_text("validation27: v.jsonl\n")
    config = recipe(local=str(tmp_path / "local.yaml"), decontaminate={"against": ["validation27"]})
    assert [p.suite for p in recipes.load_suites(config)] == ["validation27"]


def test_a_source_without_a_type_is_told_the_types(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("run: r\nstages:\n  d: {uses: data, config: {sources: {a: {path: x.jsonl}}}}\n")
    with pytest.raises(UsageError, match=r"p\.yaml:3: .*sources\.a needs the key type: chains, file, hub"):
        load_pipeline(path)
