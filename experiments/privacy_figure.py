"""Draw what client-level privacy costs: balanced accuracy and rare classes against ε.

    python experiments/privacy_figure.py docs/images/privacy.svg

draws the results of privacy.py.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from growing import GrowingResult
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from privacy import METHODS, NOISES, Key, epsilon, rare_recall, results, values
from theory_panels import STYLE

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a marker each.
LOOKS = dict(
    zip(
        METHODS,
        [
            ("#8C8C8C", "x"),
            ("#D55E00", "o"),
            ("#E69F00", "D"),
            ("#56B4E9", "s"),
            ("#009E73", "^"),
            ("#CC79A7", "v"),
        ],
        strict=True,
    )
)


def draw(result: GrowingResult[Key], path: Path) -> None:
    """Draw two panels over the noise, from none to most."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.8), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for method in METHODS:
            scores = [
                values(result, "balanced", study="noise", method=method, noise=noise)
                for noise in NOISES
            ]
            draw_line(left, method, scores)
            draw_line(right, method, [rare_recall(result, method, noise) for noise in NOISES])
        left.set_title("balanced accuracy")
        right.set_title("recall of the two rarest classes")
        left.set_ylabel("%")
        labels = [f"{epsilon(result, noise)}" for noise in NOISES]
        for axes in (left, right):
            axes.set_xticks(range(len(NOISES)), labels)
            axes.set_xlabel("ε after 20 rounds, at δ = 1e-5")
            axes.set_ylim(0, 100)
            axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        handles, names = left.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        # Without a date, the same results give the same file.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_line(axes: Axes, method: str, scores: list[list[float]]) -> None:
    """Draw one method, with bars of one standard error."""
    colour, marker = LOOKS[method]
    errors = [stdev(row) / len(row) ** 0.5 if len(row) > 1 else 0.0 for row in scores]
    axes.errorbar(
        range(len(scores)),
        [mean(row) for row in scores],
        yerr=errors,
        color=colour,
        marker=marker,
        markersize=5,
        label=method,
    )


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", type=Path, help="the file to write: .svg, .png or .pdf")
    draw(results("digits"), parser.parse_args().path)


if __name__ == "__main__":
    main()
