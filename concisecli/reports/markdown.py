"""A report's tables as Markdown, with links to figures/NAME.svg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concisecli.reports.lineage import flat
from concisecli.reports.reporting import ENDINGS
from concisecli.wording import NONE, change, count, number, percent, points, seconds, tokens

Json = dict[str, Any]


def render(tables: Mapping[str, Any]) -> str:
    """The same as the page, with links to figures/NAME.svg."""
    parts = [f"# {tables['title']}"]
    for table in tables["headline"]:
        parts.append(
            f"## Accuracy and length ({table['label']})" if len(tables["headline"]) > 1 else "## Accuracy and length"
        )
        parts += [_settings_line(table), *(_headline(table, suite) for suite in table["suites"])]
        parts += ["How rollouts end, in percent:", *(_endings(table, suite) for suite in table["suites"])]
    parts += [_breakdown(table) for table in tables["breakdowns"]]
    if tables["differences"]:
        parts += ["## Differences, paired by problem", _differences(tables["differences"])]
    steps = [row for row in tables["differences"] if row["step"]]
    if steps:
        parts += ["## What each stage brought", _gains(steps)]
    if tables["against_the_whole"]:
        others = tables["against_the_whole"]
        parts += [f"## Other ends of the curriculum, against {others[0]['before']}", _gains(others)]
    if tables["sweeps"]:
        parts += ["## Sweep", *map(_sweep, tables["sweeps"])]
    if tables["variants"]:
        parts += ["## Ablations", *map(_variants, tables["variants"])]
    if tables["ablation"]:
        parts += ["## How the RL stages differ", _ablation(tables["ablation"])]
    if tables["alarms"]:
        parts += ["## Warnings while training", _alarms(tables["alarms"])]
    if tables["figures"]:
        parts += ["## Figures", *(_picture(figure) for figure in tables["figures"])]
    if tables["examples"] and tables["examples"]["shown"]:
        parts += ["## The same problem before and after", *_examples(tables["examples"])]
    if tables["lineage"]:
        parts += ["## Lineage", _lineage(tables["lineage"]), "## Settings", _settings(tables["lineage"])]
    if tables["cost"]["total"]:
        parts += ["## Cost", _cost(tables["cost"])]
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
    seeds = [
        f"{row['model']} {_by_seed([one['suites'][suite][metric] for one in row['seeds']], show)}"
        for row in table["rows"]
        if row["seeds"] and suite in row["suites"]
        for metric, show in (("pass_at_1", percent), ("length", tokens))
    ]
    by_seed = f"\n\nMeans over seeds; seed by seed: {'; '.join(seeds)}." if seeds else ""
    return f"**{suite}**\n\n{_table(head, rows)}{by_seed}"


def _by_seed(values: Sequence[float], show: Any) -> str:
    return " / ".join(show(value) for value in values)


def _endings(table: Json, suite: str) -> str:
    rows = [
        [
            row["model"],
            *(percent(cell[name]) for name in ENDINGS),
            NONE if cell["precision"]["micro"] is None else percent(cell["precision"]["micro"]["value"]),
            number(cell["reflection_per_response"]),
        ]
        for row in table["rows"]
        if (cell := row["suites"].get(suite))
    ]
    head = [*(name.replace("_", " ") for name in ENDINGS), "right of answered", "reflection words each"]
    return f"**{suite}**\n\n{_table(['model', *head], rows)}"


def _breakdown(table: Json) -> str:
    rows = [
        [
            row["model"],
            row["value"],
            row["problems"],
            percent(row["cons_at_k"]["value"]),
            tokens(row["mean_correct"]),
            tokens(row["mean_answered"]),
            percent(row["precision"]["macro"]),
            percent(row["pass_at_1"]["value"]),
            tokens(row["length"]["value"]),
        ]
        for row in table["rows"]
    ]
    head = ["model", table["by"], "problems", "Cons@k", "right each", "answered each", "precision", "Pass@1", "Len"]
    return f"By {table['by']}, at {table['label']}:\n\n{_table(head, rows)}"


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


def _gains(rows: Sequence[Json]) -> str:
    """What training brought, one row a pair of models and suite."""
    head = ["trained", "against", "on", "Pass@1", "points", "Len", "percent"]
    return _table(
        head,
        [
            [
                " → ".join(reversed(row["trained"])),
                row["before"],
                f"{row['suite']}, {row['label']}",
                f"{percent(row['pass_at_1']['before'])} → {percent(row['pass_at_1']['after'])}",
                _with_interval(row["pass_at_1"]),
                f"{tokens(row['length']['before'])} → {tokens(row['length']['after'])}",
                f"{change(row['length_percent'][0])} "
                f"({change(row['length_percent'][1])} to {change(row['length_percent'][2])})",
            ]
            for row in rows
        ],
    )


def _sweep(table: Json) -> str:
    fields = table["fields"]
    head = [*fields, "seeds", "Pass@1", "interval", "Cons@k", "Len", "interval", "precision", "answered", "cut off"]
    rows = [
        [
            *(number(row["values"][f]) if f in row["values"] else NONE for f in fields),
            row["seeds"],
            percent(row["pass_at_1"]["value"]),
            _interval(row["pass_at_1"], percent),
            percent(row["cons_at_k"]["value"]),
            tokens(row["length"]["value"]),
            _interval(row["length"], tokens),
            NONE if row["precision"] is None else percent(row["precision"]["value"]),
            percent(row["answered"]),
            percent(row["truncated"]),
            NONE if row["break_even"] is None else percent(row["break_even"]),
        ]
        for row in table["rows"]
    ]
    title = f"{table['model']} at {table['label']} on {table['suite']}; an answer pays from the last column on:"
    return f"{title}\n\n{_table([*head, 'pays from'], rows)}"


def _alarms(rows: Sequence[Json]) -> str:
    head = ["stage", "seed", "warning", "first step", "last step"]
    return _table(head, [[r["stage"], number(r["seed"]), r["kind"], r["first"], r["last"]] for r in rows])


def _variants(table: Json) -> str:
    """One row a way and evaluation; what was changed against the first way stands below its name."""
    rows = []
    for way in table["rows"]:
        changed = ", ".join(f"`{c['setting']}` {number(c['before'])} → {number(c['after'])}" for c in way["changed"])
        for found in way["results"]:
            difference = found["difference"]
            rows.append(
                [
                    way["model"],
                    changed or NONE,
                    f"{found['label']}, {found['suite']}",
                    percent(found["pass_at_1"]["value"]),
                    _interval(found["pass_at_1"], percent),
                    NONE if difference is None else _with_interval(difference["pass_at_1"]),
                    tokens(found["length"]["value"]),
                    NONE if difference is None else f"{change(difference['length_percent'][0])} %",
                ]
            )
    head = [table["model"], "changed", "at", "Pass@1", "interval", "points", "Len", "change"]
    return _table(head, rows)


def _with_interval(difference: Json) -> str:
    return f"{points(difference['difference'])} ({_interval(difference, points)})"


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
        + _table(
            ["setting", "value", "said by"],
            [
                [name, f"`{number(value)}`", row["origins"].get(name, "default")]
                for name, value in flat(row["config"]).items()
            ],
        )
        for row in rows
    )


def _cost(found: Json) -> str:
    return _table(
        [
            "stage",
            "tokens sampled",
            "per second",
            "tokens trained on",
            "per second",
            "time by phase",
            "total",
            "GPU hours",
        ],
        [
            [
                row["stage"]
                if row["folders"] == 1 or row is found["total"]
                else f"{row['stage']}, {row['folders']} times",
                count(row["sampled_tokens"]),
                tokens(row["sampled_per_second"]),
                count(row["trained_tokens"]),
                tokens(row["trained_per_second"]),
                ", ".join(f"{name} {seconds(s)}" for name, s in row["seconds"].items()),
                seconds(row["total_seconds"]),
                NONE if row["gpu_hours"] is None else number(row["gpu_hours"]),
            ]
            for row in [*found["rows"], found["total"]]
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
