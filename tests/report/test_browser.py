"""The report in a real browser: it draws everything, makes no requests, and fits a phone."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cafedcl.report.page import write_report
from cafedcl.report.runs import read_runs

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

Maker = Callable[..., Path]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
EVERYTHING = ("server", "confidence", "prototypes", "loop", "scores")
PANELS = [
    "ranking",
    "curves",
    "data",
    "clients",
    "classes",
    "probabilities",
    "wrong",
    "confidence",
    "prototypes",
    "loop",
    "ablation",
    "samples",
]
PANELS += ["cost", "runs"]

BLANK = """() => [
  ...document.querySelectorAll('.card:not([hidden]) .chart:not([hidden])')
].filter((node) => {
  const layers = [...node.querySelectorAll('canvas')];
  if (!layers.length) return node.querySelectorAll('svg path').length < 3;
  const { width, height } = layers[0];
  const blank = Object.assign(document.createElement('canvas'), { width, height });
  return layers.every((canvas) => canvas.toDataURL() === blank.toDataURL());
}).map((node) => node.getAttribute('aria-label'))"""


class Visit:
    """A page with everything it complained about and everyone it asked."""

    def __init__(self, page: Any, report: Path) -> None:
        self.page, self.complaints, self.requests = page, [], []
        page.on(
            "console",
            lambda said: (
                self.complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.route("**/*", self.gate)
        page.set_default_timeout(600_000)
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]")
        self.wait_until_drawn()

    def gate(self, route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()

    def wait_until_drawn(self) -> None:
        """Wait until no chart is blank; one that stays blank ends the test after ten minutes."""
        # What a click changes may not have begun yet.
        self.page.wait_for_timeout(300)
        self.page.wait_for_function(f"() => !({BLANK})().length")

    def _look(self, label: str) -> str:
        chart = self.page.locator(f'.chart[aria-label="{label}"]')
        layers = (
            "node => [...node.querySelectorAll('canvas')].map(canvas => canvas.toDataURL()).join()"
            " || node.innerHTML"
        )
        return str(chart.evaluate(layers))

    def look(self, label: str) -> str:
        """What a chart looks like when it no longer moves."""
        before = ""
        while before != (now := self._look(label)):
            before = now
            self.page.wait_for_timeout(280)
        return now

    def wait_for_change(self, label: str, before: str) -> None:
        """Wait until a chart no longer looks as before; the test ends after ten minutes."""
        until = time.monotonic() + 600
        while self._look(label) == before:
            assert time.monotonic() < until, f"{label} stays as it was"
            self.page.wait_for_timeout(50)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def full(make_run: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything a report can show, with names that try to be more than names."""
    home = tmp_path_factory.mktemp("full")
    names = ["<img src=x onerror=alert(1)>", "</script>", "a & b", '"quoted"']
    for seed in (0, 1):
        more = {"extras": EVERYTHING, "names": names, "rounds": 5}
        make_run(home / f"a{seed}", "cafedcl", seed, 0.9, samples=2, method__lam_geo=1.0, **more)
        make_run(home / f"b{seed}", "fedavg", seed, 0.8, names=names, rounds=5)
    make_run(home / "c", "cafedcl:no-geo", 0, 0.85, names=names, rounds=5)
    make_run(home / "d", "cafedcl", 0, 0.7, names=names, rounds=5, method__lam_geo=3.0)
    make_run(home / "e", "fedproto", 0, 0.75, names=names, rounds=5, extras=("prototypes",))
    make_run(home / "f", "moon", 0, done=0)
    make_run(home / "g", "fedavg", 0, split__kind="iid", rounds=2)
    write_report(read_runs([home]), home / "report.html")
    return home / "report.html"


def test_everything_is_drawn_and_nobody_asked(browser: Any, full: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    visit = Visit(context.new_page(), full)
    page = visit.page
    assert page.eval_on_selector_all("section", "list => list.map(one => one.id)") == PANELS
    for protocol in ("server", "own"):
        page.click(f'#controls [data-value="{protocol}"]')
        visit.wait_until_drawn()
    shown = page.locator(".card:not([hidden]) .chart:not([hidden])").count()
    assert shown >= 17
    for value in ("bytes", "seconds"):
        before = visit.look("Accuracy over time")
        page.click(f'[data-value="{value}"]')
        visit.wait_for_change("Accuracy over time", before)
    assert page.locator(".sheets img").count() == 2
    assert page.evaluate("document.querySelector('.sheets img').naturalWidth") == 16
    page.select_option('select[aria-label="setting"]', "1")
    sync_api.expect(page.locator("h1")).to_have_text("digits", timeout=600_000)
    assert "iid" in page.locator(".hero p").first.inner_text()
    visit.wait_until_drawn()
    assert visit.complaints == []
    assert visit.requests == []
    context.close()


def test_methods_can_be_switched_off_everywhere(browser: Any, full: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    visit = Visit(context.new_page(), full)
    labels = (
        "Accuracy over time",
        "accuracies of all clients by method",
        "seconds per round by phase",
    )
    before = [visit.look(label) for label in labels]
    chip = visit.page.locator('.chip[data-method="fedavg"]')
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    for label, old in zip(labels, before, strict=True):
        visit.wait_for_change(label, old)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    for method in ("fedavg", "cafedcl", "cafedcl:no-geo", "fedproto"):
        visit.page.locator(f'.chip[data-method="{method}"]').click()
    assert visit.page.locator('.chip[aria-pressed="true"]').count() == 1, "the last one stays"
    assert visit.complaints == []
    context.close()


def test_the_theme_follows_the_system_and_can_be_switched(browser: Any, full: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), full)
    theme = "document.documentElement.dataset.theme"
    assert visit.page.evaluate(theme) == "dark"
    before = visit.look("training images per client and class")
    visit.page.click("#theme")
    assert visit.page.evaluate(theme) == "light"
    visit.wait_for_change("training images per client and class", before)
    assert (
        visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(245, 246, 248)"
    )
    assert visit.complaints == []
    context.close()


def test_the_sliders_move_the_rounds(browser: Any, full: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    visit = Visit(context.new_page(), full)
    labels = {
        "confidence": "confidence per client and class",
        "prototypes": "prototypes in a plane",
        "loop": "drift of the prototypes by class",
    }
    for panel, label in labels.items():
        before = visit.look(label)
        slider = visit.page.locator(f"#{panel} input[type=range]")
        slider.fill("1")
        assert visit.page.locator(f"#{panel} output").inner_text() == "round 2"
        visit.wait_for_change(label, before)
    before = visit.look("confidence per client and class")
    visit.page.click('#confidence [data-value="data"]')
    visit.wait_for_change("confidence per client and class", before)
    visit.page.locator("#prototypes button[aria-label=play]").click()
    shown = visit.page.locator("#prototypes output")
    sync_api.expect(shown).not_to_have_text("round 2", timeout=600_000)
    assert visit.complaints == []
    context.close()


@pytest.mark.parametrize("width", [390, 820])
def test_it_fits_a_phone(browser: Any, full: Path, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 844}, has_touch=True, is_mobile=True
    )
    visit = Visit(context.new_page(), full)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    assert visit.complaints == []
    context.close()


def test_one_run_has_no_empty_panels(browser: Any, make_run: Maker, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", "local", extras=(), rounds=1)
    write_report(read_runs([run]), tmp_path / "report.html")
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    visit = Visit(context.new_page(), tmp_path / "report.html")
    panels = visit.page.eval_on_selector_all("section", "list => list.map(one => one.id)")
    assert panels == ["data", "clients", "classes", "cost", "runs"]
    empty = (
        "list => list.filter(one => !one.hidden"
        " && !one.querySelector('.chart:not([hidden]), table, .worst, pre'))"
    )
    assert visit.page.eval_on_selector_all(".card", empty) == []
    assert visit.complaints == []
    assert visit.requests == []
    context.close()


def test_it_can_be_printed(browser: Any, full: Path, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    visit = Visit(context.new_page(), full)
    visit.page.pdf(path=tmp_path / "report.pdf", format="A4", print_background=True)
    assert (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n") > 3
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark", "back as it was"
    assert visit.complaints == []
    context.close()
