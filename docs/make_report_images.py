"""Make docs/images/report-desktop.png and report-phone.png: screenshots of the report.

python docs/make_report_images.py [FOLDER]

FOLDER holds the runs. Missing runs are trained first, which takes about 15 minutes on one core.
This needs playwright and Chromium: pip install playwright, apt install chromium.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import cafedcl
from cafedcl.report.page import write_report
from cafedcl.report.runs import read_runs

METHODS = (
    "fedavg",
    "fedprox",
    "moon",
    "fedproto",
    "fedtgp",
    "cafedcl",
    "cafedcl:no-geo",
    "cafedcl:no-confagg-counts",
)
SEEDS = (0, 1, 2)
SETTINGS = {"train.epochs": 2, "engine.workers": 1, "store.checkpoint_every": 30}
IMAGES = Path(__file__).parent / "images"
SECTIONS = ("top", "clients", "confidence", "prototypes")
"""The sections on the phone screenshots."""


def main() -> None:
    """Train missing runs, write the report, and take the screenshots."""
    with tempfile.TemporaryDirectory() as spare:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else spare)
        for seed in SEEDS:
            for method in METHODS:
                run = folder / f"{method.replace(':', '-')}-s{seed}"
                if not run.exists():
                    print(f"training {run.name}")
                    cafedcl.run(method, rounds=30, seed=seed, out=run, settings=SETTINGS)
        report = Path(spare) / "report.html"
        write_report(read_runs([folder]), report)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            save(desktop(browser, report), IMAGES / "report-desktop.png")
            save(phone(browser, report), IMAGES / "report-phone.png")
            browser.close()


def open_report(browser: Any, report: Path, **context: Any) -> Any:
    """Return the report in a browser window, once it is drawn."""
    page = browser.new_context(**context).new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready]")
    # Transitions take a moment after the page is ready.
    page.wait_for_timeout(1000)
    return page


def desktop(browser: Any, report: Path) -> Image.Image:
    """Return the upper part of the report, its left half light and its right half dark."""
    halves = []
    for theme in ("light", "dark"):
        page = open_report(
            browser, report, viewport={"width": 1400, "height": 900}, color_scheme=theme
        )
        end = page.locator("#data").bounding_box()
        area = {"x": 0, "y": 0, "width": 1400, "height": end["y"] + end["height"] + 24}
        picture = page.screenshot(full_page=True, clip=area)
        halves.append(Image.open(io.BytesIO(picture)).convert("RGB"))
    light, dark = halves
    edge = light.width // 2 - 3
    light.paste(dark.crop((edge, 0, dark.width, dark.height)), (edge, 0))
    return light


def phone(browser: Any, report: Path) -> Image.Image:
    """Return some sections on a phone, side by side."""
    screens = []
    for section, theme in zip(SECTIONS, ("light", "dark", "light", "dark"), strict=True):
        page = open_report(
            browser,
            report,
            viewport={"width": 390, "height": 844},
            color_scheme=theme,
            is_mobile=True,
        )
        page.evaluate(
            "id => document.getElementById(id).scrollIntoView({ behavior: 'instant' })", section
        )
        page.wait_for_timeout(400)
        screens.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    gap = 24
    width, height = screens[0].size
    sheet = Image.new("RGB", (len(screens) * (width + gap) - gap, height), "white")
    for column, screen in enumerate(screens):
        sheet.paste(screen, (column * (width + gap), 0))
    return sheet


def save(image: Image.Image, path: Path) -> None:
    """Write an image file."""
    image.save(path, optimize=True)
    print(f"written: {path} ({path.stat().st_size / 1000:.0f} kB)")


if __name__ == "__main__":
    main()
