"""Whatever can be known to be wrong before anything runs, all at once and in place."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from concisecli.checks import check_pipeline, order
from concisecli.faults import Fault, merged
from concisecli.loading import load_pipeline, load_pipeline_with_origins, packaged
from concisecli.records import UsageError

TEXT = textwrap.dedent(
    """\
    run: t
    stages:
      d: {uses: data, config: {sources: {c: {type: chains, count: 3}}}}
      traces: {uses: data, config: {sources: {c: {type: chains, rows: traces, count: 3}}}}
      sft:
        uses: sft
        inputs: {model: {new: {max_positions: 128}}, examples: traces.examples}
        config: {steps: 9, mix: {examples: 4}}
      rl1:
        uses: train
        inputs: {model: sft.model, problems: d.problems}
        config:
          steps: 3
          batch_problems: 4
          sampling: {max_response_tokens: 100}
          reward: {alpha: 0.05}
          advantage: {keep: mixed}
      mined:
        uses: mine
        inputs: {problems: d.problems, model: rl1.model}
        config: {sampling: {max_response_tokens: 100}}
      e: {uses: eval, inputs: {model: rl1.model, problems: d.problems}, config: {budgets: [100]}}
      report: {uses: report, inputs: {scores: [e.scores], metrics: [rl1.metrics]}, config: {before: e}}
    """
)


def check(text: str) -> list[Fault]:
    path = Path("p.yaml")
    path.write_text(text)
    return check_pipeline(*load_pipeline_with_origins(path))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_correction_needs_the_trainers_log_probs() -> None:
    (fault,) = check(TEXT.replace("keep: mixed}", "keep: mixed}\n      loss: {correction: token}"))
    assert fault.level == "error"
    assert str(fault).startswith("p.yaml:18: stage 'rl1': loss.correction token weighs")
    fixed = "keep: mixed}\n      loss: {correction: token, old_logprobs: trainer}"
    assert check(TEXT.replace("keep: mixed}", fixed)) == []


def test_a_sound_pipeline_has_no_faults() -> None:
    assert check(TEXT) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sft.model, prob", "stf.model, prob", "p.yaml:11: stage 'rl1': 'stf.model' names no stage of this pipeline"),
        ("sft.model, prob", "stf.model, prob", "did you mean 'sft.model'?"),
        ("sft.model, prob", "sft.modle, prob", "'sft.modle': stage 'sft' makes no 'modle'; did you mean 'sft.model'?"),
        ("sft.model, prob", "rl1.model, prob", "wait for each other in a circle"),
        ("sft.model, prob", "mined.problems, prob", "'mined.problems' is no model"),
        ("sft.model, prob", "[sft.model, rl1.model], prob", "stage 'rl1': the input 'model' takes exactly one"),
        ("sft.model, prob", "./nowhere/model, prob", "the input 'model': there is no file or folder"),
        ("model: sft.model, prob", "prob", "p.yaml:11: stage 'rl1' (train) needs the input 'model'"),
        ("problems: d.problems}\n    config:\n", "problem: d.problems}\n    config:\n", "did you mean 'problems'?"),
        ("problems: d.problems}\n    config:\n", "problems: hf:org/set}\n    config:\n", "'problems' is no model"),
        ("problems: d.problems}\n    config:\n", "problems: traces.problems}\n    config:\n", "makes no 'problems'"),
        ("traces.examples", "d.examples", "stage 'd' makes no 'examples'"),
        (
            "sft.model, prob",
            "rl1.best, prob",
            "stage 'rl1' makes no 'best' as it evaluates nothing; give it evaluate_every",
        ),
        ("{examples: 4}", "{exmples: 4}", "mix names 'exmples', which is no input; did you mean 'examples'?"),
        ("{examples: 4}", "{exmples: 4}", "the input 'examples' is not in mix"),
        ("{examples: 4}", "{examples: 0}", "mix.examples is a number of rows, at least 1"),
        ("steps: 9", "steps: 9, warmup_steps: 10", "p.yaml:8: stage 'sft': warmup_steps 10 is more than its 9 "),
        ("batch_problems: 4", "updates_per_batch: 3", "p.yaml:14: stage 'rl1': batch_problems 128 cannot be split"),
        ("batch_problems: 4", "evaluate_every: 2", "evaluate_every needs the input 'evaluation'"),
        ("batch_problems: 4", "on_alarm: rollback", "on_alarm rollback goes back to the best evaluated weights"),
        ("batch_problems: 4", "warmup_steps: 4", "a tenth of them: --set rl1.warmup_steps=0"),
        ("{alpha: 0.05}", "{overlong: soft}", "p.yaml:16: stage 'rl1': overlong soft needs an overlong_window"),
        ("{alpha: 0.05}", "{overlong: soft, overlong_window: 101}", "overlong_window from 1 to max_response_tokens"),
        ("[100]", "[100, 128]", "p.yaml:22: stage 'e': budgets 128 does not fit the model's max_positions 128"),
        (
            "max_response_tokens: 100}\n      r",
            "max_response_tokens: 200}\n      r",
            "does not fit the model's max_positions",
        ),
        ("[100]", "[]", "budgets are token counts, at least one"),
        (
            "[100]",
            "[100], engine: {type: vllm, max_model_len: 1100}",
            "max_prompt_tokens 1024 + budgets 100 = 1124 is more than engine.max_model_len 1100",
        ),
        ("before: e", "before: rl1", "before names an eval stage, and 'rl1' is none"),
        (
            "model: rl1.model}\n    config: {sam",
            "extra: d.problems}\n    config: {sam",
            "source resample needs the input 'model'",
        ),
        (
            "config: {sampling: {max",
            "config: {min_pass_rate: 0.8, sampling: {max",
            "min_pass_rate is above max_pass_rate",
        ),
    ],
)
def test_a_fault_is_an_error_with_place_and_advice(old: str, new: str, message: str) -> None:
    assert old in TEXT
    errors = [str(f) for f in check(TEXT.replace(old, new, 1)) if f.level == "error"]
    assert any(message in error for error in errors), errors


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("keep: mixed", "keep: mixed, std_eps: 1e-4", None),
        ("{alpha: 0.05}", "{length: remaining}", None),
        (
            "{alpha: 0.05}\n      advantage: {keep: mixed}",
            "{length: remaining, lam: 2e-6}\n      advantage: {std_eps: 1e-4}",
            "std_eps 0.0001 is not small against the spread of the length rewards (about 2.0e-05)",
        ),
        (
            "{alpha: 0.05}\n      advantage: {keep: mixed}",
            "{length: remaining}\n      advantage: {normalize: mean}",
            "about lam x tokens = 2.0e-05",
        ),
        ("keep: mixed", "keep: all}\n      refill_rounds: 2\n      prompt: {", "refill_rounds does nothing"),
        ("max_response_tokens: 100}\n      r", "max_response_tokens: 100, top_p: 0.9}\n      r", "top_p or min_p cuts"),
    ],
)
def test_what_is_odd_but_possible_is_a_warning(old: str, new: str, message: str | None) -> None:
    assert old in TEXT
    found = check(TEXT.replace(old, new, 1))
    assert {f.level for f in found} <= {"warning"}, found
    assert any(message in str(f) for f in found) if message else found == []


def test_all_faults_come_at_once() -> None:
    text = (
        TEXT.replace("{examples: 4}", "{exmples: 4}")
        .replace("[100]", "[]")
        .replace("batch_problems: 4", "updates_per_batch: 3")
    )
    assert len([f for f in check(text) if f.level == "error"]) == 4


def test_stages_are_ordered_by_the_graph_and_else_as_written() -> None:
    Path("p.yaml").write_text(TEXT)
    assert order(load_pipeline(Path("p.yaml"))) == ["d", "traces", "sft", "rl1", "mined", "e", "report"]
    head, _, rest = TEXT.partition("  d:")
    line, _, rest = rest.partition("\n")
    Path("p.yaml").write_text(f"{head}{rest}  d:{line}\n")
    assert order(load_pipeline(Path("p.yaml"))) == ["traces", "sft", "d", "rl1", "mined", "e", "report"]


def test_a_circle_names_its_stages() -> None:
    Path("p.yaml").write_text(TEXT.replace("d.problems, model: rl1.model", "d.problems, model: rl2.model"))
    text = (
        Path("p.yaml").read_text()
        + "  rl2: {uses: train, inputs: {model: rl1.model, problems: mined.problems}, config: {steps: 2}}\n"
    )
    Path("p.yaml").write_text(text)
    with pytest.raises(UsageError, match="the stages mined, rl2 wait for each other in a circle"):
        order(load_pipeline(Path("p.yaml")))


@pytest.mark.parametrize(
    "path", sorted(packaged("pipelines", "tiny").parent.glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_pipeline_is_sound(path: Path) -> None:
    errors = [str(f) for f in check_pipeline(*load_pipeline_with_origins(path)) if f.level == "error"]
    assert errors == []


def test_the_checks_need_no_torch() -> None:
    script = "import sys, concisecli.checks; assert 'torch' not in sys.modules and 'pyarrow' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_one_flag_that_is_wrong_for_many_stages_is_told_once():
    said = [
        Fault("error", "--set a.budgets=[9]", "stage 'a': budgets 9 does not fit"),
        Fault("error", "--set b.budgets=[9]", "stage 'b': budgets 9 does not fit"),
        Fault("error", "--set b.steps=0", "stage 'b': another thing"),
        Fault("error", "p.yaml:3", "stage 'c': budgets 9 does not fit"),
    ]
    assert [str(fault) for fault in merged(said)] == [
        "--set budgets=[9]: stages a, b: budgets 9 does not fit",
        "--set b.steps=0: stage 'b': another thing",
        "p.yaml:3: stage 'c': budgets 9 does not fit",
    ]
