"""Draw what client-level privacy costs: balanced accuracy and rare classes against ε.

    python experiments/privacy_figure.py docs/images/privacy.svg

draws the results of privacy.py, a row for each data set that was measured.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from growing import GrowingResult
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from privacy import JOBS, METHODS, NOISES, Key, epsilon, rare_recall, results, values
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


def draw(measured: Mapping[str, GrowingResult[Key]], path: Path) -> None:
    """Draw a row per data set: two panels over the noise, from none to most."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 0.8 + 3.0 * len(measured)), layout="constrained")
        rows = figure.subplots(len(measured), 2, sharey=True, squeeze=False)
        for (data, result), (left, right) in zip(measured.items(), rows, strict=True):
            draw_row(left, right, result)
            left.set_ylabel(f"{data}, %")
        rows[0][0].set_title("balanced accuracy")
        rows[0][1].set_title("recall of the two rarest classes")
        for axes in rows[-1]:
            axes.set_xlabel("ε after 20 rounds, at δ = 1e-5")
        handles, names = rows[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3)
        # Without a date, the same results give the same file.
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_row(left: Axes, right: Axes, result: GrowingResult[Key]) -> None:
    """Draw all methods on one data set."""
    for method in METHODS:
        scores = [
            values(result, "balanced", study="noise", method=method, noise=noise)
            for noise in NOISES
        ]
        draw_line(left, method, scores)
        draw_line(right, method, [rare_recall(result, method, noise) for noise in NOISES])
    labels = [epsilon(result, noise) for noise in NOISES]
    for axes in (left, right):
        axes.set_xticks(range(len(NOISES)), labels)
        axes.set_ylim(0, 100)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)


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
    measured = {data: results(data) for data in JOBS}
    draw({data: it for data, it in measured.items() if it.rows}, parser.parse_args().path)


if __name__ == "__main__":
    main()
