"""`data build` as a whole: reasons, card, exports, the same bytes whatever happens on the way."""

import json
import os
from pathlib import Path

import pytest

from concisecli import artifacts
from concisecli.building import places, recipes, showing, tables
from concisecli.config import DataConfig
from concisecli.records import ConciseError, StageRun
from concisecli.stages import data

SHARED = Path(__file__).parents[2] / "shared" / "data"

ROWS = [
    {"problem": "Find $\x0crac{1}{2}+\\frac12$.", "answer": "1", "solution": "so \\boxed{1}"},  # kept, repaired
    {"problem": "Find \\( \\dfrac12 + \\frac{1}{2} \\)", "answer": 1, "solution": ""},  # the same problem
    {"problem": "Prove that $\\sqrt 2$ is irrational.", "answer": "irrational"},
    {"problem": "Find the value of $x$ such that", "answer": "3"},
    {"problem": "How many primes are below 10?", "answer": "4", "solution": "they are 2, 3, 5, 7: \\boxed{5}"},
    {"problem": "How many primes are below 20?", "answer": None},
    {"problem": "How many primes are below 30?", "answer": "\\frac{1"},
    {"problem": "Which of the following is prime?", "answer": "B"},
    {"problem": "What is $7 \\cdot 6$?", "answer": 42.0},  # kept, unverified
    {"problem": "What is $7\\cdot 6$ ?", "answer": "41"},  # conflict
    {"problem": "", "answer": "1"},
    {
        "problem": "A train covers 120 km in 2 hours. What is its speed in km per hour?",
        "answer": "60",
        "level": "Level 3",
    },
    {"problem": "A train covers 120 km in two hours. Find its speed in km per hour.", "answer": "60"},  # near
    {"problem": "What is $\\log_2 37 + \\log_4 9$?", "answer": "x"},  # in the suite
]
SUITE = [{"problem": "Compute $\\log_{2}37+\\log_{4}9$.", "answer": "7", "id": "q1"}]
SUITES = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")


@pytest.fixture
def made(tmp_path):
    artifacts.write_jsonl(tmp_path / "rows.jsonl", ROWS)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"problem": "cut\n')
    artifacts.write_jsonl(tmp_path / "suite.jsonl", SUITE)
    (tmp_path / "local.yaml").write_text("".join(f"{name}: suite.jsonl\n" for name in SUITES))
    return tmp_path


def config(folder, **changes):
    source = {"type": "file", "path": str(folder / "rows.jsonl"), "licence": "MIT", "note": "made by hand"}
    said = {"sources": {"hand": source}, "local": str(folder / "local.yaml"), "grader": {"workers": 1}}
    return DataConfig.model_validate(said | changes)


def build(folder, name, settings):
    run = StageRun("made", folder / name, settings, {})
    run.folder.mkdir(exist_ok=True)
    return run.folder, data.run(run)


def dropped(folder):
    return {row["place"]: row["reason"] for row in tables.read_dropped(folder / "dropped.jsonl.zst")}


EXPECTED = {
    "line 2": "duplicate",
    "line 3": "proof",
    "line 4": "incomplete",
    "line 5": "answer-mismatch",
    "line 6": "no-answer",
    "line 7": "unparseable-answer",
    "line 8": "choice-without-choices",
    "line 9": "conflict",
    "line 10": "conflict",
    "line 11": "no-problem",
    "line 13": "near-duplicate",
    "line 14": "contaminated",
    "line 15": "bad-row",
}


def test_every_row_is_kept_or_has_a_reason(made):
    folder, result = build(made, "out", config(made))
    problems = artifacts.read_problems(folder / "problems.parquet")
    assert [p.prompt for p in problems] == ["Find $\\frac{1}{2}+\\frac12$.", ROWS[11]["problem"]]
    assert [p.answer for p in problems] == ["1", "60"]
    assert problems[1].level == 3.0
    assert problems[0].extra["flags"] == ["verified"]
    assert dropped(folder) == EXPECTED
    assert result.rows == {"problems": 2, "dropped": 13}
    assert result.metrics["read"] == 15
    assert not (folder / "parts").exists()


def test_the_card_names_sources_reasons_overlaps_and_hashes(made):
    folder, _ = build(made, "out", config(made))
    card = (folder / "data_card.md").read_text()
    for text in ("| hand | rows | 15 | 2 | MIT | rows.jsonl sha256", "| contaminated | 1 |", "hand: made by hand",
                 "aime24 q1", "answers 42 | 41", "Conflicting answers", "1 of 2"):  # fmt: skip
        assert text in card, text
    assert str(made) not in card


def test_the_same_bytes_whatever_the_shards_and_however_often_it_was_stopped(made, monkeypatch):
    first, _ = build(made, "first", config(made))
    small, _ = build(made, "small", config(made, shard_rows=3))
    stopped = made / "stopped"
    with monkeypatch.context() as patched:
        calls = []

        def stop(self, *args):
            calls.append(1)
            if len(calls) == 9:
                raise KeyboardInterrupt
            return real(self, *args)

        real = recipes.RowWork.work
        patched.setattr(recipes.RowWork, "work", stop)
        with pytest.raises(KeyboardInterrupt):
            build(made, "stopped", config(made, shard_rows=3))
    assert sorted(p.name for p in stopped.iterdir()) == ["parts"]
    assert not list(stopped.rglob("*.partial"))
    build(made, "stopped", config(made, shard_rows=3))
    names = ("problems.parquet", "dropped.jsonl.zst", "data_card.md", "overlaps.jsonl")
    for name in names:
        assert (first / name).read_bytes() == (small / name).read_bytes() == (stopped / name).read_bytes(), name


def test_a_file_that_repeats_its_rows_shares_their_fate(made):
    lines = (made / "rows.jsonl").read_text().splitlines(keepends=True)
    (made / "rows.jsonl").write_text("".join(lines[:-1]) * 3)
    first, result = build(made, "first", config(made))
    small, _ = build(made, "small", config(made, shard_rows=5))
    assert result.rows == {"problems": 2, "dropped": 40}
    gone = dropped(first)
    for number in range(15, 43):
        original = EXPECTED.get(f"line {(number - 1) % 14 + 1}", "duplicate")
        expected = "duplicate" if original in ("conflict", "near-duplicate") else original
        assert gone[f"line {number}"] == expected, number
    for name in ("problems.parquet", "dropped.jsonl.zst", "data_card.md"):
        assert (first / name).read_bytes() == (small / name).read_bytes(), name


def test_a_bad_line_can_stop_the_build(made):
    with pytest.raises(ConciseError, match=r"rows\.jsonl: line 15 is not valid JSON"):
        build(made, "out", config(made, on_bad_row="stop"))


def test_a_suite_that_cannot_be_read_says_how_to_go_on(made):
    with pytest.raises(ConciseError, match=r"aime24.*local: MAP\.yaml.*decontaminate\.against"):
        build(made, "out", config(made, local=None))
    folder, _ = build(made, "off", config(made, local=None, decontaminate=None))
    assert "Not checked" in (folder / "data_card.md").read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_clear_line(made):
    (made / "out").mkdir(mode=0o500)
    with pytest.raises(ConciseError, match="no right to write"):
        build(made, "out", config(made))


def test_a_path_through_a_file_is_one_clear_line(made):
    (made / "file").write_text("")
    run = StageRun("made", made / "file" / "out", config(made), {})
    with pytest.raises(ConciseError, match="part of the path is a file"):
        data.run(run)


def test_other_tools_schemas_are_written_beside_ours(made):
    import pyarrow.parquet as pq
    from datasets import load_dataset

    folder, result = build(made, "out", config(made, to=["verl", "trl", "conciser"]))
    verl = pq.read_table(folder / result.outputs["verl"]).to_pylist()
    assert verl[1]["reward_model"] == {"style": "rule", "ground_truth": "60"}
    assert verl[1]["prompt"] == [{"role": "user", "content": ROWS[11]["problem"]}]
    lines = [json.loads(line) for line in (folder / result.outputs["conciser"]).read_text().splitlines()]
    assert lines[0] == {"query": "Find $\\frac{1}{2}+\\frac12$.", "ans_box": "1", "critic_method": "hand"}
    loaded = load_dataset(
        "parquet", data_files=str(folder / "problems.parquet"), split="train", cache_dir=str(made / "c")
    )
    assert loaded.column_names == ["id", "prompt", "answer", "source", "level", "extra"]
    again = DataConfig.model_validate(
        {"sources": {"hand": {"type": "file", "path": str(folder / result.outputs["conciser"])}}, "decontaminate": None,
         "grader": {"workers": 1}}
    )  # fmt: skip
    back, _ = build(made, "back", again)
    ids = [p.id for p in artifacts.read_problems(back / "problems.parquet")]
    assert ids == [p.id for p in artifacts.read_problems(folder / "problems.parquet")]


def test_a_reference_source_lends_difficulty_and_solutions_and_adds_no_rows(made):
    artifacts.write_jsonl(
        made / "rated.jsonl",
        [
            {"problem": ROWS[11]["problem"], "answer": "60", "difficulty": 3.0, "solution": "120/2 = \\boxed{60}"},
            {"problem": ROWS[0]["problem"], "answer": "1", "difficulty": 1.0},
            {"problem": "How many primes are below 100?", "answer": "25", "difficulty": 9.0},
        ],
    )
    rated = {"type": "file", "role": "reference", "path": str(made / "rated.jsonl")}
    settings = config(made, select={"min_difficulty": 2.5}, agreement={"without_solution": "join"})
    settings = DataConfig.model_validate(
        settings.model_dump(mode="json") | {"sources": settings.model_dump(mode="json")["sources"] | {"rated": rated}}
    )
    folder, _ = build(made, "out", settings)
    (problem,) = artifacts.read_problems(folder / "problems.parquet")
    assert problem.extra["difficulty"] == 3.0
    assert problem.extra["flags"] == ["solution from rated", "verified"]
    missing = {
        "sources": {"rated": rated | {"role": "rows", "path": str(made / "nowhere.json")}},
        "decontaminate": None,
    }
    with pytest.raises(ConciseError, match=r"nowhere\.json does not exist.*sources\.rated\.path"):
        build(made, "none", DataConfig.model_validate(missing))


def test_sources_are_mixed_by_weight_and_drawn_with_the_seed(made):
    for name in ("a", "b"):
        rows = [{"problem": f"What is ${n}+{name}$?", "answer": str(n)} for n in range(40)]
        artifacts.write_jsonl(made / f"{name}.jsonl", rows)

    def mixed(**changes):
        weights = {"a": 3, "b": 1}
        named = {n: {"type": "file", "path": str(made / f"{n}.jsonl"), "weight": w} for n, w in weights.items()}
        said = {"sources": named, "decontaminate": None, "grader": {"workers": 1}}
        folder, _ = build(made, f"out{len(list(made.iterdir()))}", DataConfig.model_validate(said | changes))
        return [(p.source, p.answer) for p in artifacts.read_problems(folder / "problems.parquet")]

    rows = mixed(limit=20)
    assert [source for source, _ in rows].count("a") == 15
    assert len(rows) == 20
    assert rows == mixed(limit=20)
    assert rows != mixed(limit=20, seed=1)
    assert [source for source, _ in mixed()].count("b") == 13


def test_synthetic_sources_need_no_suites_and_no_cleaning(tmp_path):
    chains = {"type": "chains", "count": 20}
    settings = DataConfig.model_validate({"sources": {"c": chains, "t": chains | {"rows": "traces"}}})
    folder, result = build(tmp_path, "out", settings)
    assert result.rows == {"problems": 20, "examples": 20}
    assert len({p.id for p in artifacts.read_problems(folder / "problems.parquet")}) == 20


def test_examples_keep_several_solutions_of_one_problem(made):
    rows = [
        {"messages": [{"role": "user", "content": "What is $1+1$?"}, {"role": "assistant", "content": text}]}
        for text in ("It is \\boxed{2}.", "Two: \\boxed{2}.", "It is \\boxed{2}.", "")
    ]
    artifacts.write_jsonl(made / "sft.jsonl", rows)
    said = {"sources": {"sft": {"type": "file", "path": str(made / "sft.jsonl"), "rows": "examples"}},
            "decontaminate": None, "grader": {"workers": 1}}  # fmt: skip
    folder, _ = build(made, "out", DataConfig.model_validate(said))
    examples = artifacts.read_examples(folder / "examples.parquet")
    assert [e.response for e in examples] == ["It is \\boxed{2}.", "Two: \\boxed{2}."]
    assert dropped(folder) == {"line 3": "duplicate", "line 4": "no-response"}


def test_key_files_name_everything_local_that_decides_the_outcome(made):
    files = places.key_files(config(made))
    assert {name for name in files if name.startswith("suite")} == {f"suite {name}" for name in SUITES}
    assert files["hand"] == made / "rows.jsonl"


def test_every_recipe_that_ships_can_be_read():
    from concisecli.loading import packaged_folder

    names = sorted(path.stem for path in packaged_folder("data_recipes").glob("*.yaml"))
    for wanted in (
        "conciser_59k",
        "math_l3_5",
        "lead_sft",
        "lead_stage1",
        "light_r1_hard",
        "validation27",
        "gsm8k",
        "tiny",
    ):
        assert wanted in names
    for name in names:
        checked = places.packaged_recipe(name)
        for source in checked.sources.values():
            assert getattr(source, "type", "") == "chains" or source.note, name


def test_show_gives_rows_reasons_and_marked_tokens(made, tiny_model):
    from concisecli.config import PromptConfig
    from concisecli.policy import load_tokenizer

    folder, _ = build(made, "out", config(made))
    assert showing.dropped_counts(folder)["conflict"] == 2
    assert [row["place"] for row in showing.dropped(folder, "proof")] == ["line 3"]
    (row,) = showing.rows(folder, limit=1, containing="train")
    raw = PromptConfig(template="raw", chat=False)
    tokens = showing.tokens(row, load_tokenizer(tiny_model), raw)
    assert "".join(t.text for t in tokens) == ROWS[11]["problem"]
    example = {"problem_id": "p", "prompt": "1+1=", "response": "2", "loss_spans": None}
    assert showing.marked(showing.tokens(example, load_tokenizer(tiny_model), raw)).startswith("1+1=[2][")


# --- the published files ----------------------------------------------------------------------------------------------

needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")


def shared_recipe(tmp_path, name, **changes):
    local = {suite: SHARED / "eval" / f"{suite}.jsonl" for suite in (*SUITES, "validation27")}
    raw = SHARED / "raw"
    local |= {"math_train": raw / "math_train_l3to5.jsonl", "math_test": raw / "math_test_minus500_l3to5.jsonl",
              "deepscaler": raw / "deepscaler_preview_3000.jsonl", "dapo": raw / "dapo_math_17k.parquet",
              "gsm8k": SHARED / "eval" / "gsm8k_test_200.jsonl"}  # fmt: skip
    (tmp_path / "local.yaml").write_text("".join(f"{k}: {v.resolve()}\n" for k, v in local.items()))
    said = places.packaged_recipe(name).model_dump(mode="json", exclude_unset=True)
    return DataConfig.model_validate(said | {"local": str(tmp_path / "local.yaml")} | changes)


@needs_shared
def test_published_dapo_collapses_to_its_distinct_problems(tmp_path):
    source = {"type": "file", "path": str(SHARED / "raw" / "dapo_published_schema_200x3.jsonl")}
    settings = shared_recipe(
        tmp_path, "conciser_59k", sources={"dapo": source}, dedup={"prefer": []}, decontaminate=None
    )
    folder, _ = build(tmp_path, "out", settings)
    texts = {row["prompt"][0]["content"] for row in artifacts.iter_jsonl(Path(source["path"]))}
    problems = artifacts.read_problems(folder / "problems.parquet")
    assert len({p.id for p in problems}) == len(problems) <= len(texts) == 199
    assert len(problems) + sum(1 for reason in dropped(folder).values() if reason != "duplicate") >= 190
    assert "Rows for each different problem: dapo 3." in (folder / "data_card.md").read_text()


@needs_shared
@pytest.mark.parametrize("suite", [*SUITES, "validation27", "gsm8k"])
def test_evaluation_sets_come_through_whole(tmp_path, suite):
    settings = shared_recipe(tmp_path, suite)
    if suite == "validation27":
        source = {"type": "file", "path": str(SHARED / "eval" / "validation27.jsonl")}
        settings = shared_recipe(tmp_path, suite, sources={suite: source})
    folder, result = build(tmp_path, "out", settings)
    rows = sum(1 for _ in (SHARED / "eval" / f"{suite}.jsonl".replace("gsm8k", "gsm8k_test_200")).open())
    repeats = sum(reason == "duplicate" for reason in dropped(folder).values())
    assert result.rows["problems"] + repeats == rows
    assert repeats <= 1
    if suite == "validation27":
        assert "aime24: 10 rows, 10 of its problems" in (folder / "data_card.md").read_text()


@needs_shared
@pytest.mark.slow
def test_aime24_in_dapos_schema_leaves_nothing_to_train_on(tmp_path):
    source = {"type": "file", "path": str(SHARED / "raw" / "dapo_aime-2024_x32.parquet")}
    settings = shared_recipe(tmp_path, "conciser_59k", sources={"dapo": source}, dedup={"prefer": []})
    folder, result = build(tmp_path, "out", settings)
    assert result.rows == {"problems": 0, "dropped": 960}
    assert set(dropped(folder).values()) == {"contaminated"}


@needs_shared
@pytest.mark.slow
def test_math_levels_3_to_5_keep_995_of_1000(tmp_path):
    _, result = build(tmp_path, "out", shared_recipe(tmp_path, "math_l3_5"))
    agreement = (
        "no-answer",
        "answer-mismatch",
        "unparseable-answer",
        "no-box",
        "several-boxes",
        "solution-cut",
        "proof",
    )
    lost = sum(result.metrics["dropped"].get(reason, 0) for reason in agreement)
    assert lost <= 0.005 * result.metrics["read"]
    assert result.rows["problems"] >= 7850


@needs_shared
@pytest.mark.slow
def test_the_conciser_mixture_lists_conflicts_and_keeps_verified_copies(tmp_path):
    folder, result = build(tmp_path, "out", shared_recipe(tmp_path, "conciser_59k"))
    gone = result.metrics["dropped"]
    assert gone["conflict"] >= 20
    assert gone["contaminated"] >= 100
    assert 20_000 < result.rows["problems"] < 22_500
    assert "15 | 25" in (folder / "data_card.md").read_text()


def test_dropped_rows_of_a_build_that_did_not_finish_are_not_called_synthetic(tmp_path):
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(ConciseError, match="no finished build"):
        showing.dropped(tmp_path / "unfinished")
    with pytest.raises(ConciseError, match="there is no"):
        showing.dropped(tmp_path / "nowhere")
