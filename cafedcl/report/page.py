"""The report: one HTML file that contains everything it needs and makes no requests."""

import base64
import json
import math
import re
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import refuse_other_file, why_unwritten, write_atomically
from cafedcl.core.printable import printable
from cafedcl.core.version import __version__
from cafedcl.report.collect import collect
from cafedcl.report.runs import Summary

STYLE_SHEETS = ("report.css", "cards.css", "media.css")
SCRIPTS = (
    "base.js", "charts.js", "compare.js", "curves.js", "data.js", "classes.js", "probabilities.js",
    "confidence.js", "prototypes.js", "cost.js", "main.js",
)  # fmt: skip
MISSING_CODE = 65535
"""The code of a missing number in a packed array; base.js uses the same one."""
OWN_PAGE = re.compile(rb"<!doctype html>.{,2000}<title>cafedcl: ", re.DOTALL)
"""The beginning of a report, from page.html. Other pages are not replaced."""


def write_report(summary: Summary, out: Path, warn: Callable[[str], None] = lambda _: None) -> None:
    """Write the report of some runs into one HTML file; ``warn`` is called for damaged files."""
    summary.require_scores()
    refuse_other_file(out, OWN_PAGE, "report of cafedcl")
    data = collect(summary)
    for problem in data["problems"]:
        warn(problem)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page(data).encode())
    except OSError as error:
        raise CafedclError(
            f"{out}: cannot be written: {why_unwritten(error)}; choose another --out"
        ) from None


def page(data: dict[str, Any]) -> str:
    """Return the HTML page with the data of its panels."""
    titles = [group["title"] for group in data["groups"]]
    title = titles[0] if len(titles) == 1 else f"{len(titles)} settings"
    parts = {
        "title": escape(printable(f"cafedcl: {title}")),
        "style": "\n".join(static(name) for name in STYLE_SHEETS),
        "data": block({"version": __version__, **data}),
        "echarts": static("echarts.min.js"),
        "script": "\n".join(static(name) for name in SCRIPTS),
    }
    # One pass over the template: a placeholder inside a part, such as a title, is left alone.
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], static("page.html"))


def static(name: str) -> str:
    """Return the content of a static file of the page."""
    return (files("cafedcl.report") / "static" / name).read_text(encoding="utf-8")


def block(data: Any) -> str:
    """Return the data as JSON, escaped so that no text in it can end the script element."""
    text = json.dumps(
        to_json_values(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def to_json_values(value: Any) -> Any:
    """Return values that JSON can hold: five digits, None for NaN, packed tables."""
    if isinstance(value, dict):
        return {printable(str(key)): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    if isinstance(value, np.ndarray):
        return pack_array(value) if value.ndim > 1 else to_json_values(value.tolist())
    if isinstance(value, np.generic):
        return to_json_values(value.item())
    if isinstance(value, float):
        return five_digits(value)
    if isinstance(value, str):
        return printable(value)
    return value


def five_digits(value: float) -> float | int | None:
    """Return a number with five significant digits, as an integer if it is one."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def pack_array(values: Array) -> dict[str, Any]:
    """Return an array in base64, as 16-bit steps from its smallest to its largest number.

    Small counts are exact: their step is 1.
    """
    numbers = values.astype(np.float64)
    good = np.isfinite(numbers)
    low = float(numbers[good].min()) if good.any() else 0.0
    high = float(numbers[good].max()) if good.any() else 0.0
    if values.dtype.kind in "iub" and low >= 0 and high < MISSING_CODE:
        low = 0.0
        step = 1.0
    else:
        step = (high - low) / (MISSING_CODE - 1) or 1.0
    steps = np.rint((np.where(good, numbers, low) - low) / step)
    codes = np.where(good, steps, MISSING_CODE).astype("<u2")
    return {
        "b64": base64.b64encode(codes.tobytes()).decode(),
        "shape": list(values.shape),
        "low": low,
        "step": step,
    }
