"""Comparing the runs of all systems: medians, ratios, warnings, and the printed tables."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

OURS = "ours"
FAR_ACCURACY = 0.1
FAR_LOSS = 0.25
LEAST_LOSS = 0.02
"""A system is warned about if its accuracy or, relatively, its loss is this far from the median."""
TRAINED = 0.5
"""Below this accuracy, a network has learned too little for a comparison of accuracies."""

Run = dict[str, Any]


def summarise(runs: Sequence[Run]) -> Run:
    """Return medians over the repeats of one system on one job, or why it failed."""
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"failed": runs[-1]["failed"]}
    rounds = [median(run["seconds"][1:]) for run in good]
    return {
        "round": median(rounds),
        "rounds": rounds,
        "first": median(run["seconds"][0] for run in good),
        "wall": median(run["wall"] for run in good),
        "accuracy": median(run["accuracy"] for run in good),
        "loss": median(run["loss"] for run in good),
        "steps": good[-1]["steps"][-1],
        "cores": good[-1]["cores"],
        "failures": len(runs) - len(good),
    }


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Return every job's summaries, the fastest peers, and geometric means over the jobs.

    A ratio is a system's seconds per round over ours: above 1, ours is faster.
    """
    table: dict[str, dict[str, Run]] = {}
    for job in dict.fromkeys(run["job"] for run in runs):
        mine = [run for run in runs if run["job"] == job]
        systems = dict.fromkeys(run["system"] for run in mine)
        table[job] = {s: summarise([run for run in mine if run["system"] == s]) for s in systems}
    leads: dict[str, dict[str, Any]] = {}
    for job, rows in table.items():
        ours = rows.get(OURS, {})
        if "round" not in ours:
            continue
        peers = {system: row for system, row in rows.items() if system != OURS and "round" in row}
        for row in [ours, *peers.values()]:
            row["ratio"] = row["round"] / ours["round"]
            row["wall_ratio"] = row["wall"] / ours["wall"]
        if peers:
            best = min(peers, key=lambda system: peers[system]["round"])
            quickest = min(peers, key=lambda system: peers[system]["wall"])
            leads[job] = {
                "fastest": best,
                "ratio": peers[best]["ratio"],
                "fastest_wall": quickest,
                "wall_ratio": peers[quickest]["wall_ratio"],
            }
    means = {
        key: geometric_mean([lead[key] for lead in leads.values()])
        for key in ("ratio", "wall_ratio")
    }
    return {
        "jobs": table,
        "fastest_peer": leads,
        "geometric_mean": means,
        "warnings": doubts(table),
    }


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, or None without values."""
    if not values:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def doubts(table: dict[str, dict[str, Run]]) -> list[str]:
    """Return signs that a system did not do the same work as the others."""
    found = []
    for job, rows in table.items():
        good = {system: row for system, row in rows.items() if "round" in row}
        if not good:
            continue
        accuracy = median(row["accuracy"] for row in good.values())
        loss = median(row["loss"] for row in good.values())
        steps = median(row["steps"] for row in good.values())
        for system, row in good.items():
            guesses = accuracy >= TRAINED and abs(row["accuracy"] - accuracy) > FAR_ACCURACY
            if guesses or abs(row["loss"] - loss) > FAR_LOSS * loss + LEAST_LOSS:
                found.append(
                    f"job {job}: {system} ends with accuracy {row['accuracy']:.3f} and loss "
                    f"{row['loss']:.3f}, the median of all is {accuracy:.3f} and {loss:.3f}"
                )
            if row["steps"] != steps:
                found.append(
                    f"job {job}: {system} did {row['steps']} steps per round, "
                    f"the median of all is {steps:g}"
                )
    return found


def show(comparison: dict[str, Any], console: Console) -> None:
    """Print the tables and the warnings."""
    for job, rows in comparison["jobs"].items():
        best = comparison["fastest_peer"].get(job, {}).get("fastest")
        table = Table(title=f"job {job}: fastest peer marked *", title_justify="left")
        for title in (
            "system",
            "s/round",
            "× ours",
            "first",
            "wall",
            "× ours",
            "acc.",
            "loss",
            "steps",
        ):
            table.add_column(title, justify="left" if title == "system" else "right", no_wrap=True)
        for system, row in rows.items():
            name = f"{system} *" if system == best else system
            if "failed" in row:
                table.add_row(name, *8 * ["–"])
                continue
            ratios = [f"{row[key]:.2f}" if key in row else "–" for key in ("ratio", "wall_ratio")]
            table.add_row(
                name,
                f"{row['round']:.3f}",
                ratios[0],
                f"{row['first']:.2f}",
                f"{row['wall']:.1f}",
                ratios[1],
                f"{row['accuracy']:.3f}",
                f"{row['loss']:.3f}",
                str(row["steps"]),
            )
        console.print(table)
        for system, row in rows.items():
            if "failed" in row:
                console.print(f"{system}: {row['failed']}", highlight=False, markup=False)
    for key, what in (("ratio", "seconds per round"), ("wall_ratio", "wall time of the whole job")):
        mean = comparison["geometric_mean"][key]
        if mean is not None:
            console.print(
                f"{what}, fastest peer / ours, geometric mean over the jobs: [bold]{mean:.2f}[/]"
            )
    for warning in comparison["warnings"]:
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)
