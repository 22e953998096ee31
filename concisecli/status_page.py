"""The state of a run, and of a machine, as people read it in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from concisecli.monitor import clock, speed
from concisecli.upkeep.doctor import Finding
from concisecli.upkeep.status import StageStatus, status

STYLES = {"finished": "dim", "running": "green", "unfinished": "yellow", "broken": "red", "waiting": "dim"}
LEVELS = {"ok": "green", "warning": "yellow", "error": "red"}
SECONDS = 2.0
PIPED_WIDTH = 120


def show(run: Path, found: Sequence[StageStatus]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPED_WIDTH)
    console.print(page(run, found))


def follow(run: Path, stages: Sequence[str]) -> None:
    """Until Ctrl-C, which is no failure here."""
    with Live(page(run, status(run, stages)), refresh_per_second=4) as live:
        try:
            while True:
                time.sleep(SECONDS)
                live.update(page(run, status(run, stages)))
        except KeyboardInterrupt:
            return


def page(run: Path, found: Sequence[StageStatus]) -> Group:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, heading in enumerate(("stage", "state", "at", "speed", "left", "last step", "health")):
        table.add_column(heading, no_wrap=number == 0)
    for stage in found:
        table.add_row(
            Text(stage.stage),
            Text(state(stage), style=STYLES[stage.state]),
            Text(place(stage)),
            Text(speed(1 / stage.seconds_per_step, stage.unit) if stage.seconds_per_step else ""),
            Text(clock(stage.seconds_left) if stage.seconds_left else ""),
            Text("  ".join(f"{name} {value:.4g}" for name, value in list(stage.metrics.items())[:3])),
            health(stage),
        )
    return Group(Text(str(run), style="bold"), table)


def state(stage: StageStatus) -> str:
    if stage.state == "running":
        return f"running{f', {stage.phase}' if stage.phase else ''}{silence(stage)}"
    return stage.state


def silence(stage: StageStatus) -> str:
    """How long nothing was heard, where that is long for its pace."""
    age = stage.heartbeat_age or 0.0
    return f", silent for {clock(age)}" if age > max(60.0, 3 * (stage.seconds_per_step or 0.0)) else ""


def place(stage: StageStatus) -> str:
    if stage.state == "finished" or stage.done is None:
        return ""
    return f"{stage.unit} {stage.done}/{stage.total}" if stage.total else f"{stage.unit} {stage.done}"


def health(stage: StageStatus) -> Text:
    text = Text("  ".join(f"{name} {value:.3g}" for name, value in stage.health.items()))
    if stage.alarms:
        text.append(f"  alarm: {', '.join(stage.alarms)}", style="red")
    if stage.note:
        text.append(stage.note, style="red")
    return text


def show_findings(found: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for finding in found:
        told = Text(finding.text)
        if finding.advice:
            told.append(f"\n{finding.advice}", style="italic")
        table.add_row(Text(finding.level, style=LEVELS[finding.level]), Text(finding.name), told)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=PIPED_WIDTH)).print(table)
