"""Figures that compare methods, and helpers for all figures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cafedcl.report.palette import DASHES, MARKERS
from cafedcl.report.table import RANKINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PlotGroup = dict[str, Any]
COLUMN = 3.4
WIDE = 7.0
"""Width of a column and of a page, in inches."""
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ee",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.4,
    "svg.hashsalt": "cafedcl",
    "pdf.fonttype": 42,
    # A dollar sign in a name is a dollar sign, and not the start of a formula.
    "text.parse_math": False,
}
CURVE_AXES = {"rounds": "round", "bytes": "megabytes sent", "seconds": "seconds"}
WHISKER = {"linewidth": 0.8, "capsize": 1.5}


def sheet(
    columns: int = 1, rows: int = 1, width: float = WIDE, height: float = 2.6
) -> tuple[Figure, list["Axes"]]:
    """Return an empty figure and its axes."""
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [ax for row in axes for ax in row]


def marker_style(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a method's colour and marker."""
    return {"color": entry["colour"], "marker": MARKERS[entry["symbol"]]}


def nan_array(values: Sequence[float | None]) -> Any:
    """Return an array with NaN in place of None."""
    return np.array([np.nan if value is None else value for value in values], float)


def name_axis(ax: "Axes", which: str, names: Sequence[str]) -> None:
    """Label an axis with names, if there is room for them."""
    if len(names) <= 50:
        axis = ax.yaxis if which == "y" else ax.xaxis
        axis.set_ticks(range(len(names)), [name[:14] for name in names])
        if which == "x" and max(len(name) for name in names) > 3:
            ax.tick_params(axis="x", labelrotation=90)


def plot_ranking(group: PlotGroup, protocol: str) -> Figure:
    """Draw accuracy against spread across clients: a mark per seed, a large one for the mean.

    Where test labels are skewed, it is balanced accuracy.
    """
    by = group["ranking"][protocol]["by"]
    figure, (ax,) = sheet(width=4.6, height=3.2)
    for entry, row in zip(group["entries"], group["ranking"][protocol]["rows"], strict=True):
        if row is not None and row["std"]["mean"] is not None and row[by]["mean"] is not None:
            ax.scatter(
                row["std"]["values"],
                row[by]["values"],
                s=14,
                alpha=0.4,
                linewidths=0,
                **marker_style(entry),
            )
            ax.scatter(
                [row["std"]["mean"]],
                [row[by]["mean"]],
                s=52,
                label=entry["label"],
                **marker_style(entry),
            )
    title = f"{RANKINGS[by]}, %"
    ax.set(xlabel="standard deviation across clients, points", ylabel=title)
    figure.legend(loc="outside right center")
    return figure


def plot_curves(group: PlotGroup, protocol: str, axis: str) -> Figure:
    """Draw accuracy and spread over rounds, bytes or seconds.

    The band is one standard deviation over seeds.
    """
    figure, axes = sheet(2)
    by = group["ranking"][protocol]["by"]
    for entry, curve in zip(group["entries"], group["curves"], strict=True):
        xs = nan_array(curve[axis]) / (1e6 if axis == "bytes" else 1)
        if curve[protocol] is None or (axis != "rounds" and not xs[-1] > 0):
            continue
        for ax, measure in zip(axes, (by, "std"), strict=True):
            mean = nan_array(curve[protocol][measure]["mean"])
            std = nan_array(curve[protocol][measure]["std"])
            known = ~np.isnan(mean)
            style = {"color": entry["colour"], "linestyle": DASHES[entry["dash"]]}
            ax.plot(xs[known], mean[known], label=entry["label"], **style)
            ax.fill_between(
                xs, mean - std, mean + std, color=entry["colour"], alpha=0.13, linewidth=0
            )
    titles = (f"{RANKINGS[by]}, %", "std across clients, points")
    for ax, title in zip(axes, titles, strict=True):
        ax.set(xlabel=CURVE_AXES[axis], ylabel=title)
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=axis == "rounds"))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def plot_reliability(group: PlotGroup, protocol: str) -> Figure:
    """Draw the share of correct predictions against their predicted probability."""
    figure, (ax,) = sheet(width=4.6, height=3.2)
    ax.plot([0, 100], [0, 100], color="grey", linestyle="--", linewidth=0.8)
    for entry, detail in zip(group["entries"], group["details"], strict=True):
        bins = detail["reliability"].get(protocol, [])
        if bins:
            xs = [each["confidence"] for each in bins]
            ys = [each["accuracy"] for each in bins]
            ax.plot(xs, ys, label=entry["label"], markersize=3, **marker_style(entry))
    ax.set(xlabel="probability of the predicted class, %", ylabel="right predictions, %")
    figure.legend(loc="outside right center")
    return figure


def plot_clients(group: PlotGroup, protocol: str) -> Figure:
    """Draw the accuracy of every client, a row per method; the line is the mean."""
    rows = [
        (entry, detail["clients"][protocol])
        for entry, detail in zip(group["entries"], group["details"], strict=True)
        if protocol in detail["clients"]
    ]
    figure, (ax,) = sheet(width=4.6, height=0.6 + 0.36 * len(rows))
    for place, (entry, scores) in enumerate(rows):
        values = 100 * scores[~np.isnan(scores)]
        # Multiples of the golden ratio spread the marks evenly over the height of a row.
        spots = place + 0.56 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        ax.scatter(values, spots, s=11, alpha=0.6, linewidths=0, **marker_style(entry))
        ax.vlines(values.mean(), place - 0.34, place + 0.34, color="black", linewidth=1.2)
    ax.set(xlabel="accuracy of a client, %", ylim=(len(rows) - 0.5, -0.5))
    ax.set_yticks(range(len(rows)), [entry["label"] for entry, _ in rows])
    return figure


def plot_shots(group: PlotGroup, protocol: str) -> Figure:
    """Draw the recall of many-, medium- and few-shot classes."""
    found = group["shots"][protocol]
    used = [
        i
        for i in range(len(group["entries"]))
        if any(cells[i]["mean"] is not None for cells in found.values())
    ]
    figure, (ax,) = sheet(width=4.6)
    width = 0.8 / max(1, len(used))
    for at, i in enumerate(used):
        places = np.arange(len(found)) + (at - (len(used) - 1) / 2) * width
        entry = group["entries"][i]
        cells = [cells[i] for cells in found.values()]
        means = nan_array([cell["mean"] for cell in cells])
        stds = nan_array([cell["std"] for cell in cells])
        ax.bar(
            places,
            means,
            0.9 * width,
            yerr=np.nan_to_num(stds),
            color=entry["colour"],
            label=entry["label"],
            error_kw=WHISKER,
        )
    ax.set_xticks(range(len(found)), list(found))
    ax.set(ylabel="recall, %", ylim=(0, 100))
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def plot_recall(group: PlotGroup, protocol: str) -> Figure:
    """Draw the recall of every class against its number of training images."""
    figure, (ax,) = sheet(width=4.6, height=2.8)
    for entry, one in zip(group["entries"], group["details"], strict=True):
        if protocol in one["recall"]:
            ax.scatter(
                group["map"]["totals"],
                100 * one["recall"][protocol],
                s=16,
                alpha=0.75,
                label=entry["label"],
                **marker_style(entry),
            )
    ax.set(xlabel="training images of the class", ylabel="recall, %", ylim=(-3, 103))
    figure.legend(loc="outside right center")
    return figure


def plot_ablation(group: PlotGroup, family: dict[str, Any], protocol: str) -> Figure:
    """Draw accuracy and spread across clients of the variants of one method as bars."""
    rows = group["ranking"][protocol]["rows"]
    used = [i for i in family["entries"] if rows[i] is not None]
    figure, axes = sheet(2, height=0.7 + 0.3 * len(used))
    for ax, measure, title in zip(
        axes, ("accuracy", "std"), ("accuracy, %", "std across clients, points"), strict=True
    ):
        for place, i in enumerate(used):
            cell = rows[i][measure]
            ax.barh(
                place,
                cell["mean"],
                0.62,
                xerr=cell["std"],
                color=group["entries"][i]["colour"],
                error_kw=WHISKER,
            )
            ax.annotate(
                f"{cell['mean']:.2f}",
                (cell["mean"] + (cell["std"] or 0), place),
                (3, 0),
                textcoords="offset points",
                va="center",
            )
        ax.set(xlabel=title, ylim=(len(used) - 0.5, -0.5))
        ax.margins(x=0.18)
        ax.set_yticks(
            range(len(used)), [group["entries"][i]["label"] if ax is axes[0] else "" for i in used]
        )
    return figure


def plot_sensitivity(sweep: dict[str, Any], protocol: str) -> Figure:
    """Draw accuracy and spread over the values of one option."""
    figure, axes = sheet(2, width=WIDE, height=2.2)
    for ax, measure, title in zip(
        axes, ("accuracy", "std"), ("accuracy, %", "std across clients, points"), strict=True
    ):
        cells = sweep[protocol][measure]
        stds = [np.std(values, ddof=1) if len(values) > 1 else 0.0 for values in cells]
        ax.errorbar(
            range(len(cells)),
            [np.mean(v) for v in cells],
            stds,
            color=sweep["colour"],
            marker="o",
            markersize=4,
            capsize=2,
        )
        ax.set_xticks(range(len(cells)), [f"{value:g}" for value in sweep["values"]])
        ax.set(xlabel=sweep["option"].removeprefix("method."), ylabel=title)
    return figure


def plot_cost(group: PlotGroup) -> Figure:
    """Draw seconds per round by phase, and bytes per round."""
    entries = group["entries"]
    figure, (time, sent) = sheet(2, height=0.9 + 0.24 * len(entries))
    phases = list(dict.fromkeys(phase for one in group["cost"] for phase in one["phases"]))
    shades = dict(
        zip(phases, ("#0A7ABF", "#D55E00", "#8A8F98", "#009E73", "#CC79A7"), strict=False)
    )
    plot_stacked_bars(
        time,
        [
            (
                phase,
                shades.get(phase, "#888888"),
                [one["phases"].get(phase, 0.0) for one in group["cost"]],
            )
            for phase in phases
        ],
    )
    ways = (("up", "#0A7ABF"), ("down", "#8A8F98"))
    plot_stacked_bars(
        sent, [(way, colour, [one[way] / 1e6 for one in group["cost"]]) for way, colour in ways]
    )
    time.set(xlabel="seconds per round")
    sent.set(xlabel="megabytes per round")
    time.set_yticks(range(len(entries)), [entry["label"] for entry in entries])
    sent.set_yticks(range(len(entries)), [""] * len(entries))
    return figure


def plot_stacked_bars(ax: "Axes", parts: Sequence[tuple[str, str, list[float]]]) -> None:
    """Draw stacked bars, a row per method."""
    left = np.zeros(len(parts[0][2]) if parts else 0)
    for name, colour, values in parts:
        ax.barh(range(len(values)), values, 0.62, left=left, color=colour, label=name)
        left = left + np.array(values)
    ax.invert_yaxis()
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)
