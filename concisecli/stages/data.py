"""`data build`: a recipe becomes problems and examples, with every dropped row accounted for.

Writes problems.parquet and/or examples.parquet, dropped.jsonl.zst, data_card.md, and what `to` asks for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from concisecli.artifacts import (
    example_schema,
    iter_jsonl,
    problem_schema,
    write_examples,
    write_jsonl,
    write_problems,
    write_text,
)
from concisecli.building import exports, hubsets, places, recipes
from concisecli.building.card import Counts, all_overlaps, card
from concisecli.building.cleaning import Drop
from concisecli.building.ledger import Ledger
from concisecli.building.parts import Kept, drop_record
from concisecli.building.tables import DroppedWriter, TableWriter
from concisecli.config import DataConfig
from concisecli.records import Example, Problem, StageResult, StageRun

PARTS = "parts"


def run(stage: StageRun) -> StageResult:
    problems, examples = recipes.synthetic(stage.config)
    if not places.row_sources(stage.config):
        return _write_synthetic(stage.folder, problems, examples)
    config = recipes.pinned(stage.config)
    real = places.row_sources(config)
    parts = stage.folder / PARTS
    counts = Counts()
    with Ledger(parts / "ledger.sqlite") as ledger:
        gathered = recipes.gather(config, parts, ledger)
        recipes.decide(config, gathered, ledger)
        kept = recipes.kept_rows(gathered, ledger)
        rows = _write_rows(stage.folder, config, gathered, kept, counts, problems, examples)
    outputs = _outputs(stage.folder, config, rows)
    write_text(stage.folder / "data_card.md", card(stage.name, config, real, gathered, counts))
    outputs["card"] = "data_card.md"
    if any(tally.overlaps for tally in gathered.tallies.values()):
        write_jsonl(stage.folder / "overlaps.jsonl", all_overlaps(gathered))
        outputs["overlaps"] = "overlaps.jsonl"
    shutil.rmtree(parts)
    return StageResult(outputs, _metrics(gathered, counts, config), rows)


def _write_synthetic(folder: Path, problems: list[Problem], examples: list[Example]) -> StageResult:
    outputs, rows = {}, {}
    if problems:
        outputs["problems"] = "problems.parquet"
        rows["problems"] = write_problems(folder / "problems.parquet", problems)
    if examples:
        outputs["examples"] = "examples.parquet"
        rows["examples"] = write_examples(folder / "examples.parquet", examples)
    return StageResult(outputs, dict(rows), rows)


def _write_rows(
    folder: Path,
    config: DataConfig,
    gathered: recipes.Gathered,
    everything: Iterable[tuple[Kept, Drop | None]],
    counts: Counts,
    problems: list[Problem],
    examples: list[Example],
) -> dict[str, int]:
    """One pass over the parts: what stays goes to the tables, what goes to the file of dropped rows."""
    with ExitStack() as stack:
        kinds = {source.rows for source in places.row_sources(config).values() if source.role == "rows"}
        tables = {
            "problems": TableWriter(folder / "problems.parquet", problem_schema(), even_empty="problems" in kinds),
            "examples": TableWriter(folder / "examples.parquet", example_schema(), even_empty="examples" in kinds),
        }
        for tool in config.to:
            if tool in exports.PROBLEM_ROWS:
                tables[tool] = TableWriter(_export_path(folder, tool, "problems"), None)
            if tool in exports.EXAMPLE_ROWS:
                tables[f"{tool}_examples"] = TableWriter(_export_path(folder, tool, "examples"), None)
        for table in tables.values():
            stack.enter_context(table)
        dropped = stack.enter_context(DroppedWriter(folder / "dropped.jsonl.zst"))
        for record in _part_drops(gathered):
            dropped.add(record)
        for problem in problems:
            _add_problem(tables, problem)
        for example in examples:
            _add_example(tables, example)
        for item, drop in everything:
            if drop:
                counts.drop(item, drop)
                dropped.add(drop_record(item.row, drop, item.response))
                continue
            counts.keep(item)
            if item.response is None:
                _add_problem(tables, recipes.problem_of(item))
            else:
                _add_example(tables, recipes.example_of(item))
    written = {name: table.rows for name, table in tables.items() if table.rows or table.even_empty}
    return written | {"dropped": dropped.rows}


def _add_problem(tables: dict[str, TableWriter], problem: Problem) -> None:
    tables["problems"].add_problem(problem)
    for tool, row in exports.PROBLEM_ROWS.items():
        if tool in tables:
            tables[tool].add(row(problem, tables[tool].rows))


def _add_example(tables: dict[str, TableWriter], example: Example) -> None:
    tables["examples"].add_example(example)
    for tool, row in exports.EXAMPLE_ROWS.items():
        if f"{tool}_examples" in tables:
            tables[f"{tool}_examples"].add(row(example, tables[f"{tool}_examples"].rows))


def _export_path(folder: Path, tool: str, what: str) -> Path:
    return folder / (f"{what}.{tool}.jsonl" if tool == "conciser" else f"{what}.{tool}.parquet")


def _part_drops(gathered: recipes.Gathered) -> Iterator[dict[str, Any]]:
    for paths in gathered.paths.values():
        for path in paths:
            yield from iter_jsonl(path.with_suffix(".dropped.jsonl"))


def _outputs(folder: Path, config: DataConfig, rows: dict[str, int]) -> dict[str, str]:
    named = {"problems": "problems.parquet", "examples": "examples.parquet", "dropped": "dropped.jsonl.zst"}
    for tool in config.to:
        named[tool] = _export_path(folder, tool, "problems").name
        named[f"{tool}_examples"] = _export_path(folder, tool, "examples").name
    return {name: path for name, path in named.items() if (folder / path).exists()}


def _metrics(gathered: recipes.Gathered, counts: Counts, config: DataConfig) -> dict[str, Any]:
    read = sum(tally.read for tally in gathered.tallies.values())
    kept = sum(counts.kept.values())
    reasons: dict[str, int] = {}
    for found in (*(t.reasons for t in gathered.tallies.values()), *counts.reasons.values()):
        for reason, n in found.items():
            reasons[reason] = reasons.get(reason, 0) + n
    sets = places.hub_sets(config)
    revisions = {n: commit for n, s in sets.items() if (commit := config.commits.get(hubsets.reference(s)))}
    return {"read": read, "kept": kept, "verified": counts.verified, "dropped": dict(sorted(reasons.items())),
            **({"revisions": revisions} if revisions else {})}  # fmt: skip
