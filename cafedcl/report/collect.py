"""The data of every panel as plain numbers and arrays, for both the HTML page and the figures.

Rounds count from 1 here, as in all output for people; run folders count from 0.
"""

import base64
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import numpy as np

from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.federation.run_folder import RunFolder
from cafedcl.report import scenes
from cafedcl.report.details import data_map, details, shown_clients
from cafedcl.report.evaluations import RunEvaluations, read_evaluations, spaced
from cafedcl.report.palette import series_style
from cafedcl.report.run_summary import PROTOCOL_SCORES, RunSummary, round_seconds
from cafedcl.report.runs import SettingGroup, Summary, TableRow
from cafedcl.report.table import TABLE_MEASURES, Column, column, common_protocol

MOST_POINTS = 400
"""Points of a curve, at most."""
PICTURES = 12
"""Contact sheets of a run, at most."""
PICTURE_BYTES = 3_000_000
"""The largest total size of a run's contact sheets, so that the page stays small."""
PNG = b"\x89PNG\r\n\x1a\n"
SHOTS = ("many", "medium", "few")


def collect(summary: Summary) -> dict[str, Any]:
    """Return the data of all panels of all settings."""
    problems: list[str] = []
    groups = [collect_group(group, problems) for group in summary.groups]
    return {
        "groups": groups,
        "runs": [describe_run(run, problems) for run in summary.runs],
        "problems": problems,
    }


def collect_group(group: SettingGroup, problems: list[str]) -> dict[str, Any]:
    """Return the data of one setting's panels; details come from one seed per method."""
    by_row = [read_evaluations(row.runs[0]) for row in group.main]
    of_runs = [details(evaluations) for evaluations in by_row]
    for evaluations in by_row:
        problems += evaluations.problems
    first = next((each for each in by_row if each.data is not None), None)
    setting = group.setting
    found: dict[str, Any] = {
        "title": setting.title,
        "data": setting.data,
        "split": setting.split,
        "others": setting.others,
        "clients": setting.clients,
        "protocol": common_protocol([group]),
        "entries": [describe_row(row) for row in group.main],
        "notes": group.differing(),
        "ranking": {
            protocol: collect_ranking(group, protocol)
            for protocol in PROTOCOL_SCORES
            if measured(group, protocol)
        },
        "curves": [collect_curves(row) for row in group.main],
        "details": of_runs,
        "cost": [collect_cost(row) for row in group.main],
        "shots": {
            protocol: collect_shots(group, protocol)
            for protocol in PROTOCOL_SCORES
            if measured(group, protocol)
        },
        "ablation": collect_ablation(group),
        "sensitivity": collect_sensitivity(group),
        "samples": collect_samples(group, problems),
    }
    if first is not None and first.data is not None:
        classes = first.data.counts.shape[1]
        shown = shown_clients(len(first.data.counts))
        found["map"] = data_map(first)
        found["confidence"] = gathered(by_row, lambda row: scenes.collect_confidence(row, shown))
        found["prototypes"] = gathered(by_row, lambda row: scenes.collect_prototypes(row, classes))
        found["loop"] = gathered(by_row, lambda row: scenes.collect_loop(row, classes))
    return found


def gathered(
    by_row: Sequence[RunEvaluations], make: Callable[[RunEvaluations], dict[str, Any] | None]
) -> list[dict[str, Any]]:
    """Apply a function to every row; returns the results that are not None, with their row."""
    scenes = enumerate(map(make, by_row))
    return [{"entry": i, **scene} for i, scene in scenes if scene is not None]


def measured(group: SettingGroup, protocol: str) -> bool:
    """Return whether any method has scores under a protocol."""
    return any(row.scores(protocol, "accuracy") for row in group.main)


def describe_row(row: TableRow) -> dict[str, Any]:
    """Return the label of a row, its seeds, and how it is drawn."""
    style = series_style(row.label)
    return {
        "label": row.label,
        "base": row.base,
        "colour": style.colour,
        "symbol": style.symbol,
        "dash": style.dash,
        "seeds": [run.seed for run in row.runs],
        "partial": row.partial,
        "rounds": max(len(run.lines) for run in row.runs),
    }


def collect_ranking(group: SettingGroup, protocol: str) -> dict[str, Any]:
    """Return the last scored round of every entry: per seed, mean, std and rank."""
    found: Column = column(SettingGroup(group.setting, group.main), protocol, "last")
    ranked: list[dict[str, Any] | None] = []
    for row in group.main:
        cells = found.cells[row.label]
        if not cells["accuracy"].values:
            ranked.append(None)
            continue
        scores: dict[str, Any] = {
            measure: {"values": cell.values, "mean": cell.mean, "std": cell.std, "rank": cell.rank}
            for measure, cell in cells.items()
        }
        best = [100 * value for value in row.scores(protocol, "accuracy", "best").values()]
        scores["best"] = average(best)
        classes = found.classes.get(row.label)
        if classes is not None:
            scores["classes"] = {
                "names": classes.names,
                "recall": classes.recall,
                "worst": classes.worst,
                "warning": classes.warning,
            }
        ranked.append(scores)
    return {
        "rows": ranked,
        "by": found.ranked_by,
        "skew": found.skew,
        "comparison": found.comparison.text if found.comparison else None,
    }


def collect_curves(row: TableRow) -> dict[str, Any]:
    """Return the scores over rounds, and the bytes and seconds used up to each round.

    All values are means over seeds; scores also have a standard deviation.
    """
    rounds = spaced(list(range(max(len(run.lines) for run in row.runs))), MOST_POINTS)
    found: dict[str, Any] = {"rounds": [t + 1 for t in rounds]}
    for name, amount in (("bytes", sent), ("seconds", round_seconds)):
        sums = [np.cumsum([amount(line) for line in run.lines]) for run in row.runs]
        found[name] = [mean(float(s[t]) for s in sums if t < len(s)) for t in rounds]
    for protocol in PROTOCOL_SCORES:
        found[protocol] = None
        if any_scored(row, protocol):
            found[protocol] = {m: bands(row, rounds, protocol, m) for m in TABLE_MEASURES}
    return found


def any_scored(row: TableRow, protocol: str) -> bool:
    """Return whether a row has any score under a protocol."""
    return any(run.scored(protocol) for run in row.runs)


def bands(
    row: TableRow, rounds: Sequence[int], protocol: str, measure: str
) -> dict[str, list[float | None]]:
    """Return mean and sample standard deviation over seeds of a score in %, at every round."""
    means: list[float | None] = []
    stds: list[float | None] = []
    for t in rounds:
        lines = [(run, run.lines[t]) for run in row.runs if t < len(run.lines)]
        scores = [run.value(line, protocol, measure) for run, line in lines]
        known = [100 * value for value in scores if value is not None]
        means.append(float(np.mean(known)) if known else None)
        stds.append(float(np.std(known, ddof=1)) if len(known) > 1 else None)
    return {"mean": means, "std": stds}


def sent(line: MetricsLine) -> float:
    """Return the bytes sent in a round, up and down."""
    traffic = line.get("traffic") or {}
    return float(traffic.get("up_bytes", 0)) + float(traffic.get("down_bytes", 0))


def collect_shots(group: SettingGroup, protocol: str) -> dict[str, list[dict[str, float | None]]]:
    """Return the recall of many-, medium- and few-shot classes, for the groups that exist."""
    found: dict[str, list[dict[str, float | None]]] = {}
    for shot in SHOTS:
        cells = [
            [100 * value for value in row.scores(protocol, shot).values()] for row in group.main
        ]
        if any(cells):
            found[shot] = [{"mean": average(values), "std": deviation(values)} for values in cells]
    return found


def average(values: Sequence[float]) -> float | None:
    """Return the mean, or None if there are no values."""
    return mean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def collect_ablation(group: SettingGroup) -> list[dict[str, Any]]:
    """Return the methods with several presets or variants, and the indices of their rows."""
    families: dict[str, list[int]] = {}
    for i, row in enumerate(group.main):
        families.setdefault(row.base, []).append(i)
    return [
        {"base": base, "entries": members} for base, members in families.items() if len(members) > 1
    ]


def collect_sensitivity(group: SettingGroup) -> list[dict[str, Any]]:
    """Return scores over the values of each swept option.

    The points are the main variant of a method and the variants that differ from it only in that
    option. If all points share some seeds, only those seeds are used.
    """
    sweeps: dict[tuple[str, str], list[tuple[float, TableRow]]] = {}
    for row in group.rows:
        if row.swept is not None:
            option, value = row.swept
            sweeps.setdefault((row.method, option), []).append((value, row))
    found = []
    for (method, option), points in sweeps.items():
        main = next(row for row in group.main if row.method == method and not row.changed)
        centre = main.runs[0].settings.get(option)
        if isinstance(centre, int | float):
            points.append((float(centre), main))
        points.sort(key=lambda point: point[0])
        sweep: dict[str, Any] = {
            "method": method,
            "option": option,
            "values": [value for value, _ in points],
        }
        sweep |= {"colour": series_style(method).colour, "centre": centre}
        for protocol in PROTOCOL_SCORES:
            if all(row.scores(protocol, "accuracy") for _, row in points):
                sweep[protocol] = {
                    m: shared([e.scores(protocol, m) for _, e in points])
                    for m in ("accuracy", "std")
                }
        found.append(sweep)
    return found


def shared(scores: Sequence[dict[int, float]]) -> list[list[float]]:
    """Return scores in % of the seeds that all points share, or of all seeds if there are none."""
    common = set.intersection(*(set(one) for one in scores))
    return [
        [100 * value for seed, value in one.items() if seed in common or not common]
        for one in scores
    ]


def collect_samples(group: SettingGroup, problems: list[str]) -> list[dict[str, Any]]:
    """Return the contact sheets of the generator as PNG files in base64."""
    found: list[dict[str, Any]] = []
    for i, row in enumerate(group.main):
        room = PICTURE_BYTES
        for file in spaced(sorted((row.runs[0].path / "samples").glob("*.png")), PICTURES):
            try:
                data = file.read_bytes()
            except OSError as error:
                problems.append(f"{file}: cannot be read, left out: {error.strerror}")
                continue
            # The browser takes these bytes as an image, so anything else in the folder is skipped.
            if data.startswith(PNG) and len(data) <= room:
                room -= len(data)
                found.append(
                    {"entry": i, "name": file.stem, "png": base64.b64encode(data).decode()}
                )
    return found


def collect_cost(row: TableRow) -> dict[str, Any]:
    """Return the cost of a method: seconds per phase and bytes per round, totals, and failures."""
    lines = [line for run in row.runs for line in run.lines]
    phases: dict[str, float] = {}
    for line in lines:
        for phase, seconds in (line.get("seconds") or {}).items():
            phases[phase] = phases.get(phase, 0.0) + float(seconds) / len(lines)
    traffic = [line.get("traffic") or {} for line in lines]
    return {
        "phases": phases,
        "up": mean(float(each.get("up_bytes", 0)) for each in traffic),
        "down": mean(float(each.get("down_bytes", 0)) for each in traffic),
        "bytes": sum(sent(line) for line in lines) / len(row.runs),
        "seconds": sum(map(round_seconds, lines)) / len(row.runs),
        "failed": sum(len(line.get("failed") or ()) for line in lines),
        "dropped": sum(len(line.get("dropped") or ()) for line in lines),
        "skipped": sum(line.get("status") == "skipped" for line in lines),
    }


def describe_run(run: RunSummary, problems: list[str]) -> dict[str, Any]:
    """Return the state of a run, and what is needed to find and reproduce it."""
    about = RunFolder(run.path).described(problems.append)
    command = about.get("command") or ["cafedcl", "run", str(run.path / "config.toml")]
    return {
        "path": str(run.path),
        "method": run.method,
        "seed": run.seed if run.settings else None,
        "title": run.setting.title if "data.name" in run.settings else "",
        "state": run.state,
        "problem": run.problem,
        "privacy": run.spent,
        "rounds": len(run.lines),
        "command": command,
        "packages": about.get("packages", {}),
        **{
            key: str(about[key])
            for key in ("started", "python", "platform", "device_name", "commit")
            if about.get(key)
        },
    }
