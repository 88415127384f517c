"""The results of a study in one small file: a line per finished run, without the run folders."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cafedcl.compare.jobs import METHOD_SECTIONS
from cafedcl.compare.plan import Tables, overlay
from cafedcl.compare.study import Study, StudyScale
from cafedcl.config.format import FORMAT, upgrade
from cafedcl.config.options import parse_value, to_toml
from cafedcl.config.sections import name_and_value
from cafedcl.config.split_options import parse_split
from cafedcl.core.errors import CafedclError
from cafedcl.federation.run_folder import RunFolder
from cafedcl.report.run_summary import RunSummary, flat, read_run
from cafedcl.task.resolve import resolve

RESULTS_FILE = "results.json"
DIGITS = 6
NOT_LISTED = (
    "run.", "data.", "engine.", "store.", "method.name", "augment.name", "federation.rounds",
)  # fmt: skip
"""Prefixes of options that have their own fields, or that change no result."""
SCORED_PARTS = ("server", "own")
"""The parts of a line of metrics that have scores."""
PLACE = ("python", "packages", "platform", "machine", "device", "device_name", "commit")
"""The fields of environment.json that are kept."""
WHERE = "environment"
STORED = ("failed_visits", "skipped_rounds", "imbalance")
"""The fields of a row about the whole run; rows of earlier versions may lack them."""

ResultRow = dict[str, Any]
Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Member:
    """A run of a study: its key, its summary, and its result if it is finished."""

    key: Key
    """Setting, method, changed options (as JSON), seed."""
    run: RunSummary
    record: ResultRow | None
    where: dict[str, Any]
    """The environment it was made in, and the `--set` options of its study."""

    @property
    def name(self) -> str:
        """The name of the run, as a path."""
        setting, method, changed, seed = self.key
        words = [f"{name}={to_toml(value)}" for name, value in json.loads(changed).items()]
        return "/".join([setting, *words, method, f"s{seed}"])


def key_of(setting: str, method: str, changed: Mapping[str, Any], seed: int) -> Key:
    """Return the key that identifies a run of a study."""
    return setting, method, json.dumps(changed, sort_keys=True), seed


def read_study_folder(
    out: Path, study: Study, scale: StudyScale, settings: Sequence[str]
) -> list[Member]:
    """Return all runs of a study in a folder, finished or not."""
    found = []
    shared = [text for text in settings if not text.startswith("data.dir")]
    for one in study.settings:
        (setting,) = study.only([one.name], ()).at(scale).settings
        for changed, method, place in study.places(out, setting):
            paths = (path for path in place.glob("s*") if path.name[1:].isdecimal())
            for path in sorted(paths, key=lambda path: int(path.name[1:])):
                run = read_run(path)
                key = key_of(setting.name, method, changed, int(path.name[1:]))
                record: ResultRow | None = None
                if run.state == "finished":
                    record = {"setting": setting.name, **result_row_of(run, changed)}
                made = {
                    name: value
                    for name, value in RunFolder(path).environment().items()
                    if name in PLACE
                }
                found.append(Member(key, run, record, {"set": shared, **made}))
    return found


def result_row_of(run: RunSummary, changed: Mapping[str, Any]) -> ResultRow:
    """Return the result of a finished run, without the name of its setting."""
    counts = RunFolder(run.path).data()[0]["counts"]
    options = run.settings
    scores = {}
    for part in SCORED_PARTS:
        last = next((line for line in reversed(run.lines) if line.get(part)), {})
        scores[part] = {name: rounded_score(value) for name, value in last.get(part, {}).items()}
    best = {part: run.chosen(part, "best") for part in SCORED_PARTS}
    classes = run.last_classes()
    return {
        "data": run.setting.data,
        "split": run.setting.split,
        "method": run.method,
        "changed": dict(changed),
        "seed": run.seed,
        "rounds": run.rounds,
        **scores,
        "best": {
            protocol: None if line is None else rounded_score(run.value(line, protocol, "accuracy"))
            for protocol, line in best.items()
        },
        "curves": {protocol: curve_of(run, protocol) for protocol in SCORED_PARTS},
        "seconds": round(run.seconds, 3),
        "images": int(counts.sum()),
        "clients": len(counts),
        "model": options["model.name"],
        "width": options["model.width"],
        "lr": options["train.lr"],
        "epochs": options["train.epochs"],
        "engine": options["engine.name"],
        "precision": options["engine.precision"],
        "failed_visits": run.failed_replies,
        "skipped_rounds": run.skipped_rounds,
        "imbalance": 1.0 if classes is None else round(classes.imbalance, DIGITS),
        "options": departures(run),
    }


def curve_of(run: RunSummary, protocol: str) -> list[tuple[int, Any]]:
    """Return the accuracy after every scored round, with the number of rounds until then."""
    return [
        (int(line["round"]) + 1, rounded_score(run.value(line, protocol, "accuracy")))
        for line in run.scored(protocol)
    ]


def rounded_score(value: Any) -> Any:
    """Return a score with its significant digits."""
    return round(value, DIGITS) if isinstance(value, float) else value


def departures(run: RunSummary) -> dict[str, Any]:
    """Return the options in which a run differs from the defaults of its method."""
    names = {
        section: {"name": run.settings[f"{section}.name"]} for section in ("method", "augment")
    }
    usual = settings_of(names)
    return {
        name: value
        for name, value in run.settings.items()
        if not name.startswith(NOT_LISTED)
        and usual.get(name) != value
        and name != "federation.clients"
    }


def settings_of(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a run of a study, by name."""
    config = resolve(tables)
    # In a study, clients have no private data.
    return flat(replace(config, release=config.release.settled(own_data=False)).to_plain())


def read_results(path: Path, name: str, study: Study, scale: str) -> list[Member]:
    """Return the runs of a results file of the same scale.

    A file of another study is read too. Only those of its runs are returned that this study also
    has: with the same setting, data, split and method, and without that study's own options.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        there = str(content["study"])
        size = content["scale"]["name"]
        place = {name: value for name, value in content[WHERE].items() if name != "command"}
        # Files of earlier versions have no number.
        version = content.get("format", 3)
        options = content["scale"].get("options", {})
        members = [
            member_of(record, place, version, options)
            for record in content["runs"]
            if size == scale
        ]
    except OSError as error:
        raise CafedclError(f"--from {path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CafedclError(f"--from {path}: not a {RESULTS_FILE} of `cafedcl reproduce`") from None
    if size != scale:
        raise CafedclError(
            f"--from {path}: it holds runs of {there} at scale {size}, not at scale {scale}"
        )
    if there == name:
        return members
    plain = {
        (one.name, one.data, one.split)
        for one in study.settings
        if not (study.options or one.options)
    }
    methods = {method for method in study.methods if method not in study.each}
    shared = []
    for member in members:
        record = member.record or {}
        same_setting = (record["setting"], record["data"], record["split"]) in plain
        same_method = record["method"] in methods and not record["changed"]
        if same_setting and same_method and not of_its_own(record, member.where.get("set", ())):
            shared.append(member)
    return shared


def of_its_own(record: ResultRow, shared: Sequence[str]) -> list[str]:
    """Return the options of training and method that are set for this run only."""
    common = dict(map(name_and_value, shared))
    return [
        name
        for name in record["options"]
        if name.startswith(METHOD_SECTIONS) and name not in common
    ]


def member_of(
    record: ResultRow,
    place: Mapping[str, Any],
    version: int,
    scale: Mapping[str, Any] | None = None,
) -> Member:
    """Return the run of a line of a results file; it consists of its last round only.

    ``version`` is that of run folders when it was written: a preset may have changed since.
    ``scale`` are the options of the file's scale. Lines do not have the options of the data, and
    with other images a run would have another setting.
    """
    record = dict(record)
    environment = {**place, **record.pop(WHERE, {})}
    where = {name: environment[name] for name in ("set", *PLACE) if name in environment}
    method, _, tail = str(record["method"]).partition("+")
    tables: Tables = {
        "method": {"name": method},
        "augment": {"name": tail or "none"},
        "data": {"name": record["data"]},
    }
    overlay(
        tables, {f"split.{name}": value for name, value in parse_split(record["split"]).items()}
    )
    overlay(tables, {**data_options(scale or {}, where.get("set", ())), **record["options"]})
    tables = upgrade({"format": version, **tables})
    overlay(
        tables,
        {
            "run.seed": record["seed"],
            "federation.rounds": record["rounds"],
            "federation.clients": record["clients"],
        },
    )
    line = {
        "round": record["rounds"] - 1,
        **{part: record[part] for part in SCORED_PARTS},
    }
    key = key_of(record["setting"], record["method"], record["changed"], record["seed"])
    path = Path(record["setting"], record["method"], f"s{record['seed']}")
    stored = {name: record[name] for name in STORED if name in record}
    settings = settings_of(tables)
    summary = RunSummary(path, "finished", "", settings, [line], stored=stored)
    return Member(key, summary, record, where)


def data_options(scale: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the options of the data of a scale and of `--set`, except where the files are."""
    given = dict(map(name_and_value, settings))
    options = {**scale, **{name: parse_value(value) for name, value in given.items()}}
    return {
        name: value
        for name, value in options.items()
        if name.startswith("data.") and name != "data.dir"
    }


def merged(sources: Iterable[Sequence[Member]], study: Study) -> list[Member]:
    """Return the runs of several sources in the order of the study.

    If a run appears twice, the last finished one is used.
    """
    found: dict[Key, Member] = {}
    for source in sources:
        for member in source:
            if member.record is not None or member.key not in found:
                found[member.key] = member
    settings = {one.name: place for place, one in enumerate(study.settings)}
    methods = {name: place for place, name in enumerate(study.methods)}
    changes = {
        json.dumps(point, sort_keys=True): place
        for place, point in enumerate([{}, *study.changes()])
    }
    last = len(settings) + len(methods) + len(changes)

    def order(key: Key) -> tuple[Any, ...]:
        setting, method, changed, seed = key
        return (
            settings.get(setting, last),
            setting,
            methods.get(method, last),
            method,
            changes.get(changed, last),
            changed,
            seed,
        )

    return [found[key] for key in sorted(found, key=order)]


def results_of(
    members: Sequence[Member], name: str, study: Study, scale: str, size: StudyScale
) -> dict[str, Any]:
    """Return the content of the results file.

    The environment of most runs is stored once; a run from another environment has its own.
    """
    done = [member for member in members if member.record is not None]
    usual = most_common([member.where for member in done])
    records = []
    for member in done:
        other = {name: value for name, value in member.where.items() if usual.get(name) != value}
        records.append({**(member.record or {}), **({WHERE: other} if other else {})})
    command = ["cafedcl", "reproduce", name, "--scale", scale, *narrowed(records, study, size)]
    command += [word for setting in usual.get("set", ()) for word in ("--set", setting)]
    return {
        "format": FORMAT,
        "study": name,
        "title": study.title,
        "scale": {"name": scale, "about": size.about, "options": size.options},
        WHERE: {"command": command, **usual},
        "unfinished": {
            member.name: member.run.problem for member in members if member.record is None
        },
        "runs": records,
    }


def most_common(places: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the environment that most runs share; if several tie, the first."""
    written = Counter(json.dumps(place) for place in places)
    return json.loads(written.most_common(1)[0][0]) if written else {}


def narrowed(records: Sequence[ResultRow], study: Study, size: StudyScale) -> list[str]:
    """Return the options of `cafedcl reproduce` that select these runs of the study."""
    words = ["--seeds", str(max((record["seed"] for record in records), default=0) + 1)]
    for option, key, whole in (
        ("--only", "setting", [one.name for one in study.at(size).settings]),
        ("--methods", "method", list(study.methods)),
    ):
        there = list(dict.fromkeys(record[key] for record in records))
        words += [option, ",".join(there)] if there and set(there) != set(whole) else []
    return words


def as_text(results: Mapping[str, Any]) -> str:
    """Return the text of the file, with a line per run so that two versions can be compared."""
    others = {name: value for name, value in results.items() if name != "runs"}
    head = json.dumps(others, indent=1, ensure_ascii=False).removesuffix("\n}")
    lines = ",\n".join("  " + json.dumps(record, ensure_ascii=False) for record in results["runs"])
    runs = f"[\n{lines}\n ]" if lines else "[]"
    return f'{head},\n "runs": {runs}\n}}\n'


def scores(records: Sequence[ResultRow], method: str, score: str) -> dict[int, float]:
    """Return a method's score by seed, in %."""
    protocol, _, name = score.partition(".")
    mine = ((one["seed"], one[protocol].get(name)) for one in records if one["method"] == method)
    return {seed: 100 * value for seed, value in mine if value is not None}


def by_setting(records: Sequence[ResultRow]) -> Iterator[tuple[str, list[ResultRow]]]:
    """Yield the settings with their runs, without runs that change an option."""
    plain = [one for one in records if not one["changed"]]
    for setting in dict.fromkeys(one["setting"] for one in plain):
        yield setting, [one for one in plain if one["setting"] == setting]


def settings_with_shared_seeds(
    records: Sequence[ResultRow],
) -> Iterator[tuple[str, list[ResultRow]]]:
    """Yield the settings with their runs of the seeds that all their methods have.

    Otherwise methods would be compared by means over different splits.
    """
    for setting, mine in by_setting(records):
        seeds = shared_seeds(mine)
        if seeds:
            yield setting, [one for one in mine if one["seed"] in seeds]


def shared_seeds(records: Sequence[ResultRow]) -> set[int]:
    """Return the seeds that all methods have."""
    seeds: dict[str, set[int]] = {}
    for one in records:
        seeds.setdefault(one["method"], set()).add(one["seed"])
    return set.intersection(*seeds.values())
