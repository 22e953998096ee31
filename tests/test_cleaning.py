r"""Mending and refusing texts: control characters, instructions, tails, cut-off problems, proofs, lost pictures."""

import pytest

from concisecli.building.cleaning import (
    REASONS,
    Drop,
    bare_answer,
    clean,
    incomplete,
    is_proof,
    mend,
    refuse,
    strip_forum_tail,
    strip_instructions,
)
from concisecli.building.columns import Row
from concisecli.config import CleaningConfig


def row(problem, answer="1", solution=None):
    return Row("s", "line 1", problem, answer, solution)


@pytest.mark.parametrize(
    ("damaged", "whole"),
    [
        ("in the form \x0crac{m}{n}", r"in the form \frac{m}{n}"),
        ("$a \times b$ and \theta", r"$a \times b$ and \theta"),
        ("B_{1}=\x08eta$", r"B_{1}=\beta$"),
        ("\x08inom{4}{2}", r"\binom{4}{2}"),
        ("\x08oxed{7}", r"\boxed{7}"),
        ("\x07lpha + \x07ngle A", r"\alpha + \angle A"),
        ("\x0bec{v}", r"\vec{v}"),
        ("\rho and \right)", r"\rho and \right)"),
        ("$x \neq 0$", r"$x \neq 0$"),
        ("$x \notin A$", r"$x \notin A$"),
        ("\triangle ABC", r"\triangle ABC"),
    ],
)
def test_a_swallowed_backslash_letter_becomes_the_command_again(damaged, whole):
    assert mend(damaged) == whole


@pytest.mark.parametrize(
    ("damaged", "whole"),
    [
        ("the other fi\x0cve circles", "the other five circles"),
        ("she goes into the \x0cfirst shop", "she goes into the first shop"),
        ("coordinate space \x0cnd the distance", "coordinate space find the distance"),
        ("the stack of the \x0crst way", "the stack of the first way"),
        ("satis\x0ces and de\x0cne", "satisfies and define"),
        ("has a di\x0bfference", "has a difference"),
        ("$2 | \x0cx^2 - 9\x0c |$", "$2 | x^2 - 9 |$"),
        ("ﬁnd the ﬂow", "find the flow"),
        ("satisfy $a \x14\\le b$", r"satisfy $a \le b$"),
        ("$90^\\circ$\x0e with", r"$90^\circ$ with"),
    ],
)
def test_ligatures_and_echoes_of_a_typeset_page_are_spelled_out(damaged, whole):
    assert mend(damaged) == whole


def test_a_control_character_that_stood_for_something_refuses_the_text():
    assert mend("$a \x14 b$") is None  # an operator is lost
    assert mend("caf\ufffd") is None
    assert mend("\ud800 is half a character") is None
    assert mend("in the form \x0crac{m}{n}", control="drop") is None


def test_ordinary_text_is_left_alone():
    for text in (
        r"Find $\neq$ and \nu",
        "a\nb",
        "two\n\nparagraphs\nequal",
        r"$\text{if } x\nRightarrow y$",
        "½ of 10 €",
    ):
        assert mend(text) == text


def test_line_ends_and_composed_characters_have_one_spelling():
    assert mend("a\r\nb\rc\u2028d") == "a\nb\nc\nd"
    assert mend("e\u0301") == "é"
    assert mend("zero\u200bwidth\u00a0space") == "zerowidth space"
    assert mend("(1) first\\n(2) second\\nFind it") == "(1) first\n(2) second\nFind it"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("If $x &lt; 5$ &amp; $x &gt; 3$", "If $x < 5$ & $x > 3$"),
        ("<p>Find <b>2<sup>3</sup></b><br/>now</p>", "Find 2^{3}\nnow"),
        ("Solve xâ‰¤22 for cafÃ©", "Solve x≤22 for café"),
        ("$0<b>c$ and $a < b$", "$0<b>c$ and $a < b$"),
        ("Ã is a letter, &c; too", "Ã is a letter, &c; too"),
    ],
)
def test_the_marks_of_web_pages_become_what_they_stand_for(page, text):
    assert mend(page) == text


def test_instruction_text_goes_by_exact_match_only():
    dapo = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nSolve x = 1.\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    assert strip_instructions(dapo) == "Solve x = 1."
    deepscaler = "Find it. Let's think step by step and output the final answer within \\boxed{}."
    assert strip_instructions(deepscaler) == "Find it."
    assert strip_instructions("Solve the system. Answer: in metres?") == "Solve the system. Answer: in metres?"
    assert strip_instructions("Let's think about 5.", ("Let's",)) == "think about 5."
    assert strip_instructions("Example 4 If $a=7$, find $a^2$.") == "If $a=7$, find $a^2$."
    assert strip_instructions("Problem 4 asks for $a^2$.") == "Problem 4 asks for $a^2$."


def test_forum_tails_go_and_mathematics_stays():
    solution = "So $x = \\boxed{5}$.\n\n~coolmath2017\n(editor: thanks)\nImage from Gogeometry"
    assert strip_forum_tail(solution) == "So $x = \\boxed{5}$."
    assert strip_forum_tail("x\n~ \\boxed{5}") == "x\n~ \\boxed{5}"
    assert strip_forum_tail("The answer is\n5") == "The answer is\n5"


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ("$5$", "5"),
        ("\\[ 5 \\]", "5"),
        ("\\(x\\)", "x"),
        ("$69$,$84$", "$69$,$84$"),
        ("", None),
        ("$$", None),
        ("N/A", None),
        ("None", None),
        ("...", None),
        ("0", "0"),
        ("-", None),
        ("$-1$", "-1"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("$\\boxed{7}$.", "7"),
        ("\\boxed{1} or \\boxed{2}", "\\boxed{1} or \\boxed{2}"),
        ("The answer is 5.", "5"),
        ("Answer: 6", "6"),
    ],
)
def test_an_answer_loses_its_delimiters_and_a_placeholder_is_none(answer, bare):
    assert bare_answer(answer) == bare


@pytest.mark.parametrize(
    "problem",
    [
        "Find the value of $x$ such that",
        "Let $x$ be a real number with $x + 1 = 2$ and",
        "What is the area of the triangle with sides (",
        "In triangle $ABC$, $AB = 5$ and $BC = 6$.",
        "Compute the sum \\[ \\sum_{k=1}^{10} \\frac{1}{k",
        "A train leaves the station at noon and travels...",
        "Let $a, b$ be reals with $a+b=3$,",
    ],
)
def test_cut_off_problems_are_seen(problem):
    assert incomplete(problem)


@pytest.mark.parametrize(
    "problem",
    [
        "The value of $1+1$ is",
        "Then $AB=$",
        "Find the sum of the series $1 + 2 + 3 + \\ldots$",
        "How many numbers are in the list $1, 2, 3, ...$",
        "Simplify $\\frac{1}{2}$",
        "\\[\\int_0^1 x\\,dx\\]",
        "Weng earns $12 an hour. How much did she earn in 50 minutes?",
        "The answer is ____",
        "求 $x$ 的值",
        "What is the point you look at?",
        "Where does a lone { brace matter? Find $x$.",
    ],
)
def test_whole_problems_are_not_taken_for_cut_off_ones(problem):
    assert incomplete(problem) == ""


@pytest.mark.parametrize(
    ("problem", "answer", "proof"),
    [
        ("Prove that $\\sqrt 2$ is irrational.", "irrational", True),
        ("Show that $n^2+n$ is even for all $n$.", "even", True),
        ("Show that $x$ is an integer and determine it.", "1", False),
        ("Find $\\lim F(x)$ or prove that it does not exist.", "11", False),
        ("What is the probability that two dice show the same number?", "1/6", False),
        ("Two fair dice are rolled. Find the probability that they show the same value.", "1/6", False),
        ("Determine all $n$.", "proof", True),
        ("In what year will the census show that the number is below 10?", "2009", False),
        ("证明：$a+b$ 是偶数。", "偶数", True),
        ("Prove: $f(n) \\le n/p$.", "n/p", True),
    ],
)
def test_proofs_go_and_questions_that_also_ask_for_one_stay(problem, answer, proof):
    assert is_proof(problem, answer) is proof


def test_every_refusal_has_a_reason_of_the_list():
    rows = [row("   "), row("![fig](http://x/y.png) Find $x$."), row("Prove that 1 = 1."), row("Find $x$ such that")]
    reasons = [refuse(r).reason for r in rows]
    assert reasons == ["no-problem", "image-missing", "proof", "incomplete"]
    assert set(reasons) <= set(REASONS)


def test_a_row_is_mended_as_a_whole_and_a_damaged_solution_costs_only_the_solution():
    mended = clean(row("Find \x0crac{1}{2}.\r\n", " $\\frac12$ ", "half \ufffd"), CleaningConfig())
    assert (mended.problem, mended.answer, mended.solution) == (r"Find \frac{1}{2}.", r"\frac12", None)
    assert clean(row("bad \ufffd text"), CleaningConfig()) == Drop("control-characters", "problem")


def test_an_enormous_text_is_refused_before_it_is_looked_at():
    assert clean(row("x" * 50_000_000), CleaningConfig()).reason == "too-long"
