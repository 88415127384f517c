"""Draw docs/images/reproduction-*.svg from the result files of the paper's experiments.

python docs/make_reproduction_images.py

Every figure stores the digests of the files it was drawn from, so that a test can tell if it is
out of date.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cafedcl.compare.results import ResultRow, by_setting, scores, settings_with_shared_seeds
from cafedcl.report.palette import series_style
from cafedcl.report.plots import STYLE, sheet
from cafedcl.report.table import paired

HOME = Path(__file__).parents[1]
RESULTS = HOME / "experiments" / "results"
IMAGES = HOME / "docs" / "images"
OURS = "cafedcl"
PROTOCOLS = {
    "server": ("the server's model", "accuracy", "o"),
    "own": ("the clients' own models after local training", "client_mean", "D"),
}
"""Title, score of accuracy and marker of each protocol."""
BASE = "fedavg"
HIGHLIGHT = {"cafedcl": "#fbe3d0", "cafedcl:fixed-anchors": "#fdf0e6"}
WORDS = {
    "cifar10-practical": "CIFAR-10, Dirichlet 0.1",
    "cifar10-pathological": "CIFAR-10, 2 classes per client, IR 10",
    "ir-50": "CIFAR-10, 2 classes per client, IR 50",
    "ir-100": "CIFAR-10, 2 classes per client, IR 100",
    "gtsrb-practical": "GTSRB, Dirichlet 0.1",
    "gtsrb-pathological": "GTSRB, 8 classes per client, IR 10",
    "fashion-practical": "Fashion-MNIST, Dirichlet 0.1",
    "fashion-pathological": "Fashion-MNIST, 2 classes per client, IR 10",
    "ham10000": "skin lesions, Dirichlet 0.5, 10 clients",
    "cifar10-ir10": "CIFAR-10, 2 classes per client, IR 10",
    "cifar10-ir50": "CIFAR-10, 2 classes per client, IR 50",
    "cifar10-ir100": "CIFAR-10, 2 classes per client, IR 100",
    "ham10000-sources": "skin lesions, four real sources",
}
VARIANTS = {
    "cafedcl:no-confagg-uniform": "uniform weights",
    "cafedcl:no-confagg-counts": "weights by counts (Eq. 2)",
    "cafedcl:inverse-variance": "weights of least variance",
    "cafedcl:no-geo": "without geometry",
    "cafedcl:fixed-anchors": "anchors that never move",
}
SHOWN = {"server.accuracy": "accuracy", "server.client_std": "client std"}
PARTS = {
    "method.anchors=averaged": "averaged anchors",
    "method.tau=0.1": "temperature 0.1",
    "method.inference=anchors": "prediction by anchors",
    "method.rare_gain=0.0": "equal targets",
    "method.lam_distill=0.0": "no distillation",
    "server.momentum=0.0": "no server momentum",
    "method.own_classes=all": "own models: all classes",
    "method.weights=confidence": "weights by confidence",
    "method.weights=counts": "weights by counts",
}
"""What each change of `cafedcl:best` is called."""
SCORES_OF_PARTS = {
    "server.balanced": "server: balanced acc., points",
    "server.client_std": "server: client std, points",
    "own.client_mean": "own: client mean, points",
}
LEAST_DRAWN = {"own.client_mean": -8.0}
"""Differences below are drawn at the edge, so that the others can be told apart."""
RARE = {
    "accuracy, %": ("accuracy", "client_mean"),
    "balanced accuracy, %": ("balanced", "balanced"),
    "recall of rare lesions, %": ("few", "few"),
}
"""The scores in the figure of skin lesions: of the server's model, and of the clients' own."""
REACH = {"server.accuracy": (-16, 13), "server.client_std": (-13, 16)}
"""Limits of the overview's axes; values beyond them are drawn at the edge."""
BEHIND = {
    "server.balanced": "server: balanced accuracy",
    "own.client_mean": "own models: client mean",
}
"""The scores in the figure of long tails: points behind the best method of each setting."""
FARTHEST = 16
"""Points behind the best at which the axis of long tails ends; what is beyond is at the edge."""
BEST = "cafedcl:best"
REFERENCES = ("local", "central")
LEADERS = (("#009E73", "s"), ("#8F72D8", "^"), ("#B8477A", "v"), ("#A5673F", "P"))
"""Colours and markers of baselines that lead in a setting: styles by name are too much alike."""

Records = Sequence[ResultRow]
Make = Callable[[Records], Figure]
FIGURES: dict[str, tuple[tuple[str, ...], Make]] = {}


def figure(*studies: str) -> Callable[[Make], Make]:
    """Register a figure that is drawn from the runs of these studies."""

    def add(make: Make) -> Make:
        FIGURES[make.__name__] = (studies, make)
        return make

    return add


@figure("table1", "table2", "standins", "skin")
def overview(records: Records) -> Figure:
    """Every method minus FedAvg in every setting: accuracy and client std of the server's model."""
    settings = dict(by_setting(records))
    picture, axes = sheet(len(SHOWN), 1, height=0.32 * len(settings) + 0.9)
    for ax, (score, words) in zip(axes, SHOWN.items(), strict=True):
        low, high = REACH[score]
        ax.axvline(0, color="#8a8f98", linewidth=0.8)
        for row, mine in enumerate(settings.values()):
            ax.axhline(row, color="#e4e6ea", linewidth=0.8, zorder=0)
            for method in dict.fromkeys(one["method"] for one in mine):
                found = paired(scores(mine, method, score), scores(mine, BASE, score))
                if found and method not in (BASE, "central") and "+" not in method:
                    fixed = method.endswith(":fixed-anchors")
                    shape = {
                        "marker": "D" if fixed else "o",
                        "markersize": 7 if method in HIGHLIGHT else 4.5,
                    }
                    face = "white" if fixed else series_style(method).colour
                    at = min(max(mean(found), low), high)
                    ax.plot(
                        at,
                        row,
                        color=series_style(method).colour,
                        mfc=face,
                        linestyle="none",
                        label=method,
                        **shape,
                    )
        ax.set_xlim(low - 0.7, high + 0.7)
        labels = [WORDS.get(name, name) for name in settings] if ax is axes[0] else []
        ax.set_yticks(range(len(settings)), labels)
        ax.invert_yaxis()
        ax.set_title(f"{words}, points above FedAvg", loc="left")
    named = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
    tight = {"columnspacing": 1, "handletextpad": 0.2}
    picture.legend(
        named.values(), named.keys(), loc="outside lower center", ncols=len(named), **tight
    )
    return picture


@figure("table1")
def table1(records: Records) -> Figure:
    """Every method's accuracy and client std, of the server's model and of the clients' own."""
    settings = dict(by_setting(records))
    methods = list(dict.fromkeys(one["method"] for one in records))
    picture, axes = sheet(2 * len(settings), height=3.1)
    panels = [(setting, spread) for setting in settings for spread in (False, True)]
    for ax, (setting, spread) in zip(axes, panels, strict=True):
        wanted = {
            protocol: "client_std" if spread else name
            for protocol, (_, name, _) in PROTOCOLS.items()
        }
        dots(ax, settings[setting], methods, wanted, named=ax is axes[0])
        ax.set_xlabel("std between clients" if spread else "accuracy, %")
        if not spread:
            ax.set_title(WORDS.get(setting, setting), loc="left")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


@figure("skin")
def skin(records: Records) -> Figure:
    """Accuracy, balanced accuracy and recall of rare classes on skin lesions."""
    methods = list(dict.fromkeys(one["method"] for one in records))
    picture, axes = sheet(3, height=3.4)
    for ax, (words, names) in zip(axes, RARE.items(), strict=True):
        dots(ax, records, methods, dict(zip(PROTOCOLS, names, strict=True)), named=ax is axes[0])
        ax.set_xlabel(words)
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


def dots(
    ax: Axes, records: Records, methods: Sequence[str], wanted: dict[str, str], *, named: bool
) -> None:
    """Draw a row per method: its scores with the standard deviation over seeds."""
    for protocol, (words, _, marker) in PROTOCOLS.items():
        for row, method in enumerate(methods):
            found = list(scores(records, method, f"{protocol}.{wanted[protocol]}").values())
            if not found:
                continue
            colour = series_style(method).colour
            ax.errorbar(
                mean(found),
                row,
                xerr=stdev(found) if len(found) > 1 else 0,
                marker=marker,
                linestyle="none",
                color=colour,
                mfc=colour if marker == "o" else "white",
                markersize=5,
                elinewidth=0.8,
                # One entry per protocol in the legend.
                label=words if method == OURS else "",
            )
    for name, colour in HIGHLIGHT.items():
        if name in methods:
            row = methods.index(name)
            ax.axhspan(row - 0.5, row + 0.5, color=colour, zorder=0)
    ax.set_yticks(range(len(methods)), methods if named else [])
    ax.invert_yaxis()
    if named:
        ax.get_yticklabels()[methods.index(OURS)].set_fontweight("bold")


@figure("long_tail")
def long_tail(records: Records) -> Figure:
    """Every method's distance to the best one of each setting; who leads somewhere has a colour."""
    settings = dict(settings_with_shared_seeds(records))
    means = {
        (score, setting): {
            method: mean(its.values())
            for method in dict.fromkeys(one["method"] for one in mine)
            if method not in REFERENCES and (its := scores(mine, method, score))
        }
        for score in BEHIND
        for setting, mine in settings.items()
    }
    first = {
        max(found, key=lambda name: found[name])
        for (score, _), found in means.items()
        if score.startswith("server")
    }
    named = {
        **dict(zip(sorted(first - {BEST, BASE, OURS}), itertools.cycle(LEADERS), strict=False)),
        BASE: (series_style(BASE).colour, "o"),
        OURS: (series_style(OURS).colour, "o"),
        BEST: (series_style(OURS).colour, "D"),
    }
    sizes = {OURS: 6.5, BEST: 8}
    picture, axes = sheet(len(BEHIND), 1, height=0.32 * len(settings) + 1.1)
    for ax, (score, words) in zip(axes, BEHIND.items(), strict=True):
        for row, setting in enumerate(settings):
            ax.axhline(row, color="#e4e6ea", linewidth=0.8, zorder=0)
            found = means[score, setting]
            best = max(found.values())
            # Named methods are drawn last, so that grey dots do not hide them.
            for method in sorted(found, key=lambda name: name in named):
                at = max(found[method] - best, -FARTHEST)
                colour, marker = named.get(method, ("#c3c7ce", "o"))
                hollow = method in (OURS, BEST)
                ax.plot(
                    at,
                    row,
                    linestyle="none",
                    marker=marker,
                    color=colour,
                    mfc="none" if hollow else colour,
                    markeredgewidth=1.6 if hollow else 0.6,
                    markersize=sizes.get(method, 5 if method in named else 3.5),
                    label=method if method in named else "others",
                )
        ax.set_xlim(-FARTHEST - 0.7, 0.7)
        labels = [WORDS.get(name, name) for name in settings] if ax is axes[0] else []
        ax.set_yticks(range(len(settings)), labels)
        ax.invert_yaxis()
        ax.set_title(words, loc="left")
        ax.set_xlabel("points behind the best of the setting")
    shown = {
        label: handle
        for ax in axes
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    order = [name for name in [*named, "others"] if name in shown]
    picture.legend(
        [shown[name] for name in order],
        order,
        loc="outside lower center",
        ncols=len(order),
        columnspacing=1,
        handletextpad=0.2,
    )
    return picture


@figure("ablation")
def ablation(records: Records) -> Figure:
    """Variants of CAFedCL: paired differences to CAFedCL and their standard errors."""
    shown = {score: f"change of {words}, points" for score, words in SHOWN.items()}
    return changes(records, OURS, VARIANTS, shown, 2.5)


@figure("best_parts")
def best_parts(records: Records) -> Figure:
    """`cafedcl:best` with one part changed: differences to the unchanged one."""
    named: list[ResultRow] = [
        {**row, "method": changed_part(row), "changed": {}} for row in records
    ]
    return changes(named, "", PARTS, SCORES_OF_PARTS, 3.6)


def changed_part(row: ResultRow) -> str:
    """Return what was changed in a run, such as ``method.tau=0.1``; nothing is an empty string."""
    return ", ".join(f"{name}={value}" for name, value in row["changed"].items())


def changes(
    records: Records, base: str, variants: dict[str, str], shown: dict[str, str], height: float
) -> Figure:
    """Draw the paired differences of variants to a base, with standard errors, for some scores."""
    settings = dict(by_setting(records))
    picture, axes = sheet(len(shown), 1, height=height)
    for ax, (score, words) in zip(axes, shown.items(), strict=True):
        ax.axvline(0, color="#8a8f98", linewidth=0.8)
        for at, (setting, mine) in enumerate(settings.items()):
            for row, method in enumerate(variants):
                found = paired(scores(mine, method, score), scores(mine, base, score))
                if found:
                    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0
                    value = mean(found)
                    least = LEAST_DRAWN.get(score, value)
                    if value < least:
                        value = least
                        error = 0
                    ax.errorbar(
                        value,
                        row + 0.32 * ((2 * at + 1) / len(settings) - 1),
                        xerr=error,
                        marker="os^"[at],
                        color=("#D55E00", "#0A7ABF", "#2E7D4F")[at],
                        markersize=5,
                        elinewidth=1,
                        linestyle="none",
                        label="" if row else WORDS.get(setting, setting),
                    )
        ax.set_yticks(range(len(variants)), list(variants.values()) if ax is axes[0] else [])
        ax.set_ylim(len(variants) - 0.5, -0.5)
        ax.set_title(words, loc="left")
    handles = axes[0].get_legend_handles_labels()
    picture.legend(*handles, loc="outside lower center", ncols=len(settings))
    return picture


def digest(path: Path) -> str:
    """Return a file's name and digest, which its figures store."""
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def sources(name: str) -> list[Path]:
    """Return the result files that a figure is drawn from."""
    return [RESULTS / f"{study}-short.json" for study in FIGURES[name][0]]


def main() -> None:
    """Draw all figures."""
    for name, (_, make) in FIGURES.items():
        paths = sources(name)
        runs = [
            one for path in paths for one in json.loads(path.read_text(encoding="utf-8"))["runs"]
        ]
        with mpl.rc_context(STYLE):
            drawn = make(runs)
            out = IMAGES / f"reproduction-{name}.svg"
            drawn.savefig(
                out, metadata={"Date": None, "Description": "; ".join(map(digest, paths))}
            )
        text = "\n".join(line.rstrip() for line in out.read_text(encoding="utf-8").splitlines())
        out.write_text(text + "\n", encoding="utf-8")
        print(out)


if __name__ == "__main__":
    main()
