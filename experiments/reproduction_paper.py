"""The short tables of docs/paper.md. Their notes name the runs; the commands stand on the page."""

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from reproduction_leaders import LEADERS, means_of
from reproduction_notes import heading, rows_text, seeds_text
from reproduction_statistics import compared, holm, number
from reproduction_tables import REFERENCES, higher_is_better, methods_of, paper_figures, title_of

from cafedcl.compare.results import ResultRow, by_setting, scores, settings_with_shared_seeds

BASE = "fedavg"
WHOLE = "cafedcl"
ABLATED = ("server.accuracy", "server.client_std")
BEHIND = LEADERS[:2]
REPEATED = (("server", "accuracy"), ("own", "client_mean"))
TRAINED = ("train.", "server.", "method.", "data.")
"""Sections of the config that change what is trained."""


def networks_and_rounds(records: Sequence[ResultRow]) -> tuple[str, str]:
    """Return the networks of these runs and their numbers of rounds, each of them once."""
    networks = dict.fromkeys(f"{one['model']}, width {one['width']:g}" for one in records)
    rounds = dict.fromkeys(str(one["rounds"]) for one in records)
    return " / ".join(networks), " / ".join(rounds)


def short_note(records: Sequence[ResultRow]) -> str:
    """Return a line with the network, the rounds and the seeds of these runs."""
    networks, rounds = networks_and_rounds(records)
    seeds = seeds_text([one["seed"] for one in records])
    words = [networks, f"{rounds} rounds", f"seeds {seeds}"]
    return f"<sub>{'; '.join(words)}</sub>\n\n"


def protocol_table(records: Sequence[ResultRow]) -> str:
    """Return every method's points above FedAvg: in the paper, and under each way of scoring.

    The last column compares the clients' own models with FedAvg's server model. That is what a
    table shows if it scores methods by whichever model they have.
    """
    text = ""
    for setting, mine in by_setting(records):
        figures = paper_figures(mine[0])
        server = means_of(mine, "server.accuracy")
        own = means_of(mine, "own.client_mean")
        if BASE not in figures or BASE not in server or BASE not in own:
            continue
        lines = []
        for method in methods_of(mine):
            if method not in figures or method == BASE:
                continue
            gaps = [
                figures[method][0] - figures[BASE][0],
                server[method] - server[BASE] if method in server else None,
                own[method] - own[BASE] if method in own else None,
                own[method] - server[BASE] if method in own else None,
            ]
            # Adding 0.0 turns -0.0 into 0.0.
            words = ["–" if gap is None else f"{round(gap, 1) + 0.0:+.1f}" for gap in gaps]
            lines.append([f"`{method}`", *words])
        head = [
            "points above FedAvg",
            "in the paper",
            "server − server",
            "own − own",
            "own − FedAvg's server",
        ]
        text += heading(setting, mine) + rows_text(head, lines)
    return text + short_note(records)


def variants_table(records: Sequence[ResultRow]) -> str:
    """Return the differences of every variant to the whole of CAFedCL, settings side by side.

    P-values are corrected by Holm over the variants of a column.
    """
    settings = list(by_setting(records))
    variants = [name for name in methods_of(records) if name.startswith(f"{WHOLE}:")]
    lines = [[f"`{name}`"] for name in variants]
    head = ["difference to `cafedcl` (p, Holm)"]
    for setting, mine in settings:
        for score in ABLATED:
            found = [
                compared(scores(mine, name, score), scores(mine, WHOLE, score)) for name in variants
            ]
            corrected = holm([None if gap is None else gap[2] for gap in found])
            head.append(f"{setting}, {title_of(score)}")
            for line, gap, p in zip(lines, found, corrected, strict=True):
                known = "n/a" if gap is None else f"{gap[0]:+.2f} ± {gap[1]:.2f} ({number(p)})"
                line.append(known)
    return rows_text(head, lines) + short_note(records)


def behind_table(records: Sequence[ResultRow]) -> str:
    """Return how many points every method is behind the best of each setting, on average.

    Methods are sorted by the first score. Those without a server's model come last.
    """
    settings = [mine for _, mine in settings_with_shared_seeds(records)]
    gaps: dict[str, dict[str, list[float]]] = {}
    for score in BEHIND:
        sign = 1 if higher_is_better(score) else -1
        for mine in settings:
            found = {name: sign * value for name, value in means_of(mine, score).items()}
            best = max(found.values())
            for name, value in found.items():
                gaps.setdefault(name, {}).setdefault(score, []).append(best - value)

    def order(name: str) -> float:
        its = gaps[name].get(BEHIND[0])
        return mean(its) if its else float("inf")

    lines = []
    for name in sorted(gaps, key=order):
        line = [f"`{name}`"]
        for score in BEHIND:
            its = gaps[name].get(score)
            if its is None:
                line += ["–", "–", "–"]
            else:
                line += [f"{mean(its):.1f} ({max(its):.1f})", str(its.count(0.0)), str(len(its))]
        lines.append(line)
    head = ["points behind the best: mean (largest)"]
    for score in BEHIND:
        head += [title_of(score), "first in", "settings"]
    return rows_text(head, lines) + short_note(records)


def coverage_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return how large every study is so far: settings, methods, runs and seeds."""
    lines = []
    for result in results:
        records = result["runs"]
        seeds: dict[tuple[str, str, str], set[int]] = {}
        for one in records:
            point = (one["setting"], one["method"], repr(one["changed"]))
            seeds.setdefault(point, set()).add(one["seed"])
        counts = [len(its) for its in seeds.values()]
        range_text = str(min(counts))
        if max(counts) > min(counts):
            range_text = f"{min(counts)} to {max(counts)}"
        networks, rounds = networks_and_rounds(records)
        lines.append(
            [
                f"`{result['study']}`, {result['scale']['name']}",
                str(len({one["setting"] for one in records})),
                str(len(methods_of(records))),
                str(len(records)),
                networks,
                rounds,
                range_text,
            ]
        )
    head = ["study, scale", "settings", "methods", "runs", "network", "rounds", "seeds"]
    return rows_text(head, lines)


def repeats_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return how far runs of the same configuration and seed are apart in different files."""
    found: dict[tuple[str, ...], list[ResultRow]] = {}
    for result in results:
        for one in result["runs"]:
            if one["changed"]:
                continue
            options = sorted(
                f"{name}={value!r}"
                for name, value in one["options"].items()
                if name.startswith(TRAINED)
            )
            where = [one[name] for name in ("data", "split", "clients", "images", "rounds")]
            what = [one[name] for name in ("method", "seed", "model", "width")]
            found.setdefault(tuple(map(str, [*what, *where, *options])), []).append(one)
    lines = []
    for words, wanted in (("federated methods", False), ("`local` and `central`", True)):
        for protocol, score in REPEATED:
            ranges = []
            for records in found.values():
                # The same run may stand in two files; its scores agree to the last digit.
                values = {
                    100 * one[protocol][score]
                    for one in records
                    if (one["method"] in REFERENCES) == wanted and score in one[protocol]
                }
                if len(values) > 1:
                    ranges.append(max(values) - min(values))
            if ranges:
                numbers = [str(len(ranges)), f"{median(ranges):.2f}", f"{max(ranges):.2f}"]
                lines.append([f"{words}, {title_of(f'{protocol}.{score}')}", *numbers])
    head = ["same configuration and seed", "pairs or groups", "median range", "largest range"]
    return rows_text(head, lines)
