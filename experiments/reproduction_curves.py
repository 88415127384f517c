"""Tables of scores over rounds."""

from collections.abc import Sequence
from statistics import fmean

from reproduction_notes import rows_text
from reproduction_tables import by_method

from cafedcl.compare.results import ResultRow, by_setting

CURVES = {"server": "server: accuracy", "own": "own: client mean"}
"""The curves of a run, with what they show."""


def curves_table(records: Sequence[ResultRow]) -> str:
    """Return a table per setting and score: methods × rounds, in %, as means over seeds."""
    text = ""
    for setting, mine in by_setting(records):
        for curve, title in CURVES.items():
            methods = {name: mean_curve(rows, curve) for name, rows in by_method(mine).items()}
            rounds = sorted({number for its in methods.values() for number in its})
            if not rounds:
                continue
            lines = [
                [f"`{name}`", *(f"{its[it]:.1f}" if it in its else "–" for it in rounds)]
                for name, its in methods.items()
            ]
            text += f"**{setting}, {title}** after so many rounds\n\n"
            text += rows_text(["method", *map(str, rounds)], lines)
    return text


def mean_curve(records: Sequence[ResultRow], curve: str) -> dict[int, float]:
    """Return the mean over seeds, in %, after every round in which all seeds were scored."""
    # Results of earlier versions have no curves.
    found = [dict(record.get("curves", {}).get(curve, ())) for record in records]
    shared = set.intersection(*(set(its) for its in found)) if found else set()
    return {number: 100 * fmean(its[number] for its in found) for number in sorted(shared)}
