"""Draw the accuracy that is left under each attack with each defence.

    python experiments/attacks_figure.py docs/images/attacks.svg

draws the digits' results of attacks.py.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from attacks import Key, accuracies, results
from growing import GrowingResult
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from theory_panels import STYLE

METHODS = {"cafedcl:best": "cafedcl:best", "cafedcl": "CAFedCL", "fedavg": "FedAvg"}
ATTACKS = {
    "none": "nobody lies",
    "label-flip:4": "flipped labels",
    "sign-flip:4,claim=most": "opposite update",
    "scale:4,claim=most": "update × −10",
    "noise:4,claim=most": "noise",
    "swap:4,claim=most": "swapped prototypes",
    "sums:4": "opposite sums",
}
# Okabe and Ito's colours, which colour-blind readers can tell apart, and a marker each.
DEFENCES = {
    "none": ("none", "#8C8C8C", "x"),
    "clip": ("clip", "#E69F00", "v"),
    "trimmed-mean:0.2": ("trimmed-mean", "#56B4E9", "s"),
    "median": ("median", "#CC79A7", "D"),
    "multi-krum:0.2": ("multi-krum", "#009E73", "^"),
    "peers": ("peers", "#D55E00", "o"),
}


def draw(result: GrowingResult[Key], path: Path) -> None:
    """Draw one panel per method: attacks down, accuracy across, a marker per defence."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 3.9), layout="constrained")
        panels = figure.subplots(1, len(METHODS), sharey=True)
        for axes, (method, title) in zip(panels, METHODS.items(), strict=True):
            draw_method(axes, accuracies(result, method))
            axes.set_title(title)
        panels[0].set_yticks(range(len(ATTACKS)), list(ATTACKS.values()))
        panels[0].invert_yaxis()
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(DEFENCES))
        # Without a date, the same results give the same file.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_method(axes: Axes, found: dict[tuple[str, str], list[float]]) -> None:
    """Draw the accuracies of one method, with bars of one standard error."""
    honest = mean(found["none", "none"])
    axes.axvspan(honest - 5, honest, color="#0072B2", alpha=0.08, linewidth=0)
    axes.axvline(honest, color="#0072B2", linewidth=0.8)
    middle = (len(DEFENCES) - 1) / 2
    for number, (defence, (name, colour, marker)) in enumerate(DEFENCES.items()):
        # Sums are sent by the first method only.
        rows = {
            place: found[attack, defence]
            for place, attack in enumerate(ATTACKS)
            if (attack, defence) in found
        }
        axes.errorbar(
            [mean(row) for row in rows.values()],
            # A little apart, so that markers do not hide each other.
            [place + 0.11 * (number - middle) for place in rows],
            xerr=[stdev(row) / len(row) ** 0.5 for row in rows.values()],
            fmt=marker,
            color=colour,
            markersize=5,
            linewidth=1,
            label=name,
        )
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy of the server's model, %")
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path, help="the file to write: .svg, .png or .pdf")
    draw(results("digits"), parser.parse_args().path)


if __name__ == "__main__":
    main()
