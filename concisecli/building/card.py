"""The data card: where every row came from, why every other row went, and what a reader must know before using them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from concisecli.artifacts import sha256_path
from concisecli.building import filters, places
from concisecli.building.cleaning import REASONS, Drop
from concisecli.building.parts import Kept, overlaps_of
from concisecli.building.recipes import Gathered
from concisecli.config import DataConfig, FileSource, HubSource

LISTED = 40  # pairs and conflicts printed on the card; all of them are among the dropped rows


@dataclass(slots=True)
class Counts:
    """What the second pass adds up while it writes the rows."""

    kept: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)  # source -> reason -> rows
    types: Counter[str] = field(default_factory=Counter)
    levels: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    figures: int = 0
    verified: int = 0
    conflicts: list[str] = field(default_factory=list)  # the first ones
    near: list[str] = field(default_factory=list)

    def keep(self, item: Kept) -> None:
        row = item.row
        self.kept[row.source] += 1
        self.types[filters.answer_type(row.answer or "")] += 1
        self.levels["none" if row.level is None else f"{row.level:g}"] += 1
        self.languages[filters.language(row.problem or "")] += 1
        self.figures += "[asy]" in (row.problem or "")
        self.verified += item.verified

    def drop(self, item: Kept, drop: Drop) -> None:
        self.reasons.setdefault(item.row.source, Counter())[drop.reason] += 1
        line = f"{item.at}: {drop.detail}"
        listed = {"conflict": self.conflicts, "near-duplicate": self.near}.get(drop.reason)
        if listed is not None and len(listed) < LISTED:
            listed.append(f"{line} | {_short(item.row.problem)}")

    def gone(self, reason: str) -> int:
        return sum(by_reason[reason] for by_reason in self.reasons.values())


def card(
    name: str,
    config: DataConfig,
    sources: Mapping[str, FileSource | HubSource],
    gathered: Gathered,
    counts: Counts,
) -> str:
    """The card as Markdown. It holds no time of day and no path of the machine it was made on."""
    total = sum(counts.kept.values())
    parts: list[str] = [f"# Data card: {name}", ""]
    parts += [
        f"{total:,} rows kept of {sum(t.read for t in gathered.tallies.values()):,} read; seed {config.seed}.",
        "",
    ]
    parts += _sources(sources, gathered, counts)
    parts += _reasons(gathered, counts)
    parts += _contents(counts, total)
    parts += _decontamination(config, gathered)
    conflicts, near = counts.gone("conflict"), counts.gone("near-duplicate")
    parts += _listing("Conflicting answers", counts.conflicts, conflicts, "the same problem with different answers")
    parts += _listing("Near duplicates", counts.near, near, "the same problem in other words")
    parts += _notes(sources)
    return "\n".join(parts).rstrip() + "\n"


def _sources(
    sources: Mapping[str, FileSource | HubSource],
    gathered: Gathered,
    counts: Counts,
) -> list[str]:
    lines = ["## Sources", "", "| source | role | read | kept | licence | content |", "|---|---|---|---|---|---|"]
    for name, source in sources.items():
        tally = gathered.tallies.get(name)
        read = f"{tally.read:,}" if tally else "-"
        lines.append(
            f"| {name} | {source.role} | {read} | {counts.kept[name]:,} | {source.licence or 'not stated'} "
            f"| {identity(source)} |"
        )
    lines += ["", "Columns taken:", ""]
    for name, tally in gathered.tallies.items():
        lines.append(
            f"- {name}: " + ", ".join(f"{ours} from `{theirs}`" for ours, theirs in sorted(tally.columns.items()))
        )
    return [*lines, ""]


def identity(source: FileSource | HubSource) -> str:
    """What was read, so that it can be found again: the hub's name and commit, or a file's name and hash."""
    if source.path is not None:
        copy = f"local copy of {source.name}, " if isinstance(source, HubSource) else ""
        return f"{copy}{source.path.name} sha256 {sha256_path(source.path)[:16]}"
    assert isinstance(source, HubSource)
    doubt = "" if source.verified else " (name not looked up)"
    return f"{source.name}{doubt} at {source.revision or 'a revision that could not be asked for'}"


def _reasons(gathered: Gathered, counts: Counts) -> list[str]:
    names = list(gathered.tallies)
    by_source = {n: gathered.tallies[n].reasons + counts.reasons.get(n, Counter()) for n in names}
    found = [reason for reason in REASONS if any(by_source[n][reason] for n in names)]
    if not found:
        return ["## Dropped rows", "", "None.", ""]
    lines = [
        "## Dropped rows",
        "",
        f"| reason | {' | '.join(names)} | what it means |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    lines += [f"| {r} | {' | '.join(f'{by_source[n][r]:,}' for n in names)} | {REASONS[r]} |" for r in found]
    flags = Counter[str]()
    for tally in gathered.tallies.values():
        flags.update(tally.flags)
    marks = ", ".join(f"{flag} {n:,}" for flag, n in filters_sorted(flags))
    lines += ["", f"Flags of the rows before repeats over all sources were dropped: {marks or 'none'}.", ""]
    factors = [
        f"{n} {t.read / unique:.1f}" for n, t in gathered.tallies.items() if (unique := t.read - _repeats(by_source[n]))
    ]
    return [*lines, f"Rows for each different problem: {', '.join(factors) or '-'}.", ""]


def _repeats(reasons: Mapping[str, int]) -> int:
    return reasons["duplicate"]


def filters_sorted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _contents(counts: Counts, total: int) -> list[str]:
    def row(title: str, values: Counter[str]) -> str:
        return f"- {title}: " + (", ".join(f"{k} {n:,}" for k, n in filters_sorted(values)) or "none")

    return [
        "## What is kept",
        "",
        row("answer types", counts.types),
        row("levels", counts.levels),
        row("languages", counts.languages),
        f"- with a figure in [asy] code: {counts.figures:,}",
        f"- answer verified by a worked solution: {counts.verified:,} of {total:,}",
        "",
    ]


def _decontamination(config: DataConfig, gathered: Gathered) -> list[str]:
    lines = ["## Overlap with evaluation suites", ""]
    if config.decontaminate is None:
        return [*lines, "Not checked (decontaminate is off).", ""]
    verb = "dropped" if config.decontaminate.action == "drop" else "REPORTED AND KEPT"
    lines += [f"Rows that hold a problem of these are {verb}:", ""]
    suites = places.suite_sources(config)
    lines += [f"- {name}: {n:,} problems, {identity(suites[name][0])}" for name, n in gathered.suites.items()]
    rows = sum((tally.overlaps for tally in gathered.tallies.values()), Counter[str]())
    if not rows:
        return [*lines, "", "No overlap found.", ""]
    held = {suite: set().union(*(t.held.get(suite, ()) for t in gathered.tallies.values())) for suite in rows}
    lines += ["", "Found, repeats of a row that says just the same counted once:", ""]
    lines += [f"- {suite}: {n:,} rows, {len(held[suite])} of its problems" for suite, n in filters_sorted(rows)]
    lines += ["", "| row | eval problem | rule | share | text |", "|---|---|---|---|---|"]
    for hit in islice(all_overlaps(gathered), LISTED):
        where = f"{hit['suite']} {hit['name']}"
        row = f"{hit['source']} {hit['place']}"
        lines.append(f"| {row} | {where} | {hit['rule']} | {hit['share']:.2f} | {_short(hit['problem'])} |")
    if rows.total() > LISTED:
        lines.append(f"| ... {rows.total() - LISTED:,} more in overlaps.jsonl | | | | |")
    return [*lines, ""]


def _listing(title: str, lines: list[str], count: int, what: str) -> list[str]:
    if not lines:
        return []
    more = [f"- ... {count - len(lines):,} more among the dropped rows"] if count > len(lines) else []
    return [
        f"## {title}",
        "",
        f"{count:,} rows: {what}.",
        "",
        *(f"- {line}" for line in lines),
        *more,
        "",
    ]


def _notes(sources: Mapping[str, Any]) -> list[str]:
    notes = [f"- {name}: {source.note}" for name, source in sources.items() if source.note]
    return ["## Notes on the sources", "", *notes, ""] if notes else []


def _short(text: str | None, size: int = 100) -> str:
    flat = " ".join((text or "").split()).replace("|", "\\|")
    return flat if len(flat) <= size else flat[: size - 1] + "…"


def all_overlaps(gathered: Gathered) -> Iterator[dict[str, Any]]:
    for name, paths in gathered.paths.items():
        for hit in overlaps_of(paths):
            yield {"source": name, **hit}
