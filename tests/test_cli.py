"""The command line: what goes to stdout, what to stderr, and every exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from concisecli.artifacts import write_jsonl, write_parquet, write_text
from concisecli.cli import main
from concisecli.loading import load_pipeline, packaged
from concisecli.stages import STAGES
from tests.test_pipeline import TEXT, register

Concise = Callable[..., tuple[int, str, str]]


@pytest.fixture
def concise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Concise:
    """Run a command in an empty folder with small stages: (exit code, stdout, stderr)."""
    for kind, stage in register().items():
        monkeypatch.setitem(STAGES, kind, stage)
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "base" / "config.json", "{}")
    write_text(tmp_path / "base" / "model.safetensors", "weights")
    write_text(tmp_path / "concise.yaml", TEXT)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["concise", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        out, err = capsys.readouterr()
        return code, out, err

    return call


# --- start and help ---------------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['concise', '--help']\n"
        "from concisecli.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'datasets', 'math_verify', 'sympy', 'pandas', 'numpy', 'pyarrow', 'yaml'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run " in done.stdout


def test_a_dry_run_loads_nothing_heavy(tmp_path: Path) -> None:
    shutil.copy(packaged("pipelines", "tiny"), tmp_path / "concise.yaml")
    script = (
        "import sys; sys.argv = ['concise', 'run', '--dry-run']\n"
        "from concisecli.cli import main\nmain()\n"
        "heavy = {'torch', 'transformers', 'datasets', 'math_verify', 'sympy', 'pandas', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "first time" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["concise.yaml"]


def test_the_version_is_printed(concise: Concise) -> None:
    code, out, _ = concise("--version")
    assert (code, out.split()[0]) == (0, "concise")
    assert out.split()[1][0].isdigit()


def test_no_command_prints_the_help(concise: Concise) -> None:
    code, out, err = concise()
    assert code in (0, 2)
    assert "Usage" in out + err


def test_the_shell_gets_completion() -> None:
    environment = os.environ | {"_CONCISE_COMPLETE": "complete_bash", "COMP_WORDS": "concise tr", "COMP_CWORD": "1"}
    script = "import sys; sys.argv = ['concise']; from concisecli.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.split() == ["train"], done.stderr


# --- run and the stage commands ---------------------------------------------------------------------------------------


def test_run_prints_one_line_a_stage_on_stdout_and_progress_on_stderr(concise: Concise) -> None:
    code, out, err = concise("run")
    assert code == 0
    first = out.splitlines()
    assert [line.split()[0] for line in first] == ["d", "test", "rl1", "mined", "rl2"]
    assert "run: first time  runs/t/rl1-" in first[2]
    assert "accuracy 0." in first[2]
    assert "rl1: begins\n" in err
    code, out, err = concise("run", "concise.yaml")
    assert (code, err) == (0, "")
    assert all(line.split()[1] == "skip:" for line in out.splitlines())


def test_json_is_one_line_and_nothing_else(concise: Concise) -> None:
    code, out, _ = concise("run", "--json", "--until", "d")
    assert (code, out.count("\n")) == (0, 1)
    (stage,) = json.loads(out)["stages"]
    assert (stage["stage"], stage["action"], stage["metrics"]) == ("d", "run", {"count": 3})
    assert Path(stage["outputs"]["problems"]).is_file()


def test_stage_commands_are_the_same_work_as_run(concise: Concise) -> None:
    assert concise("run", "--runs", "one")[0] == 0
    for words in ("data build", "train --stage 1", "mine", "train --stage 2"):
        code, _, err = concise(*words.split(), "--runs", "other")
        assert code == 0, err
    code, out, _ = concise("run", "--runs", "other")
    assert {line.split()[1] for line in out.splitlines()} == {"skip:"}


def test_a_set_on_a_stage_command_is_meant_for_its_stages(concise: Concise) -> None:
    concise("run")
    code, out, _ = concise("train", "--stage", "1", "--set", "reward.alpha=0.1", "--dry-run")
    assert (code, out.split(maxsplit=1)) == (0, ["rl1", "run: reward.alpha 0.05 -> 0.1\n"])
    code, out, _ = concise("train", "--set", "clip_norm=2", "--set", "rl2.steps=3", "--dry-run")
    assert "rl1  run: clip_norm 1.0 -> 2.0" in out.replace("    ", "  ")
    assert concise("train", "--set", "reward.alfa=0.1")[0] == 2


def test_the_seed_flag_is_the_pipelines_seed(concise: Concise) -> None:
    concise("run")
    _, out, _ = concise("run", "--seed", "1", "--dry-run")
    assert "d      run: seed 0 -> 1" in out


def test_an_input_that_is_not_made_names_the_command_with_its_flags(concise: Concise) -> None:
    code, out, err = concise("mine", "--seed", "1", "--runs", "else where")
    assert (code, out) == (1, "")
    assert err == (
        "concise: stage 'mined' needs problems and model, made by stages 'd' and 'rl1'; "
        "run: concise run concise.yaml --until mined --set seed=1 --runs 'else where'\n"
    )


def test_eval_alone_needs_a_model_and_data(concise: Concise) -> None:
    code, _, err = concise("eval", "--data", "aime24")
    assert (code, err.count("\n")) == (2, 1)
    assert "needs both --model and --data" in err
    code, _, err = concise("eval", "--model", "Qwen/Qwen2.5-Math-7B", "--data", "x.jsonl")
    assert code == 2
    assert "is written hf:Qwen/Qwen2.5-Math-7B" in err
    code, _, err = concise("eval", "--model", "base", "--data", "nothing")
    assert code == 2
    assert "there is no recipe nothing" in err


def test_eval_alone_plans_a_stage_for_each_problem_set(concise: Concise, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "my set.jsonl", [{"problem": "1+1", "answer": "2"}])
    write_parquet(tmp_path / "built.parquet", [{"id": "a", "prompt": "p", "answer": "1"}])
    words = ("--data", "my set.jsonl", "--data", "built.parquet", "--budget", "64", "--budget", "32", "--samples", "2")
    code, out, err = concise("eval", "--model", "base", *words, "--dry-run", "--json")
    assert code == 0, err
    stages = {s["stage"]: s["action"] for s in json.loads(out)["stages"]}
    assert stages == {"my_set": "run", "eval_my_set": "waits", "eval_built": "run"}


def test_data_build_takes_a_recipe_file(concise: Concise) -> None:
    write_text(Path("mine.yaml"), "sources:\n  c: {type: chains, count: 4}\n")
    code, out, err = concise("data", "build", "mine.yaml", "--set", "sources.c.count=2")
    assert code == 0, err
    assert "runs/data/mine-" in out
    assert "count 2" in out


# --- wrong use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "none.yaml"), 2, "there is no pipeline file none.yaml"),
        (("run", "concise.yml"), 2, "did you mean concise.yaml?"),
        (("run", "a.yaml", "-p", "b.yaml"), 2, "two pipelines were given"),
        (("run", "--only", "rl3"), 2, "has no stage 'rl3'; did you mean"),
        (("run", "--set", "rl1.reward.alfa=1"), 2, "unknown key 'alfa'; did you mean 'alpha'?"),
        (("run", "--set", "rl1.steps=many"), 2, "rl1.steps: should be a valid integer"),
        (("run", "--set", "rl1.inputs.model=./none"), 2, "there is no file or folder"),
        (("sft",), 2, "has no such stage"),
        (("train", "--stage", "7"), 2, "has no such stage"),
        (("train", "--stage", "one"), 2, "valid int"),
        (("trian",), 2, "No such command"),
        (("run", "--dryrun"), 2, "No such option"),
        (("run", "--runs", "concise.yaml"), 1, "part of the path is a file"),
        (("run", "--runs", "/proc/none"), 1, "cannot write"),
        (("init", "tinny"), 2, "did you mean 'tiny'?"),
        (("data", "show", "none.parquet"), 2, "none.parquet"),
        (("data", "show", "base"), 2, "base holds neither problems.parquet nor examples.parquet"),
        (("data", "show", "concise.yaml"), 1, "as parquet"),
        (("data", "distill"), 2, "has no such stage"),
        (("eval", "--model", "base", "--suite", "aime23"), 2, "did you mean 'aime2"),
        (("eval", "--preset", "leed"), 2, "did you mean 'lead'?"),
        (("data", "build", "none.yaml"), 2, "there is no recipe none.yaml"),
        (("score", "none.jsonl", "--method", "nothing"), 2, "no 'nothing' among the pipelines"),
        (("score", "none.jsonl"), 2, "has several train stages; choose one with --only: rl1, rl2"),
        (("score", "none.jsonl", "--only", "rl1"), 2, "cannot read none.jsonl"),
        (("score", "none.jsonl", "--method", "tiny", "-p", "concise.yaml"), 2, "give either --method or -p"),
    ],
)
def test_wrong_use_is_one_clear_sentence_and_a_code(
    concise: Concise, words: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = concise(*words)
    assert (found, out) == (code, ""), err
    assert message in " ".join(err.split())
    assert "Traceback" not in err


def test_no_pipeline_at_all_names_init(concise: Concise) -> None:
    Path("concise.yaml").unlink()
    code, _, err = concise("train")
    assert code == 2
    assert "concise init" in err


def test_ctrl_c_ends_with_130_and_the_command_to_go_on(concise: Concise) -> None:
    write_text(Path("break"), "3 ctrl-c")
    code, out, err = concise("run", "--set", "rl1.steps=5")
    assert code == 130
    assert "run the same command again: concise run --set rl1.steps=5" in err
    assert [line.split()[0] for line in out.splitlines()] == ["d", "test"]
    Path("break").unlink()
    assert "resume at step 2" in concise("run", "--set", "rl1.steps=5")[1]


def test_sigterm_ends_with_75(concise: Concise) -> None:
    write_text(Path("break"), "3 sigterm")
    code, _, err = concise("run")
    assert code == 75
    assert "run the same command again" in err


def test_a_bug_keeps_its_traceback(concise: Concise) -> None:
    write_text(Path("break"), "3 bug")
    with pytest.raises(ZeroDivisionError, match="a bug"):
        concise("run")


# --- init, show, score ------------------------------------------------------------------------------------------------


def test_init_writes_a_pipeline_and_its_recipes_that_load_from_there(concise: Concise, tmp_path: Path) -> None:
    code, out, err = concise("init", "tiny", "--dir", "new")
    assert (code, out.split()) == (0, ["new/concise.yaml", "new/data_recipes/tiny.yaml"])
    assert "concise run" in err
    assert load_pipeline(Path("new/concise.yaml")) == load_pipeline(packaged("pipelines", "tiny")).model_copy(
        update={"path": Path("new/concise.yaml")}
    )


def test_init_overwrites_nothing_unless_told(concise: Concise) -> None:
    code, out, err = concise("init", "tiny")
    assert (code, out) == (2, "")
    assert "concise.yaml exists already" in err
    assert Path("concise.yaml").read_text() == TEXT
    assert concise("init", "tiny", "--force")[0] == 0
    assert Path("concise.yaml").read_text() == packaged("pipelines", "tiny").read_text()


def test_init_takes_recipes_that_are_there_as_they_ship(concise: Concise) -> None:
    recipe = Path("new/data_recipes/tiny.yaml")
    for _ in range(2):
        assert concise("init", "tiny", "--dir", "new")[0] == 0
        Path("new/concise.yaml").unlink()
    recipe.write_text(recipe.read_text() + "# mine\n")
    code, _, err = concise("init", "tiny", "--dir", "new")
    assert code == 2
    assert f"{recipe} exists already" in err


def test_every_method_can_be_written(concise: Concise) -> None:
    for path in packaged("pipelines", "tiny").parent.glob("*.yaml"):
        assert concise("init", path.stem, "--dir", path.stem)[0] == 0, path


def test_data_show_prints_rows_of_files_and_of_finished_stages(concise: Concise) -> None:
    concise("data", "build")
    (folder,) = Path("runs/t").glob("d-*")
    code, out, _ = concise("data", "show", str(folder), "-n", "2")
    assert code == 0
    assert out.count("--- row ") == 2
    assert "prompt  0+1=" in out
    code, out, _ = concise("data", "show", str(folder / "problems.parquet"), "--start", "2", "--json")
    assert [row["answer"] for row in json.loads(out)] == ["3"]


def test_score_writes_one_json_line_a_row(concise: Concise) -> None:
    rows = [{"group": "g", "id": i, "length": 10 + i, "correct": i % 2 == 0} for i in range(4)]
    write_jsonl(Path("rows.jsonl"), rows)
    code, out, err = concise("score", "rows.jsonl", "--only", "rl1", "--set", "reward.wrong=-1")
    assert code == 0, err
    scored = [json.loads(line) for line in out.splitlines()]
    assert [row["reward"] for row in scored] == [1.0, -1.0, 1.0, -1.0]
    assert [row["id"] for row in scored] == [0, 1, 2, 3]


def test_grade_and_score_chain_over_a_file(concise: Concise) -> None:
    responses = ["so \\boxed{4}", "so \\boxed{5}", "", "\\boxed{\\frac{8}{2}}"]
    rows = [{"group": "g", "id": i, "length": 9, "gold": "4", "response": r} for i, r in enumerate(responses)]
    write_jsonl(Path("rows.jsonl"), rows)
    code, out, err = concise("grade", "rows.jsonl", "--set", "deadline_s=20")
    assert code == 0, err
    assert ": match 2, mismatch 1, no_answer 1; accuracy 50.0 %" in err
    Path("graded.jsonl").write_text(out)
    code, out, err = concise("score", "graded.jsonl", "--only", "rl1", "--set", "reward.no_answer=-2")
    assert code == 0, err
    assert [json.loads(line)["reward"] for line in out.splitlines()] == [1.0, 0.0, -2.0, 1.0]


def test_a_wrong_use_of_grade_is_told(concise: Concise) -> None:
    write_jsonl(Path("rows.jsonl"), [{"answer": "4", "response": "4"}])
    for words, message in (
        ((), "give a JSONL file of responses, or --selftest"),
        (("none.jsonl",), "cannot read none.jsonl"),
        (("rows.jsonl",), "--gold-field"),
        (("rows.jsonl", "--set", "profil=strict"), "did you mean 'profile'?"),
    ):
        code, out, err = concise("grade", *words)
        assert (code, out) == (2, "")
        assert message in err


def test_only_a_finished_eval_can_be_judged_again(concise: Concise) -> None:
    concise("data", "build")
    (folder,) = Path("runs/t").glob("d-*")
    code, _, err = concise("eval", "--regrade", str(folder))
    assert (code, err) == (2, f"concise: {folder} was made by a stage of kind data, not by eval\n")
    code, _, err = concise("eval", "--regrade", "base")
    assert code == 2
    assert "is not the folder of a finished eval" in err


def test_an_edited_artifact_of_a_command_without_a_pipeline_names_the_flag(concise: Concise) -> None:
    write_text(Path("mine.yaml"), "sources:\n  c: {type: chains, count: 4}\n")
    concise("data", "build", "mine.yaml")
    (made,) = Path("runs/data").glob("mine-*/problems.parquet")
    write_text(made, "tampered")
    code, _, err = concise("data", "build", "mine.yaml")
    assert code == 1
    assert err.endswith("put it back, or make it anew: the same command, with --force mine\n")
    assert concise("data", "build", "mine.yaml", "--force", "mine")[0] == 0
    assert concise("data", "build", "mine.yaml")[1].split()[1] == "skip:"


@pytest.mark.parametrize(
    "words",
    [
        "grade none.jsonl",
        "score none.jsonl --only rl1",
        "compare none other",
        "data show none",
        "data show empty",
        "rollouts none",
        "report none",
        "eval --regrade none",
        "eval --model none --data aime24",
        "run none.yaml",
        "plan none.yaml",
        "status none",
        "lineage none",
        "lineage none/rl1",
        "export none",
        "gc none",
        "doctor --offline --model none",
        "data build none",
        "init none",
    ],
)
def test_a_path_that_is_not_there_is_wrong_usage_everywhere(concise: Concise, words: str) -> None:
    Path("empty").mkdir()
    code, out, err = concise(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("concise: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words", ["init tiny --dir /proc/nothing", "schema --out /proc/nothing/x", "run --runs /proc/n"]
)
def test_a_place_that_cannot_be_written_is_one_line(concise: Concise, words: str) -> None:
    code, _, err = concise(*words.split())
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith("concise: cannot write")
    assert "choose another" in last


def test_errors_name_the_flag_that_was_typed(concise: Concise) -> None:
    code, _, err = concise("data", "build", "--to", "vrl")
    assert code == 2
    assert err.startswith("concise: --to vrl: d.to.0: should be")
    code, _, err = concise("run", "--set", "seed=x")
    assert "--set seed=x: d.seed: should be a valid integer" in err


def test_a_stage_of_another_kind_is_told_apart_from_one_that_is_not_there(concise: Concise) -> None:
    write_jsonl(Path("rows.jsonl"), [])
    code, _, err = concise("score", "rows.jsonl", "--only", "d")
    assert (code, err) == (2, "concise: concise.yaml: stage 'd' is no train stage, it uses data; those are rl1, rl2\n")


def test_a_dry_run_of_one_stage_says_what_it_lacks_and_goes_on_to_the_others(concise: Concise) -> None:
    code, out, err = concise("run", "--dry-run", "--only", "mined", "--only", "d")
    assert code == 1
    first, second = out.splitlines()
    assert first.startswith("d      run: first time")
    assert second.startswith("mined  blocked: stage 'mined' needs model, made by stage 'rl1'; run: concise run")
    assert err == "concise: 1 of 2 stages cannot run as things are; see above\n"


def test_a_deleted_artifact_is_told_as_gone(concise: Concise) -> None:
    assert concise("data", "build")[0] == 0
    (file,) = Path("runs/t").glob("d-*/problems.parquet")
    file.unlink()
    code, _, err = concise("train", "--stage", "1")
    assert code == 1
    assert f"{file} is gone, which stage 'd' made; put it back, or make it anew: concise run" in err
