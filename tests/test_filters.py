"""What a recipe selects, and how many of each source a mixture takes."""

import pytest

from concisecli.building.columns import Row
from concisecli.building.filters import ANSWER_TYPES, answer_type, language, quotas, refuse, token_counter
from concisecli.config import SelectConfig
from concisecli.records import ConciseError


def row(problem="Find $x$.", answer="1", **fields):
    return Row("s", "line 1", problem, answer, **fields)


def detail(selected, given, count=None):
    drop = refuse(given, SelectConfig(**selected), count)
    return None if drop is None else drop.detail


@pytest.mark.parametrize(
    ("selected", "given", "why"),
    [
        ({}, row(), None),
        ({"min_level": 3}, row(level=3.0), None),
        ({"min_level": 3}, row(level=2.0), "level 2"),
        ({"min_level": 3}, row(), "no level"),
        ({"min_level": 3, "missing": "keep"}, row(), None),
        ({"max_difficulty": 2.5}, row(difficulty=3.0), "difficulty 3"),
        ({"min_pass_rate": 0.1, "max_pass_rate": 0.75}, row(pass_rate=0.8125), "pass_rate 0.8125"),
        ({"min_pass_rate": 0.1, "max_pass_rate": 0.75}, row(pass_rate=0.75), None),
        ({"languages": ("en",)}, row("若方程 $x^2=1$ 有两个解，求 $x$"), "language zh"),
        ({"languages": ("zh",)}, row(), "language en"),
        ({"subjects": ("Algebra",)}, row(subject="algebra"), None),
        ({"subjects": ("Algebra",)}, row(subject="Geometry"), "subject Geometry"),
        ({"figures": "drop"}, row("Find it. [asy] draw((0,0)); [/asy]"), "figure"),
        ({"answer_types": ("integer",)}, row(answer="\\frac12"), "answer type fraction"),
        ({"answer_types": ("integer",)}, row(answer="1,000"), None),
    ],
)
def test_rows_outside_of_what_is_selected_go_with_the_value_that_said_so(selected, given, why):
    assert detail(selected, given) == why


def test_a_missing_field_can_stop_the_build_and_says_what_would_help():
    with pytest.raises(ConciseError, match=r"no difficulty.*role: reference.*select\.missing"):
        refuse(row(), SelectConfig(min_difficulty=2.5, missing="stop"))


def test_length_is_counted_in_tokens_of_the_tokenizer_that_is_named(tiny_model):
    assert detail({"max_tokens": 5}, row("Find x"), len) == "6 tokens"
    count = token_counter(SelectConfig(max_tokens=5, tokenizer=str(tiny_model)))
    assert count("20A-6B") == 5
    assert token_counter(SelectConfig()) is None
    with pytest.raises(ConciseError, match=r"need select\.tokenizer"):
        token_counter(SelectConfig(max_tokens=5))
    with pytest.raises(ConciseError, match="cannot be loaded"):
        token_counter(SelectConfig(max_tokens=5, tokenizer=str(tiny_model / "nowhere")))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("42", "integer"),
        ("-7", "integer"),
        ("10,000", "integer"),
        ("0.5", "decimal"),
        ("\\frac{3}{4}", "fraction"),
        ("3/4", "fraction"),
        ("\\dfrac12", "fraction"),
        ("B", "choice"),
        ("\\text{(C)}", "choice"),
        ("\\text{even}", "text"),
        ("(2, 3, 4)", "tuple"),
        ("[0, 1)", "interval"),
        ("(-\\infty, 3)", "interval"),
        ("1, 2, 5", "set"),
        ("\\{1,2\\}", "set"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "matrix"),
        ("y = 2x", "equation"),
        ("x^2+1", "expression"),
        ("3\\sqrt{2}", "expression"),
    ],
)
def test_answers_have_a_type_by_their_form(answer, kind):
    assert answer_type(answer) == kind
    assert kind in ANSWER_TYPES


def test_a_word_of_chinese_does_not_make_a_text_chinese():
    assert language("The name 王 is written on a board of size $n$ by $n$; find the number of ways to do so.") == "en"
    assert language("求方程的根 $x^2=1$") == "zh"


def test_weights_are_shares_and_the_scarcest_source_sets_the_size():
    counts = {"a": 100, "b": 10}
    assert quotas(counts, {"a": 3.0, "b": 1.0}, None) == {"a": 30, "b": 10}
    assert quotas(counts, {"a": 3.0, "b": 1.0}, 8) == {"a": 6, "b": 2}
    assert quotas(counts, {"a": None}, 8) is None
    with pytest.raises(ConciseError, match="b none"):
        quotas(counts, {"a": 3.0, "b": None}, None)
