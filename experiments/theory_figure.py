"""Check the paper's bound on the prototype error against its own model, and compare weightings.

    python experiments/theory_figure.py --rho 0.5 --counts 100,10,1
    python experiments/theory_figure.py --figure docs/images/theory.svg

computes the model of theory.py exactly, simulates it, and prints the error of every round beside
the printed and the corrected bound, and the variance that each rule of weights injects.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text
from theory import (
    Course,
    Estimate,
    Floats,
    Model,
    corrected_bound,
    corrected_limit,
    course,
    holds,
    printed_bound,
    printed_limit,
    simulate,
    stationary_error,
)
from theory_panels import draw_figure
from theory_weights import Weighting, weightings

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.rng import stream
from cafedcl.terminal.console import console

FORMATS = (".svg", ".png", ".pdf")
RULES = ("uniform", "counts", "confidence", "optimal")
LARGEST = 10**8
"""The most rounds × repetitions of a simulation."""


@dataclass(frozen=True, eq=False)
class Study:
    """One instance of the model, and its results."""

    model: Model
    course: Course
    estimate: Estimate
    weightings: dict[str, Weighting]


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rho", type=float, default=0.5, help="how strongly the old anchor attracts, in [0, 1)")
    add("--clients", type=int, help="number of clients; default: one per count, or 3")
    add("--counts", help="samples per client: 100,10,1, or one number; default: from 100 to 1")
    add("--sigma", default="1", help="standard deviation per client, or one number for all")
    add("--uncertainty", default="0.2", help="u of Eq. 9 per client, or one number for all")
    add("--weights", default="confidence", help="uniform, counts, confidence or optimal")
    add(
        "--gap",
        type=float,
        default=1.0,
        help="Δ, squared distance between the clients' mean centre and the true centre",
    )
    add("--dim", type=int, default=8, help="dimension of the embedding")
    add("--rounds", type=int, default=20, help="number of rounds")
    add("--repetitions", type=int, default=10_000, help="number of simulations")
    add("--seed", type=int, default=0, help="random seed")
    add("--figure", type=Path, help="draw the figure into this file (.svg, .png, .pdf)")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command; a wrong option is one line."""
    given = parse_options(words)
    try:
        report(given)
    except CafedclError as error:
        sys.exit(str(error))


def report(given: argparse.Namespace) -> None:
    """Compute everything, draw the figure if asked, and print tables or JSON."""
    if given.figure and given.figure.suffix.lower() not in FORMATS:
        raise CafedclError(
            f"--figure: {given.figure} does not end in {', '.join(FORMATS)}; choose one of them"
        )
    results = run_study(given)
    if given.figure:
        rules = list(results.weightings.values())
        draw_figure(results.model, results.course, results.estimate, rules, given.figure)
    found = numbers(results)
    if given.json:
        print(json.dumps(found))
        return
    screen = console()
    setting = (
        f", simulated {given.repetitions:,} times: "
        f"ρ = {given.rho:g}, K = {len(found['counts'])}, d = {given.dim}, Δ = {given.gap:g}, "
        f"V = {found['injected']:.6f} ({given.weights} weights)"
    )
    screen.print(Text.assemble(("E‖p_g − μ‖² over rounds", "bold"), setting), soft_wrap=True)
    screen.print(bounds_table(found))
    printed_fails = sum(not row["printed_holds"] for row in found["rounds"])
    corrected_fails = sum(not row["corrected_holds"] for row in found["rounds"])
    screen.print(
        f"Eq. 8 as printed fails in {printed_fails} of {given.rounds} rounds, "
        f"the corrected bound in {corrected_fails}.\n"
    )
    screen.print(Text("injected variance by weighting", "bold"))
    screen.print(weights_table(found))
    if given.figure:
        screen.print(f"written: {given.figure}", soft_wrap=True)


def run_study(given: argparse.Namespace) -> Study:
    """Check the options, build the model, compute it exactly and simulate it.

    The clients' centres are drawn around a point at distance √Δ from μ = 0, so that Δ is the given
    gap. p_g starts at μ.
    """
    for name, least in (("dim", 1), ("rounds", 1), ("repetitions", 2), ("seed", 0)):
        value = getattr(given, name)
        if value < least:
            raise CafedclError(f"--{name}: {value} is too small; give at least {least}")
    if not 0 <= given.gap < np.inf:
        raise CafedclError(
            f"--gap: {given.gap} is not a squared distance; give a finite number of at least 0"
        )
    if given.weights not in RULES:
        hint = nearest(given.weights, list(RULES))
        raise CafedclError(f"--weights: there is no '{given.weights}'; {hint}")
    size = given.rounds * given.repetitions
    if size > LARGEST:
        raise CafedclError(f"--rounds × --repetitions: {size:,} exceed {LARGEST:,}; give fewer")
    n, sigma, u = per_client(given.clients, given.counts, given.sigma, given.uncertainty)
    rules = weightings(n, sigma, u, given.dim, given.repetitions, stream(given.seed, "variances"))
    alpha = rules[given.weights].alpha
    rng = stream(given.seed, "centres")
    offsets = rng.standard_normal((len(n), given.dim)) / np.sqrt(given.dim)
    direction = rng.standard_normal(given.dim)
    # Subtracting the weighted mean makes the offsets cancel in b, which is then exactly √Δ long.
    shift = np.sqrt(given.gap) * direction / np.linalg.norm(direction)
    centres = offsets - alpha @ offsets + shift
    origin = np.zeros(given.dim)
    model = Model(given.rho, alpha, centres, n, sigma, origin, origin)
    simulation = stream(given.seed, "simulation")
    estimate = simulate(model, given.rounds, given.repetitions, simulation)
    return Study(model, course(model, given.rounds), estimate, rules)


def per_client(
    clients: int | None, counts: str | None, sigma: str, uncertainty: str
) -> tuple[Floats, Floats, Floats]:
    """Return n, σ and u per client.

    Without --clients, an option that lists several numbers gives the number of clients.
    """
    lists = {
        "sigma": parse_numbers("sigma", sigma),
        "uncertainty": parse_numbers("uncertainty", uncertainty),
    }
    if counts is not None:
        lists["counts"] = parse_numbers("counts", counts)
    sizes = {name: len(values) for name, values in lists.items() if len(values) > 1}
    if clients is not None:
        number = clients
    elif sizes:
        number = max(sizes.values())
    else:
        number = 3 if counts is None else 1
    if number < 1:
        raise CafedclError(f"--clients: {number} is too small; give at least 1")
    for name, size in sizes.items():
        if size != number:
            raise CafedclError(
                f"--{name}: has {size} numbers for {number} clients; give one, or one per client"
            )
    lists.setdefault("counts", [float(round(n)) for n in np.geomspace(100, 1, number)])
    for name, values in lists.items():
        zero_allowed = name == "uncertainty"
        if not all(0 <= value < np.inf and (value > 0 or zero_allowed) for value in values):
            least = "at least" if zero_allowed else "more than"
            listed = ", ".join(f"{value:g}" for value in values)
            raise CafedclError(f"--{name}: {listed}; give finite numbers of {least} 0")
    n, sd, u = (
        np.broadcast_to(np.array(lists[name]), number)
        for name in ("counts", "sigma", "uncertainty")
    )
    return n, sd, u


def parse_numbers(name: str, text: str) -> list[float]:
    """Return the numbers of a list such as 100,10,1."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise CafedclError(
            f"--{name}: '{text}' is not a list of numbers; write it like 100,10,1"
        ) from None


def numbers(results: Study) -> dict[str, Any]:
    """Return all results, ready for JSON.

    The bounds of a round are computed from the true error of the round before, and those of
    ``stationary`` from the stationary error. ``limits`` are the limits of iterating the bounds.
    """
    model = results.model
    errors = results.course.error
    rest = (model.gap, model.rho, model.injected)
    printed = printed_bound(errors[:-1], *rest)
    corrected = corrected_bound(errors[:-1], *rest)
    rows = [
        {
            "round": t + 1,
            "exact": float(errors[t + 1]),
            "simulated": float(results.estimate.mean[t + 1]),
            "standard_error": float(results.estimate.deviation[t + 1]),
            **verdict(float(errors[t + 1]), float(printed[t]), float(corrected[t])),
        }
        for t in range(len(printed))
    ]
    end = float(stationary_error(*rest))
    stationary = verdict(end, float(printed_bound(end, *rest)), float(corrected_bound(end, *rest)))
    limits = verdict(end, float(printed_limit(*rest)), float(corrected_limit(*rest)))
    return {
        "rho": model.rho,
        "counts": model.counts.tolist(),
        "sigma": model.sigma.tolist(),
        "alpha": model.alpha.tolist(),
        "gap": model.gap,
        "injected": model.injected,
        "rounds": rows,
        "stationary": {"exact": end, **stationary},
        "limits": {"exact": end, **limits},
        "weights": [
            {
                "name": rule.name,
                "alpha": rule.alpha.tolist(),
                "injected": rule.injected,
                "ratio": rule.ratio,
                "squares": rule.squares,
                "effective_clients": 1 / rule.squares,
            }
            for rule in results.weightings.values()
        ],
    }


def verdict(error: float, printed: float, corrected: float) -> dict[str, float | bool]:
    """Return both bounds, and whether they hold."""
    kept = {
        "printed_holds": bool(holds(error, printed)),
        "corrected_holds": bool(holds(error, corrected)),
    }
    return {"printed": printed, "corrected": corrected, **kept}


def bounds_table(found: dict[str, Any]) -> Table:
    """Return a table of some rounds, the stationary error and the limits of the bounds."""
    last = len(found["rounds"])
    shown = {1, 2, 3, 4, 5, last, *(d * 10**p for p in range(1, 9) for d in (1, 2, 5))}
    rows = [row for row in found["rounds"] if row["round"] in shown]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("round")
    for title in ("exact", "simulated", "Eq. 8", "", "corrected", ""):
        table.add_column(title, justify="right" if title else "left")
    named = [(str(row["round"]), row) for row in rows]
    for name, row in [*named, ("stationary", found["stationary"]), ("iterated", found["limits"])]:
        simulated = ""
        if "simulated" in row:
            simulated = f"{row['simulated']:.6f} ± {row['standard_error']:.6f}"
        cells = []
        for bound in ("printed", "corrected"):
            verdict = ("holds", "green") if row[f"{bound}_holds"] else ("fails", "red")
            cells += [Text(f"{row[bound]:.6f}"), Text(*verdict)]
        table.add_row(name, f"{row['exact']:.6f}", simulated, *cells)
    return table


def weights_table(found: dict[str, Any]) -> Table:
    """Return the rules of weights as a table."""
    table = Table("weights", box=None, header_style="bold", pad_edge=False)
    for title in ("V(α)", "V/V*", "Σα²", "1/Σα²"):
        table.add_column(title, justify="right")
    table.add_column("α")
    for rule in found["weights"]:
        alpha = " ".join(f"{share:.3f}" for share in rule["alpha"][:4])
        if len(rule["alpha"]) > 4:
            alpha += " …"
        table.add_row(
            rule["name"],
            f"{rule['injected']:.6f}",
            f"{rule['ratio']:.2f}",
            f"{rule['squares']:.3f}",
            f"{rule['effective_clients']:.2f}",
            alpha,
        )
    return table


if __name__ == "__main__":
    main()
