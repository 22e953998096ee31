"""Numbers as people read them: one way for page, Markdown and terminal."""

from __future__ import annotations

from typing import Any

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
