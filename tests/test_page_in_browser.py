"""The report page as people get it: opened in headless Chromium, wide and narrow, light and dark.

Skipped without Chromium and selenium; `make setup-browser` installs both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from concisecli import artifacts
from concisecli.stages import report
from tests import toy_run

webdriver = pytest.importorskip("selenium.webdriver")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with chromedriver; make setup-browser"),
]
DEMO = sorted(Path(__file__).parent.parent.glob("runs/tiny/report-*/report.html"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    for flag in ("disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module", params=["toy", *(["demo"] if DEMO else [])])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a made-up run, and that of the demo where it has run."""
    if request.param == "demo":
        return max(DEMO, key=lambda path: path.stat().st_mtime)
    stage = toy_run.write_run(tmp_path_factory.mktemp("runs") / "toy")
    report.run(stage)
    return stage.folder / "report.html"


def open_page(browser: Any, page: Path, width: int, scheme: str) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole_and_quiet(browser: Any, written: Path, width: int, scheme: str) -> None:
    open_page(browser, written, width, scheme)
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width

    figures = artifacts.read_json(written.parent / "tables.json")["figures"]
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg.figure')].map(s => {const b = s.getBoundingClientRect();"
        "return {name: s.closest('figure').dataset.figure, left: b.left, right: b.right, height: b.height,"
        "series: s.querySelectorAll('[id*=\"-series-\"]').length, text: s.textContent}})"
    )
    assert {box["name"]: box["series"] for box in boxes} == {f["name"]: len(f["series"]) for f in figures}
    for box in boxes:
        assert 0 <= box["left"] < box["right"] <= width, box["name"]
        assert box["height"] > 150, box["name"]


@pytest.mark.parametrize("width", [1280, 390])
def test_drawn_text_stays_within_its_figure_and_can_be_read(browser: Any, written: Path, width: int) -> None:
    open_page(browser, written, width, "light")
    texts = browser.execute_script(
        "return [...document.querySelectorAll('figure svg.figure')].flatMap(s => {const f = s.getBoundingClientRect();"
        "return [...s.querySelectorAll('text')].map(t => {const b = t.getBoundingClientRect();"
        "return {name: s.closest('figure').dataset.figure, said: t.textContent, over: Math.max(f.left - b.left,"
        "b.right - f.right, f.top - b.top, b.bottom - f.bottom), height: b.height}})})"
    )
    assert texts
    assert [t for t in texts if t["over"] > 2] == []
    assert min(t["height"] for t in texts) >= 9


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_page_and_figures_follow_the_scheme(browser: Any, written: Path, scheme: str, dark: bool) -> None:
    open_page(browser, written, 1280, scheme)

    def brightness(script: str) -> float:
        colour = browser.execute_script(f"return {script}")
        return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3

    assert (brightness("getComputedStyle(document.body).backgroundColor") < 80) is dark
    assert (brightness("getComputedStyle(document.querySelector('figure svg text')).fill") > 128) is dark
