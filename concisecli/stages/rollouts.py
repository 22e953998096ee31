"""`rollouts`: look at what was sampled, in training and in evaluation, from any shell and while a run is under way.

Texts are read only for the rollouts that are shown (and, with `contains`, searched), so a long run costs little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from concisecli import wording
from concisecli.artifacts import read_parquet
from concisecli.monitor import note
from concisecli.records import ConciseError, Outcome, UsageError

Row = dict[str, Any]
Order = Literal["drawn", "longest", "shortest"]
VERDICTS = get_args(Outcome)
# Columns of training and of evaluation that mean the same under one name; what a file lacks is None.
COLUMNS = (
    "step",
    "problem_id",
    "sample",
    "outcome",
    "correct",
    "extracted",
    "length",
    "finish_reason",
    "reward",
    "advantage",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rollouts: every filter that is not None must hold. `steps` is (first, last). `changed_since` keeps the
    problems whose majority verdict in that other stage was another. `order`: drawn with the seed, in turn over the
    problems, or by length; `shortest` looks at right ones only."""

    stage: str | None = None
    steps: tuple[int, int] | None = None
    problem: str | None = None
    correct: bool | None = None
    verdict: str | None = None
    contains: str | None = None
    changed_since: str | None = None
    order: Order = "drawn"
    number: int = 5
    seed: int = 0


def select(run: Path, wanted: Wanted) -> list[Row]:
    """The rollouts of a run (or of one stage's folder), best first, each with stage, COLUMNS, prompt, answer and text.

    Raises UsageError for a bad pattern, verdict or stage name, ConciseError where there is no rollout at all.
    """
    pattern = _pattern(wanted)
    if wanted.verdict is not None and wanted.verdict not in VERDICTS:
        raise UsageError(f"verdict {wanted.verdict!r} is none of: {', '.join(VERDICTS)}")
    files = _files(run)
    chosen = _of_stage(files, wanted.stage)
    changed = _changed(chosen, _of_stage(files, wanted.changed_since)) if wanted.changed_since else None
    found = _best(chosen, wanted, pattern, changed)
    if not found:
        # On stderr: an empty answer is an answer, and --json prints it as an empty list.
        note(f"no rollout matches, of {sum(map(_count, _parts(chosen))):,} of {', '.join(chosen)} under {run}")
    problems = _problems(run) if found else {}
    return [_with_text(row, problems) for row in found]


def _parts(files: Files) -> list[Path]:
    return [part for parts in files.values() for part in parts]


def _count(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.ParquetFile(part).metadata.num_rows)


def _best(files: Files, wanted: Wanted, pattern: re.Pattern[str] | None, changed: set[str] | None) -> list[Row]:
    """The best of each part, then the best of those: memory does not grow with the length of a run."""
    candidates: list[Row] = []
    for stage, parts in files.items():
        for part in parts:
            passing = _rows({stage: [part]}, wanted, pattern)
            found = [row for row in passing if changed is None or row["problem_id"] in changed]
            candidates += _ordered(found, wanted)
    return _ordered(candidates, wanted)


def _pattern(wanted: Wanted) -> re.Pattern[str] | None:
    try:
        return re.compile(wanted.contains) if wanted.contains is not None else None
    except re.error as error:
        raise UsageError(f"--contains {wanted.contains!r} is not a regular expression: {error}") from error


# --- files ------------------------------------------------------------------------------------------------------------

Files = dict[str, list[Path]]  # stage -> its parts


def _files(run: Path) -> Files:
    """All files of rollouts under a run's folder or a stage's, or one file; the stage that wrote last comes first."""
    if run.is_file():
        return {_stage_of(run): [run]}
    parts = sorted([*run.glob("**/rollouts/part-*.parquet"), *run.glob("**/completions.parquet")])
    parts += sorted(run.glob("**/completions/part-*.parquet"))  # of an eval under way: not judged yet
    if not run.exists():
        raise UsageError(f"there is no {run}; name the folder of a run, of a stage, or a file of rollouts")
    if not parts:
        raise ConciseError(f"there are no rollouts under {run}; train or evaluate first: concise run")
    files: Files = {}
    for part in sorted(parts, key=lambda p: (p.stat().st_mtime_ns, str(p)), reverse=True):
        files.setdefault(_stage_of(part), []).insert(0, part)
    return files


def _stage_of(part: Path) -> str:
    folder = part.parent.parent if part.parent.name in ("rollouts", "completions") else part.parent
    return re.sub(r"-[0-9a-f]{12}$", "", folder.name)


def _of_stage(files: Files, stage: str | None) -> Files:
    """One stage's files; without a name those of the stage that wrote last."""
    if stage is None:
        last = next(iter(files))
        return {last: files[last]}
    if stage not in files:
        raise UsageError(f"no rollouts of a stage '{stage}'; there are: {', '.join(sorted(files))}")
    return {stage: files[stage]}


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(files: Files, wanted: Wanted, pattern: re.Pattern[str] | None) -> Iterator[Row]:
    """Rows that pass the filters, without their texts, with the place to find those."""
    for stage, parts in files.items():
        for part in parts:
            for row in _columns(part, stage, with_text=pattern is not None):
                text = row.pop("text", None)
                if _passes(row, wanted) and (pattern is None or pattern.search(text or "")):
                    yield row


def _columns(part: Path, stage: str, *, with_text: bool) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(part)
        there = set(file.schema_arrow.names)
        names = [n for n in (*COLUMNS, "rollout", *(("text",) if with_text else ())) if n in there]
        rows = file.read(columns=names).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConciseError(f"cannot read {part} as parquet: {str(error).splitlines()[0]}") from error
    for place, row in enumerate(rows):
        row["sample"] = row.pop("rollout", row.get("sample"))
        yield dict.fromkeys(COLUMNS) | row | {"stage": stage, "file": part, "place": place}


def _passes(row: Mapping[str, Any], wanted: Wanted) -> bool:
    if wanted.steps is not None and not (row["step"] is not None and wanted.steps[0] <= row["step"] <= wanted.steps[1]):
        return False
    if wanted.problem is not None and not row["problem_id"].startswith(wanted.problem):
        return False
    if wanted.verdict is not None and row["outcome"] != wanted.verdict:
        return False
    if wanted.order == "shortest" and not row["correct"]:
        return False
    return wanted.correct is None or bool(row["correct"]) == wanted.correct


def _changed(now: Files, before: Files) -> set[str]:
    """Problems that a majority of rollouts got right in one and not in the other."""
    ours, theirs = _majorities(now), _majorities(before)
    return {problem for problem in ours.keys() & theirs.keys() if ours[problem] != theirs[problem]}


def _majorities(files: Files) -> dict[str, bool]:
    found: dict[str, list[bool]] = {}
    for row in _rows(files, Wanted(), None):
        found.setdefault(row["problem_id"], []).append(bool(row["correct"]))
    return {problem: sum(right) > len(right) / 2 for problem, right in found.items()}


def _ordered(rows: list[Row], wanted: Wanted) -> list[Row]:
    if wanted.order == "drawn":
        return _in_turn(rows, wanted)
    sign = -1 if wanted.order == "longest" else 1
    return sorted(rows, key=lambda row: sign * row["length"])[: wanted.number]


def _in_turn(rows: list[Row], wanted: Wanted) -> list[Row]:
    """Drawn with the seed; a second rollout of a problem comes only after one of each other problem."""
    rng = np.random.default_rng(wanted.seed)
    drawn = [rows[i] for i in rng.permutation(len(rows))]
    seen: dict[str, int] = {}
    turns = []
    for row in drawn:
        seen[row["problem_id"]] = seen.get(row["problem_id"], 0) + 1
        turns.append(seen[row["problem_id"]])
    order = sorted(range(len(drawn)), key=lambda i: turns[i])
    return [drawn[i] for i in order[: wanted.number]]


def _with_text(row: Row, problems: Mapping[str, Row]) -> Row:
    import pyarrow.parquet as pq

    row = dict(row)
    file, place = row.pop("file"), row.pop("place")
    asked = problems.get(row["problem_id"], {})
    text = pq.read_table(file, columns=["text"])["text"][place].as_py()
    return row | {"prompt": asked.get("prompt"), "answer": asked.get("answer"), "text": text}


def _problems(run: Path) -> dict[str, Row]:
    """The problems of all stages of the run by id, which is a hash of the problem's text and so the same everywhere."""
    folders = [run, *run.parents[:3]] if run.is_file() else [run, run.parent]
    for root in folders:
        inside = ("*/problems.parquet", "*/*/problems.parquet")  # of a run, or of a folder of runs
        paths = next((found for p in inside if (found := sorted(root.glob(p)))), []) if root.is_dir() else []
        if paths:
            return {row["id"]: row for path in paths for row in read_parquet(path)}
    return {}


# --- on the terminal --------------------------------------------------------------------------------------------------


def views(rows: Sequence[Row], *, unfold: bool = False) -> list[Any]:
    """What rich prints for each rollout: a line of facts, the problem, the thinking folded to its ends, the answer."""
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    for row in rows:
        colour = "green" if row["correct"] else "red"
        verdict = row["outcome"] or "not judged yet"
        if row["finish_reason"] == "length":
            verdict += ", cut off"
        head = Text.assemble((verdict, f"bold {colour}"), "  ", " · ".join(_facts(row)))
        parts += [head, Text(_question(row), style="cyan")]
        think, closing, answer = row["text"].partition("</think>")
        body = think.removeprefix("<think>").strip() if closing else ""
        if body:
            parts.append(Padding(Text(body if unfold else fold(body), style="dim"), (0, 0, 0, 2)))
        parts += [Padding(Text(answer.strip() if closing else row["text"]), (0, 0, 0, 2)), Text("")]
    return parts


def _facts(row: Row) -> list[str]:
    facts = [row["stage"]]
    if row["step"] is not None:
        facts.append(f"step {row['step']}")
    facts += [f"problem {row['problem_id']}", f"rollout {row['sample']}", f"{wording.count(row['length'])} tokens"]
    if row["extracted"] is not None:
        facts.append(f"answer {row['extracted']}")
    if row["reward"] is not None:
        facts.append(f"reward {row['reward']:.4g}")
    if row["advantage"] is not None:
        facts.append(f"advantage {row['advantage']:+.3f}")
    return facts


def _question(row: Row) -> str:
    if row["prompt"] is None:
        return "(the problem's text is not among the run's files)"
    return f"{row['prompt']}  → {row['answer']}"


def fold(text: str, *, ends: int = 160) -> str:
    """The first and last characters of a long text and how many are left out."""
    if len(text) <= 2 * ends + 40:
        return text
    return f"{text[:ends].rstrip()} … [{len(text) - 2 * ends:,} characters] … {text[-ends:].lstrip()}"
