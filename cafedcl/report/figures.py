"""Every panel of the report as a figure for a paper, with the same data and colours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from cafedcl.core.errors import CafedclError
from cafedcl.core.files import why_unwritten
from cafedcl.core.fonts import save_figure
from cafedcl.core.slug import slug
from cafedcl.report import plots, plots_rounds
from cafedcl.report.collect import collect
from cafedcl.report.plots import CURVE_AXES, STYLE, PlotGroup
from cafedcl.report.runs import Summary

FORMATS = ("png", "svg", "pdf")


def write_figures(
    summary: Summary,
    out: Path,
    form: str = "png",
    warn: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Draw all figures that the runs have data for, and return the files.

    ``warn`` is called for damaged files of the runs.
    """
    if form not in FORMATS:
        raise CafedclError(f"--format {form}: there is no such format; choose {', '.join(FORMATS)}")
    summary.require_scores()
    written = []
    # Without dates, the same runs give the same files, byte for byte.
    dates: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    data = collect(summary)
    for problem in data["problems"]:
        warn(problem)
    try:
        out.mkdir(parents=True, exist_ok=True)
        groups = data["groups"]
        for group in groups:
            start = "" if len(groups) == 1 else file_name(group["title"]) + "-"
            for name, figure in setting_figures(group):
                path = out / f"{start}{name}.{form}"
                save_figure(figure, path, dpi=200, metadata=dates[form])
                written.append(path)
    except OSError as error:
        raise CafedclError(
            f"{out}: cannot be written: {why_unwritten(error)}; choose another --out"
        ) from None
    return written


def setting_figures(group: PlotGroup) -> Iterator[tuple[str, Figure]]:
    """Yield all figures for which a setting has data, with their names."""
    with mpl.rc_context(STYLE):
        for protocol in group["ranking"]:
            if len(group["entries"]) > 1:
                yield f"ranking-{protocol}", plots.plot_ranking(group, protocol)
            for axis in CURVE_AXES:
                yield f"curves-{protocol}-{axis}", plots.plot_curves(group, protocol, axis)
            if any(protocol in one["clients"] for one in group["details"]):
                yield f"clients-{protocol}", plots.plot_clients(group, protocol)
            if len(group["shots"][protocol]) > 1:
                yield f"shots-{protocol}", plots.plot_shots(group, protocol)
            if "map" in group and any(protocol in one["recall"] for one in group["details"]):
                yield f"recall-{protocol}", plots.plot_recall(group, protocol)
            if any(protocol in one["reliability"] for one in group["details"]):
                yield f"reliability-{protocol}", plots.plot_reliability(group, protocol)
            for family in group["ablation"]:
                yield (
                    f"ablation-{file_name(family['base'])}-{protocol}",
                    plots.plot_ablation(group, family, protocol),
                )
            for sweep in group["sensitivity"]:
                if protocol in sweep:
                    yield (
                        f"sensitivity-{file_name(sweep['method'])}-{sweep['option']}-{protocol}",
                        plots.plot_sensitivity(sweep, protocol),
                    )
        if "map" in group:
            yield "data", plots_rounds.plot_data(group)
            yield from method_figures(group)
        yield "cost", plots.plot_cost(group)


def method_figures(group: PlotGroup) -> Iterator[tuple[str, Figure]]:
    """Yield the figures of single methods: confusion, confidence, prototypes and the bias loop."""
    names = [file_name(entry["label"]) for entry in group["entries"]]
    for name, one in zip(names, group["details"], strict=True):
        if "confusion" in one:
            yield f"confusion-{name}", plots_rounds.plot_confusion(group, one)
    for scene in group["confidence"]:
        yield f"confidence-{names[scene['entry']]}", plots_rounds.plot_confidence(scene)
    for scene in group["prototypes"]:
        yield f"prototypes-{names[scene['entry']]}", plots_rounds.plot_prototypes(group, scene)
    if group["prototypes"]:
        yield "distances", plots_rounds.plot_distances(group)
    for scene in group["loop"]:
        yield f"loop-{names[scene['entry']]}", plots_rounds.plot_loop(group, scene)


def file_name(text: str) -> str:
    """Return a label or a title as part of a figure's file name."""
    return slug(text, keep=".=-")
