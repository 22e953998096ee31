"""A report's tables as one HTML file that needs no network, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from concisecli.figures import SLOTS, palette_css
from concisecli.reporting import flat

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


# --- numbers as people read them --------------------------------------------------------------------------------------

NONE = "–"


def percent(value: float | None) -> str:
    """0.9137 -> 91.4"""
    return NONE if value is None else f"{100 * value:.1f}"


def points(value: float | None) -> str:
    """0.0921 -> +9.2"""
    return NONE if value is None else _signed(100 * value)


def change(value: float | None) -> str:
    """-53.21 -> −53.2"""
    return NONE if value is None else _signed(value)


def tokens(value: float | None) -> str:
    """8267.4 -> 8,267; 34.52 -> 34.5"""
    return NONE if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def signed_tokens(value: float | None) -> str:
    return NONE if value is None else ("+" if value > 0 else "") + tokens(value).replace("-", "−")


def seconds(value: float) -> str:
    """4210.3 -> 1:10:10; 63.1 -> 1:03; 7.25 -> 7.2 s"""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else NONE
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def count(value: int) -> str:
    return f"{value:,}"


def p_value(value: float) -> str:
    """0.0312 -> 0.031; what a thousand resamples cannot tell from nothing is < 0.002"""
    return "< 0.002" if value < 0.002 else f"{value:.3f}"


def interval_of(value: Json, form: str) -> str:
    return "" if value["low"] is None else f"{FORMATS[form](value['low'])} to {FORMATS[form](value['high'])}"


def tone(difference: Json, better: int) -> str:
    """The colour of a change: none where its interval holds zero. `better` is 1 where more is better, else -1."""
    if not difference["clear"]:
        return ""
    return "good" if difference["difference"] * better > 0 else "bad"


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
    "strip": strip,
    "sum_rollouts": sum_rollouts,
    "count_models": count_models,
    "count_problems": count_problems,
    "percent": percent,
    "points": points,
    "change": change,
    "tokens": tokens,
    "signed_tokens": signed_tokens,
    "seconds": seconds,
    "number": number,
}


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown(tables: Mapping[str, Any]) -> str:
    """The same as the page, with links to figures/NAME.svg."""
    parts = [f"# {tables['title']}"]
    for table in tables["headline"]:
        parts.append(
            f"## Accuracy and length ({table['label']})" if len(tables["headline"]) > 1 else "## Accuracy and length"
        )
        parts += [_settings_line(table), *(_headline(table, suite) for suite in table["suites"])]
    if tables["differences"]:
        parts += ["## Differences, paired by problem", _differences(tables["differences"])]
    if tables["ablation"]:
        parts += ["## How the RL stages differ", _ablation(tables["ablation"])]
    if tables["figures"]:
        parts += ["## Figures", *(_picture(figure) for figure in tables["figures"])]
    if tables["examples"] and tables["examples"]["shown"]:
        parts += ["## The same problem before and after", *_examples(tables["examples"])]
    if tables["lineage"]:
        parts += ["## Lineage", _lineage(tables["lineage"]), "## Settings", _settings(tables["lineage"])]
    if tables["cost"]:
        parts += ["## Time", _cost(tables["cost"])]
    return "\n\n".join(parts) + "\n"


def _settings_line(table: Json) -> str:
    settings = ", ".join(f"{name} {number(value)}" for name, value in table["settings"].items())
    return f"{settings}. Values in percent, lengths in tokens, intervals of 95 % by bootstrap over problems."


def _headline(table: Json, suite: str) -> str:
    k = table["k"]
    head = [
        "model",
        f"Cons@{k}",
        "Pass@1",
        "interval",
        "Len",
        "change",
        *(f"≤ {b}" for b in table["budgets"]),
        "cut off",
    ]
    rows = []
    for row in table["rows"]:
        cell = row["suites"].get(suite)
        if cell:
            rows.append(
                [
                    row["model"],
                    percent(cell["cons_at_k"]["value"]),
                    percent(cell["pass_at_1"]["value"]),
                    _interval(cell["pass_at_1"], percent),
                    tokens(cell["length"]["value"]),
                    NONE if cell["length_percent"] is None else f"{change(cell['length_percent'])} %",
                    *(percent(cell["budgets"][str(b)]["value"]) for b in table["budgets"]),
                    percent(cell["truncated"]),
                ]
            )
    return f"**{suite}**\n\n{_table(head, rows)}"


def _differences(rows: Sequence[Json]) -> str:
    head = [
        "settings",
        "suite",
        "from",
        "to",
        "Pass@1",
        "interval",
        "Len (%)",
        "interval",
        "gained",
        "lost",
        "budget to match",
    ]
    return _table(
        head,
        [
            [
                row["label"],
                row["suite"],
                row["before"],
                row["after"],
                points(row["pass_at_1"]["difference"]),
                _interval(row["pass_at_1"], points),
                change(row["length_percent"][0]),
                f"{change(row['length_percent'][1])} to {change(row['length_percent'][2])}",
                row["gained"],
                row["lost"],
                f"{row['budget_to_match'] or NONE} (was {row['budget_of_best'] or NONE})",
            ]
            for row in rows
        ],
    )


def _ablation(found: Json) -> str:
    rows = [[f"`{row['setting']}`", *(number(v) for v in row["values"])] for row in found["settings"]]
    for row in found["results"]:
        form = percent if row["metric"] == "pass_at_1" else tokens
        rows.append([row["label"], *(NONE if v is None else f"**{form(v['value'])}**" for v in row["values"])])
    return _table(["setting", *(s["stage"] for s in found["stages"])], rows)


def _interval(value: Json, form: Any) -> str:
    return NONE if value["low"] is None else f"{form(value['low'])} to {form(value['high'])}"


def _picture(figure: Json) -> str:
    named = f"{figure['title']} ({figure['group']})" if figure["group"] else figure["title"]
    return f"![{named}](figures/{figure['name']}.svg)\n\n*{named}.* {figure['note']}".rstrip()


def _examples(found: Json) -> list[str]:
    counts = ", ".join(f"{n} {what}" for what, n in found["counts"].items() if n)
    return [f"First rollouts of {found['before']} and {found['after']}: {counts}."] + [
        "\n\n".join(
            [
                f"### {shown['change']} ({shown['problem_id']})",
                f"{_fenced(shown['prompt'])}\n\nAnswer: `{shown['answer']}`",
                *(
                    f"{found[side]}: {shown[side]['outcome']}, {shown[side]['length']} tokens\n\n"
                    + _fenced("\n\n".join(part for part in (shown[side]["think"], shown[side]["text"]) if part))
                    for side in ("before", "after")
                ),
            ]
        )
        for shown in found["shown"]
    ]


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _lineage(rows: Sequence[Json]) -> str:
    return _table(
        ["stage", "kind", "key", "reads", "makes"],
        [
            [
                row["stage"],
                row["kind"],
                f"`{row['key']}`",
                ", ".join(f"{i['role']}: {i['from']} `{i['sha256']}`" for i in row["inputs"]),
                ", ".join(f"{o['name']} `{o['sha256']}`" for o in row["outputs"]),
            ]
            for row in rows
        ],
    )


def _settings(rows: Sequence[Json]) -> str:
    return "\n\n".join(
        f"**{row['stage']}**\n\n"
        + _table(["setting", "value"], [[name, f"`{number(value)}`"] for name, value in flat(row["config"]).items()])
        for row in rows
    )


def _cost(rows: Sequence[Json]) -> str:
    return _table(
        ["stage", "phases"],
        [[row["stage"], ", ".join(f"{name} {seconds(s)}" for name, s in row["seconds"].items())] for row in rows],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
