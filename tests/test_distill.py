"""SFT data by a teacher: which solutions are kept, and that an interrupted run goes on where it was."""

import pytest

from concisecli import artifacts
from concisecli.building import tables
from concisecli.config import DistillConfig, GraderConfig, HfConfig, PromptConfig, SamplingConfig
from concisecli.records import Completion, ConciseError, Group, Problem, StageRun, Verdict
from concisecli.stages import distill

PROBLEM = Problem("p", "1+1", "2", "test")


def completion(text, length, finish="stop"):
    return Completion(tuple(range(length)), (0.0,) * length, text, finish)


def group(*rows):
    """(text, tokens, correct[, finish])"""
    completions = tuple(completion(row[0], row[1], *row[3:]) for row in rows)
    return Group(PROBLEM, completions, tuple(Verdict("match" if row[2] else "mismatch") for row in rows))


def texts(chosen):
    return [c.text for c in chosen]


def test_the_shortest_correct_solution_that_ended_by_itself_is_kept():
    rolled = group(("a", 9, True), ("b", 3, False), ("c", 5, True), ("d", 4, True, "length"), ("e", 5, True))
    assert texts(distill.choose(rolled, DistillConfig())) == ["c"]
    assert texts(distill.choose(rolled, DistillConfig(per_problem=3))) == ["c", "e", "a"]
    assert texts(distill.choose(rolled, DistillConfig(max_tokens=4))) == []


def test_a_random_one_depends_on_seed_and_problem_alone():
    rolled = group(*[(f"t{i}", 5 + i, True) for i in range(8)])
    drawn = {texts(distill.choose(rolled, DistillConfig(keep="random", seed=s)))[0] for s in range(20)}
    assert len(drawn) > 3
    again = [texts(distill.choose(rolled, DistillConfig(keep="random", seed=3))) for _ in range(2)]
    assert again[0] == again[1]


def test_equal_solutions_are_kept_once():
    rolled = group(("same", 5, True), ("same", 5, True), ("other", 6, True))
    assert texts(distill.choose(rolled, DistillConfig(per_problem=3))) == ["same", "other"]


def holds_an_e(response, gold):
    return "match" if gold in response else "mismatch"


@pytest.fixture
def stage(tiny_model, tmp_path):
    problems = [Problem(f"{i:016x}", f"{i}+1=", "e" if i < 5 else "no such text", "test") for i in range(6)]
    artifacts.write_problems(tmp_path / "problems.parquet", problems)
    config = DistillConfig(
        sampling=SamplingConfig(group_size=8, max_response_tokens=200),
        engine=HfConfig(),
        grader=GraderConfig(custom="tests.test_distill:holds_an_e", workers=1),
        prompt=PromptConfig(template="raw", chat=False),
        chunk_problems=4,
    )
    inputs = {"model": (tiny_model,), "problems": (tmp_path / "problems.parquet",)}
    return lambda folder, **changes: StageRun("teach", tmp_path / folder, config.model_copy(update=changes), inputs)


def test_a_teacher_gives_examples_and_a_list_of_what_it_could_not_solve(stage):
    run = stage("one")
    run.folder.mkdir()
    result = distill.run(run)
    examples = artifacts.read_examples(run.folder / "examples.parquet")
    unsolved = list(tables.read_dropped(run.folder / "dropped.jsonl.zst"))
    assert 0 < len(examples) <= 5
    assert all("e" in e.response and e.prompt.endswith("+1=") for e in examples)
    assert len(examples) + len(unsolved) == 6
    assert f"{5:016x}" in {row["place"] for row in unsolved}
    assert result.rows == {"examples": len(examples), "dropped": len(unsolved)}


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_from_its_finished_parts(stage, monkeypatch):
    whole, cut = stage("whole"), stage("cut")
    for run in (whole, cut):
        run.folder.mkdir()
    distill.run(whole)
    with monkeypatch.context() as patched:
        patched.setattr(distill.artifacts, "write_examples", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            distill.run(cut)
    (cut.folder / "parts" / "4-00001.json").unlink()
    distill.run(cut)
    for name in ("examples.parquet", "dropped.jsonl.zst"):
        assert (cut.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert not (cut.folder / "parts").exists()


def test_a_teacher_that_solves_nothing_is_told_so(stage):
    run = stage("none", grader=GraderConfig(workers=1))
    run.folder.mkdir()
    with pytest.raises(ConciseError, match="solved none of 6 problems"):
        distill.run(run)
