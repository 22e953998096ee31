"""From a recipe to the rows that stay: sources worked through in parts, then the decisions that need all rows.

The order is: clean, select, settle the answer, decontaminate, agree, drop repeats (each row by itself, resumable); then
conflicts, near repeats and the draw over everything that is left. Synthetic sources skip all of it but repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from concisecli.building import arithmetic_chains, canonical, cleaning, columns, filters, parts, sources
from concisecli.building.cleaning import Drop
from concisecli.building.contamination import EvalProblem
from concisecli.building.dedup import SameAnswers, exact_duplicates, near_duplicates
from concisecli.building.hubsets import commit_of, reference
from concisecli.building.ledger import Ledger
from concisecli.building.parts import Kept, Tally
from concisecli.building.places import hub_sets, row_sources, suite_sources
from concisecli.building.rowwork import Lent, RowWork
from concisecli.config import ChainsSource, DataConfig, DedupConfig, FileSource, GraderConfig, HubSource
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.monitor import progress
from concisecli.records import ConciseError, Example, Problem, Verdict

RowSources = Mapping[str, FileSource | HubSource]


@dataclass(slots=True)
class Gathered:
    """Every source worked through: part files by source, and what was counted."""

    paths: dict[str, list[Path]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    suites: dict[str, int] = field(default_factory=dict)  # suite -> problems it was checked against


# --- what is read -----------------------------------------------------------------------------------------------------


def pinned(config: DataConfig) -> DataConfig:
    """The recipe with the commit of every data set of the hub that it reads. What is wrong with its own files and
    columns is told before anything is asked of the hub."""
    missing = {name: source for name, source in hub_sets(config).items() if reference(source) not in config.commits}
    if not missing:
        return config
    check_columns(config)
    found: dict[str, str] = {}
    for name, source in missing.items():
        if reference(source) not in found:
            try:
                found[reference(source)] = commit_of(name.removeprefix("suite "), source)
            except ConciseError as error:
                raise (_suite_trouble(error) if name.startswith("suite ") else error) from error
    return config.model_copy(update={"commits": dict(config.commits) | found})


def check_columns(config: DataConfig) -> None:
    """Raises ConciseError where a source of the recipe is not there, cannot be read or lacks a column; of those on the
    hub, where their commits are known."""
    sets = hub_sets(config)
    for name, source in sorted(row_sources(config).items(), key=lambda item: item[0] in sets):
        if name not in sets or reference(sets[name]) in config.commits:
            columns.column_map(name, source.columns, peek(name, source), _kind(source))


def peek(name: str, source: FileSource | HubSource) -> list[Mapping[str, Any]]:
    """The first rows of a source, by which its columns are found."""
    first = islice(sources.read(name, source), columns.PEEK_ROWS)
    return [row.fields for row in first if isinstance(row, sources.RawRow)]


def _kind(source: FileSource | HubSource) -> str:
    return "reference" if source.role == "reference" else source.rows


def load_suites(config: DataConfig) -> list[EvalProblem]:
    """The problems of the suites. Raises ConciseError that says how to name a local copy where one cannot be read."""
    problems = []
    for name, (source, _) in suite_sources(config).items():
        try:
            rows = list(_mapped(name, source))
        except ConciseError as error:
            raise _suite_trouble(error) from error
        for number, row in enumerate(rows, 1):
            text = cleaning.mend(row.problem or "")
            if text:
                problems.append(EvalProblem(name, row.foreign_id or f"#{number}", cleaning.strip_instructions(text)))
    return problems


def _suite_trouble(error: ConciseError) -> ConciseError:
    return ConciseError(
        f"{error}. It is one of the suites that training rows are checked against: give local copies with "
        f"local: MAP.yaml, or set decontaminate.against to those you have"
    )


def _mapped(name: str, source: FileSource | HubSource) -> Iterator[columns.Row]:
    mapping = columns.column_map(name, source.columns, peek(name, source), "suite")
    for raw in sources.read(name, source):
        if isinstance(raw, sources.RawRow):
            yield columns.map_row(name, raw.place, raw.fields, mapping)


def fill_library(config: DataConfig, ledger: Ledger) -> bool:
    """Put what reference sources lend into the ledger, under `without_solution: join` every source's solutions too.
    Whether there is anything."""
    join = config.agreement is not None and config.agreement.without_solution == "join"
    lenders = {name: s for name, s in row_sources(config).items() if s.role == "reference" or join}
    for name, source in lenders.items():
        for row in progress(_mapped(name, source), sources.size(source), what=f"data  {name}, for its solutions"):
            cleaned = cleaning.clean(row, config.cleaning) if row.problem else None
            if isinstance(cleaned, columns.Row) and (source.role == "reference" or cleaned.solution):
                ledger.lend(canonical.key(cleaned.problem or ""), _lent(cleaned))
    return bool(lenders)


def _lent(row: columns.Row) -> Lent:
    return Lent(row.solution, row.answer, row.level, row.difficulty, row.pass_rate, row.subject, row.source)


# --- the two passes ---------------------------------------------------------------------------------------------------


def gather(config: DataConfig, folder: Path, ledger: Ledger) -> Gathered:
    """Work through every real source into part files below `folder`; finished parts are taken as they are."""
    gathered = Gathered()
    real = row_sources(config)
    check_columns(config)
    with GraderPool(_grader(config)) as pool, ThreadPoolExecutor(1) as beside:
        beside.submit(pool.warm)  # its workers start on other cores while the suites are read here
        suites = load_suites(config)
        for problem in suites:
            gathered.suites[problem.suite] = gathered.suites.get(problem.suite, 0) + 1
        lent = ledger.lent if fill_library(config, ledger) else lambda key: None
        worker = RowWork(config, suites, lent)
        judge = partial(judge_many, pool)
        met = ledger if config.dedup else None
        for name, source in real.items():
            if source.role == "rows":
                done = parts.work_through(name, source, config, worker, judge, met, folder)
                gathered.paths[name], gathered.tallies[name] = done
    return gathered


def _grader(config: DataConfig) -> GraderConfig:
    """The grader's settings, reading boxed answers whatever profile the training uses."""
    return config.grader.model_copy(update={"profile": "lenient", "custom": None})


def judge_many(pool: GraderPool, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    return pool.grade([GradeItem(f"\\boxed{{{answer}}}", gold) for answer, gold in pairs])


def decide(config: DataConfig, gathered: Gathered, ledger: Ledger) -> None:
    """Conflicts, near repeats and the draw over the kept rows of all parts: into the ledger."""
    everything = (item for paths in gathered.paths.values() for item in parts.read_parts(paths))
    ledger.add_rows(
        (n, i.key, i.mark, i.row.answer, i.verified, i.at, i.row.source, i.response is not None, i.row.problem)
        for n, i in enumerate(everything)
    )
    if config.dedup:
        with GraderPool(_grader(config)) as pool:
            _drop_repeats(config.dedup, ledger, partial(same_answers, pool))
    weights = {name: source.weight for name, source in row_sources(config).items()}
    quotas = filters.quotas(ledger.count_left(), weights, config.limit)
    if quotas is not None or config.limit is not None:
        ledger.draw(quotas, config.limit or 0, config.seed)


def _drop_repeats(config: DedupConfig, ledger: Ledger, same: SameAnswers) -> None:
    """Exact repeats by key, then near ones by mark; only rows that share these are looked at, some thousand at once.
    Examples are repeats of their problem by design: another solution is another row."""
    ledger.index("key")
    for numbers, entries, _ in ledger.groups("key"):
        drops, _ = exact_duplicates(entries, config, same)
        ledger.drop({numbers[i]: drop for i, drop in drops.items()})
    if not config.near:
        return
    ledger.index("mark")
    for numbers, entries, texts in ledger.groups("mark"):
        by_rank = sorted(range(len(entries)), key=lambda i: entries[i].rank)
        near = near_duplicates(entries, by_rank, config, same, dict(enumerate(texts)))
        ledger.drop({numbers[i]: drop for i, drop in near.items()})


def same_answers(pool: GraderPool, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Which pairs of gold answers are equal, asked in both directions."""
    there = judge_many(pool, [(b, a) for a, b in pairs])
    back = judge_many(pool, list(pairs))
    return [a == b or x.correct or y.correct for (a, b), x, y in zip(pairs, there, back, strict=True)]


# --- what comes out ---------------------------------------------------------------------------------------------------


def kept_rows(gathered: Gathered, ledger: Ledger) -> Iterator[tuple[Kept, Drop | None]]:
    """Every row of the parts in order, with why it goes or None."""
    everything = (item for paths in gathered.paths.values() for item in parts.read_parts(paths))
    drops = ledger.drops()
    gone, why = next(drops, (-1, None))
    for number, item in enumerate(everything):
        if number == gone:
            yield item, why
            gone, why = next(drops, (-1, None))
        else:
            yield item, None


def problem_of(item: Kept) -> Problem:
    """A kept row as a Problem; `extra` holds what the recipe's source knew beyond it."""
    row = item.row
    extra: dict[str, Any] = {
        "subject": row.subject,
        "pass_rate": row.pass_rate,
        "difficulty": row.difficulty,
        "solution": row.solution,
        "answers": list(row.answers) or None,
        "origin": row.origin,
        "original_id": row.foreign_id,
        "flags": list(row.flags) or None,
        "place": row.place,
    }
    known = {name: value for name, value in extra.items() if value is not None}
    return Problem(item.key.hex()[:16], row.problem or "", row.answer or "", row.source, row.level, known)


def example_of(item: Kept) -> Example:
    return Example(item.key.hex()[:16], item.row.problem or "", item.response or "")


def synthetic(config: DataConfig) -> tuple[list[Problem], list[Example]]:
    """The rows of the synthetic sources, problems without repeats."""
    problems: dict[str, Problem] = {}
    examples: list[Example] = []
    for source in config.sources.values():
        if isinstance(source, ChainsSource):
            if source.rows == "problems":
                problems |= {p.id: p for p in arithmetic_chains.problems(source, config.seed)}
            else:
                examples += arithmetic_chains.examples(source, config.seed)
    return list(problems.values()), examples


def unpack(rows: Iterable[Kept]) -> tuple[list[Problem], list[Example]]:
    """Kept rows as problems and examples, for small builds and tests."""
    items = list(rows)
    return [problem_of(i) for i in items if i.response is None], [
        example_of(i) for i in items if i.response is not None
    ]
