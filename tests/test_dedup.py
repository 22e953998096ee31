r"""Repeats: what counts as one problem, which copy is kept, and what happens where answers differ."""

from pathlib import Path

import pytest

from concisecli.building import canonical, cleaning
from concisecli.building.dedup import Entry, duplicates, quantity_mark, same_problem
from concisecli.config import DedupConfig

SHARED = Path(__file__).parents[2] / "shared" / "data"


def same_text(pairs):
    return [a.replace(" ", "") == b.replace(" ", "") for a, b in pairs]


def entries(*rows):
    """(problem, answer[, verified]) in order of trust."""
    rows = [(cleaning.strip_instructions(row[0]), *row[1:]) for row in rows]
    return [
        Entry(
            answer,
            canonical.key(problem),
            quantity_mark(problem),
            (0 if more else 1, i),
            bool(more),
            f"s line {i + 1}",
        )
        for i, (problem, answer, *more) in enumerate(rows)
    ]


def found(rows, **config):
    texts = [row[0] for row in rows]
    return duplicates(entries(*rows), DedupConfig(**config), same_text, dict(enumerate(texts)))


def reasons(*rows, **config):
    return {i: drop.reason for i, drop in sorted(found(rows, **config).items())}


SAME = [  # one problem in two spellings
    (r"Find $\frac{1}{2}+x^{2}$.", r"Find \( \dfrac12 + x^2 \)"),
    (r"If $x \leq 5$, find $2\cdot 3$.", "If x ≤ 5, find $2 \\times 3$."),
    ("What is $1,000 + 1$?", r"What is $1{,}000+1$ ?"),
    (r"Let $\left(a+b\right)$ be $5$.", "Let (a+b) be 5."),
    ("Find   the  area\nof the circle", "find the area of the circle."),
    (r"The angle is $90^\circ$.", "The angle is 90°."),
    (r"Compute \[ \log_{2} 8. \]", "Compute $\\log_2 8$"),
    ("A 9-kilometer-long walk", "A $9$-kilometer-long walk"),
    ("Aya’s hat costs \\$5", "Aya's hat costs $5"),
    (r"Find $\text{gcd}(4, 6)$", r"Find $\gcd(4,6)$"),
    ("Ｆｉｎｄ ｘ", "Find x"),
    (r"sum of $\pi$ and $\alpha$", "sum of π and α"),
    (r"Find $x\,y$ for $x=1,\ldots,5$", r"Find $xy$ for $x=1,\dots,5$".replace("xy", "x y")),
    (r"In $\triangle ABC$, $\overline{AB}=5$", "In △ABC, AB = 5"),
]
DIFFERENT = [  # one character apart, and two problems
    ("Find all $x$ with $k>0$.", "Find all $x$ with $k<0$."),
    ("Find the sum of the first $2n-1$ numbers.", "Find the sum of the first $2n+1$ numbers."),
    ("Simplify $x^{n+1}$.", "Simplify $x^n+1$."),
    ("Find $f(x)=x^2$ at 3.", "Find $f(x)=x^3$ at 2."),
    ("Let $A$ be a point.", "Let $a$ be a point."),
    ("Compute $5!$.", "Compute $5$."),
    ("Find $f'(2)$.", "Find $f(2)$."),
    ("Find $1.5+2$.", "Find $15+2$."),
    ("The ratio is $3:4$.", "The ratio is $34$."),
    ("Find the area [asy] draw((0,0)--(1,0)); [/asy]", "Find the area [asy] draw((0,0)--(2,0)); [/asy]"),
    ("What is 10% of 50?", "What is 10 of 50?"),
    ("Compute $-3+x$.", "Compute $3+x$."),
    (r"Find $0.\overline{3}$.", "Find $0.3$."),
    (r"Compute $\frac{a}{b+c}$.", r"Compute $\frac{a+c}{b}$."),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_cosmetics_do_not_change_the_key(a, b):
    assert canonical.key(a) == canonical.key(b), (canonical.tokens(a), canonical.tokens(b))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_numbers_operators_figures_and_letters_do(a, b):
    assert canonical.key(a) != canonical.key(b)


def test_the_id_is_a_hash_of_the_text_alone():
    assert canonical.problem_id("What is $1+1$?") == canonical.problem_id(" what is \\(1 + 1\\) ?")
    assert len(canonical.problem_id("What is $1+1$?")) == 16


REWORDED = [
    (
        "The sum of two numbers is 20 and their difference is 4. What is the larger number?",
        "Two numbers have a sum of 20 and a difference of 4. Find the larger number.",
    ),
    (
        "In triangle $ABC$, $AB = 13$, $BC = 14$, and $CA = 15$. Find the length of the altitude from $A$.",
        "Triangle $ABC$ has $AB=13$, $BC=14$ and $CA=15$. What is the length of the altitude from $A$?",
    ),
    ("Solve for $x$: $3x+7=22$.", "Find the value of $x$ that satisfies $3x + 7 = 22$."),
    (r"Evaluate $\int_0^1 x^2 e^x\,dx$.", r"Compute the integral $\int_0^1 x^2e^x dx$."),
    (
        "What is the largest integer value of $x$ for which $5-4x>17$?",
        "What is the greatest integer $x$ for which $5 - 4x > 17$?",
    ),
    (r"Find the least $n$ with $\overline{z}^n = 1$.", r"Find the smallest $n$ with $\bar{z}^n = 1$."),
    (
        "Find the sum of all primes greater than 100 that divide $2024!$.",
        "Find the sum of all primes $> 100$ that divide $2024!$.",
    ),
    (
        "Find the sum of all integers $N > 1$ such that each prime factor of $N$ is $2$, $3$ or $5$.",
        "What is the sum of all the integers $N>1$ such that each prime factor of $N$ is $2$, $3$, or $5$?",
    ),
    (
        "At a theater, tickets for adults cost 4 dollars more than tickets for children, and 100 more were sold.",
        "At a theater tickets for adults cost $4$ dollars more than tickets for children and $100$ more were sold.",
    ),
    (
        "A bag contains $8$ green candies and $4$ red candies. You randomly select one candy at a time to eat. Find $p$.",
        "A bag contains $8$ green candies and $4$ red candies. You randomly pick one candy at a time to eat. Find $p$.",
    ),
    ("Evaluate $17 \\cdot 23 + 5$.", "Compute the value of $17\\cdot 23+5$."),
    ("Determine how many values of $n$ satisfy $n + S(n) = 2007$.", "For how many $n$ is $n+S(n)=2007$?"),
    (
        "Jerry tosses a fair coin eight times. What is the probability of 5 heads?",
        "Jerry tosses a fair coin $8$ times. What is the probability of five heads?",
    ),
    ("How many ways can 5 people sit in a row?", "In how many ways can 5 people be seated in a row?"),
    ("If $3^x = 81$, what is $x$?", "Given that $3^{x}=81$, find the value of $x$."),
    ("Find the number of trailing zeros of $100!$.", "How many trailing zeros does $100!$ have?"),
    ("What is the value of $i^{2023}$, where $i=\\sqrt{-1}$?", "Let $i = \\sqrt{-1}$. Find $i^{2023}$."),
    (
        "Let $S=\\{1,2,3,4\\}$. How many subsets of $S$ contain 1?",
        "Let S = {1, 2, 3, 4}. How many subsets of S contain 1?",
    ),
    (
        "A fair six-sided die is rolled twice. What is the probability that the sum is 7?",
        "A fair 6-sided die is rolled two times. What is the probability that the sum is $7$?",
    ),
    (
        "Express your answer as a common fraction. What is $\\frac{1}{3}+\\frac{1}{6}$?",
        "What is $\\frac13+\\frac16$? Express your answer as a common fraction.",
    ),
    ("Compute $\\binom{9}{4}$ and halve it.", "Compute ${9 \\choose 4}$ and halve it."),
    (
        "A cyclist covers 45 km in 3 hours. What is his speed in km/h?",
        "A cyclist covers 45 kilometers in 3 hours. What is his speed in kilometers per hour?",
    ),
    ("A jug of 4 L loses 1 L a day. When is it empty?", "A jug of 4 liters loses 1 liter a day. When is it empty?"),
    ("How many divisors does $720$ have? Give your final answer as an integer.", "How many divisors does 720 have?"),
    ("(2017 AMC 12B) Find the sum of the digits of $3^9$.", "Find the sum of the digits of $3^{9}$."),
    (
        "The chance that a roll beats the next is $\\frac{p}{q}$ in lowest terms. Find $p+q$.",
        "The chance that a roll beats the next is $\\frac{p}{q}$, where $p$ and $q$ are relatively prime positive "
        "integers. Find $p+q$.",
    ),
    (
        "A triangle has sides 7, 8 and 9. What is its area?",
        "What is the area of a triangle with sides 7, 8 and 9?",
    ),
    (
        "What is the remainder when $5^{30}$ is divided by 11?",
        "When $5^{30}$ is divided by $11$, what is the remainder?",
    ),
    (
        "How many faces does a cube have? $\\textbf{(A)}\\ 4 \\qquad \\textbf{(B)}\\ 6 \\qquad \\textbf{(C)}\\ 8$",
        "How many faces does a cube have?",
    ),
]
ALIKE_BUT_DIFFERENT = [
    ("Let $a=3$, $b=4$. Find $a^b$.", "Let $a=3$, $b=4$. Find $b^a$."),
    ("In a class of 30, 12 are boys. What percent are boys?", "In a class of 30, 12 are boys. What percent are girls?"),
    ("Find the tens digit of $7^{2015}$.", "Find the units digit of $7^{2015}$."),
    (
        "A recipe needs 2 cups of flour per 3 cups of milk. How much flour is needed for 9 cups of milk?",
        "A recipe needs 2 cups of flour per 3 cups of milk. How much milk is needed for 9 cups of flour?",
    ),
    (
        "Find the number of sets with at least 3 elements in $S$.",
        "Find the number of sets with smallest 3 elements in $S$.",
    ),
    ("In triangle $ABC$, $AB=13$ and $BC=14$. Find $AC$.", "In triangle $ABC$, $AB=14$ and $BC=13$. Find $AC$."),
    ("If $p+q=9$ and $p-q=1$, find $p$.", "If $p+q=9$ and $p-q=1$, find $q$."),
    ("Evaluate $(-3)^4$ plus one.", "Evaluate $-3^4$ plus one."),
    ("Subtract $2x+1$ from $5x-4$ for $x=3$.", "Subtract $5x-4$ from $2x+1$ for $x=3$."),
    (
        "An urn has 4 white and 6 black stones. What is the chance of a white stone?",
        "An urn has 4 white and 6 black stones. What is the chance of a black stone?",
    ),
    (
        "A mother is 24 years older than her daughter. In 6 years she is thrice as old. How old is the mother?",
        "A mother is 24 years older than her daughter. In 6 years she is thrice as old. How old is the daughter?",
    ),
    ("Convert 40 degrees Celsius to Fahrenheit.", "Convert 40 degrees Fahrenheit to Celsius."),
    ("Which of these is even? (A) 3 (B) 4 (C) 5", "Which of these is even? (A) 7 (B) 8 (C) 9"),
    (
        "How many ways are there to put 5 balls in 3 boxes if the balls are distinguishable but the boxes are not?",
        "How many ways are there to put 5 balls in 3 boxes if the balls are not distinguishable but the boxes are?",
    ),
    (
        "A fair coin is flipped 7 times. What is the probability that at least 5 consecutive flips come up heads?",
        "A fair coin is flipped 7 times. What is the probability that at least 5 of the flips come up heads?",
    ),
    (
        "What is the number of ways to arrange the letters of the word ELLIPSE?",
        "What is the number of ways to arrange the letters of the word TARTAR?",
    ),
    (
        "Find the largest integer $n$ such that $n^2 < 500$ and $n$ is a multiple of 3.",
        "Find the smallest integer $n$ such that $n^2 < 500$ and $n$ is a multiple of 3.",
    ),
    (
        "Convert the point $(0,3)$ to polar form with $\\sin x = 1$.",
        "Convert the point $(0,3)$ to polar form with $\\cos x = 1$.",
    ),
    (
        "A box has 3 red and 5 blue balls. Find the chance of red.",
        "A box has 5 red and 3 blue balls. Find the chance of red.",
    ),
    (
        "In triangle $ABC$ with $AB=5$ and $AC=7$ find angle $B$.",
        "In triangle $ABC$ with $AB=5$ and $AC=7$ find angle $D$.",
    ),
    (
        "How many even integers between 10 and 100 have distinct digits?",
        "How many odd integers between 10 and 100 have distinct digits?",
    ),
    (
        "Two cards are dealt from a deck with replacement. What is the probability of two kings?",
        "Two cards are dealt from a deck without replacement. What is the probability of two kings?",
    ),
    ("Find the perimeter of a rectangle of sides 3 and 4.", "Find the area of a rectangle of sides 3 and 4."),
    ("Let $f(x)=2x+3$. Find $f(f(1))$.", "Let $f(x)=2x+3$. Find $f(f(f(1)))$."),
    ("How many ways can 5 people sit in a row?", "How many ways can 5 people sit in a circle?"),
    (
        "Ann is 3 years older than Bob. Bob is 12. How old is Ann?",
        "Bob is 3 years older than Ann. Bob is 12. How old is Ann?",
    ),
    (
        "Tom has twice as many apples as Ann. How many does Tom have?",
        "Tom has twice as many apples as Ann. How many does Ann have?",
    ),
    ("If $3^x = 81$, what is $x$?", "If $x^3 = 81$, what is $x$?"),
    (
        "Find the slope of the line through $(1,2)$ and $(3,8)$.",
        "Find the length of the segment from $(1,2)$ to $(3,8)$.",
    ),
    ("What is the mean of 2, 4, 9?", "What is the median of 2, 4, 9?"),
    ("A number is increased by 20% and is 60. What was it?", "A number is decreased by 20% and is 60. What was it?"),
    ("Express $0.\\overline{12}$ as a fraction.", "Express $0.1\\overline{2}$ as a fraction."),
]


@pytest.mark.parametrize(("a", "b"), REWORDED)
def test_other_words_for_the_same_question_are_one_problem(a, b):
    assert reasons((a, "7", "verified"), (b, "7")) in ({1: "near-duplicate"}, {1: "duplicate"})


@pytest.mark.parametrize(("a", "b"), ALIKE_BUT_DIFFERENT)
def test_alike_words_for_another_question_are_two_problems(a, b):
    assert reasons((a, "7"), (b, "7")) == {}
    assert reasons((a, None), (b, None)) == {}
    assert reasons((a, "7"), (b, "8")) == {}


def test_alike_problems_with_other_answers_are_never_merged():
    a, b = REWORDED[0]
    assert reasons((a, "7"), (b, "8")) == {}
    assert same_problem(a, b, "equal")
    assert not same_problem(a, b, "different")


def test_the_copy_with_a_verified_solution_is_kept_and_the_reason_says_so():
    drops = found([("Find $x+1$.", "5"), ("Find x + 1", "5", "verified")])
    assert list(drops) == [0]
    assert drops[0].detail == "of s line 2, which has a verified solution"


def test_conflicting_answers_follow_the_recipe_and_are_listed():
    rows = [("Find $x+1$.", "6"), ("Find x + 1", "64"), ("Find $x + 1$", "6")]
    assert reasons(*rows) == {0: "conflict", 1: "conflict", 2: "conflict"}
    verified = [("Find $x+1$.", "6", "verified"), ("Find x + 1", "64"), ("Find $x + 1$", "6")]
    assert reasons(*verified) == {1: "conflict", 2: "duplicate"}
    assert reasons(*verified, conflicts="drop") == {0: "conflict", 1: "conflict", 2: "conflict"}
    both = [("Find $x+1$.", "6", "verified"), ("Find x + 1", "64", "verified")]
    assert reasons(*both) == {0: "conflict", 1: "conflict"}


def test_answers_that_are_equal_are_no_conflict():
    assert reasons(("Find $x+1$.", "(1, 2)"), ("Find x + 1", "(1,2)")) == {1: "duplicate"}


def test_a_thousand_numbers_in_one_template_are_a_thousand_problems():
    rows = [
        (f"How many positive integers less than {n} are divisible by 3 or by {n % 7 + 2}?", "1") for n in range(1000)
    ]
    assert reasons(*rows) == {}


def test_near_repeats_can_be_left_alone():
    assert reasons((REWORDED[0][0], "7"), (REWORDED[0][1], "7"), near=False) == {}


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_published_gsm8k_and_math_lose_almost_nothing():
    from concisecli.building import columns, sources
    from concisecli.config import FileSource

    for name, most in (("gsm8k_train_1500", 2), ("math_test_minus500_l3to5", 4)):
        raw = [r.fields for r in sources.read(name, FileSource(path=SHARED / "raw" / f"{name}.jsonl"))]
        mapping = columns.column_map(name, {}, raw[:1], "problems")
        rows = [columns.map_row(name, str(i), row, mapping) for i, row in enumerate(raw)]
        assert len(reasons(*[(r.problem, r.answer or r.solution) for r in rows])) <= most
