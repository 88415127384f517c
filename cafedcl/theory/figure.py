"""`cafedcl theory`: the model of Section 4.2 of the CAFedCL paper as a table, as JSON and as a
figure.

Nothing here imports NumPy, PyTorch or matplotlib before the command needs it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from rich.table import Table

    from cafedcl.theory.model import Array, Course, Estimate, Model, Weighing

FORMATS = (".svg", ".png", ".pdf")
RULES = ("uniform", "counts", "confidence", "optimal")
LARGEST = 10**8
"""Rounds × repetitions that a simulation keeps, at most."""

EXACT = "#000000"
SIMULATED = "#56B4E9"
PRINTED = "#D55E00"
CORRECTED = "#0072B2"
NEUTRAL = "#8C8C8C"
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""
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
    "svg.hashsalt": "cafedcl",
}


@dataclass(frozen=True, eq=False)
class Study:
    """One instance of the model with everything that is shown of it."""

    model: "Model"
    course: "Course"
    estimate: "Estimate"
    weighings: "dict[str, Weighing]"


def theory(
    rho: Annotated[
        float, typer.Option(help="How strongly the old anchor attracts, in [0, 1).")
    ] = 0.5,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; else one per count, or 3.")
    ] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            help="Samples per client: 100,10,1, or one number for all; else a tail from 100 to 1."
        ),
    ] = None,
    sigma: Annotated[
        str, typer.Option(help="Standard deviation per client, or one number for all.")
    ] = "1",
    uncertainty: Annotated[
        str, typer.Option(help="u of Eq. 9 per client, or one number for all.")
    ] = "0.2",
    weights: Annotated[
        str, typer.Option(help="uniform, counts, confidence or optimal.")
    ] = "confidence",
    gap: Annotated[
        float,
        typer.Option(help="Δ, the squared distance of the clients' mean centre from the truth."),
    ] = 1,
    dim: Annotated[int, typer.Option(help="Dimension of the embedding.")] = 8,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 20,
    repetitions: Annotated[int, typer.Option(help="Times the model is simulated.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The one seed.")] = 0,
    figure: Annotated[
        Path | None, typer.Option(help="Draw it into this file (.svg, .png, .pdf).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Check the paper's bound on the prototype error against its own model, and compare the
    server's weights.
    """
    if figure and figure.suffix.lower() not in FORMATS:
        raise CafedclError(
            f"--figure: {figure} does not end in {', '.join(FORMATS)}; choose one of them"
        )
    known = study(
        rho, clients, counts, sigma, uncertainty, weights, gap, dim, rounds, repetitions, seed
    )
    if figure:
        draw(known, figure)
    found = numbers(known)
    if as_json:
        print(json.dumps(found))
        return
    screen = console()
    screen.print(
        f"[bold]E‖p_g − μ‖² over rounds[/], simulated {repetitions:,} times: ρ = {rho:g}, K = {len(found['counts'])}, "
        f"d = {dim}, Δ = {gap:g}, V = {found['injected']:.6f} ({weights} weights)",
        soft_wrap=True,
    )
    screen.print(bounds_table(found))
    wrong, mended = (
        sum(not row[f"{name}_holds"] for row in found["rounds"])
        for name in ("printed", "corrected")
    )
    screen.print(
        f"Eq. 8 as printed fails in {wrong} of {rounds} rounds, the corrected bound in {mended}.\n"
    )
    screen.print("[bold]what each weighting lets in[/]")
    screen.print(weights_table(found))
    if figure:
        screen.print(f"written: {figure}", soft_wrap=True)


def study(
    rho: float,
    clients: int | None,
    counts: str | None,
    sigma: str,
    uncertainty: str,
    weights: str,
    gap: float,
    dim: int,
    rounds: int,
    repetitions: int,
    seed: int,
) -> Study:
    """Check the options, build the model from them, and run it: exactly and many times.

    The clients' centres are drawn around one that is √Δ from μ = 0, so that Δ is the given gap; p_g
    starts at μ.
    """
    import numpy as np

    from cafedcl.core.rng import stream
    from cafedcl.theory import model as of

    for name, value, low in (
        ("dim", dim, 1),
        ("rounds", rounds, 1),
        ("repetitions", repetitions, 2),
        ("seed", seed, 0),
    ):
        if value < low:
            raise CafedclError(f"--{name}: {value} is too small; give at least {low}")
    if not 0 <= gap < np.inf:
        raise CafedclError(f"--gap: {gap} is no squared distance; give a number of at least 0")
    if weights not in RULES:
        raise CafedclError(f"--weights: there is no '{weights}'; {nearest(weights, list(RULES))}")
    if rounds * repetitions > LARGEST:
        raise CafedclError(
            f"--rounds × --repetitions: {rounds * repetitions:,} exceed {LARGEST:,}; give fewer"
        )
    n, sd, u = settle(clients, counts, sigma, uncertainty)
    ways = of.weighings(n, sd, u, dim, repetitions, stream(seed, "variances"))
    alpha = ways[weights].alpha
    rng = stream(seed, "centres")
    offsets = rng.standard_normal((len(n), dim)) / np.sqrt(dim)
    direction = rng.standard_normal(dim)
    centres = offsets - alpha @ offsets + np.sqrt(gap) * direction / np.linalg.norm(direction)
    model = of.Model(rho, alpha, centres, n, sd, np.zeros(dim), np.zeros(dim))
    estimate = of.simulate(model, rounds, repetitions, stream(seed, "simulation"))
    return Study(model, of.course(model, rounds), estimate, ways)


def settle(
    clients: int | None, counts: str | None, sigma: str, uncertainty: str
) -> "tuple[Array, Array, Array]":
    """Return n, σ and u per client; whichever option lists several numbers says how many clients
    there are.
    """
    import numpy as np

    lists = {"sigma": parse("sigma", sigma), "uncertainty": parse("uncertainty", uncertainty)}
    if counts is not None:
        lists["counts"] = parse("counts", counts)
    sizes = {name: len(values) for name, values in lists.items() if len(values) > 1}
    number = (
        clients if clients is not None else max(sizes.values(), default=3 if counts is None else 1)
    )
    if number < 1:
        raise CafedclError(f"--clients: {number} is too small; give at least 1")
    for name, size in sizes.items():
        if size != number:
            raise CafedclError(
                f"--{name}: has {size} numbers for {number} clients; give one, or one per client"
            )
    lists.setdefault("counts", [float(round(n)) for n in np.geomspace(100, 1, number)])
    for name, values in lists.items():
        if not all(
            0 <= value < np.inf and (value > 0 or name == "uncertainty") for value in values
        ):
            least = "at least" if name == "uncertainty" else "more than"
            raise CafedclError(
                f"--{name}: {', '.join(f'{v:g}' for v in values)}; give finite numbers of {least} 0"
            )
    n, sd, u = (
        np.broadcast_to(np.array(lists[name]), number)
        for name in ("counts", "sigma", "uncertainty")
    )
    return n, sd, u


def parse(name: str, text: str) -> list[float]:
    """Return the numbers of a list such as 100,10,1."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise CafedclError(
            f"--{name}: '{text}' is no list of numbers; write it like 100,10,1"
        ) from None


def numbers(study: Study) -> dict[str, Any]:
    """Return everything that was found, ready for JSON.

    A bound in a round is what the inequality says of it given the true error of the round before;
    in ``stationary``, given the stationary error. ``limits`` are what the inequalities converge to
    when they are iterated instead.
    """
    from cafedcl.theory import model as of

    model = study.model
    errors = study.course.error
    rest = (model.gap, model.rho, model.injected)
    printed = of.printed_bound(errors[:-1], *rest)
    corrected = of.corrected_bound(errors[:-1], *rest)
    rows = [
        {
            "round": t + 1,
            "exact": float(errors[t + 1]),
            "simulated": float(study.estimate.mean[t + 1]),
            "standard_error": float(study.estimate.deviation[t + 1]),
            **verdict(float(errors[t + 1]), float(printed[t]), float(corrected[t])),
        }
        for t in range(len(printed))
    ]
    end = float(of.stationary_error(*rest))
    stays = verdict(end, float(of.printed_bound(end, *rest)), float(of.corrected_bound(end, *rest)))
    limits = verdict(end, float(of.printed_limit(*rest)), float(of.corrected_limit(*rest)))
    return {
        "rho": model.rho,
        "counts": model.counts.tolist(),
        "sigma": model.sigma.tolist(),
        "alpha": model.alpha.tolist(),
        "gap": model.gap,
        "injected": model.injected,
        "rounds": rows,
        "stationary": {"exact": end, **stays},
        "limits": {"exact": end, **limits},
        "weights": [
            {
                "name": way.name,
                "alpha": way.alpha.tolist(),
                "injected": way.injected,
                "ratio": way.ratio,
                "squares": way.squares,
                "effective_clients": 1 / way.squares,
            }
            for way in study.weighings.values()
        ],
    }


def verdict(error: float, printed: float, corrected: float) -> dict[str, float | bool]:
    """Return both bounds, and whether they hold."""
    from cafedcl.theory.model import holds

    kept = {
        "printed_holds": bool(holds(error, printed)),
        "corrected_holds": bool(holds(error, corrected)),
    }
    return {"printed": printed, "corrected": corrected, **kept}


def bounds_table(found: dict[str, Any]) -> "Table":
    """Return some rounds, the stationary state and the limits of the bounds as a table."""
    from rich.table import Table

    last = len(found["rounds"])
    shown = {
        t
        for t in (1, 2, 3, 4, 5, *(d * 10**p for p in range(1, 9) for d in (1, 2, 5)), last)
        if t <= last
    }
    rows = [row for row in found["rounds"] if row["round"] in shown]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("round")
    for title in ("exact", "simulated", "Eq. 8", "", "corrected", ""):
        table.add_column(title, justify="right" if title else "left")
    named = [(str(row["round"]), row) for row in rows]
    for name, row in [*named, ("stationary", found["stationary"]), ("iterated", found["limits"])]:
        seen = f"{row['simulated']:.6f} ± {row['standard_error']:.6f}" if "simulated" in row else ""
        cells = []
        for bound in ("printed", "corrected"):
            cells += [
                f"{row[bound]:.6f}",
                "[green]holds[/]" if row[f"{bound}_holds"] else "[red]fails[/]",
            ]
        table.add_row(name, f"{row['exact']:.6f}", seen, *cells)
    return table


def weights_table(found: dict[str, Any]) -> "Table":
    """Return the ways to weight the clients as a table."""
    from rich.table import Table

    table = Table("weights", box=None, header_style="bold", pad_edge=False)
    for title in ("V(α)", "V/V*", "Σα²", "1/Σα²"):
        table.add_column(title, justify="right")
    table.add_column("α")
    for way in found["weights"]:
        alpha = " ".join(f"{share:.3f}" for share in way["alpha"][:4]) + (
            " …" if len(way["alpha"]) > 4 else ""
        )
        values = (f"{way['injected']:.6f}", f"{way['ratio']:.2f}", f"{way['squares']:.3f}")
        table.add_row(way["name"], *values, f"{way['effective_clients']:.2f}", alpha)
    return table


def draw(study: Study, path: Path) -> None:
    """Draw the four panels into a file; its ending says in which format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(9.6, 7.2), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.05)
        )
        grid = figure.add_gridspec(2, 2)
        rounds_panel(figure, grid[0, 0], study)
        region_panel(figure, grid[0, 1])
        weights_panel(figure, grid[1, 0], list(study.weighings.values())[::-1])
        stationary_panel(figure.add_subplot(grid[1, 1]), study.model)
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        try:
            figure.savefig(path, dpi=200, metadata=dates[path.suffix.lower()])
        except OSError as error:
            raise CafedclError(
                f"{path}: the figure cannot be written: {error.strerror}; choose another path"
            ) from None


def rounds_panel(figure: "Figure", place: "SubplotSpec", study: Study) -> None:
    """Draw the error over rounds: exact, simulated, and what both bounds say given the round
    before.
    """
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    from cafedcl.theory import model as of

    model = study.model
    errors = study.course.error
    seen = study.estimate
    rest = (model.gap, model.rho, model.injected)
    t = np.arange(len(errors))
    printed = of.printed_bound(errors[:-1], *rest)
    corrected = of.corrected_bound(errors[:-1], *rest)
    parts = place.subgridspec(2, 1, height_ratios=(3.2, 1), hspace=0.03)
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
        seen.mean,
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
        t, -2 * seen.deviation, 2 * seen.deviation, color=SIMULATED, alpha=0.35, linewidth=0
    )
    strip.axhline(0, color=EXACT, linewidth=0.8)
    strip.plot(t, seen.mean - errors, "o", color=CORRECTED, markersize=3.2, markeredgewidth=0)
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


def region_panel(figure: "Figure", place: "SubplotSpec") -> None:
    """Draw where Eq. 8 fails without noise, by ρ and by the angle between e and b, for three
    lengths of e.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    from cafedcl.theory import model as of

    ax = figure.add_subplot(place)
    rho, angle = np.meshgrid(np.linspace(0.001, 0.999, 100), np.linspace(0, 120, 61))
    e = np.stack([np.cos(np.radians(angle)), np.sin(np.radians(angle))], -1)
    over = of.next_error(1.0, e, np.array([1.0, 0.0]), rho, 0.0) / of.printed_bound(
        1.0, 1.0, rho, 0.0
    )
    shades = LinearSegmentedColormap.from_list("over", ["#FCEBE1", PRINTED])
    filled = ax.contourf(rho, angle, over, levels=np.linspace(1, 1.5, 11), cmap=shades)
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


def weights_panel(figure: "Figure", place: "SubplotSpec", ways: "list[Weighing]") -> None:
    """Draw the injected variance over its optimum, and the sum of squared weights, for every way to
    weight.
    """
    parts = place.subgridspec(1, 2, wspace=0.05)
    first = figure.add_subplot(parts[0])
    second = figure.add_subplot(parts[1], sharey=first)
    colours = [PRINTED if way.name == "confidence" else NEUTRAL for way in ways]
    bars(first, [way.ratio for way in ways], colours, "V / V*")
    bars(second, [way.squares for way in ways], colours, "Σα²")
    first.axvline(1, color=EXACT, linewidth=0.8, linestyle=(0, (2, 2)))
    first.set_yticks(range(len(ways)), [TITLES[way.name] for way in ways])
    second.tick_params(labelleft=False)
    first.set_title("c   Injected variance and Σα²", in_layout=False)


def bars(ax: "Axes", values: list[float], colours: list[str], title: str) -> None:
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


def stationary_panel(ax: "Axes", model: "Model") -> None:
    """Draw the stationary error against ρ: exact, and the limits of both bounds."""
    import numpy as np

    from cafedcl.theory import model as of

    rho = np.linspace(0, 0.99, 400)
    rest = (model.gap, rho, model.injected)
    exact = of.stationary_error(*rest)
    printed = of.printed_limit(*rest)
    corrected = of.corrected_limit(*rest)
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
