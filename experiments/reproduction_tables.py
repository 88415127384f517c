"""The tables of docs/reproduction.md, as Markdown."""

import re
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from reproduction_notes import heading, rows_text
from reproduction_statistics import FEWEST_SEEDS, compared, holm, number, verdict

from cafedcl.compare.results import ResultRow, by_setting, member_of, scores
from cafedcl.config.format import FORMAT
from cafedcl.config.options import to_toml
from cafedcl.config.split_options import parse_split
from cafedcl.report.paired import paired
from cafedcl.report.paper import paper_position
from cafedcl.report.setting import Setting
from cafedcl.report.table import Cell, ranks

MAIN = ("server.accuracy", "server.client_std", "own.client_mean", "own.client_std")
SKIN = (
    "server.balanced",
    "server.few",
    "server.accuracy",
    "server.client_worst",
    "own.balanced",
    "own.few",
    "own.client_mean",
    "own.client_worst",
)
BALANCED = ("server.balanced", "own.balanced")
TITLES = {
    "accuracy": "accuracy",
    "balanced": "balanced acc.",
    "few": "few-shot recall",
    "client_mean": "client mean",
    "client_std": "client std",
    "client_worst": "worst clients",
    "held_mean": "client mean, own classes",
    "prior_mean": "client mean with prior",
}
OURS = ("cafedcl", "cafedcl:fixed-anchors", "cafedcl:best")
REFERENCES = ("local", "central")
"""Reference rows: training without federation, and with all data in one place."""


def methods_of(records: Sequence[ResultRow]) -> list[str]:
    """Return the methods in the order of the file."""
    return list(dict.fromkeys(one["method"] for one in records))


def by_method(records: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Return the runs of every method, in the order of the file."""
    return {name: [one for one in records if one["method"] == name] for name in methods_of(records)}


def higher_is_better(score: str) -> bool:
    """Return whether a larger value of a score is better."""
    return not score.endswith("std")


def title_of(score: str) -> str:
    """Return the heading of a score's column."""
    protocol, _, name = score.partition(".")
    return f"{protocol}: {TITLES[name]}"


def marked(rows: Mapping[str, Sequence[ResultRow]], wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return every row's scores as mean ± std over seeds, with the best of each in bold."""
    found: dict[str, list[str]] = {name: [] for name in rows}
    for score in wanted:
        cells = {
            name: Cell(tuple(scores(records, records[0]["method"], score).values()))
            for name, records in rows.items()
        }
        # References are never marked as the best.
        means = [None if name in REFERENCES else cell.mean for name, cell in cells.items()]
        for (name, cell), rank in zip(
            cells.items(), ranks(means, higher=higher_is_better(score)), strict=True
        ):
            found[name].append(f"**{cell.text}**" if rank == 1 else cell.text)
    return found


def paper_figures(record: ResultRow) -> dict[str, tuple[float, float]]:
    """Return the paper's accuracy and std by method, if the paper has this setting."""
    split = {f"split.{name}": value for name, value in parse_split(record["split"]).items()}
    shown = Setting.of(
        {**split, "data.name": record["data"], "federation.clients": record["clients"]}
    )
    return paper_position(shown).figures


def overview(records: Sequence[ResultRow], wanted: Sequence[str], paper: bool) -> str:
    """Return a table per setting: methods × scores, and the paper's figures if it has any."""
    text = ""
    for setting, mine in by_setting(records):
        rows = by_method(mine)
        figures = paper_figures(mine[0]) if paper else {}
        paper_head = ["paper: accuracy", "paper: std"] if figures else []
        head = ["method", *map(title_of, wanted), *paper_head, "seeds"]
        lines = []
        for name, cells in marked(rows, wanted).items():
            line = [f"`{name}`", *cells]
            if name in figures:
                line += [f"{value:.2f}" for value in figures[name]]
            elif figures:
                line += ["–", "–"]
            lines.append([*line, str(len(rows[name]))])
        text += heading(setting, mine) + rows_text(head, lines)
    return text


def methods_table(records: Sequence[ResultRow]) -> str:
    """Return methods × scores beside the paper's figures."""
    return overview(records, MAIN, True)


def skin_table(records: Sequence[ResultRow]) -> str:
    """Return methods × the scores that matter with rare classes."""
    return overview(records, SKIN, False)


def differences(
    records: Sequence[ResultRow], pairs: Sequence[tuple[str, str]], tested: Sequence[str]
) -> str:
    """Return a row per pair of methods: differences of scores, and p-values corrected by Holm."""
    columns: list[list[list[str]]] = []
    for score in tested:
        found = [
            compared(scores(records, one, score), scores(records, other, score))
            for one, other in pairs
        ]
        corrected = holm([None if it is None else it[2] for it in found])
        column = []
        for gap, corrected_p in zip(found, corrected, strict=True):
            if gap is None:
                column.append(["n/a", "n/a"])
            else:
                difference, error, p = gap
                ps = f"{number(p)} / {number(corrected_p)}"
                column.append([f"{difference:+.2f} ± {error:.2f}", ps])
        columns.append(column)
    head = [
        "difference",
        *(word for score in tested for word in (title_of(score), "p / Holm")),
        "shared seeds",
    ]
    lines = []
    for at, (one, other) in enumerate(pairs):
        seeds = most_shared(records, one, other, tested)
        lines.append(
            [f"`{one}` − `{other}`", *(word for it in columns for word in it[at]), str(seeds)]
        )
    return rows_text(head, lines)


def most_shared(records: Sequence[ResultRow], one: str, other: str, tested: Sequence[str]) -> int:
    """Return the largest number of seeds that two methods share in any score."""
    return max(
        len(paired(scores(records, one, score), scores(records, other, score))) for score in tested
    )


def base_of(method: str) -> str:
    """Return a method without its preset and its tail augmentation."""
    return re.split("[:+]", method)[0]


def baselines_table(records: Sequence[ResultRow], tested: Sequence[str] = MAIN) -> str:
    """Return the differences of CAFedCL to every other method, per setting."""
    text = ""
    for setting, mine in by_setting(records):
        there = methods_of(mine)
        baselines = [
            name for name in there if name not in REFERENCES and base_of(name) != "cafedcl"
        ]
        tables = ""
        for ours in (name for name in OURS if name in there):
            known = [
                baseline
                for baseline in baselines
                if most_shared(mine, ours, baseline, tested) >= FEWEST_SEEDS
            ]
            few = [f"`{baseline}`" for baseline in baselines if baseline not in known]
            if known:
                tables += differences(mine, [(ours, baseline) for baseline in known], tested)
            if few:
                names = ", ".join(few)
                tables += f"Fewer than {FEWEST_SEEDS} seeds shared with `{ours}`: {names}.\n\n"
        if tables:
            text += heading(setting, mine) + tables
    return text


def claims_table(records: Sequence[ResultRow]) -> str:
    """Return, per setting and score, whether CAFedCL is the best, with a test against the best."""
    lines = []
    for setting, mine in by_setting(records):
        for score in MAIN:
            higher = higher_is_better(score)
            baselines = {
                name: scores(mine, name, score)
                for name in methods_of(mine)
                if base_of(name) != "cafedcl"
            }
            known = {
                name: mean(its.values())
                for name, its in baselines.items()
                if its and name not in REFERENCES
            }
            for ours in OURS:
                own = scores(mine, ours, score)
                if not own or not known:
                    continue
                best = (max if higher else min)(known, key=lambda name: known[name])
                sign = 1 if higher else -1
                ahead = [
                    name for name, value in known.items() if sign * (value - mean(own.values())) > 0
                ]
                gap = compared(own, baselines[best])
                difference = "n/a"
                if gap is not None:
                    difference = f"{gap[0]:+.2f} ± {gap[1]:.2f} ({number(gap[2])})"
                rank = f"{len(ahead) + 1} of {len(known) + 1}"
                lines.append(
                    [
                        f"`{ours}`, {setting}",
                        title_of(score),
                        rank,
                        f"`{best}`",
                        difference,
                        verdict(gap, not ahead, higher),
                    ]
                )
    return rows_text(
        ["method, setting", "score", "rank", "best baseline", "difference to it (p)", "first?"],
        lines,
    )


def ablation_table(records: Sequence[ResultRow]) -> str:
    """Return the differences of every variant to full CAFedCL with the same tail augmentation.

    CAFedCL without augmentation is compared with CAFedCL with the GAN.
    """
    text = ""
    for setting, mine in by_setting(records):
        there = methods_of(mine)
        pairs = []
        for name in there:
            _, plus, tail = name.partition("+")
            whole = "cafedcl+gan" if name == "cafedcl" else f"cafedcl{plus}{tail}"
            if whole in there and whole != name:
                pairs.append((name, whole))
        if pairs:
            text += heading(setting, mine) + differences(mine, pairs, MAIN)
    return text


def sensitivity_table(records: Sequence[ResultRow]) -> str:
    """Return a small table per setting, method and option: value → scores."""
    text = ""
    for setting, usual in by_setting(records):
        for method in methods_of(usual):
            base = [one for one in usual if one["method"] == method]
            options = member_of(base[0], {}, FORMAT).run.settings
            varied = [
                one
                for one in records
                if (one["setting"], one["method"]) == (setting, method) and len(one["changed"]) == 1
            ]
            for option in dict.fromkeys(name for one in varied for name in one["changed"]):
                points = [(options.get(option), base)]
                for value in [one["changed"].get(option) for one in varied]:
                    same = [one for one in varied if one["changed"] == {option: value}]
                    if same and value not in [known for known, _ in points]:
                        points.append((value, same))
                if all(isinstance(value, int | float) for value, _ in points):
                    points.sort(key=lambda point: point[0])
                rows = {to_toml(value): runs for value, runs in points}
                cells = marked(rows, MAIN)
                lines = [
                    [f"{value} (default)" if runs is base else value, *cells[value], str(len(runs))]
                    for value, runs in rows.items()
                ]
                text += f"**{setting}**, `{method}`\n\n" + rows_text(
                    [f"`{option}`", *map(title_of, MAIN), "seeds"], lines
                )
    return text


def tuning_table(result: Mapping[str, Any]) -> str:
    """Return the scores of every method's candidates on the held-out images."""

    def words(point: Mapping[str, Any]) -> str:
        return ", ".join(f"`{name}={to_toml(value)}`" for name, value in point.items())

    lines = []
    for method, its in result["methods"].items():
        ordered = sorted(
            (one for one in its["candidates"] if one["value"] is not None),
            key=lambda one: -one["value"],
        )
        others = [f"{words(one['options'])} {100 * one['value']:.1f}" for one in ordered[1:]]
        others += [
            f"{words(one['options'])} without a score"
            for one in its["candidates"]
            if one["value"] is None
        ]
        lines.append(
            [
                f"`{method}`",
                title_of(its["score"]),
                words(its["best"]),
                f"{100 * its['value']:.1f}",
                "; ".join(others),
            ]
        )
    where = result["environment"]
    plural = "s" if result["seeds"] > 1 else ""
    where_scored = " and ".join(f"{it['data']}, {it['split']}" for it in result["settings"])
    facts = [
        f"{result['budget']} candidates each, {result['seeds']} seed{plural}",
        f"{where_scored}, {', '.join(result['options'])}",
        f"scores on {result['measured_on']}",
        str(where["device_name"]),
    ]
    table = rows_text(["method", "chosen by", "best candidate", "score", "the others"], lines)
    return table + f"<sub>{'; '.join(facts)}; <code>{' '.join(where['command'])}</code></sub>\n\n"


def ranks_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return mean ranks over all settings, and how often each method is first.

    Only methods that ran in all settings are ranked. Methods without a server's model have ranks of
    the clients' own models only.
    """
    settings = [mine for result in results for _, mine in by_setting(result["runs"])]
    everywhere = set.intersection(*(set(methods_of(mine)) for mine in settings)) - set(REFERENCES)
    names = [name for name in methods_of(settings[0]) if name in everywhere]
    cells: dict[str, list[str]] = {name: [] for name in names}
    for score in MAIN:
        places: dict[str, list[int]] = {name: [] for name in names}
        for mine in settings:
            sign = 1 if higher_is_better(score) else -1
            found = {name: scores(mine, name, score) for name in names}
            means = {name: sign * mean(its.values()) for name, its in found.items() if its}
            for name, value in means.items():
                places[name].append(1 + sum(other > value for other in means.values()))
        least = min(mean(its) for its in places.values() if its)
        for name, its in places.items():
            if not its:
                cells[name].append("–")
                continue
            rank = f"{mean(its):.2f}"
            if mean(its) == least:
                rank = f"**{rank}**"
            cells[name].append(f"{rank} ({its.count(1)})")
    lines = [[f"`{name}`", *its] for name, its in cells.items()]
    return rows_text(
        [f"mean rank over {len(settings)} settings (firsts)", *map(title_of, MAIN)], lines
    )
