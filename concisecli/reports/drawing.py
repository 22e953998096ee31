"""Figures as data, and their drawing with matplotlib: SVG that follows the reader's light or dark scheme, and PNG.

A `Figure` holds every number that is drawn; `draw` adds nothing to it. Colours are CSS variables with a fallback (the
palette keeps apart for colour-blind readers, and every series has its own marker and dash besides), text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["lines", "bars", "sideways", "points", "stack"]


@dataclass(frozen=True, slots=True)
class Series:
    """One drawn thing: `x` against `y`, with an interval `low`..`high` of y (and `x_low`..`x_high` of x) where there
    is one. `faint` is what `y` is the running mean of, drawn thin. `slot` is the place in the palette: the same model
    has the same slot in every figure of a report."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    x_low: tuple[float, ...] | None = None
    x_high: tuple[float, ...] | None = None
    faint: tuple[float, ...] | None = None
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """What is drawn. `x_label` and `y_label` name the quantity with its unit; `note` is the caption; `marks` are
    vertical lines (the budgets asked for); `events` are such lines with a name; `ticks` name the places of bars;
    `arrows` lead from one series to another; figures of one `group` stand together."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Kind = "lines"
    note: str = ""
    percent: bool = False
    from_zero: bool = True
    marks: tuple[float, ...] = ()
    events: tuple[tuple[float, str], ...] = ()
    ticks: tuple[str, ...] = ()
    arrows: tuple[tuple[int, int], ...] = ()
    group: str = ""


# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), darkened or lightened to 3:1 against each paper.
LIGHT = ("#0072b2", "#d55e00", "#00865f", "#b0508c", "#7d5a00", "#2f8fc4", "#43306f", "#50565f")
DARK = ("#5ab0f2", "#ff8b4d", "#3fce9f", "#e595c3", "#ffd879", "#a8dcff", "#c9b8ff", "#848d9b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), "-", (0, (5, 1.5)), "-", "-")
INKS = {"ink": ("#1c2128", "#e8eaee"), "muted": ("#5d6673", "#9aa4b2"), "grid": ("#e2e5ea", "#2e343d")}
SLOTS = len(LIGHT)
STEPS = (1, 2, 2.5, 5, 10)  # between two ticks, times a power of ten
# Inches of 72 px: wide enough for two columns, narrow enough for a telephone; each row of a legend adds to the height.
WIDTH, HEIGHT, LEGEND_ROW = 4.7, 3.05, 0.24

PNG_DPI = 200
# matplotlib knows no CSS variables: it draws in light colours, which `_with_variables` makes variables of.
_COLOURS = {f"s{i}": colour for i, colour in enumerate(LIGHT)} | {name: pair[0] for name, pair in INKS.items()}
_VARIABLES = {colour: f"var(--{name},{colour})" for name, colour in _COLOURS.items()}


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure: `svg` is one `<svg>` element for a page that has `palette_css`; `png` is on white, for slides and
    papers."""

    svg: str
    png: bytes


def palette_css(selector: str) -> str:
    """The colour variables of the figures for `selector`, light by default and dark where the reader asks for it."""

    def block(dark: int) -> str:
        slots = [f"--s{i}:{(LIGHT, DARK)[dark][i]}" for i in range(SLOTS)]
        return ";".join([*slots, *(f"--{name}:{pair[dark]}" for name, pair in INKS.items())])

    return f"{selector}{{{block(0)}}}@media (prefers-color-scheme:dark){{{selector}{{{block(1)}}}}}"


def draw(figure: Figure) -> Picture:
    """Every series is a group of the SVG whose id is `FIGURE-series-N`; equal figures give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_style(figure.name)):
        canvas = Canvas(figsize=(WIDTH, HEIGHT + LEGEND_ROW * _legend(figure)[0]), layout="constrained")
        axes = canvas.add_subplot()
        _DRAW[figure.kind](axes, figure)
        _frame(canvas, axes, figure)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once, for both files
        svg, png = io.StringIO(), io.BytesIO()
        canvas.savefig(svg, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        canvas.savefig(png, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return Picture(_with_variables(svg.getvalue(), figure), png.getvalue())


def standalone(svg: str) -> str:
    """The same figure as a file of its own, with the palette inside."""
    return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(
        r"(<svg [^>]*>)", lambda m: f"{m[1]}<style>{palette_css('svg')}</style>", svg, count=1
    )


def _style(name: str) -> Any:
    ink, muted, grid = (_COLOURS[key] for key in ("ink", "muted", "grid"))
    return {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar in a name is a dollar
        "svg.hashsalt": name,  # ids of clip paths: equal for equal figures, different between figures of one page
        "font.size": 10.5,
        "axes.titlesize": 10.5,
        "axes.labelsize": 10.5,
        "axes.edgecolor": muted,
        "axes.labelcolor": muted,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "text.color": ink,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "ytick.major.size": 0,
        "legend.frameon": False,
        "legend.fontsize": 10,
        "lines.linewidth": 1.9,
        "lines.markersize": 5,
    }


def _colour(series: Series) -> str:
    return _COLOURS[f"s{series.slot % SLOTS}"]


def _dash(series: Series) -> Any:
    return DASHES[(series.slot + series.slot // SLOTS) % SLOTS]  # the ninth series has the first one's colour only


def _marker(series: Series) -> str:
    return MARKERS[(series.slot + series.slot // SLOTS) % SLOTS]


def _legend(figure: Figure) -> tuple[int, int]:
    """(rows, columns) of the legend; none for a single line or bar."""
    count = len(figure.series)
    if count < 2 and figure.kind != "points":
        return 0, 0
    longest = max(len(s.name) for s in figure.series)
    columns = min(count, 4 if longest < 7 else 3 if longest < 11 else 2 if longest < 22 else 1)
    return -(-count // columns), columns


def _id(figure: Figure, i: int) -> str:
    return f"{figure.name}-series-{i}"


def _lines(axes: Any, figure: Figure) -> None:
    for i, s in enumerate(figure.series):
        sparse = max(1, len(s.x) // 8)
        if s.faint:
            axes.plot(s.x, s.faint, color=_colour(s), linewidth=0.9, alpha=0.35)
        axes.plot(
            s.x,
            s.y,
            color=_colour(s),
            linestyle=_dash(s),
            marker=_marker(s),
            markevery=(sparse // 2, sparse),
            label=s.name,
            gid=_id(figure, i),
        )
        if s.low and s.high:
            axes.fill_between(s.x, s.low, s.high, color=_colour(s), alpha=0.16, linewidth=0)
    axes.margins(x=0.02)


def _points(axes: Any, figure: Figure) -> None:
    for i, s in enumerate(figure.series):
        axes.errorbar(
            s.x,
            s.y,
            xerr=_whiskers(s.x, s.x_low, s.x_high),
            yerr=_whiskers(s.y, s.low, s.high),
            fmt="none",
            ecolor=_colour(s),
            elinewidth=1.4,
            alpha=0.75,
        )
        axes.plot(
            s.x,
            s.y,
            color=_colour(s),
            linestyle="none",
            marker=_marker(s),
            markersize=8,
            label=s.name,
            gid=_id(figure, i),
        )
    for start, end in figure.arrows:
        (x0,), (y0,), (x1,), (y1,) = *_at(figure.series[start]), *_at(figure.series[end])
        style = {"arrowstyle": "-|>", "color": _COLOURS["muted"], "alpha": 0.6, "shrinkA": 9, "shrinkB": 9, "lw": 1.1}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=style | {"connectionstyle": "arc3,rad=-0.12"})
    axes.margins(0.16)


def _at(series: Series) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return series.x, series.y


def _whiskers(
    middle: Sequence[float], low: Sequence[float] | None, high: Sequence[float] | None
) -> list[list[float]] | None:
    if low is None or high is None:
        return None
    return [
        [max(0.0, m - lo) for m, lo in zip(middle, low, strict=True)],
        [max(0.0, hi - m) for m, hi in zip(middle, high, strict=True)],
    ]


def _bars(axes: Any, figure: Figure) -> None:
    """Upright bars side by side, one place a tick."""
    for i, (s, at, width) in enumerate(_places(figure)):
        bars = axes.bar(at, s.y, width=width, color=_colour(s), label=s.name)
        _error_lines(axes, s, at, upright=True)
        bars[0].set_gid(_id(figure, i))
    axes.grid(axis="x", visible=False)
    axes.set_xticks(range(len(figure.ticks)), figure.ticks)


def _sideways(axes: Any, figure: Figure) -> None:
    """Bars that lie, for ticks with long names; the first tick on top."""
    for i, (s, at, width) in enumerate(_places(figure)):
        bars = axes.barh(at, s.y, height=width, color=_colour(s), label=s.name)
        _error_lines(axes, s, at, upright=False)
        bars[0].set_gid(_id(figure, i))
    axes.grid(axis="y", visible=False)
    axes.set_yticks(range(len(figure.ticks)), figure.ticks)
    axes.invert_yaxis()


def _error_lines(axes: Any, series: Series, at: Sequence[float], *, upright: bool) -> None:
    if series.low and series.high:
        ends = {"yerr" if upright else "xerr": _whiskers(series.y, series.low, series.high)}
        x, y = (at, series.y) if upright else (series.y, at)
        axes.errorbar(x, y, **ends, fmt="none", ecolor=_COLOURS["ink"], elinewidth=1, alpha=0.7)


def _places(figure: Figure) -> list[tuple[Series, list[float], float]]:
    """Each series with where its bars stand and how wide they are."""
    count = max(1, len(figure.series))
    width = 0.8 / count
    return [(s, [x + (i - (count - 1) / 2) * width for x in s.x], width * 0.9) for i, s in enumerate(figure.series)]


def _stack(axes: Any, figure: Figure) -> None:
    areas = axes.stackplot(
        figure.series[0].x,
        *(s.y for s in figure.series),
        colors=[_colour(s) for s in figure.series],
        labels=[s.name for s in figure.series],
        alpha=0.8,
    )
    for i, area in enumerate(areas):
        area.set_gid(_id(figure, i))


_DRAW = {"lines": _lines, "points": _points, "bars": _bars, "sideways": _sideways, "stack": _stack}


def _frame(canvas: Any, axes: Any, figure: Figure) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    class Shares(MaxNLocator):
        """No tick beyond 0 and 100 %, where there is only room for markers."""

        def tick_values(self, vmin: float, vmax: float) -> Any:
            ticks = np.asarray(super().tick_values(vmin, vmax))
            return ticks[(ticks > -1e-9) & (ticks < 1 + 1e-9)]

    # The y label lies flat above the axis: nobody has to turn their head, and the plot gets the width.
    canvas.suptitle(figure.y_label, x=0.012, ha="left", fontsize=10.5, color=_COLOURS["muted"])
    axes.set_xlabel(figure.x_label)
    if figure.kind == "sideways":
        axes.set_xlim(left=0)
    value_axis = axes.xaxis if figure.kind == "sideways" else axes.yaxis
    value_axis.set_major_locator((Shares if figure.percent else MaxNLocator)(5, steps=STEPS))
    if figure.kind != "sideways":
        axes.set_ylim(*_value_limits(figure, *axes.get_ylim()))
        if not figure.ticks:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=STEPS))
    if figure.percent:
        value_axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g}%"))
    for x in figure.marks:
        axes.axvline(x, color=_COLOURS["muted"], linewidth=0.9, linestyle=(0, (1, 3)), zorder=0.5)
    for x, name in figure.events:
        axes.axvline(x, color=_COLOURS["ink"], linewidth=0.8, alpha=0.7, zorder=0.6)
        axes.annotate(
            name,
            (x, 1),
            (-2, -3),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=9,
            color=_COLOURS["muted"],
        )
    _, columns = _legend(figure)
    if columns:
        canvas.legend(loc="outside lower left", ncols=columns, handlelength=2.2, columnspacing=1.4)


def _value_limits(figure: Figure, low: float, high: float) -> tuple[float, float]:
    """The ends of the value axis: a share stays between 0 and 100 %, and nothing but zeros is drawn at the bottom of an
    axis, not in the middle of one that matplotlib made up."""
    drawn = [v for s in figure.series for v in (*s.y, *(s.low or ()), *(s.high or ()), *(s.faint or ()))]
    if not any(drawn):
        low, high = 0.0, 1.0
    elif figure.from_zero and min(drawn) >= 0:
        low = 0.0
    if not figure.percent:
        return low, high
    if not figure.from_zero and high - low < 0.1:  # single points close together: keep the axis from exaggerating
        low, high = (low + high) / 2 - 0.05, (low + high) / 2 + 0.05
    # A little room beyond the ends, so that markers and whiskers at 0 and 100 % are whole.
    return max(low, 0.0 if figure.from_zero else -0.03), min(high, 1.04)


def _with_variables(svg: str, figure: Figure) -> str:
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub("|".join(_VARIABLES), lambda m: _VARIABLES[m[0]], svg)
    svg = re.sub(r"font: ([\d.]+)px '[^;\"]*", r"font: \1px var(--sans,system-ui,sans-serif)", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Ids that matplotlib gives to axes and ticks repeat from figure to figure, and nothing refers to them.
    svg = re.sub(rf'(<g) id="(?!{re.escape(figure.name)}-series-)[^"]*"', r"\1", svg)
    head = re.match(r"<svg [^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]*"', head[0])
    assert box is not None
    title = f"{figure.title} ({figure.group})" if figure.group else figure.title
    title = title.replace("&", "&amp;").replace("<", "&lt;")
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box[0]} '
        f'class="figure" role="img" aria-label="{title}">'.replace('"' + title, '"' + title.replace('"', "&quot;"))
    )
    return opening + svg[head.end() :]
