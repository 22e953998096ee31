"""The report of a run: what its tables hold, and that page and Markdown show just that."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concisecli import artifacts, wording
from concisecli.config import EvalConfig, ReportConfig
from concisecli.records import ConciseError, StageRun, UsageError
from concisecli.reports import attempts, before_after, cost, curves, lineage, markdown, over_seeds, page, scores
from concisecli.reports.lineage import flat
from concisecli.reports.reporting import Training
from concisecli.stages import report
from tests import toy_run


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> StageRun:
    stage = toy_run.write_run(tmp_path_factory.mktemp("runs") / "toy")
    result = report.run(stage)
    assert set(result.outputs) == {"report", "page", "tables"}
    assert all((stage.folder / path).is_file() for path in result.outputs.values())
    return stage


def tables_of(stage: StageRun) -> dict:
    return artifacts.read_json(stage.folder / "tables.json")


def gathered(stage: StageRun) -> dict:
    """The tables as they would be written, without any figure drawn."""
    return json.loads(json.dumps(report.gather(stage)[0]))


def of_runs(*runs: Path, every: bool = False) -> dict:
    return gathered(report.in_runs(runs, runs[0].parent / "out", ReportConfig(), every=every))


def page_of(tables: dict) -> str:
    """The page with its figures left empty."""
    return page.html(tables, {figure["name"]: "" for figure in tables["figures"]})


def test_the_headline_holds_the_scores_as_they_are(reported: StageRun) -> None:
    warm, cool = tables_of(reported)["headline"]
    assert (warm["label"], cool["label"]) == ("T=1.0", "T=0.6")
    assert [row["model"] for row in warm["rows"]] == ["sft", "rl1", "lgrpo"]
    for row, path in zip(warm["rows"], reported.inputs["scores"][:3], strict=True):
        overall = artifacts.read_json(path)["overall"]
        assert row["suites"]["chains"]["pass_at_1"] == overall["pass_at_1"]
        assert row["suites"]["chains"]["length"] == overall["length"]
    first, last = warm["rows"][0]["suites"]["chains"], warm["rows"][2]["suites"]["chains"]
    assert last["length_percent"] == pytest.approx(100 * (last["length"]["value"] / first["length"]["value"] - 1))


def test_each_suite_has_a_table_a_curve_and_a_comparison_of_its_own(tmp_path: Path) -> None:
    stage = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,), suites=("math500", "aime24"))
    tables = gathered(stage)
    (table,) = tables["headline"]
    assert table["suites"] == ["math500", "aime24"]
    assert all(row["suites"].keys() == {"math500", "aime24"} for row in table["rows"])
    names = {f["name"]: f["title"] for f in tables["figures"]}
    assert names["budget-s1"] == "Accuracy within a budget on math500"
    assert names["pareto-s2"] == "Accuracy against length on aime24"
    compared = [(d["suite"], d["after"]) for d in tables["differences"] if d["step"]]
    assert compared == [(suite, model) for model in ("rl1", "lgrpo") for suite in ("math500", "aime24")]
    html = page_of(tables)
    assert html.count("12 problems × 4 rollouts") == 2
    assert "288 rollouts of 3 models on 24 problems" in html


def test_models_are_compared_with_what_they_were_trained_from_and_with_the_first(reported: StageRun) -> None:
    pairs = [(d["before"], d["after"], d["step"]) for d in tables_of(reported)["differences"] if d["label"] == "T=1.0"]
    assert pairs == [("sft", "rl1", True), ("rl1", "lgrpo", True), ("sft", "lgrpo", False)]


def test_page_draws_every_series_of_the_tables(reported: StageRun) -> None:
    html = (reported.folder / "report.html").read_text()
    for figure in tables_of(reported)["figures"]:
        drawn = re.findall(rf'id="({re.escape(figure["name"])}-series-\d+)"', html)
        assert len(drawn) == len(figure["series"]) > 0, figure["name"]
        assert (reported.folder / "figures" / f"{figure['name']}.svg").is_file()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_every_figure_names_its_axes_with_units(reported: StageRun) -> None:
    for figure in tables_of(reported)["figures"]:
        assert figure["x_label"], figure["name"]
        assert figure["y_label"], figure["name"]
        if figure["kind"] != "sideways":
            assert re.search(r"\(.+\)|share|norm", figure["y_label"]), figure["y_label"]


def test_numbers_on_page_and_in_markdown_are_those_of_the_tables(reported: StageRun) -> None:
    html, markdown = ((reported.folder / name).read_text() for name in ("report.html", "report.md"))
    for table in tables_of(reported)["headline"]:
        for row in table["rows"]:
            cell = row["suites"]["chains"]
            assert f"<b>{wording.percent(cell['pass_at_1']['value'])}</b>" in html
            assert wording.tokens(cell["length"]["value"]) in html
            assert f"| {wording.percent(cell['pass_at_1']['value'])} |" in markdown


def test_the_page_loads_nothing(reported: StageRun) -> None:
    html = (reported.folder / "report.html").read_text()
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", html))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|iframe|object|embed)\b|@import|url\((?!#)", html)


def test_text_of_a_model_cannot_become_markup(tmp_path: Path) -> None:
    stage = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,), text="<script>alert(1)</script> | ``` x")
    tables = gathered(stage)
    html = page_of(tables)
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "````text" in markdown.render(tables)


def test_lineage_follows_hashes_to_the_makers_and_leaves_out_strangers(reported: StageRun) -> None:
    stages = [row["stage"] for row in tables_of(reported)["lineage"]]
    assert set(stages) == {"test", "sft", "rl1", "lgrpo", *(f"{m}_t{t}" for m in toy_run.MODELS for t in ("10", "06"))}
    assert stages.index("sft") < stages.index("rl1") < stages.index("lgrpo") < stages.index("lgrpo_t10")
    assert stages.index("test") < stages.index("sft_t10")
    (row,) = [row for row in tables_of(reported)["lineage"] if row["stage"] == "rl1"]
    assert row["inputs"] == [{"role": "model", "from": "sft.model", "sha256": toy_run.fake_hash("sft.model")[:12]}]
    assert row["config"] == {"lr": 1e-4, "seed": 0, "steps": 40}


def test_the_drawn_graph_puts_every_stage_behind_what_it_reads(reported: StageRun) -> None:
    rows = tables_of(reported)["lineage"]
    for row in rows:
        assert all(rows[i]["column"] < row["column"] for i in row["reads"])
    assert len({(row["column"], row["row"]) for row in rows}) == len(rows)
    at = {row["stage"]: row for row in rows}
    assert [at[name]["column"] for name in ("sft", "rl1", "lgrpo", "lgrpo_t10")] == [0, 1, 2, 3]
    assert (at["lgrpo_t10"]["model"], at["lgrpo"]["model"], at["test"]["model"]) == ("lgrpo", "lgrpo", None)


def test_steps_are_counted_along_the_line_of_descent(reported: StageRun) -> None:
    (figure,) = [f for f in tables_of(reported)["figures"] if f["name"] == "accuracy"]
    spans = {s["name"]: (s["x"][0], s["x"][-1]) for s in figure["series"]}
    assert spans == {"rl1": (1.0, 40.0), "lgrpo": (41.0, 80.0)}


def test_the_distribution_of_lengths_ends_at_all_rollouts(reported: StageRun) -> None:
    (figure,) = [f for f in tables_of(reported)["figures"] if f["name"] == "lengths-1"]
    for series in figure["series"]:
        assert series["y"] == sorted(series["y"])
        assert (series["y"][0], series["y"][-1]) == (0.0, 1.0)
    sft = artifacts.read_json(reported.inputs["scores"][0])
    lengths = [n for row in sft["problems"] for n in row["lengths"]]
    at = figure["series"][0]["x"].index(50.0)
    assert figure["series"][0]["y"][at] == pytest.approx(sum(n <= 50 for n in lengths) / len(lengths))


def test_cost_is_time_by_phase_and_tokens(reported: StageRun) -> None:
    found = tables_of(reported)["cost"]
    cost = {row["stage"]: row for row in found["rows"]}
    assert cost["rl1"]["seconds"] == {"generate": 20.0, "train": 10.0}
    log = list(artifacts.iter_jsonl(reported.inputs["metrics"][1]))
    assert cost["rl1"]["sampled_tokens"] == round(sum(32 * row["length"] for row in log))
    assert cost["rl1"]["trained_tokens"] == 40 * 500
    sft = artifacts.read_json(reported.inputs["scores"][0])
    tokens = sum(n for row in sft["problems"] for n in row["lengths"])
    assert cost["sft_t10"]["sampled_tokens"] == tokens
    assert cost["sft_t10"]["sampled_per_second"] == round(tokens / 4, 1)
    assert cost["sft_t10"]["total_seconds"] == 5.0
    assert found["total"]["seconds"] == {"generate": 84.0, "train": 30.0, "grade": 3.0}
    assert found["total"]["sampled_tokens"] == sum(row["sampled_tokens"] for row in found["rows"])


def test_hours_of_gpus_are_seconds_times_devices_and_gaps_between_attempts_are_nobodys() -> None:
    killed_and_resumed = [
        {"event": "begin", "time": 0.0},
        {"step": 0, "time": 900.0, "train": 800.0},
        {"event": "begin", "time": 5000.0},
        {"step": 1, "time": 5600.0, "train": 500.0},
        {"event": "end", "time": 5900.0},
    ]
    seeds = [cost.Spent("rl1", "train", killed_and_resumed, [{"tokens": 650.0}], gpus=4)] * 2
    found = cost.cost(
        [*seeds, cost.Spent("test", "data", [{"event": "begin", "time": 1.0}, {"event": "end", "time": 3.0}])]
    )
    rl1, test = found["rows"]
    assert (rl1["folders"], rl1["total_seconds"], rl1["seconds"]) == (2, 3600.0, {"train": 2600.0})
    assert rl1["gpu_hours"] == 4.0  # two seeds x 1,800 s x 4
    assert rl1["trained_per_second"] == 0.5
    assert (test["seconds"], test["gpu_hours"]) == ({"build": 2.0}, None)
    assert (found["total"]["total_seconds"], found["total"]["gpu_hours"]) == (3602.0, 4.0)


def test_the_mean_over_seeds_is_as_sure_as_problems_and_seeds_let_it_be() -> None:
    found = over_seeds.interval([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.6, 0.7, 0.8])
    between = 4.303 * 0.1 / np.sqrt(3)  # Student's t with two degrees of freedom
    assert found["value"] == pytest.approx(0.6)
    assert found["high"] - 0.6 == pytest.approx(np.hypot(0.1, between))
    assert 0.6 - found["low"] == pytest.approx(np.hypot(0.1, between))


def test_lines_of_the_lineage_pass_beside_the_boxes(reported: StageRun) -> None:
    rows = tables_of(reported)["lineage"]
    drawn = lineage.graph(rows)
    for path in drawn["paths"]:
        if (lane := re.fullmatch(r"M(\S+) (\S+)h\d+", path)) is None:
            continue
        x, y = float(lane[1]), float(lane[2])
        assert not [b for b in drawn["boxes"] if b[0] == x and b[1] <= y <= b[1] + drawn["box"][1]]
    assert any("h" in path for path in drawn["paths"])


def test_equal_runs_give_equal_reports(reported: StageRun, tmp_path: Path) -> None:
    again = gathered(toy_run.write_run(tmp_path / "toy"))
    assert again == tables_of(reported)
    assert page_of(again) == page_of(gathered(reported))
    assert markdown.render(again) == (reported.folder / "report.md").read_text()


@pytest.mark.parametrize("role", ["scores", "metrics"])
def test_one_kind_of_input_is_enough(role: str, tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    part = replace(whole, inputs={role: whole.inputs[role]}, sources={role: whole.sources[role]})
    if role == "metrics":
        part = replace(part, config=ReportConfig())
    tables = gathered(part)
    assert bool(tables["headline"]) == (role == "scores")
    assert tables["figures"]
    assert "<figure" in page_of(tables)


def test_one_problem_without_resamples_still_makes_a_page(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    for path in whole.inputs["scores"]:
        rows = [r for r in artifacts.read_parquet(path.parent / "completions.parquet") if r["problem_id"] == "p00"]
        config = EvalConfig(budgets=(40,), samples=4, temperature=1.0, bootstrap=0)
        found = scores.score(attempts.gather(rows, toy_run.PROBLEMS), config, grader={})
        artifacts.write_json(path, found)
    tables = gathered(whole)
    assert not any(d[m]["clear"] for d in tables["differences"] for m in ("pass_at_1", "length"))
    assert "Pass@1" in page_of(tables)


def test_files_from_outside_are_named_by_their_folders(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    outside = tmp_path / "elsewhere" / "mine" / "scores.json"
    artifacts.write_json(outside, artifacts.read_json(whole.inputs["scores"][0]))
    part = replace(whole, inputs={"scores": (outside,)}, sources={}, config=ReportConfig())
    tables = gathered(part)
    assert tables["headline"][0]["rows"][0]["model"] == "mine"
    assert tables["lineage"] == []


def test_what_cannot_be_reported_is_said(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    with pytest.raises(ConciseError, match="nothing to report"):
        report.run(replace(whole, inputs={}, sources={}))
    with pytest.raises(ConciseError, match="no evaluation named 'rl9' to show; there are: sft_t10, rl1_t10, lgrpo_t10"):
        report.run(replace(whole, config=ReportConfig(before="rl9", after="lgrpo_t10")))
    artifacts.write_json(whole.inputs["scores"][0], {"schema": 0})
    with pytest.raises(ConciseError, match=r"scores\.json is not a scores\.json of this version"):
        report.run(whole)


def test_spoilt_files_are_named_with_what_to_do(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    first = whole.inputs["scores"][0]
    found = artifacts.read_json(first)
    artifacts.write_json(first, found | {"problems": []})
    with pytest.raises(ConciseError, match=r"scores\.json holds no problem; delete its folder and run the eval stage"):
        report.gather(whole)
    artifacts.write_json(first, {"schema": found["schema"], "problems": found["problems"]})
    with pytest.raises(ConciseError, match=r"scores\.json has no settings, grader, overall, suites, by, words;"):
        report.gather(whole)
    first.write_text("")
    with pytest.raises(ConciseError, match=r"scores\.json is not valid JSON"):
        report.gather(whole)
    artifacts.write_json(first, found)
    completions = whole.inputs["scores"][1].parent / "completions.parquet"  # of rl1, which is shown before lgrpo
    completions.write_bytes(completions.read_bytes()[:-100])
    with pytest.raises(ConciseError, match=r"cannot read .*completions\.parquet as parquet"):
        report.gather(whole)


def test_a_run_that_has_nothing_to_show_yet_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs" / "new" / "sft-aaaaaaaaaaaa").mkdir(parents=True)
    with pytest.raises(ConciseError, match=r"new holds no evaluation and no training log; make one with: concise run"):
        of_runs(tmp_path / "runs" / "new")
    with pytest.raises(UsageError, match="there is no folder"):
        of_runs(tmp_path / "runs" / "old")


def test_the_same_run_given_twice_counts_once(tmp_path: Path) -> None:
    toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    for path in (tmp_path / "toy").glob("*/manifest.json"):
        path.unlink()
    once, twice = of_runs(tmp_path / "toy"), of_runs(tmp_path / "toy", tmp_path / "toy")
    assert [row["model"] for row in twice["headline"][0]["rows"]] == [
        row["model"] for row in once["headline"][0]["rows"]
    ]


def test_a_run_under_way_is_reported_from_its_folders(tmp_path: Path) -> None:
    stage = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    under_way = toy_run.folder_of(tmp_path / "toy", "lgrpo")
    (under_way / "manifest.json").unlink()
    mined = tmp_path / "toy" / "mined-bbbbbbbbbbbb"
    artifacts.write_jsonl(mined / "metrics.jsonl", [{"step": 0, "accuracy": 0.2}])
    artifacts.write_json(mined / "manifest.json", toy_run.manifest("mined", "mine", {}, {}, {}))
    older = tmp_path / "toy" / "rl1-aaaaaaaaaaaa" / "metrics.jsonl"
    artifacts.write_jsonl(older, [{"step": 0, "accuracy": 0.1}])
    os.utime(older, (1, 1))
    report.of_runs([tmp_path / "toy"], tmp_path / "out", ReportConfig())
    tables = artifacts.read_json(tmp_path / "out" / "tables.json")
    assert {row["model"] for row in tables["headline"][0]["rows"]} == set(toy_run.MODELS)
    (figure,) = [f for f in tables["figures"] if f["name"] == "accuracy"]
    assert {s["name"]: len(s["x"]) for s in figure["series"]} == {"rl1": 40, "lgrpo": 40}
    with pytest.raises(ConciseError, match="holds no evaluation and no training log"):
        report.of_runs([stage.folder], tmp_path / "out", ReportConfig())


def test_seeds_of_the_same_settings_are_one_model_with_wider_intervals(tmp_path: Path) -> None:
    for seed in range(3):
        toy_run.write_run(tmp_path / f"seed{seed}", temperatures=(1.0,), seed=seed)
    tables = of_runs(*(tmp_path / f"seed{seed}" for seed in range(3)))
    (table,) = tables["headline"]
    assert [row["model"] for row in table["rows"]] == ["sft", "rl1", "lgrpo"]
    for row in table["rows"]:
        cell = row["suites"]["chains"]["pass_at_1"]
        values = [one["suites"]["chains"]["pass_at_1"] for one in row["seeds"]]
        assert [one["run"] for one in row["seeds"]] == ["seed0", "seed1", "seed2"]
        assert [one["seed"] for one in row["seeds"]] == [0, 1, 2]
        assert cell["value"] == pytest.approx(sum(values) / 3)
        between = 4.303 * np.std(values, ddof=1) / np.sqrt(3)
        assert cell["value"] - cell["low"] >= between * (1 - 1e-9) or cell["low"] == 0
        assert row["suites"]["chains"]["rollouts"] == 3 * 24 * 4
    assert tables["variants"] == []
    assert {d["seeds"] for d in tables["differences"]} == {3}
    (figure,) = [f for f in tables["figures"] if f["name"] == "accuracy"]
    assert [s["name"] for s in figure["series"]] == ["rl1", "lgrpo"]
    ends = [(s["low"][-1], s["y"][-1], s["high"][-1]) for s in figure["series"]]
    assert all(low < y < high for low, y, high in ends)
    assert "lowest to the highest seed" in figure["note"]
    html = page_of(tables)
    assert "mean of 3 seeds" in html
    assert "Seed by seed" in html
    (spent,) = [row for row in tables["cost"]["rows"] if row["stage"] == "rl1"]
    assert (spent["folders"], spent["seconds"]) == (3, {"generate": 60.0, "train": 30.0})


def test_one_changed_line_is_named_and_set_beside_the_first_run(tmp_path: Path) -> None:
    toy_run.write_run(tmp_path / "plain", temperatures=(1.0,))
    toy_run.write_run(tmp_path / "off", temperatures=(1.0,), changes={"reward": {"length": "off"}})
    tables = of_runs(tmp_path / "plain", tmp_path / "off")
    changed = "lgrpo (reward.length off)"
    (table,) = tables["headline"]
    assert [row["model"] for row in table["rows"]] == ["sft", "rl1", "lgrpo", changed]  # what both share stands once
    (ablation,) = tables["variants"]
    plain, off = ablation["rows"]
    assert (plain["model"], plain["changed"]) == ("lgrpo", [])
    assert off["changed"] == [{"setting": "reward.length", "before": None, "after": "off"}]
    (result,) = off["results"]
    difference = result["difference"]
    assert difference["pass_at_1"]["before"] == plain["results"][0]["pass_at_1"]["value"]
    assert difference["pass_at_1"]["after"] == result["pass_at_1"]["value"]
    steps = [(d["before"], d["after"]) for d in tables["differences"] if d["step"]]
    assert steps == [("sft", "rl1"), ("rl1", "lgrpo"), ("rl1", changed)]
    assert tables["ablation"] is None
    assert "reward.length" in page_of(tables)
    assert "reward.length" in markdown.render(tables)


def write_sweep(folder: Path, penalties: tuple[float, ...], seeds: tuple[int, ...]) -> tuple[list[Path], dict]:
    """Runs with the stages of `sweep: {lgrpo.reward.wrong: ..., lgrpo.seed: ...}`, and what a report is told of it."""
    runs, told = [], {}
    for wrong, seed in itertools.product(penalties, seeds):
        run = folder / f"{wrong}{seed}"
        changes = {"reward": {"wrong": wrong}, "seed": seed}
        toy_run.write_run(run, temperatures=(1.0,), seed=seed, changes=changes)
        for stage in ("lgrpo", "lgrpo_t10"):
            path = toy_run.folder_of(run, stage) / "manifest.json"
            swept = f"{stage}-wrong_{wrong}-seed_{seed}"
            artifacts.write_json(path, artifacts.read_json(path) | {"stage": swept})
            told[swept] = {"stage": stage, "values": {"lgrpo.reward.wrong": wrong, "lgrpo.seed": seed}}
        runs.append(run)
    return runs, told


def test_a_sweep_is_one_table_with_a_row_a_setting_and_a_band_over_its_seeds(tmp_path: Path) -> None:
    runs, told = write_sweep(tmp_path, (-1, -3), (0, 1, 2))
    tables = gathered(report.in_runs(runs, tmp_path / "out", ReportConfig(variants=told, after=list(told)[1])))
    (table,) = tables["sweeps"]
    assert (table["model"], table["suite"], table["fields"]) == ("lgrpo", "chains", ["lgrpo.reward.wrong"])
    assert [(row["values"]["lgrpo.reward.wrong"], row["seeds"]) for row in table["rows"]] == [(-1, 3), (-3, 3)]
    assert [row["break_even"] for row in table["rows"]] == [0.5, 0.75]  # 1 / (1 + 1), 3 / (1 + 3)
    for row, runs_of_it in zip(table["rows"], (runs[:3], runs[3:]), strict=True):
        alone = [
            artifacts.read_json(toy_run.folder_of(run, "lgrpo_t10") / "scores.json")["overall"] for run in runs_of_it
        ]
        for name in ("pass_at_1", "length"):
            assert row[name]["value"] == pytest.approx(np.mean([one[name]["value"] for one in alone]))
            assert row[name]["low"] < row[name]["value"] < row[name]["high"]
        assert row["precision"]["value"] == pytest.approx(row["pass_at_1"]["value"])  # all rollouts answer
    (figure,) = [f for f in tables["figures"] if f["name"] == "accuracy"]
    named = {s["name"]: s for s in figure["series"]}
    assert list(named)[1:] == ["lgrpo (reward.wrong -1)", "lgrpo (reward.wrong -3)"]
    assert all(s["low"][-1] < s["high"][-1] for name, s in named.items() if name != "rl1")
    assert len({s["slot"] for s in figure["series"]}) == 3
    for text in (page_of(tables), markdown.render(tables)):
        assert "75.0" in text
    # What all seeds share stands against each of them, so that its differences hold how much a seed matters.
    assert {d["seeds"] for d in tables["differences"] if d["after"].startswith("lgrpo")} == {3}


def test_what_a_stage_brought_is_told_along_the_line_of_descent(reported: StageRun) -> None:
    steps = [d for d in tables_of(reported)["differences"] if d["step"] and d["label"] == "T=1.0"]
    assert [(d["before"], d["trained"]) for d in steps] == [("sft", ["rl1"]), ("rl1", ["lgrpo"])]
    html = (reported.folder / "report.html").read_text()
    assert "What each stage brought" in html


def test_a_stage_that_was_not_evaluated_is_named_with_the_next_that_was(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    ends = (whole.inputs["scores"][0], whole.inputs["scores"][2])
    part = replace(whole, config=ReportConfig(), inputs={"scores": ends}, sources={})  # no training log either
    (row,) = gathered(part)["differences"]
    assert (row["before"], row["after"], row["trained"], row["step"]) == ("sft", "lgrpo", ["lgrpo", "rl1"], True)


def test_a_curriculum_that_leaves_something_out_stands_against_the_whole(tmp_path: Path) -> None:
    toy_run.write_run(tmp_path / "whole", temperatures=(1.0,))
    toy_run.write_run(tmp_path / "less", temperatures=(1.0,), changes={"reward": {"length": "off"}})
    config = ReportConfig(before="sft_t10", after="lgrpo_t10")
    tables = gathered(report.in_runs([tmp_path / "whole", tmp_path / "less"], tmp_path / "out", config))
    (row,) = tables["against_the_whole"]
    assert (row["before"], row["after"]) == ("lgrpo", "lgrpo (reward.length off)")
    assert row["trained"] == ["lgrpo (reward.length off)", "rl1", "sft"]
    assert row["pass_at_1"]["difference"] == pytest.approx(row["pass_at_1"]["after"] - row["pass_at_1"]["before"])
    assert "Other ends of the curriculum, against lgrpo" in page_of(tables)


def test_one_model_on_one_suite_after_another_is_compared_suite_by_suite(tmp_path: Path) -> None:
    whole = toy_run.write_run(tmp_path / "toy", temperatures=(1.0,))
    more = toy_run.write_run(tmp_path / "more", temperatures=(1.0,), suites=("math500",))
    for path in more.inputs["scores"]:
        found = artifacts.read_json(path)
        found["problems"] = [row | {"id": f"m{row['id']}"} for row in found["problems"]]
        artifacts.write_json(path, found)
    scored = (*whole.inputs["scores"], *more.inputs["scores"])
    manifests = [dict(m) for m in (*whole.sources["scores"], *more.sources["scores"])]
    for i, manifest in enumerate(manifests):
        manifest["key"] = str(i)
    part = replace(whole, inputs={"scores": scored}, sources={"scores": tuple(manifests)}, config=ReportConfig())
    tables = gathered(part)
    assert [table["label"] for table in tables["headline"]] == ["T=1.0 on chains", "T=1.0 on math500"]
    steps = [(d["suite"], d["before"], d["after"]) for d in tables["differences"] if d["step"]]
    expected = [("sft", "rl1"), ("rl1", "lgrpo")]
    assert steps == [(suite, *pair) for suite in ("chains", "math500") for pair in expected]


def test_versions_of_a_stage_in_one_folder_are_all_shown_when_asked_for(tmp_path: Path) -> None:
    for changes in ({}, {"steps": 41}):
        toy_run.write_run(tmp_path / str(len(changes)), temperatures=(1.0,), changes=changes)
    for folder in (tmp_path / "1").glob("lgrpo*"):
        manifest = artifacts.read_json(folder / "manifest.json")
        folder.rename(tmp_path / "0" / f"{manifest['stage']}-{manifest['key'][:12]}")

    def shown(every: bool) -> list[str]:
        (table,) = of_runs(tmp_path / "0", every=every)["headline"]
        return [row["model"] for row in table["rows"]]

    assert len(shown(every=False)) == 3
    assert shown(every=True) == ["sft", "rl1", "lgrpo", "lgrpo (steps 41)"]


def test_runs_of_one_name_are_told_apart_by_the_folder_above(tmp_path: Path) -> None:
    for where in ("a", "b"):
        toy_run.write_run(tmp_path / where / "tiny", temperatures=(1.0,), changes={f"x{i}": where for i in range(4)})
    (table,) = of_runs(*(tmp_path / where / "tiny" for where in ("a", "b")))["headline"]
    assert [row["model"] for row in table["rows"]] == ["sft", "rl1", "lgrpo", "b/tiny/lgrpo"]


def test_models_that_no_manifest_tells_of_are_called_after_their_run(tmp_path: Path) -> None:
    for run in ("one", "two", "a/x/tiny", "b/x/tiny"):
        toy_run.write_run(tmp_path / run, temperatures=(1.0,))
        for path in (tmp_path / run).glob("*/manifest.json"):
            path.unlink()
    (table,) = of_runs(tmp_path / "a/x/tiny", tmp_path / "b/x/tiny")["headline"]
    assert {row["model"].split("/")[0] for row in table["rows"]} == {"a", "b"}
    (table,) = of_runs(tmp_path / "one", tmp_path / "two")["headline"]
    assert {row["model"] for row in table["rows"]} == {
        f"{run}/{model}_t10" for run in ("one", "two") for model in toy_run.MODELS
    }


def test_stages_with_equal_settings_are_not_an_ablation_of_anything(reported: StageRun) -> None:
    assert tables_of(reported)["ablation"] is None
    assert "How the RL stages differ" not in (reported.folder / "report.html").read_text()


# --- examples ---------------------------------------------------------------------------------------------------------


def sampled(problem: str, correct: bool, length: int) -> dict:
    text = "<think>thought</think>answer"
    return {"problem_id": problem, "sample": 0, "length": length, "correct": correct, "text": text} | {
        "outcome": "match" if correct else "mismatch",
        "finish_reason": "stop",
        "extracted": "7",
    }


def test_examples_come_in_turn_from_each_kind_of_change() -> None:
    before = [
        sampled("a", True, 9),
        sampled("b", False, 9),
        sampled("c", True, 9),
        sampled("d", True, 9),
        sampled("e", False, 9),
    ]
    after = [
        sampled("a", True, 5),
        sampled("b", True, 9),
        sampled("c", False, 9),
        sampled("d", True, 9),
        sampled("e", False, 9),
    ]
    asked = {"problems": [{"id": r["problem_id"], "prompt": "?", "answer": "7"} for r in before]}
    found = before_after.choose(asked, before, asked, after, number=3, seed=0)
    assert [shown["problem_id"] for shown in found["shown"]] == ["a", "b", "c"]
    assert list(found["counts"].values()) == [1, 1, 1, 1, 1]
    assert (found["shown"][0]["before"]["think"], found["shown"][0]["before"]["text"]) == ("thought", "answer")
    more = before_after.choose(asked, before, asked, after, number=9, seed=0)
    assert len(more["shown"]) == 4  # wrong both times is counted, not shown


def test_long_texts_are_cut_in_the_middle_and_say_so() -> None:
    row = sampled("a", True, 1) | {"text": "x" * 20_000}
    text = before_after._shown(row)["text"]
    assert len(text) < 7_000
    assert "14000 characters left out" in text


# --- numbers and curves -----------------------------------------------------------------------------------------------


def test_numbers_are_written_as_people_read_them() -> None:
    assert wording.percent(0.91375) == "91.4"
    assert wording.points(-0.0125) == "−1.2"
    assert wording.tokens(8267.4) == "8,267"
    assert wording.tokens(34.52) == "34.5"
    assert wording.seconds(4210.3) == "1:10:10"
    assert wording.seconds(63.1) == "1:03"
    assert wording.percent(None) == wording.tokens(None) == "–"
    assert wording.p_value(0.0) == "< 0.002"


def test_a_running_mean_keeps_ends_and_level() -> None:
    assert curves.running_mean([1.0, 2.0, 6.0], 1) == [1.5, 3.0, 4.0]
    assert curves.running_mean([5.0] * 9, 3) == [5.0] * 9
    assert curves.running_mean([1.0, 2.0], 0) == [1.0, 2.0]


def test_a_long_log_is_averaged_to_few_points() -> None:
    rows = [{"step": i, "accuracy": i / 5000} for i in range(5000)]
    (figure,) = curves.training_figures([Training("rl1", "train", "", rows)], {"rl1": 0})
    (series,) = figure.series
    assert len(series.x) <= curves.MOST_POINTS
    assert sum(series.faint or ()) / len(series.x) == pytest.approx(0.5, abs=0.01)


def test_warnings_are_listed_and_marked_where_they_first_came_on() -> None:
    rows = [{"step": i, "accuracy": 0.5} | ({"alarm/empty_think": 1.0} if i in (7, 8, 20) else {}) for i in range(30)]
    before = Training("rl1", "train", "", [{"step": i, "accuracy": 0.5} for i in range(10)])
    trainings = [before, Training("rl2", "train", "rl1", rows)]
    found = curves.alarms(trainings)
    assert [(a["stage"], a["kind"], a["first"], a["last"]) for a in found] == [
        ("rl2", "empty_think", 8, 9),
        ("rl2", "empty_think", 21, 21),
    ]
    (figure,) = curves.training_figures(trainings, {"rl1": 0, "rl2": 1})
    assert figure.events == ((18.0, "empty think"),)  # ten steps of rl1 went before


def test_settings_are_written_with_dots() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_a_stage_that_makes_what_it_read_does_not_close_a_circle() -> None:
    def manifest(stage: str, reads: dict[str, str], makes: str) -> dict[str, Any]:
        return {
            "stage": stage,
            "kind": "train",
            "key": stage,
            "config": {},
            "inputs": {role: [digest] for role, digest in reads.items()},
            "sources": {role: [f"{role}.model"] for role in reads},
            "outputs": {"model": {"path": "model", "sha256": makes, "rows": None}},
        }

    rows = lineage.lineage(
        [
            manifest("rl1", {"model": "base"}, "weights"),
            manifest("mined", {"model": "weights"}, "problems"),
            manifest("rl2", {"model": "weights", "problems": "problems"}, "weights"),  # nothing was learned
        ]
    )
    assert [row["stage"] for row in rows] == ["rl1", "mined", "rl2"]
