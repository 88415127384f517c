"""Every panel of the report as a figure for a paper, from the same data and in the same colours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cafedcl.core.errors import CafedclError
from cafedcl.report import plots, plots_rounds
from cafedcl.report.collect import collect
from cafedcl.report.plots import AXES, STYLE, Group, slug
from cafedcl.report.runs import Summary

FORMATS = ("png", "svg", "pdf")


def write_figures(summary: Summary, out: Path, form: str = "png") -> list[Path]:
    """Draw every figure that the runs have data for, and return the files."""
    if form not in FORMATS:
        raise CafedclError(f"--format {form}: there is no such format; choose {', '.join(FORMATS)}")
    if not summary.groups:
        raise CafedclError("there is nothing to draw yet: no run has a scored round")
    written = []
    dates: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        out.mkdir(parents=True, exist_ok=True)
        groups = collect(summary)["groups"]
        for group in groups:
            start = "" if len(groups) == 1 else slug(group["title"]) + "-"
            for name, figure in drawn(group):
                path = out / f"{start}{name}.{form}"
                figure.savefig(path, dpi=200, metadata=dates[form])
                written.append(path)
    except OSError as error:
        raise CafedclError(
            f"{out}: cannot be written: {error.strerror}; choose another --out"
        ) from None
    return written


def drawn(group: Group) -> Iterator[tuple[str, Figure]]:
    """Yield every figure of a setting with its name; what there are no data for is left out."""
    with mpl.rc_context(STYLE):
        for protocol in group["ranking"]:
            if len(group["entries"]) > 1:
                yield f"ranking-{protocol}", plots.ranking(group, protocol)
            for axis in AXES:
                yield f"curves-{protocol}-{axis}", plots.curves(group, protocol, axis)
            if any(protocol in one["clients"] for one in group["details"]):
                yield f"clients-{protocol}", plots.clients(group, protocol)
            if len(group["shots"][protocol]) > 1:
                yield f"shots-{protocol}", plots.shots(group, protocol)
            if "map" in group and any(protocol in one["recall"] for one in group["details"]):
                yield f"recall-{protocol}", plots.recall(group, protocol)
            for family in group["ablation"]:
                yield (
                    f"ablation-{family['base']}-{protocol}",
                    plots.ablation(group, family, protocol),
                )
            for sweep in group["sensitivity"]:
                if protocol in sweep:
                    yield (
                        f"sensitivity-{slug(sweep['method'])}-{sweep['option']}-{protocol}",
                        plots.sensitivity(sweep, protocol),
                    )
        if "map" in group:
            yield "data", plots_rounds.data(group)
            yield from scenes(group)
        yield "cost", plots.cost(group)


def scenes(group: Group) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of single methods: confusion, confidence, prototypes and the bias loop."""
    names = [slug(entry["label"]) for entry in group["entries"]]
    for name, one in zip(names, group["details"], strict=True):
        if "confusion" in one:
            yield f"confusion-{name}", plots_rounds.confusion(group, one)
    for scene in group["confidence"]:
        yield f"confidence-{names[scene['entry']]}", plots_rounds.confidence(scene)
    for scene in group["prototypes"]:
        yield f"prototypes-{names[scene['entry']]}", plots_rounds.prototypes(group, scene)
    if group["prototypes"]:
        yield "distances", plots_rounds.distances(group)
    for scene in group["loop"]:
        yield f"loop-{names[scene['entry']]}", plots_rounds.loop(group, scene)
