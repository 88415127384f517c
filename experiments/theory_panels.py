"""The four panels of the figure on docs/theory.md."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from theory import (
    Course,
    Estimate,
    Model,
    corrected_bound,
    corrected_limit,
    next_error,
    printed_bound,
    printed_limit,
    stationary_error,
)
from theory_weights import Weighting

from cafedcl.core.errors import CafedclError

# Okabe and Ito's colours, which colour-blind readers can tell apart.
EXACT = "#000000"
SIMULATED = "#56B4E9"
PRINTED = "#D55E00"
CORRECTED = "#0072B2"
NEUTRAL = "#8C8C8C"
DASHES = (0, (4, 1.5))
TITLES = {
    "uniform": "uniform",
    "counts": "counts, Eq. 2",
    "confidence": "confidence, Eq. 9",
    "inverse-variance": "n/σ², σ estimated",
    "optimal": "n/σ², σ known",
}
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    # Makes the ids in an SVG file the same every time.
    "svg.hashsalt": "cafedcl",
}


def draw_figure(
    model: Model, course: Course, estimate: Estimate, weightings: list[Weighting], path: Path
) -> None:
    """Draw the four panels into a file, in the format of its ending."""
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(9.6, 7.2), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.05)
        )
        grid = figure.add_gridspec(2, 2)
        rounds_panel(figure, grid[0, 0], model, course, estimate)
        region_panel(figure, grid[0, 1])
        weights_panel(figure, grid[1, 0], weightings[::-1])
        stationary_panel(figure.add_subplot(grid[1, 1]), model)
        # Without dates, the same figure is the same file.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        try:
            figure.savefig(path, dpi=200, metadata=dates[path.suffix.lower()])
        except OSError as error:
            raise CafedclError(
                f"{path}: the figure cannot be written: {error.strerror}; choose another path"
            ) from None


def rounds_panel(
    figure: Figure, cell: SubplotSpec, model: Model, course: Course, estimate: Estimate
) -> None:
    """Draw the error over rounds: exact, simulated, and both bounds given the round before."""
    errors = course.error
    rest = (model.gap, model.rho, model.injected)
    t = np.arange(len(errors))
    printed = printed_bound(errors[:-1], *rest)
    corrected = corrected_bound(errors[:-1], *rest)
    parts = cell.subgridspec(2, 1, height_ratios=(3.2, 1), hspace=0.03)
    ax = figure.add_subplot(parts[0])
    ax.fill_between(
        t[1:],
        printed,
        errors[1:],
        where=errors[1:] > printed,
        color=PRINTED,
        alpha=0.13,
        linewidth=0,
    )
    ax.plot(t[1:], corrected, color=CORRECTED, label="corrected bound")
    ax.plot(
        t,
        estimate.mean,
        "o",
        color=SIMULATED,
        markersize=5.5,
        markeredgewidth=0,
        label="simulated",
        clip_on=False,
    )
    ax.plot(t, errors, color=EXACT, linewidth=1.2, label="exact")
    ax.plot(t[1:], printed, color=PRINTED, linestyle=DASHES, label="Eq. 8 as printed")
    ax.set(
        ylabel="error  E‖p − μ‖²", ylim=(0, None), title=f"a   Error over rounds, ρ = {model.rho:g}"
    )
    ax.tick_params(labelbottom=False)
    ax.legend(loc="lower right")
    strip = figure.add_subplot(parts[1], sharex=ax)
    strip.fill_between(
        t, -2 * estimate.deviation, 2 * estimate.deviation, color=SIMULATED, alpha=0.35, linewidth=0
    )
    strip.axhline(0, color=EXACT, linewidth=0.8)
    strip.plot(t, estimate.mean - errors, "o", color=CORRECTED, markersize=3.2, markeredgewidth=0)
    strip.set(xlabel="round", ylabel="simulated\n− exact", xlim=(-0.03 * len(t), 1.02 * t[-1]))
    strip.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    strip.yaxis.set_major_locator(MaxNLocator(2, symmetric=True))
    strip.annotate(
        "± 2 standard errors",
        (1, 1),
        xycoords="axes fraction",
        ha="right",
        va="bottom",
        color=CORRECTED,
    )
    figure.align_ylabels([ax, strip])


def region_panel(figure: Figure, cell: SubplotSpec) -> None:
    """Draw where Eq. 8 fails without noise, by ρ and the angle of e and b, for 3 lengths of e."""
    ax = figure.add_subplot(cell)
    rho, angle = np.meshgrid(np.linspace(0.001, 0.999, 100), np.linspace(0, 120, 61))
    e = np.stack([np.cos(np.radians(angle)), np.sin(np.radians(angle))], -1)
    true = next_error(1.0, e, np.array([1.0, 0.0]), rho, 0.0)
    over = true / printed_bound(1.0, 1.0, rho, 0.0)
    shades = LinearSegmentedColormap.from_list("over", ["#FCEBE1", PRINTED])
    filled = ax.contourf(rho, angle, over, levels=np.linspace(1, 1.5, 11), cmap=shades)
    # Otherwise thin white lines show between the levels in SVG and PDF.
    filled.set_edgecolor("face")
    for length, name, style in ((2.0, "2‖b‖", "--"), (1.0, "‖b‖", "-"), (0.5, "½‖b‖", ":")):
        edge = np.linspace(1 / (1 + 2 * length), 0.999, 200)
        bend = np.degrees(np.arccos(np.minimum((1 - edge) / (2 * edge * length), 1)))
        ax.plot(edge, bend, color=EXACT, linewidth=1.1, linestyle=style)
        ax.text(edge[0] - 0.008, 7, f"‖e‖ = {name}", rotation=90, ha="right", va="bottom")
    ax.plot([0.5], [0], marker="*", color=EXACT, markersize=10, clip_on=False, zorder=5)
    ax.text(0.535, 4, "counterexample:\n1 > 0.75", va="bottom")
    ax.text(0.03, 105, "holds beyond 90°, and left of the line for each ‖e‖", va="center")
    ax.set(xlim=(0, 1), ylim=(0, 120), yticks=range(0, 121, 30), xlabel="anchor attraction  ρ")
    ax.set(ylabel="angle between e and b, in degrees", title="b   Where Eq. 8 fails, without noise")
    bar = figure.colorbar(filled, ax=ax, ticks=[1, 1.25, 1.5], aspect=32, pad=0.02, shrink=0.75)
    bar.set_label("true error / Eq. 8,  for ‖e‖ = ‖b‖")
    bar.outline.set_visible(False)


def weights_panel(figure: Figure, cell: SubplotSpec, rules: list[Weighting]) -> None:
    """Draw the injected variance over its optimum, and Σα², for every rule of weights."""
    parts = cell.subgridspec(1, 2, wspace=0.05)
    first = figure.add_subplot(parts[0])
    second = figure.add_subplot(parts[1], sharey=first)
    colours = [PRINTED if rule.name == "confidence" else NEUTRAL for rule in rules]
    bars(first, [rule.ratio for rule in rules], colours, "V / V*")
    bars(second, [rule.squares for rule in rules], colours, "Σα²")
    first.axvline(1, color=EXACT, linewidth=0.8, linestyle=(0, (2, 2)))
    first.set_yticks(range(len(rules)), [TITLES[rule.name] for rule in rules])
    second.tick_params(labelleft=False)
    first.set_title("c   Injected variance and Σα²", in_layout=False)


def bars(ax: Axes, values: list[float], colours: list[str], title: str) -> None:
    """Draw horizontal bars with their values beside them."""
    ax.barh(range(len(values)), values, height=0.6, color=colours)
    for row, value in enumerate(values):
        ax.annotate(
            f"{value:.2f}",
            (value, row),
            (4, 0),
            textcoords="offset points",
            va="center",
            in_layout=False,
        )
    ax.set(xlim=(0, 1.3 * max(values)), xlabel=title)
    ax.tick_params(axis="y", length=0)


def stationary_panel(ax: Axes, model: Model) -> None:
    """Draw the stationary error against ρ: exact, and the limits of both bounds."""
    rho = np.linspace(0, 0.99, 400)
    rest = (model.gap, rho, model.injected)
    exact = stationary_error(*rest)
    printed = printed_limit(*rest)
    corrected = corrected_limit(*rest)
    ax.fill_between(
        rho, printed, exact, where=exact > printed, color=PRINTED, alpha=0.13, linewidth=0
    )
    ax.axhline(model.gap, color=NEUTRAL, linewidth=0.8, linestyle=(0, (2, 2)))
    ax.plot(rho, corrected, color=CORRECTED, label="corrected:  Δ + V/(1 − ρ)")
    ax.plot(rho, exact, color=EXACT, label="exact:  Δ + V/(1 − ρ²)")
    ax.plot(rho, printed, color=PRINTED, linestyle=DASHES, label="Eq. 8 as printed, iterated")
    top = 1.25 * max(printed[0], exact[200])
    if model.gap > 0.3 * top:
        ax.annotate(
            "bias alone, Δ", (0.01, model.gap), (0, -3), textcoords="offset points", va="top"
        )
    ax.set(xlim=(0, 1), ylim=(0, top), xlabel="anchor attraction  ρ")
    ax.set(ylabel="stationary error", title="d   Reuse amplifies noise, not bias")
    ax.legend(loc="lower left")
