"""Skip, resume or run, and why: with small stages of this module, real files and real hashes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from concisecli import checkpoints
from concisecli.artifacts import read_json, sha256_file, sha256_path, write_json, write_problems, write_text
from concisecli.chosen_stages import Selection
from concisecli.decisions import Outcome
from concisecli.loading import load_pipeline, load_pipeline_with_origins
from concisecli.pipeline import execute
from concisecli.records import ConciseError, Preempted, Problem, StageResult, StageRun, UsageError
from concisecli.stages import STAGES, Stage

REPOSITORY = Path(__file__).parent.parent

# --- the stages -------------------------------------------------------------------------------------------------------


def build(stage: StageRun) -> StageResult:
    count = stage.config.sources["c"].count
    problems = [Problem(f"{stage.config.seed}-{i}", f"{i}+1=", str(i + 1), "test") for i in range(count)]
    write_problems(stage.folder / "problems.parquet", problems)
    return StageResult({"problems": "problems.parquet"}, {"count": count}, {"problems": count})


class Digest:
    """Something trained: a hash that grows by a step."""

    rank, world = 0, 1

    def __init__(self, value: str) -> None:
        self.value = value

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        write_json(folder / "state.json", state | {"value": self.value})

    def load(self, folder: Path) -> dict[str, Any]:
        state: dict[str, Any] = read_json(folder / "state.json")
        self.value = state["value"]
        return state


def train(stage: StageRun) -> StageResult:
    """Fold the inputs, alpha and every step into a hash; the file `break` beside the runs says at which step, and how,
    to be interrupted."""
    config = stage.config
    backend = Digest(sha256_path(stage.one("model")) + sha256_file(stage.one("problems")))
    found = checkpoints.latest(stage.folder / "checkpoints")
    start = backend.load(found)["step"] if found else 0
    breaking = stage.folder.parents[2] / "break"
    for step in range(start, config.steps):
        if breaking.is_file() and breaking.read_text().split()[0] == str(step):
            interrupt(breaking.read_text().split()[1], breaking)
        backend.value = hashlib.sha256(f"{backend.value} {config.reward.alpha} {step}".encode()).hexdigest()
        if (step + 1) % config.save_every == 0:
            checkpoints.save(stage.folder / "checkpoints", step + 1, backend, {"step": step + 1})  # type: ignore[arg-type]
    write_text(stage.folder / "model" / "config.json", "{}")
    write_text(stage.folder / "model" / "model.safetensors", backend.value)
    return StageResult({"model": "model"}, {"accuracy": int(backend.value[:4], 16) / 65536})


def interrupt(how: str, breaking: Path) -> None:
    if how == "ctrl-c":
        raise KeyboardInterrupt
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sigterm":
        with contextlib.suppress(Exception):  # as a library might, between two of its own lines
            os.kill(os.getpid(), signal.SIGTERM)
    if how == "disk":
        raise OSError(errno.ENOSPC, "No space left on device")
    if how == "bug":
        raise ZeroDivisionError("a bug")
    if how == "mend":
        raise UsageError("the settings of this stage cannot be meant")
    if how == "wait":
        write_text(breaking.with_name("waiting"), "")
        while breaking.exists():
            time.sleep(0.01)


def mine(stage: StageRun) -> StageResult:
    """As many problems as the model's hash and the limit say, whatever else."""
    assert stage.sources["model"][0] is not None
    assert stage.sources["model"][0]["metrics"]["accuracy"] >= 0
    write_problems(stage.folder / "problems.parquet", [Problem("h", "hard", "1", "test")])
    return StageResult({"problems": "problems.parquet"})


def evaluate(stage: StageRun) -> StageResult:
    write_json(stage.folder / "scores.json", {"model": sha256_path(stage.one("model"))})
    return StageResult({"scores": "scores.json"})


def report(stage: StageRun) -> StageResult:
    names = [source["stage"] for source in stage.sources["scores"] if source]
    write_text(stage.folder / "report.md", " ".join(names))
    return StageResult({"report": "report.md"})


def register() -> dict[str, Stage]:
    here = "tests.test_pipeline"
    return {
        "data": Stage(f"{here}:build", (), (), ("problems",)),
        "train": Stage(f"{here}:train", ("model", "problems"), (), ("model", "best")),
        "eval": Stage(f"{here}:evaluate", ("model", "problems"), (), ("scores",)),
        "report": Stage(f"{here}:report", (), ("scores",), ("report",)),
        "mine": Stage(f"{here}:mine", ("problems", "model"), (), ("problems",)),
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind, stage in register().items():
        monkeypatch.setitem(STAGES, kind, stage)
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "base" / "config.json", "{}")
    write_text(tmp_path / "base" / "model.safetensors", "weights")
    write_text(tmp_path / "p.yaml", TEXT)
    return tmp_path


TEXT = textwrap.dedent(
    """\
    run: t
    stages:
      d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
      test: {uses: data, config: {sources: {c: {type: chains, count: 2}}}}
      rl1:
        uses: train
        inputs: {model: base/, problems: d.problems}
        config: {stage: 1, steps: 6, save_every: 2, reward: {alpha: 0.05}}
      mined: {uses: mine, inputs: {problems: d.problems, model: rl1.model}}
      rl2:
        uses: train
        inputs: {model: rl1.model, problems: mined.problems}
        config: {stage: 2, steps: 2}
    """
)
Sets = tuple[str, ...]


def go(sets: Sets = (), runs: str = "runs", dry_run: bool = False, **selection: Any) -> list[Outcome]:
    return execute(load_pipeline(Path("p.yaml"), sets), Path(runs), Selection(**selection), dry_run)


def lines(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.stage: outcome.line for outcome in outcomes}


def hashes(runs: str = "runs") -> dict[str, str]:
    """Every output file of a store, by stage and name."""
    found = {}
    for manifest in sorted(Path(runs).glob("*/*/manifest.json")):
        for output in read_json(manifest)["outputs"].values():
            found[f"{manifest.parent.name}/{output['path']}"] = sha256_path(manifest.parent / output["path"])
    return found


SKIPPED = "skip: same settings and inputs"

# --- skip, resume, run ------------------------------------------------------------------------------------------------


def test_everything_runs_once_in_the_order_of_the_graph_and_is_skipped_afterwards(place: Path) -> None:
    first = go()
    assert [o.stage for o in first] == ["d", "test", "rl1", "mined", "rl2"]
    assert set(lines(first).values()) == {"run: first time"}
    before = {path: path.stat().st_mtime_ns for path in (place / "runs" / "t").rglob("*") if path.is_file()}
    second = go()
    assert set(lines(second).values()) == {SKIPPED}
    assert [o.outputs for o in second] == [o.outputs for o in first]
    assert [o.metrics for o in second] == [o.metrics for o in first]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_changed_value_is_named_and_only_what_depends_on_it_runs(place: Path) -> None:
    go()
    planned = lines(go(("rl1.reward.alpha=0.1",), dry_run=True))
    assert planned == {
        "d": SKIPPED,
        "test": SKIPPED,
        "rl1": "run: reward.alpha 0.05 -> 0.1",
        "mined": "runs after rl1",
        "rl2": "runs after rl1, mined",
    }
    done = lines(go(("rl1.reward.alpha=0.1",)))
    assert done["rl1"] == "run: reward.alpha 0.05 -> 0.1"
    assert done["mined"] == done["rl2"] == "run: input model is another"
    assert set(lines(go()).values()) == {SKIPPED}


def test_a_stage_that_makes_the_same_again_leaves_those_below_it_alone(place: Path) -> None:
    go()
    sets = ("mined.attempts=4",)
    assert lines(go(sets))["mined"] == "run: attempts 16 -> 4"
    assert lines(go(sets, force=("mined",))) | {"mined": "run: forced"} == lines(go(sets)) | {"mined": "run: forced"}
    assert lines(go(sets))["rl2"] == SKIPPED


def test_a_setting_that_changes_speed_only_runs_nothing(place: Path) -> None:
    go()
    assert set(lines(go(("rl1.save_every=1", "rl1.grader.workers=3"))).values()) == {SKIPPED}


def test_many_differences_are_cut_short(place: Path) -> None:
    go()
    sets = tuple(
        f"rl1.{name}" for name in ("lr=1e-3", "steps=7", "clip_norm=2", "reward.wrong=-1", "loss.eps_high=0.3")
    )
    assert lines(go(sets, dry_run=True))["rl1"] == (
        "run: clip_norm 1.0 -> 2.0, loss.eps_high 0.2 -> 0.3, lr 1e-06 -> 0.001 and 2 more"
    )


def test_a_higher_version_of_a_stage_runs_it_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go()
    mine = STAGES["mine"]
    monkeypatch.setitem(STAGES, "mine", Stage(mine.entry, mine.inputs, (), mine.outputs, version=2))
    assert lines(go())["mined"] == "run: stage version 1 -> 2"


def test_the_same_content_under_another_path_is_the_same_input(place: Path) -> None:
    go()
    Path("base").rename("elsewhere")
    write_text(Path("elsewhere/README.md"), "not part of what the model says")
    assert set(lines(go(("rl1.inputs.model=elsewhere/",))).values()) == {SKIPPED}
    write_text(Path("elsewhere/model.safetensors"), "other weights")
    assert lines(go(("rl1.inputs.model=elsewhere/",), dry_run=True))["rl1"] == "run: input model is another"


def test_a_report_is_made_again_when_only_the_name_of_an_evaluation_changed(place: Path) -> None:
    text = TEXT + "  e: {uses: eval, inputs: {model: rl1.model, problems: test.problems}}\n"
    text += "  r: {uses: report, inputs: {scores: [e.scores]}}\n"
    write_text(Path("p.yaml"), text)
    go(until="r")
    write_text(Path("p.yaml"), text.replace("  e:", "  final:").replace("[e.", "[final."))
    last = go(until="r")[-1]
    assert last.line == "run: input scores is final.scores"
    assert last.outputs["report"].read_text() == "final"


def test_a_report_made_again_for_other_settings_of_the_same_result_names_whose_they_are(place: Path) -> None:
    text = TEXT + "  e: {uses: eval, inputs: {model: rl1.model, problems: test.problems}, config: {samples: 4}}\n"
    write_text(Path("p.yaml"), text + "  r: {uses: report, inputs: {scores: [e.scores]}}\n")
    go(until="r")
    last = go(("e.samples=8",), until="r")[-1]
    assert last.line == "run: e.scores was made under other settings, with the same result"


def test_a_manifest_says_where_each_setting_was_said(place: Path) -> None:
    pipeline, origins = load_pipeline_with_origins(place / "p.yaml", ["rl1.reward.alpha=0.1"])
    rl1 = {o.stage: o for o in execute(pipeline, Path("runs"), origins=origins)}["rl1"]
    assert rl1.folder is not None
    said = read_json(rl1.folder / "manifest.json")["origins"]
    assert said == dict.fromkeys(("save_every", "stage", "steps"), "p.yaml:8") | {
        "reward.alpha": "--set rl1.reward.alpha=0.1"
    }


def test_a_dry_run_writes_nothing(place: Path) -> None:
    assert lines(go(dry_run=True)) == {
        "d": "run: first time",
        "test": "run: first time",
        "rl1": "runs after d",
        "mined": "runs after d, rl1",
        "rl2": "runs after rl1, mined",
    }
    assert not Path("runs").exists()


def test_a_hub_model_is_fetched_once_pinned_and_not_asked_for_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = place / "cache" / "abc123"
    write_text(snapshot / "config.json", "{}")
    write_text(snapshot / "model.safetensors", "weights")
    asked: list[tuple[str, str | None]] = []

    def network(repository: str, revision: str | None, patterns: object) -> Path:
        asked.append((repository, revision))
        return snapshot

    monkeypatch.setattr("concisecli.references.snapshot", network)
    sets = ("rl1.inputs.model=hf:org/name",)
    assert lines(go(("d.limit=3", *sets), kinds=("data",)))["d"] == "run: first time"
    assert lines(go(sets, dry_run=True, until="rl1")) == {"d": "run: limit 3 -> None", "rl1": "runs after d"}
    assert lines(go(sets, until="d"))["d"] == "run: limit 3 -> None"
    assert lines(go(sets, dry_run=True))["rl1"] == "run: hf:org/name has not been fetched yet"
    assert asked == []
    go(sets)
    assert {name for name, _ in asked} == {"org/name"}
    assert Path("runs/t/lock.yaml").read_text() == "hf:org/name: abc123\n"
    asked.clear()
    assert set(lines(go(sets)).values()) == {SKIPPED}
    assert asked == []
    go((*sets, "rl1.steps=1"))
    assert set(asked) == {("org/name", "abc123")}


# --- interrupted ------------------------------------------------------------------------------------------------------


def test_an_interrupted_stage_goes_on_at_its_checkpoint_and_ends_the_same(place: Path) -> None:
    go(runs="straight")
    write_text(Path("break"), "5 ctrl-c")
    with pytest.raises(KeyboardInterrupt):
        go()
    Path("break").unlink()
    assert lines(go(dry_run=True))["rl1"] == "resume at step 4"
    assert lines(go())["rl1"] == "resume at step 4"
    assert hashes("runs") == hashes("straight")


def test_a_stage_interrupted_before_its_first_checkpoint_starts_again(place: Path) -> None:
    write_text(Path("break"), "1 ctrl-c")
    with pytest.raises(KeyboardInterrupt):
        go()
    Path("break").unlink()
    assert lines(go())["rl1"] == "resume what was begun"


RUN = """
import sys
from pathlib import Path
from concisecli.loading import load_pipeline
from concisecli.pipeline import execute
from concisecli.records import ConciseError
from concisecli.stages import STAGES
from tests.test_pipeline import register
STAGES.update(register())
try:
    execute(load_pipeline(Path("p.yaml")), Path("runs"))
except ConciseError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def start() -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", RUN], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("step", [0, 3, 5])
def test_kill_9_at_any_step_and_the_run_ends_the_same(place: Path, step: int) -> None:
    go(runs="straight")
    write_text(Path("break"), f"{step} kill")
    with start() as killed:
        assert killed.wait(60) == -signal.SIGKILL
    Path("break").unlink()
    go()
    assert hashes("runs") == hashes("straight")


def test_a_second_process_on_the_same_stage_is_told_and_loses_nothing(place: Path) -> None:
    write_text(Path("break"), "3 wait")
    with start() as first:
        while not Path("waiting").exists():
            assert first.poll() is None
            time.sleep(0.01)
        with pytest.raises(ConciseError, match=rf"rl1-\w+ is being written by process {first.pid} on "):
            go()
        Path("break").unlink()
        assert first.wait(60) == 0
    assert set(lines(go()).values()) == {SKIPPED}


def test_sigterm_ends_with_exit_code_75_and_the_run_can_go_on(place: Path) -> None:
    write_text(Path("break"), "3 sigterm")
    with pytest.raises(Preempted) as caught:
        go()
    assert caught.value.exit_code == 75
    Path("break").unlink()
    assert lines(go())["rl1"] == "resume at step 2"


def test_a_full_disk_in_a_stage_is_one_line(place: Path) -> None:
    write_text(Path("break"), "3 disk")
    with pytest.raises(ConciseError, match=r"cannot write .*: the disk is full"):
        go()


def test_what_the_user_can_mend_names_the_stage_and_a_bug_stays_a_bug(place: Path) -> None:
    write_text(Path("break"), "3 mend")
    with pytest.raises(UsageError, match=r"^stage 'rl1': the settings of this stage"):
        go()
    write_text(Path("break"), "3 bug")
    with pytest.raises(ZeroDivisionError):
        go()


# --- selections -------------------------------------------------------------------------------------------------------


def names(pipeline_selection: dict[str, Any]) -> list[str]:
    return [o.stage for o in go(dry_run=True, **pipeline_selection)]


@pytest.mark.parametrize(
    ("selection", "stages"),
    [
        ({"kinds": ("data",)}, ["d", "test"]),
        ({"kinds": ("train",), "number": 1}, ["rl1"]),
        ({"kinds": ("train",)}, ["rl1", "rl2"]),
        ({"only": ("mined", "d")}, ["d", "mined"]),
        ({"until": "mined"}, ["d", "rl1", "mined"]),
        ({"from_": "mined"}, ["mined", "rl2"]),
        ({"from_": "rl1", "until": "mined"}, ["rl1", "mined"]),
    ],
)
def test_selections_follow_the_graph(place: Path, selection: dict[str, Any], stages: list[str]) -> None:
    assert names(selection) == stages


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"only": ("rl3",)}, "p.yaml has no stage 'rl3'; did you mean 'rl"),
        ({"until": "nothing"}, "p.yaml has no stage 'nothing'; its stages are d, test, rl1"),
        ({"force": ("dd",)}, "p.yaml has no stage 'dd'"),
        ({"kinds": ("sft",)}, r"p.yaml has no such stage; its stages are d \(data\)"),
        ({"kinds": ("train",), "number": 3}, r"has no such stage; .* rl1 \(train stage 1\)"),
    ],
)
def test_a_selection_of_nothing_says_what_there_is(place: Path, selection: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        go(**selection)


def test_a_stage_whose_inputs_are_not_made_names_the_command_that_makes_them(place: Path) -> None:
    with pytest.raises(ConciseError) as caught:
        go(kinds=("train",), number=1)
    assert str(caught.value) == ("stage 'rl1' needs problems, made by stage 'd'; run: concise run p.yaml --until d")
    pipeline = load_pipeline(Path("p.yaml"))
    with pytest.raises(ConciseError, match=r"--until mined --set seed=1$"):
        execute(pipeline, Path("runs"), Selection(kinds=("mine",)), flags=" --set seed=1")


def test_command_by_command_makes_the_same_files_as_one_run(place: Path) -> None:
    go(runs="one")
    for selection in ({"kinds": ("data",)}, {"kinds": ("train",), "number": 1}, {"kinds": ("mine",)}):
        go(runs="other", **selection)
    go(runs="other", kinds=("train",), number=2)
    assert hashes("other") == hashes("one")


# --- edited by hand ---------------------------------------------------------------------------------------------------


def test_an_output_edited_by_hand_stops_the_run_and_force_makes_it_anew(place: Path) -> None:
    done = go()
    before = hashes()
    model = done[2].outputs["model"] / "model.safetensors"
    model.write_text("tampered")
    with pytest.raises(ConciseError, match=r"was changed since stage 'rl1' made it; .* --only rl1 --force rl1"):
        go()
    with pytest.raises(ConciseError, match="was changed since stage 'rl1' made it"):
        go(only=("rl2",))
    assert model.read_text() == "tampered"
    assert lines(go(only=("rl1",), force=("rl1",))) == {"rl1": "run: forced"}
    assert hashes() == before
    assert set(lines(go()).values()) == {SKIPPED}


def test_an_output_that_a_stage_did_not_make_is_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = STAGES["train"]
    monkeypatch.setitem(STAGES, "train", Stage(stage.entry, stage.inputs, ("evaluation",), stage.outputs))
    text = TEXT.replace(
        "problems: d.problems}\n    config: {",
        "problems: d.problems, evaluation: test.problems}\n    config: {evaluate_every: 2, ",
        1,
    )
    write_text(Path("p.yaml"), text.replace("{model: rl1.model, problems: mined", "{model: rl1.best, problems: mined"))
    with pytest.raises(ConciseError, match=r"'rl1\.best': stage 'rl1' made no best; it made model"):
        go()


# --- what a stage is given and what is kept ---------------------------------------------------------------------------


def test_the_manifest_tells_what_it_was_made_from(place: Path) -> None:
    folder = {o.stage: o.folder for o in go(("threads=3",))}["rl2"]
    assert folder is not None
    kept = read_json(folder / "manifest.json")
    assert kept["sources"] == {"model": ["rl1.model"], "problems": ["mined.problems"]}
    assert kept["inputs"]["model"] == [sha256_path(folder.parent / next(Path("runs/t").glob("rl1-*")).name / "model")]
    assert kept["env"]["threads"] == 3
    assert kept["key"].startswith(folder.name.removeprefix("rl2-"))


def test_faults_of_the_pipeline_stop_everything_before_anything_runs(place: Path) -> None:
    write_text(
        Path("p.yaml"),
        TEXT.replace(" d.problems", " d.problem").replace(
            "steps: 6", "steps: 6, batch_problems: 3, updates_per_batch: 2"
        ),
    )
    with pytest.raises(UsageError) as caught:
        go()
    assert len(str(caught.value).splitlines()) == 3
    assert not Path("runs").exists()


def test_every_outcome_is_told_as_soon_as_it_is_known(place: Path) -> None:
    heard: list[str] = []
    write_text(Path("break"), "3 ctrl-c")
    tell: Callable[[Outcome], None] = lambda outcome: heard.append(outcome.stage)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        execute(load_pipeline(Path("p.yaml")), Path("runs"), tell=tell)
    assert heard == ["d", "test"]
