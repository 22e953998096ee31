r"""Reading the answer out of a worked solution, and keeping a row where it equals the given one."""

from pathlib import Path

import pytest

from concisecli.building.agreement import agree, bare_letter, choice_value, read_solution, refuse_choice
from concisecli.building.cleaning import Drop
from concisecli.building.columns import Row
from concisecli.building.recipes import judge_many
from concisecli.config import AgreementConfig, FileSource, GraderConfig
from concisecli.grader.grading import GraderPool

SHARED = Path(__file__).parents[2] / "shared" / "data"
LAX = AgreementConfig()


@pytest.fixture(scope="module")
def judge():
    with GraderPool(GraderConfig(workers=1)) as pool:
        yield lambda pairs: judge_many(pool, pairs)


def settled(judge, problem, answer, solution=None, config=LAX, choices=()):
    (result,) = agree([Row("s", "line 1", problem, answer, solution, choices=choices)], config, judge)
    return result


@pytest.mark.parametrize(
    ("answer", "solution"),
    [
        ("\\frac12", "Hence $x = \\boxed{\\frac{1}{2}}$."),
        ("0.5", "so \\boxed{\\dfrac{1}{2}}"),
        ("2", "is \\boxed 2."),
        ("5", "First \\boxed{3}, but then \\boxed{5}"),
        ("192", "thus \\boxed{\\textbf{(D)}\\; 192}"),
        ("\\frac{85\\pi}{8}", "\\boxed{\\textbf{(C) } \\frac{85\\pi}{8}}"),
        ("8", "therefore \\boxed{8\\ \\textbf{(C)}}"),
        ("(2, 3)", "\\boxed{(2,3)}"),
        ("1,000", "\\boxed{1000}"),
        ("x=4", "we get \\boxed{4}"),
        ("$\\boxed{7}$", "gives \\boxed{7}"),
    ],
)
def test_a_solution_that_says_the_same_verifies_the_answer(judge, answer, solution):
    result = settled(judge, "Find it.", answer, solution)
    assert "verified" in result.flags


@pytest.mark.parametrize(
    ("answer", "solution", "reason"),
    [
        ("6", "\\boxed{64}", "answer-mismatch"),
        ("3", "First \\boxed{3}, but then \\boxed{5}", "answer-mismatch"),
        ("7", "so \\boxed{}", "no-answer"),
        ("7", "so \\boxed{7", "solution-cut"),
        ("\\frac{1", "so \\boxed{2}", "unparseable-answer"),
    ],
)
def test_a_solution_that_says_otherwise_or_nothing_drops_the_row(judge, answer, solution, reason):
    assert settled(judge, "Find it.", answer, solution).reason == reason


def test_the_answer_comes_out_of_the_box_where_no_column_has_it(judge):
    assert settled(judge, "Find it.", None, "so \\boxed{\\frac{3}{4}}").answer == "\\frac{3}{4}"
    assert settled(judge, "Find it.", None, None) == Drop("no-answer")


def test_several_boxes_are_one_answer_where_all_were_asked_for(judge):
    both = "the solutions are \\boxed{-2} and \\boxed{1}"
    assert settled(judge, "Find all solutions.", None, both).answer == "-2, 1"
    assert settled(judge, "Find the largest root.", None, both).answer == "1"
    assert settled(judge, "Enter only one of the foci, not both.", None, both).answers == ("1", "-2")
    drop = AgreementConfig(several_boxes="drop")
    assert settled(judge, "Find all solutions.", None, both, drop).reason == "several-boxes"
    same = "\\boxed{\\frac12} that is \\boxed{0.5}"
    assert settled(judge, "Find it.", None, same).answer == "0.5"


def test_boxes_that_together_are_the_answer_given_verify_it(judge):
    said = settled(judge, "What are the two roots of $x^2-4x+3$?", "1, 3", r"They are $\boxed{1}$ and $\boxed{3}$.")
    assert said.answer == "1, 3"
    assert "verified" in said.flags
    assert settled(judge, "What is the larger root?", "2", r"$\boxed{1}$, so $\boxed{3}$").reason == "answer-mismatch"


def test_without_a_box_the_last_formula_or_number_may_stand_but_is_not_called_verified(judge):
    lucky = settled(judge, "Find it.", "107", "7 odd squares $(1^2, 3^2)$ for a total of 107.")
    assert "last-formula" in lucky.flags
    assert "verified" not in lucky.flags
    strict = AgreementConfig(without_box="drop")
    assert settled(judge, "Find it.", "107", "for a total of 107.", strict).reason == "no-box"
    chained = settled(judge, "Find it.", "8", "Then $r^2 = 0 - 2(-4) = 8$")
    assert "last-formula" in chained.flags


def test_rows_without_a_solution_follow_the_recipe(judge):
    assert "unverified" in settled(judge, "Find it.", "7").flags
    assert settled(judge, "Find it.", "7", config=AgreementConfig(without_solution="drop")).reason == "no-solution"
    assert settled(judge, "Find it.", "\\frac{1").reason == "unparseable-answer"


def test_a_choice_letter_needs_its_choices(judge):
    listed = "Which is prime? (A) 4 (B) 7 (C) 9"
    assert settled(judge, listed, "B").answer == "B"
    assert settled(judge, listed, "B", config=AgreementConfig(choice_letters="drop")).reason == "choice-letter"
    assert settled(judge, "Which of the following is prime?", "B").reason == "choice-without-choices"
    assert settled(judge, "What is 2+2?", "C").reason == "choice-without-choices"
    assert settled(judge, "Which of these is prime?", "B", choices=("4", "7", "9")).answer == "B"
    assert settled(judge, "The points $A$ and $B$ are given. Which point is nearer?", "B").answer == "B"
    assert settled(judge, "If $A + B = C$, express the sum.", "C").answer == "C"


def test_a_box_with_a_letter_alone_cannot_contradict_a_value(judge):
    result = settled(judge, "How many are there?", "45", "which gives \\boxed{\\text{E}}")
    assert "choice-letter-only" in result.flags
    assert "verified" not in result.flags


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\textbf{(D)}\\; 192", "192"),
        ("\\text{(B) }\\frac{1}{2}", "\\frac{1}{2}"),
        ("(C) 3x+1", "3x+1"),
        ("A. 5", "5"),
        ("(E)", "(E)"),
        ("B", "B"),
        ("A+B", "A+B"),
        ("(A, B)", "(A, B)"),
        ("A = 5", "A = 5"),
        ("D", "D"),
        ("(-1, 2)", "(-1, 2)"),
        ("C(5,2)", "C(5,2)"),
        ("E^2", "E^2"),
    ],
)
def test_only_a_choice_letter_is_taken_off_an_answer(text, value):
    assert choice_value(text, LAX) == value


def test_letters_that_are_choices_are_told_from_letters_that_are_answers():
    assert bare_letter("\\text{(B)}") == "B"
    assert bare_letter("(E)") == "E"
    assert bare_letter("B") == "B"
    assert bare_letter("x") is None
    assert refuse_choice("Find it.", "12", (), LAX) is None


def test_an_unread_row_is_flagged_and_kept_where_nothing_may_be_dropped(judge):
    flag = AgreementConfig(check="flag")
    result = settled(judge, "Find it.", "6", "\\boxed{64}", flag)
    assert result.answer == "6"
    assert "answer-mismatch" in result.flags


def test_hostile_answers_end_in_a_reason(judge):
    tower = "9^{9^{9^{9^{9^9}}}}"
    result = settled(judge, "Find it.", tower, "\\boxed{9}")
    assert isinstance(result, Drop)


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_published_solutions_of_math_keep_999_rows_of_1000():
    from concisecli.building import cleaning, columns, sources
    from concisecli.config import CleaningConfig

    kept = total = 0
    with GraderPool(GraderConfig(workers=2)) as pool:
        for name in ("math_train_l3to5", "math_test_minus500_l3to5"):
            raw = list(sources.read(name, FileSource(path=SHARED / "raw" / f"{name}.jsonl")))
            mapping = columns.column_map(name, {}, [raw[0].fields], "problems")
            rows = [columns.map_row(name, r.place, r.fields, mapping) for r in raw]
            rows = [cleaning.clean(r, CleaningConfig()) for r in rows]
            results = agree(rows, LAX, lambda pairs: judge_many(pool, pairs))
            total += len(results)
            dropped = [r for r in results if isinstance(r, Drop)]
            kept += len(results) - len(dropped)
            assert {d.reason for d in dropped} <= {"no-answer", "unparseable-answer"}
    assert kept / total >= 0.998


def test_only_what_follows_a_reasoning_models_thoughts_is_its_answer():
    strict = AgreementConfig(without_box="drop")
    assert read_solution("<think>\\boxed{3}</think> so \\boxed{7}", "Find it.", strict).texts == ("7",)
    assert read_solution("<think>\\boxed{3}</think> so it is nine", "Find it.", strict).reason == "no-box"
    assert read_solution("<think>maybe \\boxed{3}", "Find it.", LAX).reason == "solution-cut"


def test_the_readings_of_a_solution_are_told_apart():
    assert read_solution("\\boxed{1}", "Find it.", LAX).texts == ("1",)
    assert read_solution("\\fbox{1}", "Find it.", LAX).texts == ("1",)
    assert read_solution("no answer at all", "Find it.", LAX).reason == "no-box"
