"""A second opinion on verdicts, independent of the grader: a normalised string, and a number where there is one.

It shares no code with `normalize`, `expressions` or math-verify, so that a fault there shows as a disagreement. It is
cruder on purpose and never used for a reward: `None` says that it cannot tell.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from typing import Any

_REMOVED = re.compile(
    r"\\left|\\right|\\displaystyle|\\[,;:! ]|\\quad"
    r"|\\(?:text|textbf|mathrm|mathbf|mbox)\{\s*(?:[a-zA-Z]+(?:\s[a-zA-Z]+)?\.?)?\s*\}"
    r"|\\\(|\\\)|\\\[|\\\]"
    r"|\^\\circ|\^\{\\circ\}|\\\$|\$|\\%|\s"
)
_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def second_opinion(answer: str | None, gold: Any) -> bool | None:
    """True, False or no opinion on whether an answer equals a gold of any JSON type."""
    if answer is None or gold is None or len(answer) > 2000:
        return None
    if isinstance(gold, list):
        opinions = [second_opinion(answer, g) for g in gold]
        return True if True in opinions else False if opinions and all(o is False for o in opinions) else None
    text = gold if isinstance(gold, str) else json.dumps(gold)
    a, g = _plain(answer), _plain(text)
    if not a or not g or len(text) > 2000:
        return None
    if a == g:
        return True
    x, y = _number(a), _number(g)
    if x is None or y is None:
        return None
    return math.isclose(x, y, rel_tol=1e-9, abs_tol=0.0)


def _plain(text: str) -> str:
    text = re.sub(r"\\boxed\{(.*)\}", r"\1", text.strip(), flags=re.DOTALL)
    text = (
        text.replace("\\dfrac", "\\frac")
        .replace("\\tfrac", "\\frac")
        .replace("−", "-")
        .replace("\\times", "*")
        .replace("\\cdot", "*")
    )
    text = _REMOVED.sub("", text).rstrip(".,")
    text = re.sub(r"^[A-Za-z](?:\([a-z]\))?=(?=[^=]+$)", "", text)
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text) if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text) else text


def _number(text: str) -> float | None:
    """The value of digits, fractions, roots, pi and + - * / with brackets."""
    text = re.sub(r"(?<=\d)(?=\\frac)", "+", text) if re.fullmatch(r"\d+\\frac\{?\d\}?\{?\d+\}?", text) else text
    for _ in range(6):
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
        text = re.sub(r"\\frac(\d)(\d)", r"(\1/\2)", text)
        text = re.sub(r"\\sqrt\{([^{}]*)\}", r"(sqrt(\1))", text)
    text = text.replace("\\pi", "(pi)").replace("^", "**").replace("{", "(").replace("}", ")")
    text = re.sub(r"(?<=[\d)])(?=\()", "*", text)
    if len(text) > 300 or not re.fullmatch(r"(?:[\d.+\-*/()]|sqrt(?=\()|pi)+", text) or re.search(r"\d[a-z]", text):
        return None
    try:
        return _evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return None


def _evaluate(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.Name) and node.id == "pi":
        return math.pi
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return float(_BINARY[type(node.op)](_evaluate(node.left), _evaluate(node.right)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return float(math.pow(_evaluate(node.left), _evaluate(node.right)))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "sqrt"
        and len(node.args) == 1
    ):
        return math.sqrt(_evaluate(node.args[0]))
    raise ValueError("not a number")
