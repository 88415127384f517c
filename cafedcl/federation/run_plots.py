"""Figures of one run, for notebooks: `Run.plot_curves` and others.

Figures that compare runs are in the report's room; they read run folders.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text

from cafedcl.core.arrays import Array
from cafedcl.core.fonts import save_figure

MOST_WRITTEN = 20
"""Classes of a confusion matrix whose cells have room for a number."""
COLOUR = "#0A7ABF"
OTHER = "#D55E00"


class NotebookFigure(Figure):
    """A figure that a notebook shows without any setting up."""

    def draw(self, renderer: Any) -> None:
        """Draw everything; a dollar sign in a name is a dollar sign, not the start of a formula."""
        for text in self.findobj(Text):
            text.set_parse_math(False)
        super().draw(renderer)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        save_figure(self, out, format="png", dpi=110)
        return out.getvalue()


def blank(width: float = 6.4, height: float = 4.0) -> tuple[NotebookFigure, Any]:
    """Return an empty figure and its axes."""
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def curves(records: Sequence[dict[str, Any]], paths: dict[str, str]) -> NotebookFigure:
    """Draw scores over rounds; ``paths`` are titles by path, such as ``server.accuracy``."""
    figure, axes = blank()
    for path, title in paths.items():
        part, _, name = path.partition(".")
        points = [
            (line["round"] + 1, 100 * line[part][name])
            for line in records
            if (line.get(part) or {}).get(name) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", label=title)
    axes.set(xlabel="round", ylabel="%", ylim=(0, 100))
    axes.legend(frameon=False)
    return figure


def recalls(names: Sequence[str], recall: Array) -> NotebookFigure:
    """Draw the recall of every class as bars, the worst one in another colour."""
    figure, axes = blank(max(4.0, 1.5 + 0.5 * len(names)))
    values = 100 * np.asarray(recall)
    worst = np.nanmin(values) if np.isfinite(values).any() else np.nan
    colours = [OTHER if value == worst else COLOUR for value in values]
    bars = axes.bar(range(len(names)), np.nan_to_num(values), color=colours)
    axes.bar_label(bars, [f"{v:.0f}" if np.isfinite(v) else "–" for v in values])
    axes.set_xticks(range(len(names)), names, rotation=45 if len(names) > 6 else 0)
    axes.set(ylabel="recall, %", ylim=(0, 108))
    return figure


def confusion(names: Sequence[str], table: Array) -> NotebookFigure:
    """Draw the confusion matrix in % of each class's test images."""
    side = max(4.0, 1.5 + 0.45 * len(names))
    figure, axes = blank(side, side)
    sums = table.sum(1, keepdims=True)
    share = 100 * table / np.where(sums > 0, sums, 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=100)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted", ylabel="class")
    if len(names) <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(share):
            ink = "white" if value > 55 else "black"
            if value >= 0.5:
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink)
    return figure


def reliability(bins: Array) -> NotebookFigure:
    """Draw the share of correct predictions against their predicted probability."""
    figure, axes = blank(4.6, 4.4)
    known = bins[bins[:, 0] > 0]
    axes.plot([0, 100], [0, 100], linestyle="--", color="grey", linewidth=1)
    axes.plot(
        100 * known[:, 1] / known[:, 0],
        100 * known[:, 2] / known[:, 0],
        marker="o",
        color=COLOUR,
    )
    axes.set(
        xlabel="probability of the predicted class, %",
        ylabel="right predictions, %",
        xlim=(0, 100),
        ylim=(0, 100),
    )
    return figure


def clients(names: Sequence[str], values: Array) -> NotebookFigure:
    """Draw the accuracy of every client, the worst first."""
    figure, axes = blank(5.6, max(2.5, 0.7 + 0.22 * len(values)))
    order = np.argsort(np.where(np.isnan(values), np.inf, values))
    axes.barh(range(len(order)), 100 * np.nan_to_num(values[order]), color=COLOUR)
    axes.set_yticks(range(len(order)), [names[k] for k in order])
    axes.set(xlabel="accuracy, %", xlim=(0, 100))
    axes.invert_yaxis()
    return figure
