"""The demo's task: chains of small additions and subtractions, with teacher traces that slip, check and skip.

A problem reads `20A-6B+4C-5=`: every operand has a label, so that the next one can be found by content. A trace writes
one line an operation and may check it:

    <think>A20-6=14;B14+4=16;wait check B14+4=18 no ;C18-5=13;</think><answer>13</answer>

A check is always computed right and replaces a slipped value, so checks cost tokens and are worth them until the slips
are gone. That is what lets a first stage of training lengthen its answers and a second one shorten them again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from concisecli.config import ChainsSource
from concisecli.records import ConciseError, Example, Problem

LABELS = "ABCDEFGHIJKL"
LARGEST_OPERAND = 9
SPLITS = {"test": 0.05, "pool": 0.40, "train": 1.0}  # upper ends of the hash buckets
PATIENCE = 200  # draws a wanted problem may take before the settings are refused


@dataclass(frozen=True, slots=True)
class Chain:
    start: int
    operands: tuple[int, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        return tuple(_running(self.start, self.operands))

    @property
    def text(self) -> str:
        return f"{self.start}{''.join(_labelled(i, v) for i, v in enumerate(self.operands))}="


def problems(source: ChainsSource, seed: int) -> list[Problem]:
    """`source.count` different problems of the split, the number of operations drawn evenly. `level` is that number."""
    return [_problem(chain) for chain in _chains(source, seed)]


def examples(source: ChainsSource, seed: int) -> list[Example]:
    """Teacher traces (`rows: traces`) or rows of single equations with loss on the results alone (`rows: facts`)."""
    rng = random.Random(f"{source.rows}:{seed}")
    if source.rows == "facts":
        return [_fact_row(source, rng, i) for i in range(source.count)]
    return list(_traces(source, seed, rng))


def _problem(chain: Chain) -> Problem:
    return Problem(_hash(chain.text)[:16], chain.text, str(chain.totals[-1]), "chains", float(len(chain.operands)))


def _traces(source: ChainsSource, seed: int, rng: random.Random) -> Iterator[Example]:
    """Problems may repeat with another trace: a teacher that is asked twice."""
    made = 0
    for chain in _chains(source, seed, distinct=False):
        response = _trace(chain, source, rng)
        if _words(response) <= source.max_words:
            yield Example(_hash(chain.text)[:16], chain.text, response, source.weight)
            made += 1
        if made == source.count:
            return


def _chains(source: ChainsSource, seed: int, distinct: bool = True) -> Iterator[Chain]:
    """Without `distinct` the chains never end: the caller stops."""
    rng = random.Random(f"chains:{source.split}:{seed}")
    low, high = source.operations
    if not 1 <= low <= high <= len(LABELS):
        raise ConciseError(f"operations: {low} to {high} is not a range within 1 to {len(LABELS)}; change the recipe")
    seen: set[str] = set()
    for _ in range(source.count * PATIENCE):
        chain = _draw(rng, rng.randint(low, high), source.top)
        if _split(chain.text) != source.split or (distinct and chain.text in seen):
            continue
        seen.add(chain.text)
        yield chain
        if distinct and len(seen) == source.count:
            return
    raise ConciseError(
        f"chains of {low} to {high} operations within 0..{source.top} do not give {source.count} different problems "
        f"in the split '{source.split}'; ask for fewer or for longer chains"
    )


def _draw(rng: random.Random, operations: int, top: int) -> Chain:
    total = start = rng.randint(0, top)
    operands = []
    for _ in range(operations):
        choices = [v for v in range(-LARGEST_OPERAND, LARGEST_OPERAND + 1) if v and 0 <= total + v <= top]
        operands.append(rng.choice(choices))
        total += operands[-1]
    return Chain(start, tuple(operands))


def _split(text: str) -> str:
    share = int(_hash(text)[-8:], 16) / 16**8
    return next(name for name, end in SPLITS.items() if share < end)


def _trace(chain: Chain, source: ChainsSource, rng: random.Random) -> str:
    if rng.random() < source.answer_only:
        return f"<think></think><answer>{chain.totals[-1]}</answer>"
    skips = rng.random() < source.skipping
    check_rate = rng.choice(source.check_rates)
    total, thought = chain.start, []
    for first, last in _lines(len(chain.operands), skips, rng):
        total, line = _line(chain, total, first, last, source, check_rate, rng)
        thought.append(line)
    return f"<think>{''.join(thought)}</think><answer>{total}</answer>"


def _lines(operations: int, skips: bool, rng: random.Random) -> Iterator[tuple[int, int]]:
    """[first, last) operations of each line: two at a time now and then where the trace skips steps."""
    first = 0
    while first < operations:
        double = skips and first + 2 <= operations and rng.random() < 0.4
        last = first + (2 if double else 1)
        yield first, last
        first = last


def _line(
    chain: Chain, total: int, first: int, last: int, source: ChainsSource, check_rate: float, rng: random.Random
) -> tuple[int, str]:
    """The running value after the line and its check, and their text."""
    steps = "".join(_labelled(i, chain.operands[i]) for i in range(first, last))
    equation = f"{steps[0]}{total}{steps[1:]}="
    right = total + sum(chain.operands[first:last])
    written = _slipped(right, chain.operands[last:], source, rng)
    text = f"{equation}{written};"
    if rng.random() < check_rate:
        text += f"wait check {equation}{right}{' ok ' if written == right else ' no '};"
        written = right
    return written, text


def _slipped(right: int, rest: tuple[int, ...], source: ChainsSource, rng: random.Random) -> int:
    """The line's result, off by one or two at the slip rate where the rest of the chain then stays in range."""
    if rng.random() >= source.slip_rate:
        return right
    within: Callable[[int], bool] = lambda v: all(0 <= t <= source.top for t in (v, *_running(v, rest)))  # noqa: E731
    return rng.choice([right + d for d in (-2, -1, 1, 2) if within(right + d)] or [right])


def _fact_row(source: ChainsSource, rng: random.Random, number: int) -> Example:
    text, spans = "", []
    for _ in range(source.facts_per_row):
        chain = _draw(rng, 1, source.top)
        text += f"{chain.start}{chain.operands[0]:+d}="
        result = str(chain.totals[0])
        spans.append((len(text), len(text) + len(result)))
        text += f"{result};"
    return Example(f"facts-{number}", "", text, source.weight, tuple(spans))


def _running(start: int, operands: tuple[int, ...]) -> Iterator[int]:
    for operand in operands:
        start += operand
        yield start


def _labelled(index: int, operand: int) -> str:
    return f"{LABELS[index]}{operand:+d}"


def _words(response: str) -> int:
    """Tokens of a trace in the demo's tokenizer, the end token included: numbers and tags are whole words there."""
    for word in ("</think>", "<answer>", "</answer>", "<think>", "wait ", "check ", " ok ", " no "):
        response = response.replace(word, "#")
    for number in range(29, 9, -1):
        response = response.replace(str(number), "#")
    return len(response) + 1


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
