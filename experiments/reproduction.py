"""The tables of docs/reproduction.md, written from the result files.

    python experiments/reproduction.py            # writes them
    python experiments/reproduction.py --check    # compares only; exit status 1 if the page is not up to date

A block between `<!-- table:RESULT:KIND -->` and `<!-- /table -->` is filled from every file
RESULT*.json in experiments/results, each a results.json of `cafedcl reproduce`, or what
experiments/tuning.py has written. KINDS has all kinds of tables, ACROSS those that take several
results at once, written as ONE+ANOTHER:KIND.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from cafedcl.compare.results import ResultRow, by_setting, member_of, scores
from cafedcl.config.options import to_toml
from cafedcl.config.sections import parse_split
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.report.paper import paper_position
from cafedcl.report.run_summary import Setting
from cafedcl.report.table import Cell, p_values, paired, ranks

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "reproduction.md"
RESULTS = HOME / "experiments" / "results"
NAMES = ("table1", "table2", "ablation", "sensitivity", "standins", "skin", "tuned", "tuning")
BLOCK = re.compile(r"(<!-- table:(\S+) -->\n).*?(<!-- /table -->)", re.DOTALL)
MARK = re.compile(r"<!-- (?:table:\S+|/table) -->")
EMPTY = "_No result file yet._\n\n"
MAIN = ("server.accuracy", "server.client_std", "own.client_mean", "own.client_std")
SKIN = (
    "server.balanced", "server.few", "server.accuracy", "server.client_worst",
    "own.balanced", "own.few", "own.client_mean", "own.client_worst",
)  # fmt: skip
BALANCED = ("server.balanced", "own.balanced")
TITLES = {
    "accuracy": "accuracy", "balanced": "balanced acc.", "few": "few-shot recall", "client_mean": "client mean",
    "client_std": "client std", "client_worst": "worst clients",
}  # fmt: skip
OURS = ("cafedcl", "cafedcl:best")
REFERENCES = ("local", "central")
"""Rows that are no rivals: no federation at all, and all data in one place, which is never marked
as the best.
"""
SURE = 0.05
"""A difference is significant below this p."""
FEWEST = 3
"""Shared seeds that a test needs."""

Statistics = tuple[float, float, float | None]
"""Mean difference in points, its standard error, p."""


def methods_of(records: Sequence[ResultRow]) -> list[str]:
    """Return the methods in the order of the file."""
    return list(dict.fromkeys(one["method"] for one in records))


def compared(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Statistics | None:
    """Return how much more ours is on the shared seeds; None with too few. No p where the
    differences do not vary.
    """
    gaps = paired(ours, theirs)
    if len(gaps) < FEWEST:
        return None
    return mean(gaps), stdev(gaps) / math.sqrt(len(gaps)), p_values(gaps)[0]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected by Holm for how many there are."""
    order = sorted(
        (at for at, value in enumerate(values) if value is not None),
        key=lambda at: values[at] or 0.0,
    )
    corrected: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * (values[at] or 0.0)))
        corrected[at] = largest
    return corrected


def number(value: float | None) -> str:
    """Return a p-value as it is printed."""
    return "n/a" if value is None else ("< 0.001" if value < 0.001 else f"{value:.3f}")


def rows_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def title_of(score: str) -> str:
    """Return the heading of a score's column."""
    protocol, _, name = score.partition(".")
    return f"{protocol}: {TITLES[name]}"


def marked(rows: Mapping[str, Sequence[ResultRow]], wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return every row's scores as mean ± std over seeds, the best of each score in bold."""
    found: dict[str, list[str]] = {name: [] for name in rows}
    for score in wanted:
        cells = {
            name: Cell(tuple(scores(records, records[0]["method"], score).values()))
            for name, records in rows.items()
        }
        means = [None if name == "central" else cell.mean for name, cell in cells.items()]
        for (name, cell), rank in zip(
            cells.items(), ranks(means, higher=not score.endswith("std")), strict=True
        ):
            found[name].append(f"**{cell.text}**" if rank == 1 else cell.text)
    return found


def heading(setting: str, records: Sequence[ResultRow]) -> str:
    """Return what stands above the table of a setting."""
    one = records[0]
    images = dict.fromkeys(str(it["images"]) for it in records)
    return (
        f"**{setting}**: {one['data']}, `{one['split']}`, {one['clients']} clients, "
        f"{' / '.join(images)} training images\n\n"
    )


def paper_figures(record: ResultRow) -> dict[str, tuple[float, float]]:
    """Return the paper's accuracy and std by method, if the setting is one of its own."""
    split = {f"split.{name}": value for name, value in parse_split(record["split"]).items()}
    shown = Setting.of(
        {**split, "data.name": record["data"], "federation.clients": record["clients"]}
    )
    return paper_position(shown).figures


def overview(records: Sequence[ResultRow], wanted: Sequence[str], paper: bool) -> str:
    """Return a table per setting: methods × scores, and the paper's figures where it has any."""
    text = ""
    for setting, mine in by_setting(records):
        rows = {name: [one for one in mine if one["method"] == name] for name in methods_of(mine)}
        figures = paper_figures(mine[0]) if paper else {}
        head = [
            "method",
            *map(title_of, wanted),
            *(["paper: accuracy", "paper: std"] if figures else []),
            "seeds",
        ]
        lines = []
        for name, cells in marked(rows, wanted).items():
            theirs = [f"{value:.2f}" for value in figures[name]] if name in figures else ["–", "–"]
            lines.append([f"`{name}`", *cells, *(theirs if figures else []), str(len(rows[name]))])
        text += heading(setting, mine) + rows_text(head, lines)
    return text


def methods_table(records: Sequence[ResultRow]) -> str:
    """Return methods × scores beside the paper's figures."""
    return overview(records, MAIN, True)


def skin_table(records: Sequence[ResultRow]) -> str:
    """Return what counts where classes are rare."""
    return overview(records, SKIN, False)


def differences(
    records: Sequence[ResultRow], pairs: Sequence[tuple[str, str]], tested: Sequence[str]
) -> str:
    """Return a row per pair: how much more the first one's scores are, and p, corrected over all
    rows.
    """
    columns: list[list[list[str]]] = []
    for score in tested:
        found = [
            compared(scores(records, one, score), scores(records, other, score))
            for one, other in pairs
        ]
        corrected = holm([None if it is None else it[2] for it in found])
        columns.append(
            [
                ["n/a"] * 2
                if it is None
                else [f"{it[0]:+.2f} ± {it[1]:.2f}", f"{number(it[2])} / {number(fixed)}"]
                for it, fixed in zip(found, corrected, strict=True)
            ]
        )
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
    """Return how many seeds two methods share, in the score in which it is most."""
    return max(
        len(paired(scores(records, one, score), scores(records, other, score))) for score in tested
    )


def base_of(method: str) -> str:
    """Return a method without its preset and its tail augmentation."""
    return re.split("[:+]", method)[0]


def rivals_table(records: Sequence[ResultRow], tested: Sequence[str] = MAIN) -> str:
    """Return CAFedCL against every rival, per setting."""
    text = ""
    for setting, mine in by_setting(records):
        there = methods_of(mine)
        rivals = [name for name in there if name not in REFERENCES and base_of(name) != "cafedcl"]
        tables = ""
        for ours in (name for name in OURS if name in there):
            known = [rival for rival in rivals if most_shared(mine, ours, rival, tested) >= FEWEST]
            few = [f"`{rival}`" for rival in rivals if rival not in known]
            tables += differences(mine, [(ours, rival) for rival in known], tested) if known else ""
            tables += (
                f"Fewer than {FEWEST} seeds shared with `{ours}`: {', '.join(few)}.\n\n"
                if few
                else ""
            )
        text += heading(setting, mine) + tables if tables else ""
    return text


def verdict(gap: Statistics | None, leads: bool, higher: bool) -> str:
    """Return whether a claim to be the best holds, from how much more ours is than the best
    rival's.
    """
    if gap is None or gap[2] is None:
        return "cannot be said"
    sure = gap[2] < SURE and (gap[0] > 0) == (leads == higher)
    if leads:
        return "**holds**" if sure else "ahead, not significantly"
    return "**does not hold**" if sure else "not ahead, not significantly behind"


def claims_table(records: Sequence[ResultRow]) -> str:
    """Return, per setting and score, whether CAFedCL leads all rivals, with the test against the
    best of them.
    """
    lines = []
    for setting, mine in by_setting(records):
        for score in MAIN:
            higher = not score.endswith("std")
            rivals = {
                name: scores(mine, name, score)
                for name in methods_of(mine)
                if base_of(name) != "cafedcl"
            }
            known = {
                name: mean(its.values())
                for name, its in rivals.items()
                if its and name not in REFERENCES
            }
            for ours in OURS:
                own = scores(mine, ours, score)
                if not own or not known:
                    continue
                best = (max if higher else min)(known, key=lambda name: known[name])
                ahead = [
                    name for name, value in known.items() if (value > mean(own.values())) == higher
                ]
                gap = compared(own, rivals[best])
                said = "n/a" if gap is None else f"{gap[0]:+.2f} ± {gap[1]:.2f} ({number(gap[2])})"
                rank = f"{len(ahead) + 1} of {len(known) + 1}"
                lines.append(
                    [
                        f"`{ours}`, {setting}",
                        title_of(score),
                        rank,
                        f"`{best}`",
                        said,
                        verdict(gap, not ahead, higher),
                    ]
                )
    return rows_text(
        ["method, setting", "score", "rank", "best rival", "difference to it (p)", "first?"], lines
    )


def ablation_table(records: Sequence[ResultRow]) -> str:
    """Return every variant against the whole with the same tail augmentation, and the whole without
    any against it.
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
        text += heading(setting, mine) + differences(mine, pairs, MAIN) if pairs else ""
    return text


def sensitivity_table(records: Sequence[ResultRow]) -> str:
    """Return a small table per setting, method and option: value → scores."""
    text = ""
    for setting, usual in by_setting(records):
        for method in methods_of(usual):
            base = [one for one in usual if one["method"] == method]
            options = member_of(base[0], {}).run.settings
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
    """Return what every method's candidates came to on the images held out."""

    def words(point: Mapping[str, Any]) -> str:
        keys = [name.partition(".")[2] for name in point]
        short = {
            name: name if keys.count(key) > 1 else key
            for name, key in zip(point, keys, strict=True)
        }
        return ", ".join(f"`{short[name]}={to_toml(value)}`" for name, value in point.items())

    lines = []
    for method, its in result["methods"].items():
        ordered = sorted(
            (one for one in its["candidates"] if one["value"] is not None),
            key=lambda one: -one["value"],
        )
        others = "; ".join(
            f"{words(one['options'])} {100 * one['value']:.1f}" for one in ordered[1:]
        )
        lines.append(
            [
                f"`{method}`",
                title_of(its["score"]),
                words(its["best"]),
                f"{100 * its['value']:.1f}",
                others,
            ]
        )
    where = result["environment"]
    said = [
        f"{result['budget']} candidates each, {result['seeds']} seed{'s' if result['seeds'] > 1 else ''}",
        f"{result['data']}, {result['split']}, {', '.join(result['options'])}",
        f"scores on {result['measured_on']}",
        str(where["device_name"]),
    ]
    table = rows_text(["method", "chosen by", "best candidate", "score", "the others"], lines)
    return table + f"<sub>{'; '.join(said)}; <code>{' '.join(where['command'])}</code></sub>\n\n"


def of_runs(table: Callable[[Sequence[ResultRow]], str], result: Mapping[str, Any]) -> str:
    """Return a table of runs and what stands below it."""
    return table(result["runs"]) + small_print(result) if result["runs"] else ""


KINDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "methods": partial(of_runs, methods_table),
    "tests": partial(of_runs, rivals_table),
    "claims": partial(of_runs, claims_table),
    "balanced-tests": partial(of_runs, partial(rivals_table, tested=BALANCED)),
    "ablation": partial(of_runs, ablation_table),
    "sensitivity": partial(of_runs, sensitivity_table),
    "skin": partial(of_runs, skin_table),
    "tuning": tuning_table,
}


def ranks_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean rank over all settings of the methods that were run in all of them, and how
    often each is first.

    Of methods without a server's model there is a rank among the clients' own only.
    """
    settings = [mine for result in results for _, mine in by_setting(result["runs"])]
    everywhere = set.intersection(*(set(methods_of(mine)) for mine in settings)) - set(REFERENCES)
    names = [name for name in methods_of(settings[0]) if name in everywhere]
    cells: dict[str, list[str]] = {name: [] for name in names}
    for score in MAIN:
        places: dict[str, list[int]] = {name: [] for name in names}
        for mine in settings:
            sign = -1 if score.endswith("std") else 1
            found = {name: scores(mine, name, score) for name in names}
            means = {name: sign * mean(its.values()) for name, its in found.items() if its}
            for name, value in means.items():
                places[name].append(1 + sum(other > value for other in means.values()))
        least = min(mean(its) for its in places.values() if its)
        for name, its in places.items():
            said = f"{mean(its):.2f}" if its else "–"
            best = f"**{said}**" if its and mean(its) == least else said
            cells[name].append(f"{best} ({its.count(1)})" if its else said)
    lines = [[f"`{name}`", *its] for name, its in cells.items()]
    return rows_text(
        [f"mean rank over {len(settings)} settings (firsts)", *map(title_of, MAIN)], lines
    )


ACROSS: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"ranks": ranks_table}


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in short."""
    ordered = sorted(set(seeds))
    whole = ordered == list(range(ordered[0], ordered[-1] + 1)) and len(ordered) > 1
    return f"{ordered[0]} to {ordered[-1]}" if whole else ", ".join(map(str, ordered))


def small_print(result: Mapping[str, Any]) -> str:
    """Return the line below a table: how its numbers were made."""
    records = result["runs"]
    where = result["environment"]

    def every(name: str) -> str:
        return " / ".join(
            dict.fromkeys(
                f"{one[name]:g}" if name == "width" else f"{one[name]}" for one in records
            )
        )

    protocols = dict.fromkeys(
        one["options"].get("evaluate.protocol", "complete") for one in records
    )
    devices = dict.fromkeys(
        one.get("environment", {}).get("device_name", where["device_name"]) for one in records
    )
    versions = ", ".join(
        f"{name} {version}" for name, version in where["packages"].items() if version
    )
    words = [
        f"{every('rounds')} rounds", f"{every('model')}, width {every('width')}", f"{every('images')} training images",
        f"{every('clients')} clients", f"seeds {seeds_text([one['seed'] for one in records])}",
        f"protocol {' / '.join(protocols)}", f"{every('engine')}, {every('precision')}",
        f"Python {where['python']}, {versions}", " / ".join(devices),
    ]  # fmt: skip
    failed, skipped = (
        sum(one[name] for one in records) for name in ("failed_visits", "skipped_rounds")
    )
    words += [f"{failed} failed visits, {skipped} skipped rounds"] if failed or skipped else []
    left = len(result["unfinished"])
    words += [f"{left} run{'s' if left > 1 else ''} not finished"] if left else []
    words += own_options(records)
    return f"<sub>{'; '.join(words)}; <code>{' '.join(where['command'])}</code></sub>\n\n"


def own_options(records: Sequence[ResultRow]) -> list[str]:
    """Return the options of training and of methods in which runs of one setting depart from each
    other's.
    """
    settings = [mine for _, mine in by_setting(records)]
    found: dict[str, dict[str, Any]] = {}
    for mine in settings:
        shared = set.intersection(*(set(map(repr, one["options"].items())) for one in mine))
        for one in mine:
            for name, value in one["options"].items():
                if name.startswith(("train.", "method.")) and repr((name, value)) not in shared:
                    found.setdefault(one["method"], {})[name] = value
    said = [
        f"{method} " + ", ".join(f"{n}={to_toml(v)}" for n, v in its.items())
        for method, its in found.items()
    ]
    return [f"options of its own: {'; '.join(said)}"] if said else []


def block(name: str, results: Path) -> str:
    """Return what stands between the marks of a table."""
    wanted, colon, kind = name.partition(":")
    if not colon or kind not in (*KINDS, *ACROSS):
        raise CafedclError(
            f"table:{name}: RESULT:KIND is expected; {nearest(kind, [*KINDS, *ACROSS])}"
        )
    text = ""
    found = []
    for one in wanted.split("+") if kind in ACROSS else [wanted]:
        if not one.startswith(NAMES):
            raise CafedclError(
                f"table:{name}: there is no such result; {nearest(one, list(NAMES))}"
            )
        for path in sorted(results.glob(f"{one}*.json")):
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
                text += KINDS[kind](found[-1]) if kind in KINDS else ""
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CafedclError(
                    f"{path}: not a result of `cafedcl reproduce`: {error!r}"
                ) from None
    text += ACROSS[kind](found) if kind in ACROSS and found else ""
    return "\n" + (text or EMPTY)


def filled(page: str, results: Path) -> str:
    """Return the page with its tables as the result files have them."""
    marks = MARK.findall(page)
    if any(("/table" in mark) != bool(at % 2) for at, mark in enumerate(marks)) or len(marks) % 2:
        raise CafedclError("docs/reproduction.md: every <!-- table:… --> needs its <!-- /table -->")
    return BLOCK.sub(lambda found: found[1] + block(found[2], results) + found[3], page)


def main(words: Sequence[str] | None = None) -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 if the page is stale"
    )
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="the folder with the result files"
    )
    arguments = parser.parse_args(words)
    try:
        now = arguments.page.read_text(encoding="utf-8")
        wanted = filled(now, arguments.results)
    except OSError as error:
        sys.exit(f"error: {arguments.page}: cannot be read: {error.strerror}")
    except CafedclError as error:
        sys.exit(f"error: {error}")
    if arguments.check and now != wanted:
        sys.exit(f"{arguments.page}: not up to date; run python experiments/reproduction.py")
    if not arguments.check:
        arguments.page.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
