"""Figures: every series is drawn and named, in colours that everyone can tell apart, the same every time."""

from __future__ import annotations

import io
import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from concisecli.reports.drawing import DARK, DASHES, LIGHT, MARKERS, Figure, Series, draw, palette_css, standalone

ONE = Series("base", (10.0, 20.0, 30.0), (0.2, 0.4, 0.5), (0.1, 0.3, 0.4), (0.3, 0.5, 0.6), slot=0)
TWO = Series("rl1", (10.0, 20.0, 30.0), (0.1, 0.5, 0.9), slot=1, faint=(0.0, 0.6, 0.9))
LINES = Figure("curve", "A curve", "budget (tokens)", "pass@1 (share)", (ONE, TWO), percent=True, marks=(20.0,))
AT_TICKS = tuple(replace(series, x=(0.0, 1.0, 2.0)) for series in (ONE, replace(TWO, faint=None)))
BARS = replace(LINES, name="bars", kind="bars", series=AT_TICKS, ticks=("left", "middle", "right"), marks=())
POINT = Series("p", (5.0,), (0.5,), (0.4,), (0.6,), (4.0,), (6.0,), slot=2)
POINTS = Figure("pareto", "Points", "length (tokens)", "pass@1 (share)", (POINT, replace(POINT, x=(9.0,))), "points")
ALL = {
    "lines": LINES,
    "bars": BARS,
    "sideways": replace(BARS, kind="sideways", name="words"),
    "points": replace(POINTS, arrows=((0, 1),)),
    "stack": Figure("kinds", "Kinds", "step", "share", (ONE, TWO), kind="stack"),
}


@pytest.mark.parametrize("kind", ALL)
def test_every_series_is_drawn_once_and_every_label_is_text(kind: str) -> None:
    figure = ALL[kind]
    svg = draw(figure).svg
    root = ElementTree.fromstring(svg)
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    drawn = [i for i in ids if i.startswith(f"{figure.name}-series-")]
    assert drawn == [f"{figure.name}-series-{n}" for n in range(len(figure.series))]
    said = " ".join(e.text or "" for e in root.iter() if e.tag.endswith("text"))
    for label in (figure.x_label, figure.y_label, *figure.ticks):
        assert label in said
    if len(figure.series) > 1:
        assert all(series.name in said for series in figure.series)


@pytest.mark.parametrize("kind", ALL)
def test_every_colour_follows_the_readers_scheme(kind: str) -> None:
    svg = draw(ALL[kind]).svg
    assert not re.findall(r"(?<!,)#[0-9a-f]{6}", svg)  # a bare colour; as the fallback of a variable it follows a comma
    assert "var(--ink," in svg
    assert "var(--s0," in svg or "var(--s2," in svg


def test_equal_figures_give_equal_bytes_and_others_share_no_id() -> None:
    assert draw(LINES).svg == draw(LINES).svg
    first, second = (set(re.findall(r'id="([^"]+)"', draw(f).svg)) for f in (LINES, ALL["stack"]))
    assert not first & second


def test_intervals_are_drawn() -> None:
    bare = replace(LINES, series=(replace(ONE, low=None, high=None), TWO))
    assert draw(LINES).svg.count("<path") > draw(bare).svg.count("<path")


def test_events_are_drawn_with_their_names() -> None:
    marked = draw(replace(LINES, events=((25.0, "collapse"),))).svg
    assert ">collapse<" in marked
    assert marked.count("<path") > draw(LINES).svg.count("<path")


def test_many_series_make_a_taller_figure_and_stay_apart() -> None:
    def height(svg: str) -> float:
        return float(ElementTree.fromstring(svg).get("viewBox", "").split()[3])

    many = replace(LINES, series=tuple(replace(TWO, name=f"a rather long name {i}", slot=i) for i in range(12)))
    assert height(draw(many).svg) > height(draw(LINES).svg) + 60
    first, ninth = (
        draw(replace(LINES, series=(many.series[0],))).svg,
        draw(replace(LINES, series=(many.series[8],))).svg,
    )
    assert re.sub("a rather long name .", "", first) != re.sub("a rather long name .", "", ninth)


def test_shares_are_written_in_percent() -> None:
    assert "60%" in draw(LINES).svg
    assert "%" not in draw(replace(LINES, percent=False)).svg


def test_a_title_with_signs_of_markup_stays_text() -> None:
    svg = draw(replace(LINES, title='a < b & "c"', group="T=1.0")).svg
    assert ElementTree.fromstring(svg).get("aria-label") == 'a < b & "c" (T=1.0)'


def test_a_file_of_its_own_brings_its_palette() -> None:
    alone = standalone(draw(LINES).svg)
    ElementTree.fromstring(alone.encode())
    assert palette_css("svg") in alone
    assert "prefers-color-scheme:dark" in alone


# --- colours ----------------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB, row by row.
SEEN_BY = {
    "most": (1, 0, 0, 0, 1, 0, 0, 0, 1),
    "protanopes": (0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998),
    "deuteranopes": (0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881),
    "tritanopes": (1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039),
}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN_BY)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_told_apart_by(eyes: str, palette: tuple[str, ...]) -> None:
    seen = [lab(np.reshape(SEEN_BY[eyes], (3, 3)) @ linear(c)) for c in palette]
    apart = {(i, j): np.linalg.norm(seen[i] - seen[j]) for i, j in itertools.combinations(range(len(seen)), 2)}
    assert min(apart.values()) > 7  # a difference of 2.3 is just noticeable
    assert min(d for (_, j), d in apart.items() if j < 4) > 11


@pytest.mark.parametrize(("palette", "paper"), [(LIGHT, "#ffffff"), (DARK, "#1a1e25")], ids=["light", "dark"])
def test_colours_stand_out_from_their_paper(palette: tuple[str, ...], paper: str) -> None:
    def luminance(colour: str) -> float:
        return float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) + 0.05

    for colour in palette:
        ratio = luminance(colour) / luminance(paper)
        assert max(ratio, 1 / ratio) >= 3  # WCAG 2.1, 1.4.11


def test_colour_is_never_the_only_difference() -> None:
    assert len(set(MARKERS)) == len(MARKERS) == len(DASHES) == len(LIGHT) == len(DARK)


# --- files and axes ---------------------------------------------------------------------------------------------------


def test_the_png_is_sharp_white_and_the_same_every_time() -> None:
    from matplotlib.image import imread

    png = draw(LINES).png
    assert png == draw(LINES).png
    assert b"Software" not in png
    pixels = imread(io.BytesIO(png))
    assert pixels.shape[1] >= 900
    assert pixels[0, 0].tolist() == [1, 1, 1, 1]
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 50


@pytest.mark.parametrize("kind", ["lines", "bars", "points"])
def test_nothing_but_zeros_is_drawn_at_the_bottom_of_an_axis_of_shares(kind: str) -> None:
    def zeros(series: Series) -> Series:
        return replace(series, y=(0.0,) * len(series.y), low=None, high=None, faint=None, x_low=None, x_high=None)

    figure = replace(ALL[kind], series=tuple(map(zeros, ALL[kind].series)), percent=True, from_zero=kind != "points")
    said = re.findall(r">(\S+)%<", draw(figure).svg)
    assert "-5" not in said
    assert "−5" not in said
    assert {"0", "100"} <= set(said)


def test_an_axis_of_shares_ends_at_100_percent() -> None:
    point = replace(POINT, y=(0.99,), low=(0.95,), high=(1.0,))
    said = re.findall(r">(\S+)%<", draw(replace(POINTS, series=(point,), percent=True, from_zero=False)).svg)
    assert max(map(float, said)) <= 100
    assert len(said) >= 2
