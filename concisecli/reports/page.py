"""A report's tables as one HTML file that needs no network; the template is page.html beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concisecli.reports.drawing import SLOTS, palette_css
from concisecli.reports.lineage import flat, graph
from concisecli.wording import change, count, number, p_value, percent, points, seconds, tokens

Json = dict[str, Any]


def html(tables: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """The page: `pictures` are the drawn `figures` of the tables by name. Equal tables give equal bytes."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= FORMATS
    environment.globals |= {"flat": flat, "slot": lambda name: _slots(tables).get(name, 0)}
    return environment.get_template("page.html").render(
        **tables,
        graph=graph(tables["lineage"]),
        pictures={name: Markup(svg) for name, svg in pictures.items()},
        palette=Markup(palette_css(":root")),
    )


def _slots(tables: Mapping[str, Any]) -> dict[str, int]:
    """The palette place of every model, as the figures have it."""
    found: dict[str, int] = {}
    for figure in tables["figures"]:
        if figure["kind"] in ("lines", "points"):
            found |= {series["name"]: series["slot"] % SLOTS for series in figure["series"]}
    return found


def interval_of(value: Json, form: str) -> str:
    return "" if value["low"] is None else f"{FORMATS[form](value['low'])} to {FORMATS[form](value['high'])}"


def tone(difference: Json) -> str:
    """The colour of a change of accuracy: none where its interval holds zero."""
    if not difference["clear"]:
        return ""
    return "good" if difference["difference"] > 0 else "bad"


def length_tone(row: Json) -> str:
    """The colour of a change of length: shorter is good where it did not cost accuracy; longer is neither."""
    shorter = row["length"]["clear"] and row["length"]["difference"] < 0
    return "good" if shorter and tone(row["pass_at_1"]) != "bad" else ""


def strip(value: Json, slot: int) -> Any:
    """A share with its interval on a line from 0 to 100 %."""
    from markupsafe import Markup

    x = 100 * value["value"]
    low, high = (x if value[end] is None else 100 * value[end] for end in ("low", "high"))
    line = f'stroke="var(--s{slot})" stroke-width="3.5" stroke-linecap="round" opacity=".45"'
    return Markup(
        f'<svg viewBox="-4 0 108 16" aria-hidden="true"><path d="M0 8H100" stroke="var(--line)" stroke-width="1.5"/>'
        f'<path d="M0 5V11M50 6V10M100 5V11" stroke="var(--line)"/>'
        f'<path d="M{low:.2f} 8H{high:.2f}" {line}/>'
        f'<circle cx="{x:.2f}" cy="8" r="3.6" fill="var(--s{slot})"/></svg>'
    )


def _first_suites(headline: Sequence[Json]) -> list[Json]:
    return [cell for table in headline for row in table["rows"] for cell in row["suites"].values()]


def sum_rollouts(headline: Sequence[Json]) -> str:
    return f"{sum(cell['rollouts'] for cell in _first_suites(headline)):,}"


def count_models(headline: Sequence[Json]) -> int:
    return len({row["model"] for table in headline for row in table["rows"]})


def count_problems(headline: Sequence[Json]) -> str:
    most: dict[str, int] = {}
    for table in headline:
        for row in table["rows"]:
            for suite, cell in row["suites"].items():
                most[suite] = max(most.get(suite, 0), cell["problems"])
    return f"{sum(most.values()):,}"


FORMATS: dict[str, Any] = {
    "interval_of": interval_of,
    "count": count,
    "p_value": p_value,
    "tone": tone,
    "length_tone": length_tone,
    "strip": strip,
    "sum_rollouts": sum_rollouts,
    "count_models": count_models,
    "count_problems": count_problems,
    "percent": percent,
    "points": points,
    "change": change,
    "tokens": tokens,
    "seconds": seconds,
    "number": number,
}
