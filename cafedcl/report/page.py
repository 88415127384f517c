"""The report: one HTML file that holds everything it needs and asks nobody for anything."""

import base64
import json
import math
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cafedcl.core.arrays import Array
from cafedcl.core.errors import CafedclError
from cafedcl.core.version import __version__
from cafedcl.report.collect import collect
from cafedcl.report.runs import Summary

STYLE_SHEETS = ("report.css", "cards.css", "media.css")
SCRIPTS = (
    "base.js", "charts.js", "compare.js", "curves.js", "data.js", "classes.js", "confidence.js", "prototypes.js",
    "cost.js", "main.js",
)  # fmt: skip
NONE = 65535
"""What stands for a missing number in a packed array."""


def write_report(summary: Summary, out: Path) -> None:
    """Write the report of some runs into one HTML file."""
    if not summary.groups:
        listed = "; ".join(f"{run.path}: {run.state}, {run.problem}" for run in summary.runs[:5])
        raise CafedclError(f"there is nothing to report yet: no run has a scored round ({listed})")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page(collect(summary)), encoding="utf-8")
    except OSError as error:
        raise CafedclError(
            f"{out}: cannot be written: {error.strerror}; choose another --out"
        ) from None


def page(data: dict[str, Any]) -> str:
    """Return the page around the data of its panels."""
    titles = [group["title"] for group in data["groups"]]
    title = titles[0] if len(titles) == 1 else f"{len(titles)} settings"
    parts = {
        "title": escape(f"cafedcl: {title}"),
        "style": "\n".join(static(name) for name in STYLE_SHEETS),
        "data": block({"version": __version__, **data}),
        "echarts": static("echarts.min.js"),
        "script": "\n".join(static(name) for name in SCRIPTS),
    }
    text = static("page.html")
    for name, part in parts.items():
        before, after = text.split(f"@{name}@")
        text = before + part + after if name != "data" else f"{before}@data@{after}"
    return text.replace("@data@", parts["data"], 1)


def static(name: str) -> str:
    """Return one of the page's own files."""
    return (files("cafedcl.report") / "static" / name).read_text(encoding="utf-8")


def block(data: Any) -> str:
    """Return the data as JSON that can stand inside a script element whatever it says."""
    text = json.dumps(
        to_json_values(data), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def to_json_values(value: Any) -> Any:
    """Return plain JSON values: numbers with five digits, None for what is missing, tables packed."""
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    if isinstance(value, np.ndarray):
        return pack_array(value) if value.ndim > 1 else to_json_values(value.tolist())
    if isinstance(value, np.generic):
        return to_json_values(value.item())
    if isinstance(value, float):
        return five_digits(value)
    return value


def five_digits(value: float) -> float | int | None:
    """Return a number with five significant digits, without a fraction where it has none."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def pack_array(values: Array) -> dict[str, Any]:
    """Return an array as 16-bit steps from its smallest to its largest number, in base64; counts
    exactly.
    """
    numbers = values.astype(np.float64)
    good = np.isfinite(numbers)
    low, high = (
        (float(numbers[good].min()), float(numbers[good].max())) if good.any() else (0.0, 0.0)
    )
    exact = values.dtype.kind in "iub" and low >= 0 and high < NONE
    low, step = (0.0, 1.0) if exact else (low, (high - low) / (NONE - 1) or 1.0)
    steps = np.where(good, np.rint((np.where(good, numbers, low) - low) / step), NONE).astype("<u2")
    return {
        "b64": base64.b64encode(steps.tobytes()).decode(),
        "shape": list(values.shape),
        "low": low,
        "step": step,
    }
