"""One style per method, the same in tables, charts and figures.

The colours are based on those of Okabe and Ito and of Tol, which colour-blind readers can
distinguish, with a lightness that is readable on white and on black. Markers and dashes distinguish
methods where colour alone cannot.
"""

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class SeriesStyle:
    """How a method is drawn: colour, marker and line."""

    colour: str
    symbol: str
    dash: str


SYMBOLS = ("circle", "rect", "triangle", "diamond", "plus", "down")
"""Names of markers in the HTML report; ``MARKERS`` has those of matplotlib."""
MARKERS = {"circle": "o", "rect": "s", "triangle": "^", "diamond": "D", "plus": "P", "down": "v"}
DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}

SERIES_STYLES = {
    "cafedcl": SeriesStyle("#D55E00", "circle", "solid"),
    "fedavg": SeriesStyle("#0A7ABF", "rect", "solid"),
    "fedproto": SeriesStyle("#009E73", "triangle", "solid"),
    "fedtgp": SeriesStyle("#CC79A7", "diamond", "solid"),
    "moon": SeriesStyle("#8F72D8", "plus", "solid"),
    "fedprox": SeriesStyle("#45A5DD", "rect", "dashed"),
    "fedlc": SeriesStyle("#C79200", "down", "solid"),
    "fedrcl": SeriesStyle("#B8477A", "diamond", "dashed"),
    "fedproc": SeriesStyle("#A5673F", "triangle", "dashed"),
    "mp-fedcl": SeriesStyle("#2B9A94", "down", "dashed"),
    "scaffold": SeriesStyle("#6E7FD0", "plus", "dashed"),
    "fedbn": SeriesStyle("#8B8B2B", "rect", "dotted"),
    "fednh": SeriesStyle("#5FA84A", "circle", "dotted"),
    "local": SeriesStyle("#8A8F98", "down", "dotted"),
    "central": SeriesStyle("#66758A", "diamond", "dotted"),
    "cafedcl:literal": SeriesStyle("#C44569", "rect", "dashed"),
    "cafedcl:no-geo": SeriesStyle("#EFA24A", "triangle", "dashed"),
    "cafedcl:no-confagg-uniform": SeriesStyle("#B39A25", "diamond", "dashed"),
    "cafedcl:no-confagg-counts": SeriesStyle("#A0582A", "down", "dashed"),
    "cafedcl:inverse-variance": SeriesStyle("#E58A7B", "plus", "dotted"),
}
SPARE = (
    "#7A6FB0",
    "#3C8D8A",
    "#B07AA1",
    "#9A8F3C",
    "#C0695B",
    "#5B8DB8",
    "#77A35B",
    "#A36F9B",
    "#B98A4E",
    "#6F8F9F",
)
"""Colours of methods that are not in ``SERIES_STYLES``."""


def series_style(name: str) -> SeriesStyle:
    """Return the style of a method; that of an unknown method depends only on its name."""
    if name in SERIES_STYLES:
        return SERIES_STYLES[name]
    digest = blake2b(name.encode(), digest_size=4).digest()
    dash = ("dashed", "dotted")[digest[2] % 2]
    return SeriesStyle(SPARE[digest[0] % len(SPARE)], SYMBOLS[digest[1] % len(SYMBOLS)], dash)
