r"""Which training rows hold a problem of an evaluation suite, and which only look like it."""

from collections import Counter
from pathlib import Path

import pytest

from concisecli.building import cleaning, columns, sources
from concisecli.building.contamination import EvalProblem, SuiteIndex, overlaps, split_question
from concisecli.config import FileSource

SHARED = Path(__file__).parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")

WALK = (
    "Every morning Ada goes for a $7$-kilometer-long walk and stops at a bakery afterwards. When she walks at a constant "
    "speed of $s$ kilometers per hour, the walk takes her 3 hours, including $t$ minutes spent in the bakery. When she "
    "walks $s+2$ kilometers per hour, it takes her 2 hours and 12 minutes. Find the number of minutes the walk takes her "
    "at $s+\\frac{1}{2}$ kilometers per hour."
)
DICE = (
    "Three fair dice are rolled and the largest number shown is noted. The probability that it exceeds $4$ and that the "
    "three numbers are the sides of a triangle is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive "
    "integers. Find $m+n$."
)
LOG = r"Find the value of $k$ for which $\log(kx)=2\log(x+2)$ has exactly one real solution."
SHORT = "What is $\\log_2 37 + \\log_4 9$?"
FIGURE = 'Find the area of the shaded region. [asy] draw((0,0)--(4,0)--(4,3)--cycle); label("$x$",(2,1)); [/asy]'
SETUP = (
    "Let $P(x)$ be a polynomial of degree $5$ with integer coefficients such that $P(1)=17$, $P(2)=34$ and $P(3)=68$. "
    "What is the smallest possible value of $|P(0)|$?"
)
ELLIPSE = "In how many ways can the letters of the word ELLIPSE be arranged so that no two vowels are adjacent?"


def hit(eval_problem, row, containment=0.8):
    found = SuiteIndex([EvalProblem("suite", "1", eval_problem)], containment).hit(row)
    return found.rule if found else None


HOLDS = [
    (
        "Altitudes $AD$ and $BE$ of triangle $ABC$ meet at $H$. If $\\angle BAC = 54^\\circ$ and "
        "$\\angle ABC = 52^\\circ$, then what is $\\angle AHB$?",
        "In triangle $ABC$, $\\angle BAC = 54^\\circ$ and $\\angle ABC = 52^\\circ$. Altitudes $AD$ and $BE$ intersect "
        "at $H$. What is $\\angle AHB$?",
    ),
    (
        "Ann and Bob each choose a number at random from the first six primes. What is the probability that the sum of "
        "the numbers they choose is even?",
        "Ann and Bob each pick a number at random from the first six primes. What is the probability that the sum of "
        "the two numbers they pick is even?",
    ),
    (
        "The set of points in the plane $x+y+z=75$ whose coordinates satisfy $x-yz<y-zx<z-xy$ forms three regions. "
        "Exactly one of those regions has finite area. The area of this finite region can be expressed in the form "
        "$a\\sqrt{b}$, where $a$ and $b$ are positive integers. Find $a+b$.",
        "The set of points in the plane $x+y+z=75$ whose coordinates satisfy $x-yz<y-zx<z-xy$ forms three regions. "
        "Exactly one of those regions has finite area. What is its area?",
    ),
    (WALK, WALK),
    (WALK, WALK.replace("\\frac{1}{2}", "\\dfrac12").replace("$s$", "\\(s\\)").upper().lower()),
    (WALK, WALK.replace("Find the number of minutes", "Determine how many minutes").replace("goes for", "takes")),
    (WALK, "Solve this carefully. " + WALK + " Let's think step by step. The answer is an integer."),
    (WALK, WALK.replace("Every morning Ada goes", "Each morning Ada goes").replace("it takes", "the walk takes")),
    (DICE, DICE.replace("is $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
                        "is the answer. Give it as a common fraction.").replace("is the answer", "is what we want")),
    (DICE, "Three fair dice are rolled and the largest number shown is noted. What is the probability that it exceeds $4$ "
           "and that the three numbers are the sides of a triangle? The answer is in the form $\\frac{k}{m}$. Please "
           "provide the value of k + m."),
    (LOG, r"Find the value of $k$ for which $\log (k x) = 2 \log (x + 2)$ has exactly one real solution."),
    (LOG, r"For which value of $k$ has $\log(kx)=2\log(x+2)$ exactly one real solution? Please provide the value of k."),
    (SHORT, "Compute $\\log_{2}37+\\log_{4}9$."),
    (SHORT, "What is $\\log_2 37 + \\log_4 9$? Express your answer in simplest form."),
    (FIGURE, FIGURE.replace("Find", "What is")),
    (SETUP, SETUP.replace("What is the smallest possible value of $|P(0)|$?",
                          "Find the smallest possible value of $|P(0)|$. The answer is in the form $a$.")),
    (SETUP, "Consider a polynomial $P(x)$ of degree $5$ with integer coefficients so that $P(1)=17$, $P(2)=34$, $P(3)=68$. "
            "Determine the smallest value that $|P(0)|$ can take."),
    (ELLIPSE, ELLIPSE.replace("In how many ways can the letters", "Find the number of ways the letters").replace(
        "be arranged", "can be arranged")),
]  # fmt: skip
HOLDS += [
    ("If $x+y=9$ and $xy=14$, find $x^3+y^3$.", "Find $x^3+y^3$ if $x+y=9$ and $xy=14$."),
    ("What is the remainder when $3^{40}$ is divided by 13?", "When $3^{40}$ is divided by $13$, find the remainder."),
    ("What is $3^4-2^5$? (A) 45 (B) 47 (C) 49 (D) 51", "What is $3^4-2^5$?"),
    ("Find the number of divisors of 540. Express your answer as an integer.", "Find the number of divisors of 540."),
]  # fmt: skip
LOOKS_LIKE_IT = [
    (
        r"Compute $\cos^3 \frac{2\pi}{7}+\cos^3 \frac{4\pi}{7}+\cos^3 \frac{8\pi}{7}$.",
        r"Compute $\sin^3 \frac{2\pi}{7}+\sin^3 \frac{4\pi}{7}+\sin^3 \frac{8\pi}{7}$.",
    ),
    (
        "Let $a$ be a positive real number such that all the roots of $x^3 + ax^2 + ax + 1 = 0$ are real. Find the "
        "smallest possible value of $a$.",
        "Find all real values of $a$ for which the polynomial $x^4 + ax^3 - x^2 + ax + 1 = 0$ has at least one real root.",
    ),
    ("Rosa is 5 years older than Lena. Lena is 9. How old is Rosa?", "Lena is 5 years older than Rosa. Lena is 9. How old is Rosa?"),
    ("Triangle $ABC$ has $AB=5$, $BC=6$, $CA=7$. Find $\\cos A$.", "Triangle $ABC$ has $AB=5$, $BC=6$, $CA=7$. Find $\\cos B$."),
    ("Find the shaded area. [asy] fill(circle((0,0),2)); [/asy]", "Find the shaded area. [asy] fill(circle((0,0),3)); [/asy]"),
    ("A number has exactly 3 divisors and is below 40. How many such numbers are there?",
     "A number has at least 3 divisors and is below 40. How many such numbers are there?"),
    (WALK, WALK.replace("7$-kilometer", "9$-kilometer").replace("3 hours", "4 hours").replace("12 minutes", "24 minutes")),
    (DICE, "Two cards are drawn. The probability that both are aces is $\\frac{m}{n}$, where $m$ and $n$ are relatively "
           "prime positive integers. Find $m+n$."),
    (LOG, r"Find the value of $k$ for which $\log(kx)=3\log(x+2)$ has exactly one real solution."),
    (LOG, r"Find the value of $k$ for which $\log(kx)=2\log(x-2)$ has exactly one real solution."),
    (SHORT, "What is $\\log_2 37 - \\log_4 9$?"),
    (SHORT, "What is $\\log_2 9 + \\log_4 37$?"),
    (SETUP, SETUP.replace("smallest", "largest")),
    (SETUP, SETUP.replace("What is the smallest possible value of $|P(0)|$?", "Find the remainder when $P(7)$ is divided by 5.")),
    (SETUP, SETUP.replace("$P(2)=34$", "$P(2)=35$")),
    (ELLIPSE, ELLIPSE.replace("ELLIPSE", "TARTAR")),
    (ELLIPSE, "In how many ways can the letters of the word ELLIPSE be arranged?"),
    ("If $\\sin x = 3/5$ with $x$ acute, find $\\cos 2x$.", "If $\\cos x = 3/5$ with $x$ acute, find $\\sin 2x$."),
    ("How many positive integers less than 100 are multiples of 3 and 5?",
     "How many positive integers less than 100 are multiples of 3 but not of 5?"),
    ("You have 5 shirts, 6 pairs of pants, and 8 hats. How many outfits can you make of one each?",
     "You have 5 red shirts, 5 green shirts, 6 pairs of pants and 8 green hats. How many outfits without equal colors?"),
]  # fmt: skip


@pytest.mark.parametrize(("eval_problem", "row"), HOLDS)
def test_rows_that_hold_the_problem_are_found(eval_problem, row):
    assert hit(eval_problem, row)


@pytest.mark.parametrize(("eval_problem", "row"), LOOKS_LIKE_IT)
def test_rows_that_share_a_template_or_a_stock_phrase_are_left(eval_problem, row):
    assert hit(eval_problem, row) is None


def test_a_question_is_told_from_what_is_given_without_the_words_on_the_form_of_the_answer():
    told, asked = split_question(SETUP)
    assert "P(1)=17" in told
    assert "smallest possible value" in asked
    told, asked = split_question(DICE)
    assert "relatively prime" not in told + asked
    assert asked.strip() == ""


def test_two_evaluation_sets_are_compared_by_name():
    suites = [EvalProblem("aime", "3", SETUP), EvalProblem("aime", "4", LOG)]
    ((name, found),) = overlaps({"a": SETUP, "b": SHORT}, suites, 0.8)
    assert (name, found.suite, found.name) == ("a", "aime", "3")


# --- the published sets -----------------------------------------------------------------------------------------------


def texts(path):
    raw = [r for r in sources.read("s", FileSource(path=path)) if isinstance(r, sources.RawRow)]
    mapping = columns.column_map("s", {}, [r.fields for r in raw[:64]], "suite")
    problems = [columns.map_row("s", r.place, r.fields, mapping).problem for r in raw]
    return [cleaning.strip_instructions(cleaning.mend(p) or "") for p in problems]


@pytest.fixture(scope="module")
def published():
    names = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
    suites = [EvalProblem(n, str(i), t) for n in names for i, t in enumerate(texts(SHARED / "eval" / f"{n}.jsonl"))]
    return SuiteIndex(suites, 0.8)


@needs_shared
@pytest.mark.slow
def test_aime24_in_dapos_schema_vanishes_whole(published):
    rows = texts(SHARED / "raw" / "dapo_aime-2024_x32.parquet")
    assert all(h and h.suite == "aime24" for h in map(published.hit, dict.fromkeys(rows)))
    assert len(set(rows)) == 30


@needs_shared
@pytest.mark.slow
def test_dapo_holds_half_of_amc23_and_none_of_aime_or_minerva(published):
    hits = [h for h in map(published.hit, texts(SHARED / "raw" / "dapo_math_17k.parquet")) if h]
    rows, problems = Counter(h.suite for h in hits), Counter(s for s, _ in {(h.suite, h.name) for h in hits})
    assert rows["aime24"] + rows["aime25"] + rows["minerva"] == 0
    assert problems["amc23"] >= 21
    assert problems["olympiadbench"] >= 55
    assert rows["math500"] <= 30


@needs_shared
@pytest.mark.slow
def test_training_sets_without_overlap_lose_next_to_nothing(published):
    for name, most in (
        ("gsm8k_train_1500.jsonl", 0),
        ("math_test_minus500_l3to5.jsonl", 8),
        ("deepscaler_aime.json", 12),
    ):
        hits = Counter(h.suite for h in map(published.hit, texts(SHARED / "raw" / name)) if h)
        assert hits.total() <= most, (name, hits)
        assert max(hits["aime24"], hits["aime25"], hits["minerva"]) <= 5


@needs_shared
def test_validation27_holds_ten_problems_of_aime24(published):
    hits = [published.hit(text) for text in texts(SHARED / "eval" / "validation27.jsonl")]
    assert Counter(h.suite for h in hits if h)["aime24"] == 10
