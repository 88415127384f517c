"""Figures of the data, and of the rounds of single methods."""

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cafedcl.report.palette import DASHES
from cafedcl.report.plots import COLUMN, WIDE, PlotGroup, name_axis, sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAP = "Blues"


def plot_data(group: PlotGroup) -> Figure:
    """Draw the training images per client and class as discs."""
    known = group["map"]
    counts = known["counts"]
    names = known["names"]
    figure, (ax,) = sheet(height=max(2.2, min(8.0, 0.2 * len(names) + 0.9)))
    k, c = np.nonzero(counts)
    values = counts[k, c]
    ax.scatter(k, c, s=110 * values / values.max(), c=values, cmap="viridis_r", linewidths=0)
    ax.set(
        xlabel="client",
        ylabel="class",
        xlim=(-0.7, len(counts) - 0.3),
        ylim=(len(names) - 0.3, -0.7),
    )
    name_axis(ax, "y", names)
    ax.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    if known["client_names"]:
        name_axis(ax, "x", [known["client_names"][client] for client in known["clients"]])
    return figure


MOST_WRITTEN = 20
"""Classes of a confusion matrix whose cells have room for a number."""


def plot_confusion(group: PlotGroup, one: dict[str, Any]) -> Figure:
    """Draw the confusion matrix, in % of the test images of each class."""
    table = one["confusion"].astype(float)
    names = group["map"]["names"]
    figure, (ax,) = sheet(width=COLUMN, height=3.0)
    rows = table.sum(1, keepdims=True)
    share = 100 * table / np.where(rows > 0, rows, 1)
    plot_heatmap(ax, share, "%", 100)
    if len(names) <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(share):
            if value >= 0.5:
                ink = "white" if value > 55 else "black"
                ax.text(column, row, f"{value:.0f}", ha="center", va="center", color=ink, size=6)
    ax.set(xlabel="predicted", ylabel="class")
    name_axis(ax, "x", names)
    name_axis(ax, "y", names)
    return figure


def plot_heatmap(ax: "Axes", values: Any, title: str, high: float | None = None) -> None:
    """Draw a heatmap with a colour bar."""
    image = ax.imshow(values, cmap=MAP, vmin=0, vmax=high, aspect="auto", interpolation="nearest")
    ax.grid(False)
    bar = ax.figure.colorbar(image, ax=ax, location="bottom", fraction=0.05, pad=0.02, aspect=28)
    bar.set_label(title)
    bar.outline.set_visible(False)


def plot_confidence(scene: dict[str, Any]) -> Figure:
    """Draw the confidence of the last round, its parts, and the aggregation weights."""
    titles = {
        "trust": "confidence",
        "data": "from data",
        "val": "from validation",
        "gen": "from generator",
        "alpha": "weight α",
    }
    parts = {
        title: scene["parts"][part] for part, title in titles.items() if part in scene["parts"]
    }
    figure, axes = sheet(len(parts), width=WIDE, height=2.8)
    for ax, (title, values) in zip(axes, parts.items(), strict=True):
        plot_heatmap(ax, values[-1], "", None)
        ax.set(title=title, xlabel="class", ylabel="client" if ax is axes[0] else "")
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    return figure


def plot_prototypes(group: PlotGroup, scene: dict[str, Any]) -> Figure:
    """Draw the projected prototypes of the first, the middle and the last round."""
    xy = scene["xy"]
    rounds = scene["rounds"]
    moments = sorted({0, len(rounds) // 2, len(rounds) - 1})
    figure, axes = sheet(len(moments), height=2.5)
    reach = 1.1 * float(np.nanmax(np.abs(xy))) or 1.0
    colours = mpl.colormaps["hsv"](np.linspace(0, 1, xy.shape[1], endpoint=False)) * 0.82
    for ax, at in zip(axes, moments, strict=True):
        for c, name in enumerate(group["map"]["names"]):
            if not np.isnan(xy[at, c]).any():
                ax.plot(*xy[: at + 1, c].T, color=colours[c], linewidth=0.7, alpha=0.5)
                ax.scatter(xy[at, c, 0], xy[at, c, 1], color=colours[c], s=20)
                if xy.shape[1] <= 40:
                    ax.annotate(
                        name[:10],
                        xy[at, c],
                        (0, 4),
                        textcoords="offset points",
                        ha="center",
                        fontsize=6.5,
                    )
        ax.set(
            title=f"round {rounds[at]}",
            xlim=(-reach, reach),
            ylim=(-reach, reach),
            xticks=[],
            yticks=[],
        )
        ax.set_aspect("equal")
    return figure


def plot_distances(group: PlotGroup) -> Figure:
    """Draw the mean distance between prototypes over rounds, next to that of a regular simplex.

    The band reaches from the closest to the farthest pair.
    """
    figure, (ax,) = sheet(width=4.6)
    for scene in group["prototypes"]:
        entry = group["entries"][scene["entry"]]
        gaps = scene["distance"]
        ax.plot(
            scene["rounds"],
            gaps["mean"],
            color=entry["colour"],
            linestyle=DASHES[entry["dash"]],
            label=entry["label"],
        )
        ax.fill_between(
            scene["rounds"],
            gaps["low"],
            gaps["high"],
            color=entry["colour"],
            alpha=0.08,
            linewidth=0,
        )
    ax.axhline(
        group["prototypes"][0]["ideal"],
        color="black",
        linewidth=0.8,
        linestyle=(0, (4, 2)),
        label="regular simplex",
    )
    ax.set(xlabel="round", ylabel="distance between classes", ylim=(0, None))
    figure.legend(loc="outside right center")
    return figure


def plot_loop(group: PlotGroup, scene: dict[str, Any]) -> Figure:
    """Draw the drift of the prototypes and its parts: over rounds, and by class at the end."""
    figure, (over, by) = sheet(2)
    styles = {
        "drift": ("black", "-"),
        "feedback": ("#D55E00", "-"),
        "heterogeneity": ("#0A7ABF", "--"),
        "variance": ("#009E73", ":"),
    }
    below = np.zeros(len(group["map"]["names"]))
    for name, values in scene["parts"].items():
        colour, dash = styles[name]
        known = ~np.isnan(values)
        over.plot(
            scene["rounds"],
            np.where(known, values, 0).sum(1) / np.maximum(known.sum(1), 1),
            color=colour,
            linestyle=dash,
            label=name,
        )
        last = np.nan_to_num(values[-1])
        if name == "drift":
            by.plot(last, "D", color=colour, markersize=3.5, zorder=3)
        else:
            by.bar(range(len(last)), last, bottom=below, color=colour)
            below = below + last
    over.set(xlabel="round", ylabel="mean over classes")
    by.set(xlabel="class", ylabel=f"round {scene['rounds'][-1]}")
    name_axis(by, "x", group["map"]["names"])
    figure.legend(loc="outside lower center", ncols=4)
    return figure
