"""From a recipe to the rows that stay: sources worked through in parts, then the decisions that need all rows.

The order is: clean, select, settle the answer, decontaminate, agree, drop repeats (each row by itself, resumable); then
conflicts, near repeats and the draw over everything that is left. Synthetic sources skip all of it but repeats.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from concisecli.building import arithmetic_chains, canonical, cleaning, columns, filters, parts, sources
from concisecli.building.cleaning import Drop
from concisecli.building.contamination import EvalProblem
from concisecli.building.dedup import Entry, duplicates
from concisecli.building.parts import Kept, Seen, Tally
from concisecli.building.rowwork import Lent, RowWork
from concisecli.config import ChainsSource, CleaningConfig, DataConfig, FileSource, GraderConfig, HubSource
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.loading import packaged
from concisecli.records import ConciseError, Example, Problem, Verdict

RowSources = Mapping[str, FileSource | HubSource]


@dataclass(slots=True)
class Gathered:
    """Every source worked through: part files by source, and what was counted."""

    paths: dict[str, list[Path]] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)
    suites: dict[str, int] = field(default_factory=dict)  # suite -> problems it was checked against


@dataclass(frozen=True, slots=True)
class Decided:
    """What becomes of the rows in the parts, by their number over all parts in order."""

    drops: Mapping[int, Drop]


# --- where things are -------------------------------------------------------------------------------------------------


def row_sources(config: DataConfig) -> dict[str, FileSource | HubSource]:
    """The recipe's real sources, with local copies in place, in order of trust."""
    real = {n: s for n, s in config.sources.items() if isinstance(s, FileSource | HubSource)}
    local = local_copies(config)
    placed = {n: _at(s, local[n]) if n in local and s.path is None else s for n, s in real.items()}
    prefer = config.dedup.prefer if config.dedup else ()
    unknown = [name for name in prefer if name not in config.sources]
    if unknown:
        raise ConciseError(f"dedup.prefer names {unknown[0]}, which is no source; sources: {', '.join(config.sources)}")
    return dict(sorted(placed.items(), key=lambda item: prefer.index(item[0]) if item[0] in prefer else len(prefer)))


def _at(source: FileSource | HubSource, path: Path) -> FileSource | HubSource:
    return source.model_copy(update={"path": path})


def pinned(config: DataConfig) -> DataConfig:
    """The recipe with the commit of every hub data set it reads named."""
    named = {
        name: sources.pinned(source)
        if name not in local_copies(config) and not isinstance(source, ChainsSource)
        else source
        for name, source in config.sources.items()
    }
    return config.model_copy(update={"sources": named})


def local_copies(config: DataConfig) -> dict[str, Path]:
    """The `local` map: source name -> path, relative to the map's own folder."""
    if config.local is None:
        return {}
    try:
        said = yaml.safe_load(config.local.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConciseError(f"the map of local copies {config.local} cannot be read: {error}") from error
    if not isinstance(said, dict) or not all(isinstance(v, str) for v in said.values()):
        raise ConciseError(f"{config.local}: write one 'source: path' a line")
    return {str(name): (config.local.parent / path).resolve() for name, path in said.items()}


def suite_sources(config: DataConfig) -> dict[str, tuple[FileSource | HubSource, CleaningConfig]]:
    """The evaluation suites that a recipe is checked against: the sources of the recipes named there."""
    if config.decontaminate is None or not row_sources(config):
        return {}
    local = local_copies(config)
    found = {}
    for suite in config.decontaminate.against:
        checked = packaged_recipe(suite)
        for name, source in checked.sources.items():
            if isinstance(source, FileSource | HubSource):
                found[name] = (_at(source, local[name]) if name in local else source, checked.cleaning)
    return found


def packaged_recipe(name: str) -> DataConfig:
    """A recipe that ships with the package, as it stands in its file."""
    return DataConfig.model_validate(yaml.safe_load(packaged("data_recipes", name).read_text(encoding="utf-8")))


def key_files(config: DataConfig) -> dict[str, Path]:
    """Every local file whose content decides the outcome: for the stage's key. Raises ConciseError where one is
    missing."""
    for name, source in row_sources(config).items():
        sources.check_exists(name, source)
    paths = {name: source.path for name, source in row_sources(config).items() if source.path}
    suites = {f"suite {name}": source.path for name, (source, _) in suite_sources(config).items() if source.path}
    return paths | suites


def load_suites(config: DataConfig) -> list[EvalProblem]:
    """The problems of the suites. Raises ConciseError that says how to name a local copy where one cannot be read."""
    problems = []
    for name, (source, _) in suite_sources(config).items():
        try:
            rows = list(_mapped(name, source))
        except ConciseError as error:
            raise ConciseError(
                f"{error}. It is one of the suites that training rows are checked against: give local copies with "
                f"local: MAP.yaml, or set decontaminate.against to those you have"
            ) from error
        for number, row in enumerate(rows, 1):
            text = cleaning.mend(row.problem or "")
            if text:
                problems.append(EvalProblem(name, row.foreign_id or f"#{number}", cleaning.strip_instructions(text)))
    return problems


def _mapped(name: str, source: FileSource | HubSource) -> Iterator[columns.Row]:
    mapping = None
    for raw in sources.read(name, source):
        if isinstance(raw, sources.BadRow):
            continue
        mapping = mapping or columns.column_map(name, source.columns, [raw.fields], "suite")
        yield columns.map_row(name, raw.place, raw.fields, mapping)


def load_library(config: DataConfig) -> dict[bytes, Lent]:
    """By problem key, what reference sources lend; under `without_solution: join` every source's solutions too."""
    join = config.agreement is not None and config.agreement.without_solution == "join"
    library: dict[bytes, Lent] = {}
    for name, source in row_sources(config).items():
        if source.role == "reference" or join:
            for row in _mapped(name, source):
                cleaned = cleaning.clean(row, config.cleaning) if row.problem else None
                if isinstance(cleaned, columns.Row) and (source.role == "reference" or cleaned.solution):
                    library.setdefault(canonical.key(cleaned.problem or ""), _lent(cleaned))
    return library


def _lent(row: columns.Row) -> Lent:
    return Lent(row.solution, row.answer, row.level, row.difficulty, row.pass_rate, row.subject, row.source)


# --- the two passes ---------------------------------------------------------------------------------------------------


def gather(config: DataConfig, folder: Path) -> Gathered:
    """Work through every real source into part files below `folder`; finished parts are taken as they are."""
    gathered = Gathered()
    real = row_sources(config)
    if not real:
        return gathered
    seen = Seen() if config.dedup else None
    with GraderPool(_grader(config)) as pool, ThreadPoolExecutor(1) as beside:
        beside.submit(pool.warm)  # its workers start on other cores while the suites are read here
        suites = load_suites(config)
        for problem in suites:
            gathered.suites[problem.suite] = gathered.suites.get(problem.suite, 0) + 1
        worker = RowWork(config, suites, load_library(config))
        judge = partial(judge_many, pool)
        for name, source in real.items():
            if source.role == "rows":
                done = parts.work_through(name, source, config, worker, judge, seen, folder)
                gathered.paths[name], gathered.tallies[name] = done
    return gathered


def _grader(config: DataConfig) -> GraderConfig:
    """The grader's settings, reading boxed answers whatever profile the training uses."""
    return config.grader.model_copy(update={"profile": "lenient", "custom": None})


def judge_many(pool: GraderPool, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    return pool.grade([GradeItem(f"\\boxed{{{answer}}}", gold) for answer, gold in pairs])


def decide(config: DataConfig, gathered: Gathered) -> Decided:
    """Conflicts, near repeats and the draw, over the kept rows of all parts. Texts are read again for the few rows
    that could be near repeats; all others are known here by keys and answers alone."""
    entries: list[Entry] = []
    names: list[str] = []
    ids: list[str] = []
    is_example: list[bool] = []
    for rank, paths in enumerate(gathered.paths.values()):
        for item in parts.read_parts(paths):
            place = (0 if item.verified else 1, rank, len(entries))
            entries.append(Entry(item.row.answer, item.key, item.mark, place, item.verified, item.at))
            names.append(item.row.source)
            is_example.append(item.response is not None)
            ids.append(item.key.hex() + (item.at if item.response is not None else ""))
    drops: dict[int, Drop] = {}
    if config.dedup:
        # Examples are repeats of their problem by design: another solution is another row.
        problems = [i for i, example in enumerate(is_example) if not example]
        with GraderPool(_grader(config)) as pool:
            texts = partial(_texts, gathered, problems)
            found = duplicates([entries[i] for i in problems], config.dedup, partial(same_answers, pool), texts)
        drops = {problems[i]: drop for i, drop in found.items()}
    left = [i for i in range(len(entries)) if i not in drops]
    weights = {name: source.weight for name, source in row_sources(config).items()}
    stays = filters.draw([names[i] for i in left], [ids[i] for i in left], weights, config.limit, config.seed)
    return Decided(drops | {i: Drop("not-drawn") for i, stay in zip(left, stays, strict=True) if not stay})


def _texts(gathered: Gathered, problems: Sequence[int], wanted: Collection[int]) -> dict[int, str]:
    """The texts of some problems, by their position in `problems`, which numbers the rows of all parts."""
    position = {problems[i]: i for i in wanted}
    everything = (item for paths in gathered.paths.values() for item in parts.read_parts(paths))
    return {position[n]: item.row.problem or "" for n, item in enumerate(everything) if n in position}


def same_answers(pool: GraderPool, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Which pairs of gold answers are equal, asked in both directions."""
    there = judge_many(pool, [(b, a) for a, b in pairs])
    back = judge_many(pool, list(pairs))
    return [a == b or x.correct or y.correct for (a, b), x, y in zip(pairs, there, back, strict=True)]


# --- what comes out ---------------------------------------------------------------------------------------------------


def kept_rows(gathered: Gathered, decided: Decided) -> Iterator[tuple[Kept, Drop | None]]:
    """Every row of the parts in order, with why it goes or None."""
    everything = (item for paths in gathered.paths.values() for item in parts.read_parts(paths))
    for number, item in enumerate(everything):
        yield item, decided.drops.get(number)


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
