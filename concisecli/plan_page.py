"""The plan as people read it in a terminal: one section after the other, long values wrapped."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Document = Mapping[str, Any]
GIB = 2**30
INDENT, LONGEST = 2, 32  # columns
PIPED_WIDTH = 120  # columns where there is no terminal to ask


def show(plan: Document) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        write(plan, console)
        return
    console = Console(highlight=False, width=PIPED_WIDTH)
    with console.capture() as captured:
        write(plan, console)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def write(plan: Document, console: Console) -> None:
    for title, parts in sections(plan, console.width):
        console.print(Text(f"\n{title}", style="bold"))
        for part in parts:
            console.print(Padding(part, (0, 0, 0, 2)))


def sections(plan: Document, width: int) -> Iterator[tuple[str, list[RenderableType]]]:
    hardware = plan["hardware"]
    where = f" on {hardware['count']} x {hardware['name']}" if hardware else ""
    yield f"{plan['pipeline']}: run {plan['run']}{where}", models(plan["models"])
    yield "checks", checks(plan["checks"])
    if any(stage["action"] for stage in plan["stages"]):
        yield "what would run", [actions(plan["stages"])]
    yield "settings", list(settings(plan, width - INDENT))
    yield "objective", list(objectives(plan["stages"]))
    yield "work", [work(plan["stages"])]
    yield "memory of one device, GiB", list(memory(plan))
    yield "disk", [disk(plan["total"]["disk"])]
    yield from time_and_money(plan)
    yield "assumptions", [Text(f"- {text}") for text in plan["assumptions"]]


# --- models, checks, actions ------------------------------------------------------------------------------------------


def models(found: Mapping[str, Any]) -> list[RenderableType]:
    if not found:
        return [Text("no stage uses a model whose size is known")]
    return [
        Text(
            f"{name}: {short(m['parameters'])} parameters, {m['cache_bytes_per_token'] / 1024:,.0f} KiB of cache "
            f"a token (from {m['source']})"
        )
        for name, m in found.items()
    ]


def checks(faults: Sequence[Document]) -> list[RenderableType]:
    if not faults:
        return [Text("nothing is wrong that can be known beforehand", style="green")]
    style = {"error": "red", "warning": "yellow"}
    return [
        Text(f"{f['level']}: {f['origin']}{': ' if f['origin'] else ''}{f['message']}", style=style[f["level"]])
        for f in faults
    ]


def actions(stages: Sequence[Document]) -> Table:
    table = plain_table("stage", "")
    for stage in stages:
        style = {"blocked": "red", "skip": "dim"}.get(stage["action"] or "", "")
        row(table, stage["name"], Text(stage["reason"] or "", style=style))
    return table


# --- settings ---------------------------------------------------------------------------------------------------------


def settings(plan: Document, width: int) -> Iterator[RenderableType]:
    """Stages with the same settings from the same places are shown once."""
    by_stage: dict[str, list[Document]] = {}
    stages = {stage["name"]: stage["uses"] for stage in plan["stages"]}
    for found in plan["settings"]:
        first, _, rest = found["path"].partition(".")
        by_stage.setdefault(first if rest else "", []).append({**found, "name": rest or first})
    groups: dict[str, list[str]] = {}
    for name in stages:
        own = by_stage.get(name, [])
        alike = [[f["name"], f["value"], f["origin"]] for f in own if not f["name"].startswith("inputs.")]
        same = json.dumps([stages[name], alike])
        groups.setdefault(same, []).append(name)
    yield from setting_block("the pipeline", by_stage.get("", []), width)
    for names in groups.values():
        own = by_stage.get(names[0], [])
        if len(names) > 1:
            own = [f for f in own if not f["name"].startswith("inputs.")]
        title = f"{', '.join(names)} ({stages[names[0]]})"
        yield from setting_block(title, own, width, listed=stages[names[0]] != "data")


def setting_block(title: str, found: Sequence[Document], width: int, listed: bool = True) -> Iterator[RenderableType]:
    """`listed`: the defaults are named, which of a recipe's many filters would hide what is said."""
    yield Text(title, style="bold cyan")
    said = [(f["name"], written(f["value"]), f["origin"], f["comment"]) for f in found if f["origin"] != "default"]
    if said:
        yield Text("\n".join(aligned(said, width)), no_wrap=True, overflow="ignore")
    defaults = [f"{f['name']} {written(f['value'])}" for f in found if f["origin"] == "default"]
    if defaults:
        text = "defaults: " + " · ".join(defaults) if listed else f"and {len(defaults)} defaults (--json has them)"
        yield Text(textwrap.fill(text, width, initial_indent="  ", subsequent_indent="  ") + "\n", style="dim")


def aligned(rows: Sequence[tuple[str, str, str, str]], width: int) -> Iterator[str]:
    """Setting, value, place, comment; what is too long goes on below, under the value. A thousand rows of a rich table
    would take as long as all else together."""
    names, values, places = (min(max(len(row[i]) for row in rows), LONGEST) for i in range(3))
    for name, value, place, comment in rows:
        line = f"  {name:<{names}}  {value:<{values}}  {place:<{places}}  {comment}".rstrip()
        hanging = " " * (names + 4)
        yield textwrap.fill(line, width, subsequent_indent=hanging, break_on_hyphens=False, break_long_words=False)


def written(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


# --- numbers ----------------------------------------------------------------------------------------------------------


def objectives(stages: Sequence[Document]) -> Iterator[RenderableType]:
    for stage in stages:
        if stage["objective"]:
            yield Text(stage["name"], style="bold cyan")
            table = plain_table("", "")
            for name, text in stage["objective"].items():
                row(table, name, text)
            yield Padding(table, (0, 0, 0, 2))


def work(stages: Sequence[Document]) -> Table:
    table = plain_table("stage", "steps", "rows", "passes", "rollouts", "tokens sampled", "at worst", "tokens trained")
    for stage in stages:
        w = stage["work"]
        if not w:
            continue
        steps = count(w["steps"])
        if w["optimiser_steps"] != w["steps"]:
            steps += f" ({count(w['optimiser_steps'])} updates)"
        passes = "" if w["passes"] is None else f"{w['passes']:.2g}"
        rows = count(w["rows"]) if w["rows"] is not None else "not known yet"
        row(
            table,
            stage["name"],
            steps,
            rows,
            passes,
            count(w["rollouts"]),
            span(w["generated"]),
            short(w["worst_generated"]),
            span(w["trained"]),
        )
    return table


PARTS = ("weights", "gradients", "optimiser", "reference", "activations", "logits", "buffers")


def memory(plan: Document) -> Iterator[RenderableType]:
    shown = [stage for stage in plan["stages"] if stage.get("memory")]
    if not shown:
        yield Text("no model whose size is known")
        return
    yield training_table(shown)
    sampling = [stage for stage in shown if stage["memory"]["engine"]]
    if sampling:
        yield Padding(engine_table(sampling), (1, 0, 0, 0))
    same: dict[tuple[str, str], list[str]] = {}
    for stage in shown:
        for text in stage["memory"]["advice"]:
            same.setdefault((text, stage["memory"]["verdict"]), []).append(stage["name"])
    for (text, verdict), names in same.items():
        yield Text(f"{', '.join(names)}: {text}", style=VERDICTS.get(verdict, ""))
    if not plan["hardware"]:
        yield Text("for one device that does everything; --gpu 8xH100 says what fits, how long it takes and its cost")


VERDICTS = {"fits": "green", "tight": "yellow", "too large": "red"}


def training_table(stages: Sequence[Document]) -> Table:
    table = plain_table("stage", *PARTS, "training", "sampling", "verdict")
    for stage in stages:
        found = stage["memory"]
        training = found["training"] or {}
        cells = [gib(training[part]) if training.get(part) else "" for part in PARTS]
        phases = [gib(found[name]) if found[name] else "" for name in ("while_training", "while_generating")]
        verdict = found["verdict"] if found["verdict"] != "unknown" else ""
        row(table, stage["name"], *cells, *phases, Text(verdict, style=VERDICTS.get(verdict, "")))
    return table


def engine_table(stages: Sequence[Document]) -> Table:
    """What the rollout engine takes, and how many of its sequences have room for their longest."""
    table = plain_table("rollouts of", "taken", "weights", "cache of one", "sequences at once", "at their longest")
    for stage in stages:
        engine = stage["memory"]["engine"]
        taken = engine["weights"] + engine["cache"] if engine["share"] is None else engine["share"]
        row(
            table,
            stage["name"],
            gib(taken),
            gib(engine["weights"]) if engine["weights"] else "shared",
            gib(engine["each"]),
            count(engine["running"]),
            count(engine["held"]),
        )
    return table


def disk(found: Document) -> Text:
    text = f"{gib(found['kept'])} GiB kept, {gib(found['most'])} GiB at the worst moment"
    free = found["free"]
    if free is None:
        return Text(text)
    style = "red" if found["most"] > free else ""
    return Text(f"{text}; {gib(free)} GiB are free", style=style)


def time_and_money(plan: Document) -> Iterator[tuple[str, list[RenderableType]]]:
    timed = [stage for stage in plan["stages"] if "seconds" in stage]
    if not timed:
        return
    table = plain_table("stage", "sampling", "training", "in all", "dollars")
    for stage in timed:
        spent = stage["seconds"]
        done = " (done)" if stage["action"] == "skip" else ""
        row(
            table,
            stage["name"] + done,
            hours(spent["generating"]),
            hours(spent["training"]),
            hours(spent["total"]),
            money(stage["dollars"]),
        )
    total = plan["total"]
    parts: list[RenderableType] = [table]
    idle = [stage for stage in timed if stage["cards"] < plan["hardware"]["count"] and stage["action"] != "skip"]
    if idle:
        used = " or ".join(str(n) for n in sorted({stage["cards"] for stage in idle}))
        names = ", ".join(stage["name"] for stage in idle)
        text = f"{names}: only {used} of {plan['hardware']['count']} cards at work; set processes=auto"
        parts.append(Text(text, style="yellow"))
    if total["seconds"]:
        parts.append(Text(f"still to do: {hours(total['seconds'])}, {money(total['dollars'])} dollars", style="bold"))
    if total["not_counted"]:
        parts.append(Text(f"not counted, since rows or model are not known yet: {', '.join(total['not_counted'])}"))
    yield "time and cost", parts


# --- wording ----------------------------------------------------------------------------------------------------------


def plain_table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headings))
    for number, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=number == 0)
    return table


def row(table: Table, *cells: str | Text) -> None:
    """A row of plain text: `[paper]` is no markup here."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))


def count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """1_543_714_304 -> 1.54 B"""
    if not value:
        return ""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:g}"


def span(pair: Iterable[float] | None) -> str:
    if pair is None:
        return ""
    low, high = pair
    return f"{short(low)} to {short(high)}" if low != high else short(low)


def gib(value: float) -> str:
    amount = value / GIB
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.1f}" if amount >= 0.05 else f"{amount:.2g}"


def hours(pair: Sequence[float]) -> str:
    low, high = (value / 3600 for value in pair)
    if high == 0:
        return ""
    if high < 1:
        return f"{60 * low:.2g} to {60 * high:.2g} min"
    return f"{low:.2g} to {high:.2g} h" if high < 100 else f"{low:.0f} to {high:.0f} h"


def money(pair: Sequence[float]) -> str:
    return f"{pair[0]:,.0f} to {pair[1]:,.0f}"
