"""The judgement itself: where the answer stands, and whether it equals the gold answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from concisecli.config import GraderConfig
from concisecli.grader import answers
from concisecli.grader.answers import check, equivalent, extract
from concisecli.grader.normalize import gold_texts, key
from concisecli.records import UsageError
from concisecli.stages.grade import shipped_cases

CASES = [c for c in shipped_cases() if c["id"] != "s-hang-06"]  # a sum of 10^12 terms needs the pool's deadline
SHARED = Path(__file__).parents[2] / "shared" / "cases" / "grading_cases.jsonl"


def box(text: str) -> str:
    return f"So \\boxed{{{text}}}"


@pytest.mark.parametrize("kind", sorted({c["id"].rsplit("-", 1)[0] for c in CASES}))
def test_the_labelled_cases_of_each_kind_are_judged_right(kind):
    for case in CASES:
        if case["id"].rsplit("-", 1)[0] == kind:
            verdict = check(case["response"], case["gold"])
            assert verdict.correct == case["equivalent"], (case["id"], case["gold"], verdict, case["why"])


@pytest.mark.skipif(not SHARED.exists(), reason="the shared cases are not beside this checkout")
def test_the_shipped_cases_contain_the_shared_ones():
    with SHARED.open("rb") as file:
        shared = [json.loads(line) for line in file]
    shipped = {c["id"]: c for c in shipped_cases()}
    assert all(shipped[c["id"]] == c for c in shared)


# --- where the answer stands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} then \\boxed {2}", "2"),
        ("$\\boxed 72$", "72"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\x08oxed{\x0crac{1}{2}}", "\\frac{1}{2}"),
        ("<think>\\boxed{1}</think> so \\boxed{2}", "2"),
        ("<think>a</think> <answer> 7 </answer>", "7"),
        ("<answer>\\(\\boxed{70}\\).</answer>", "70"),
        ("The answer is 5. Let me know if you have questions!", "5"),
        ("**Final Answer**\n\\[ 9 \\]", "9"),
        ("所以答案为：12。", "12"),
    ],
)
def test_the_answer_is_found(response, answer):
    found = extract(response)
    assert found is not None
    assert found.text == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "<think>it is \\boxed{3}",
        "<think>a</think><think>\\boxed{3}",
        "\\boxed{3} and \\boxed{}",
        "\\boxed{3} and \\boxed{4",
        "<answer>3</answer><answer></answer>",
        "<answer>3",
        "We look at n = 17 first, and",
        "Answer: 5\nWait, that is wrong. We need to",
        "The answer is",
    ],
)
def test_no_answer_is_made_up(response):
    assert extract(response) is None
    assert check(response, "3").outcome == "no_answer"


def test_the_extractor_knows_whether_the_prompt_opened_the_thought():
    cut = "so it is \\boxed{4}, let me check"
    assert check(cut, 4, think_open=False).outcome == "match"
    assert check(cut, 4, think_open=True).outcome == "no_answer"
    assert check("so 4</think>\\boxed{4}", 4, think_open=True).outcome == "match"
    assert check("<think>so 4</think>\\boxed{4}", 4, think_open=False).outcome == "match"


@pytest.mark.parametrize(
    ("response", "think_open", "outcome"),
    [
        ("<think>A20-6=14;</think><answer>13</answer>", False, "match"),
        ("A20-6=14;</think><answer>13</answer>", True, "match"),
        ("A20-6=14;</think><answer>13</answer>", False, "no_answer"),
        ("<think>x</think>\n<answer>\\boxed{13}</answer>\n", False, "match"),
        ("<think>x</think> 13", False, "no_answer"),
        ("<answer>13</answer><think>x</think>", False, "no_answer"),
        ("hm <think>x</think><answer>13</answer>", False, "no_answer"),
        ("<think>x</think><answer>13</answer> or so", False, "no_answer"),
        ("<think>x</think><answer>13</answer><answer>13</answer>", False, "no_answer"),
        ("<think>x</think><answer></answer>", False, "no_answer"),
        ("<think>x</think><answer>14</answer>", False, "mismatch"),
    ],
)
def test_the_strict_profile_wants_both_tags_in_order_and_nothing_else(response, think_open, outcome):
    assert check(response, "13", profile="strict", think_open=think_open).outcome == outcome


def test_the_inside_think_profile_reads_the_box_before_the_closing_tag():
    kind = {"profile": "inside-think"}
    assert check("so \\boxed{5}</think>", 5, **kind).outcome == "match"
    assert check("so \\boxed{5}</think> or \\boxed{6}", 5, **kind).outcome == "match"
    assert check("so \\boxed{5}, let me", 5, **kind).outcome == "no_answer"
    assert check("so 5</think>", 5, **kind).outcome == "no_answer"


# --- golds of any type ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold", [None, "", " ", "$$", [], [None], {}, float("nan")])
def test_some_golds_match_nothing(gold):
    for text in ("", "0", "None", "nan", "\\{\\}"):
        assert not check(box(text), gold).correct


def test_a_list_of_golds_means_any_or_all_as_configured():
    assert check(box("2"), [1, 2]).correct
    assert not check(box("2"), [1, 2], gold_list="set").correct
    assert check(box("2, 1"), [1, 2], gold_list="set").correct
    assert not check(box("1, 2"), [1, 2], gold_list="any").correct
    assert check(box("588"), ["588"], gold_list="set").correct


def test_a_float_gold_is_its_decimal_and_not_its_neighbours():
    assert check(box("0.1"), 0.1).correct
    assert check(box("\\sqrt{17}"), 17**0.5).correct
    assert not check(box("0.1000001"), 0.1).correct
    assert gold_texts(1e-5) == ["0.00001"]


# --- comparison -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "answer", "rule"),
    [
        ("13", "13", "same-text"),
        ("13", "14", "other-number"),
        ("013", "13.0", "same-number"),
        ("1/2", "0.5", "value"),
        ("\\{1,2\\}", "\\{2,1\\}", "set"),
        ("B", "(B) 12", "choice"),
        ("Monday", "monday", "words"),
        ("\\sum_{k=1}^{n} k", "\\sum_{k=1}^{n} k^2", "math-verify"),
    ],
)
def test_a_verdict_names_the_rule_that_decided(gold, answer, rule):
    assert check(box(answer), gold).rule == rule


def test_model_text_is_never_run(tmp_path):
    trap = tmp_path / "trap"
    check(box(f"simplify(\"open('{trap}','w')\")"), "4")
    check(box(f"__import__('pathlib').Path('{trap}').touch()"), "4")
    assert not trap.exists()


def test_equivalence_of_extracted_answers_is_symmetric():
    assert equivalent("\\frac12", "0.5")
    assert equivalent("40\\%", "40") == equivalent("40", "40\\%")
    assert not equivalent("x", "y")


@pytest.mark.parametrize("gold", ["\\frac{1}{2004!}", "10^{-50}\\pi", "\\frac{1}{2^{99}}", "1.2\\times10^{-30}"])
def test_tiny_is_not_zero(gold):
    assert not check(box("0"), gold).correct
    assert not check(box(f"2\\cdot({gold})"), gold).correct
    assert check(box(f"\\frac{{2\\cdot({gold})}}{{2}}"), gold).correct


# --- properties -------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *"0123456789+-*/^_(){}[]xyznfie.,:;|!%$°√π½ ",
        *("\\frac{1}{2}", "\\sqrt{2}", "\\pi", "\\infty", "\\{", "\\}", "\\text{cm}", "\\text{ or }", "\\cup", "\\le"),
        *("=", "\\pm", "\\circ", "\\overline{3}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\sin", "\\ln", "_8"),
        *("10^{99}", "\\ldots", "\\mathbb{R}"),
    ]
)
WRITTEN = st.lists(PIECES, min_size=1, max_size=9).map("".join)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(WRITTEN)
def test_an_answer_always_matches_itself(text):
    if key(text) and "{" not in text.replace("\\{", "").replace("{1}{2}", ""):
        verdict = check(f"<think>t</think><answer>{text}</answer>", text, profile="strict")
        assert verdict.correct or verdict.outcome == "no_answer"
        assert equivalent(text, text)


@QUICK
@given(WRITTEN, WRITTEN)
@example("\\frac{1}{2", "1/2")
def test_judging_never_raises_and_equivalence_is_symmetric(a, b):
    assert equivalent(a, b) == equivalent(b, a)


@QUICK
@given(st.text(max_size=400), st.booleans())
@example("\ud800\\boxed{\udfff}", False)
@example("<think>" * 50, True)
def test_extraction_never_raises_on_any_string(text, think_open):
    for profile in ("strict", "lenient", "inside-think"):
        found = extract(text, profile=profile, think_open=think_open)
        assert found is None or found.text.strip()


@QUICK
@given(
    st.lists(
        st.sampled_from(
            ["<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "}", "\\boxed", "5", " ", "Answer:", "$$"]
        ),
        max_size=14,
    )
)
def test_extraction_never_raises_on_any_order_of_tags(pieces):
    text = "".join(pieces)
    for profile in ("strict", "lenient", "inside-think"):
        extract(text, profile=profile)
    if text.rfind("<think>") > text.rfind("</think>"):
        assert extract(text) is None


@QUICK
@given(st.integers(-(10**30), 10**30), st.integers(1, 10**9), st.integers(2, 50))
def test_numbers_are_compared_exactly(above, below, factor):
    gold = f"\\frac{{{above}}}{{{below}}}"
    assert check(box(f"\\frac{{{above * factor}}}{{{below * factor}}}"), gold).correct
    assert not check(box(f"\\frac{{{above * factor + 1}}}{{{below * factor}}}"), gold).correct


# --- identity ---------------------------------------------------------------------------------------------------------


def test_the_identity_names_versions_settings_and_the_source_of_a_custom_check(tmp_path, monkeypatch):
    plain = answers.identity(GraderConfig())
    assert plain["name"] == "concise-answers"
    assert plain["math_verify"].startswith("0.9")
    assert plain["settings"]["profile"] == "lenient"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "identity_check_one.py").write_text("def judge(response, gold):\n    return 'match'\n")
    custom = answers.identity(GraderConfig(custom="identity_check_one:judge"))["custom"]
    assert custom["name"] == "identity_check_one:judge"
    assert len(custom["sha256"]) == 64


@pytest.mark.parametrize("name", ["no_such_module_x:f", "json:no_such", "json"])
def test_a_custom_check_that_does_not_load_is_a_usage_error(name):
    with pytest.raises(UsageError, match="custom"):
        answers.load_custom(name)


def test_neither_math_verify_nor_torch_is_loaded_before_it_is_needed():
    heavy = ("torch", "sympy", "math_verify", "mpmath")
    code = "import sys, concisecli.grader.grading, concisecli.stages.grade"
    code += f"; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.parametrize("answer", ["7", "1", "\\pi", "x", "(7, 8)", "\\{1, 2\\}"])
def test_named_values_in_any_order_match_no_other_kind_of_answer(answer):
    assert answers.judge(answer, "y=2, x=1").outcome == "mismatch"


def test_a_difference_far_below_the_digits_compared_is_a_difference_of_functions_too():
    assert answers.judge("x+10^{-40}", "x").outcome == "mismatch"
    assert answers.judge("(x+1)^2-2x-1", "x^2").outcome == "match"
