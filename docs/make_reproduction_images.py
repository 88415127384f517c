"""Draw docs/images/reproduction-table1.svg and reproduction-ablation.svg from the result files.

python docs/make_reproduction_images.py

Every figure carries the digest of the file it was drawn from, so that it cannot fall behind it unseen.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from matplotlib.figure import Figure

from cafedcl.compare.results import Record, by_setting, scores
from cafedcl.report.palette import look
from cafedcl.report.plots import STYLE, sheet

HOME = Path(__file__).parents[1]
RESULTS, IMAGES = HOME / "experiments" / "results", HOME / "docs" / "images"
OURS = "cafedcl"
PROTOCOLS = {
    "server": ("the server's model", "accuracy", "o"),
    "own": ("the clients' own models after local training", "client_mean", "D"),
}
"""What it is called, its accuracy, and how it is marked."""
WORDS = {
    "cifar10-practical": "CIFAR-10, Dirichlet 0.1",
    "cifar10-pathological": "CIFAR-10, 2 classes per client, IR 10",
}
VARIANTS = {
    "cafedcl:no-confagg-uniform": "uniform weights",
    "cafedcl:no-confagg-counts": "weights by counts (Eq. 2)",
    "cafedcl:inverse-variance": "weights of least variance",
    "cafedcl:no-geo": "without geometry",
    "cafedcl:fixed-anchors": "anchors that never move",
}
ABLATED = {"server.accuracy": "accuracy", "server.client_std": "std between clients"}

Records = Sequence[Record]
FIGURES: dict[str, Callable[[Records], Figure]] = {}


def figure(make: Callable[[Records], Figure]) -> Callable[[Records], Figure]:
    """Make this one of the figures, drawn from the result file of its name."""
    FIGURES[make.__name__] = make
    return make


@figure
def table1(records: Records) -> Figure:
    """Every method's accuracy and spread between clients, of the server's model and of the clients' own."""
    settings, methods = dict(by_setting(records)), list(dict.fromkeys(one["method"] for one in records))
    picture, axes = sheet(2 * len(settings), height=3.1)
    for ax, (setting, spread) in zip(
        axes, [(one, spread) for one in settings for spread in (False, True)], strict=True
    ):
        for protocol, (words, accuracy, marker) in PROTOCOLS.items():
            for row, method in enumerate(methods):
                score = f"{protocol}.{'client_std' if spread else accuracy}"
                found = list(scores(settings[setting], method, score).values())
                if found:
                    ax.errorbar(
                        mean(found), row, xerr=stdev(found) if len(found) > 1 else 0, marker=marker, linestyle="none",
                        color=look(method).colour, mfc=look(method).colour if marker == "o" else "white",
                        markersize=5, elinewidth=0.8, label=words if method == OURS else "",
                    )  # fmt: skip
        ax.axhspan(methods.index(OURS) - 0.5, methods.index(OURS) + 0.5, color="#fdf0e6", zorder=0)
        ax.set_yticks(range(len(methods)), methods if ax is axes[0] else [])
        ax.invert_yaxis()
        ax.set_xlabel("std between clients" if spread else "accuracy, %")
        if not spread:
            ax.set_title(WORDS.get(setting, setting), loc="left")
    axes[0].get_yticklabels()[methods.index(OURS)].set_fontweight("bold")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


@figure
def ablation(records: Records) -> Figure:
    """What changes when a part of CAFedCL is taken away: paired differences and their standard errors."""
    settings = dict(by_setting(records))
    picture, axes = sheet(len(ABLATED), 1, height=2.5)
    for ax, (score, words) in zip(axes, ABLATED.items(), strict=True):
        ax.axvline(0, color="#8a8f98", linewidth=0.8)
        for at, (setting, mine) in enumerate(settings.items()):
            whole = scores(mine, OURS, score)
            for row, method in enumerate(VARIANTS):
                found = scores(mine, method, score)
                gaps = [found[seed] - whole[seed] for seed in sorted(found.keys() & whole.keys())]
                if gaps:
                    error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0
                    height = row + 0.16 * (2 * at - len(settings) + 1)
                    ax.errorbar(
                        mean(gaps), height, xerr=error, marker="os"[at % 2], color=("#D55E00", "#0A7ABF")[at % 2],
                        markersize=5, elinewidth=1, linestyle="none", label="" if row else WORDS.get(setting, setting),
                    )  # fmt: skip
        ax.set_yticks(range(len(VARIANTS)), list(VARIANTS.values()))
        ax.invert_yaxis()
        ax.set_title(f"change of {words}, points", loc="left")
    axes[1].set_yticklabels([])
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


def digest(path: Path) -> str:
    """Return what a figure carries of the file it was drawn from."""
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def main() -> None:
    """Draw every figure that there is a result file for."""
    for name, make in FIGURES.items():
        path = RESULTS / f"{name}-short.json"
        with mpl.rc_context(STYLE):
            drawn = make(json.loads(path.read_text(encoding="utf-8"))["runs"])
            out = IMAGES / f"reproduction-{name}.svg"
            drawn.savefig(out, metadata={"Date": None, "Description": digest(path)})
        text = "\n".join(line.rstrip() for line in out.read_text(encoding="utf-8").splitlines())
        out.write_text(text + "\n", encoding="utf-8")
        print(out)


if __name__ == "__main__":
    main()
