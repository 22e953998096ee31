"""`compare`: two or more evaluations of the same problems, paired; as records and as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from concisecli import wording
from concisecli.artifacts import read_json
from concisecli.records import UsageError
from concisecli.reports.comparison import Comparison, Difference, compare
from concisecli.reports.scores import read as read_scores

SCORES = "scores.json"
MOST_NAMED = 6  # flipped problems that a note names; --json has all


@dataclass(frozen=True, slots=True)
class Pair:
    """B against A. `unlike` names what else differs between the two: settings, the grader."""

    before: str
    after: str
    suites: tuple[Comparison, ...]
    unlike: tuple[str, ...]


def run_compare(paths: Sequence[Path], *, resamples: int = 1000, seed: int = 0) -> list[Pair]:
    """Each further evaluation against the first. A path is a scores.json or the folder of an eval stage.

    Raises UsageError for fewer than two paths, ConciseError for one without scores and for two that share no problem.
    """
    if len(paths) < 2:
        raise UsageError("compare needs at least two evaluations: concise compare A B")
    loaded = [load(path) for path in paths]
    names = _names([name for name, _ in loaded])
    first = loaded[0][1]
    return [
        Pair(names[0], name, tuple(compare(first, scores, resamples=resamples, seed=seed)), unlike(first, scores))
        for name, (_, scores) in zip(names[1:], loaded[1:], strict=True)
    ]


def load(path: Path) -> tuple[str, dict[str, Any]]:
    """(name, contents) of a scores.json or of the one in a folder; the name is the stage's, else the folder's."""
    file = path / SCORES if path.is_dir() else path
    if not file.is_file():
        below = sorted(str(p.parent) for p in path.glob(f"*/{SCORES}")) if path.is_dir() else []
        hint = f"; give one of: {', '.join(below)}" if below else "; evaluate first: concise eval"
        raise UsageError(f"there is no {file}{hint}")
    scores = read_scores(file)
    manifest = file.parent / "manifest.json"
    name = read_json(manifest)["stage"] if manifest.is_file() else file.parent.name
    return name, scores


def _names(names: Sequence[str]) -> list[str]:
    """The names, numbered where two are alike."""
    return [f"{name} ({i + 1})" if names.count(name) > 1 else name for i, name in enumerate(names)]


def unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings (the seed aside) and grader parts that are not the same, as "name: a -> b"."""
    ours = _flat(before["settings"]) | {f"grader.{k}": v for k, v in _flat(before["grader"]).items()}
    theirs = _flat(after["settings"]) | {f"grader.{k}": v for k, v in _flat(after["grader"]).items()}
    names = sorted((ours.keys() | theirs.keys()) - {"seed"})
    return tuple(f"{n}: {ours.get(n)} -> {theirs.get(n)}" for n in names if ours.get(n) != theirs.get(n))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {k: v for name, part in value.items() for k, v in _flat(part, f"{prefix}{name}.").items()}
    return {prefix[:-1]: value}


def as_json(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """For `--json`: every number, and the ids of the problems that flipped."""
    return [asdict(pair) for pair in pairs]


def tables(pairs: Sequence[Pair]) -> list[Any]:
    """For people: one rich table a pair and suite, with notes below it."""
    return [part for pair in pairs for one in pair.suites for part in (_table(pair, one), *_notes(pair, one))]


def _table(pair: Pair, one: Comparison) -> Any:
    from rich import box
    from rich.table import Table

    title = f"{pair.before} → {pair.after}, {one.suite}, {one.problems} problems"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("before", "after", "change", "95 % interval"):
        table.add_column(name, justify="right")
    for name, found in (("Pass@1 (%)", one.pass_at_1), ("Cons@k (%)", one.cons_at_k)):
        table.add_row(name, wording.percent(found.before), wording.percent(found.after), *_points(found))
    percent, low, high = one.length_percent
    table.add_row(
        "Len (tokens)",
        wording.tokens(one.length.before),
        wording.tokens(one.length.after),
        _length(f"{wording.change(percent)} %", one),
        f"{wording.change(low)} to {wording.change(high)} %",
    )
    matched = f"{one.budget_to_match:,}" if one.budget_to_match else "never"
    table.add_row(
        f"tokens to reach {wording.percent(one.pass_at_1.before)} %",
        f"{one.budget_of_best:,}" if one.budget_of_best else "–",
        matched,
        "",
        "",
    )
    return table


def _points(found: Difference) -> tuple[str, str]:
    interval = f"{wording.points(found.low)} to {wording.points(found.high)}"
    return _coloured(wording.points(found.difference), found), interval


def _coloured(text: str, found: Difference) -> str:
    """Green or red where the interval leaves out zero."""
    if not found.clear:
        return text
    colour = "green" if found.difference > 0 else "red"
    return f"[{colour}]{text}[/{colour}]"


def _length(text: str, one: Comparison) -> str:
    """Shorter is green where it did not cost accuracy; longer is neither good nor bad."""
    worse = one.pass_at_1.clear and one.pass_at_1.difference < 0
    shorter = one.length.clear and one.length.difference < 0
    return f"[green]{text}[/green]" if shorter and not worse else text


def _notes(pair: Pair, one: Comparison) -> list[str]:
    notes = [f"not alike: {'; '.join(pair.unlike)}"] if pair.unlike else []
    if one.budget_of_best:
        notes.append("tokens to reach: the smallest budget at which each is as accurate as the first is without one")
    if one.only_before or one.only_after:
        notes.append(f"left out: {one.only_before} problems only in the first, {one.only_after} only in the second")
    for what, ids in (("gained", one.gained), ("lost", one.lost)):
        more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
        named = f": {', '.join(ids[:MOST_NAMED])}{more}" if ids else ""
        notes.append(f"{what} by majority of rollouts: {len(ids)}{named}")
    return [f"  {note}" for note in notes] + [""]
