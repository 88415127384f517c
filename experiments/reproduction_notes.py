"""Headings above the tables of docs/reproduction.md, and the small print below them."""

from collections.abc import Mapping, Sequence
from typing import Any

from cafedcl.compare.results import ResultRow, by_setting
from cafedcl.config.options import to_toml


def rows_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def heading(setting: str, records: Sequence[ResultRow]) -> str:
    """Return the heading above the table of a setting."""
    one = records[0]
    images = dict.fromkeys(str(it["images"]) for it in records)
    return (
        f"**{setting}**: {one['data']}, `{one['split']}`, {one['clients']} clients, "
        f"{' / '.join(images)} training images\n\n"
    )


def seeds_text(seeds: Sequence[int]) -> str:
    """Return a short text of the seeds, such as 0 to 4."""
    ordered = sorted(set(seeds))
    whole = ordered == list(range(ordered[0], ordered[-1] + 1)) and len(ordered) > 2
    if whole:
        return f"{ordered[0]} to {ordered[-1]}"
    return " and ".join(map(str, ordered)) if len(ordered) == 2 else ", ".join(map(str, ordered))


ENGINES_0_1 = {"graphs": "cuda", "eager": "reference"}
"""What version 0.1, which wrote some of the result files, called the engines."""


def small_print(result: Mapping[str, Any], own: bool = True) -> str:
    """Return the line below a table: models, seeds, devices, versions and the command.

    ``own`` adds the options that only some methods have.
    """
    records = result["runs"]
    where = result["environment"]

    def every(name: str) -> str:
        # A dict keeps each value once, in the order of the records.
        form = "{:g}" if name == "width" else "{}"
        return " / ".join(dict.fromkeys(form.format(one[name]) for one in records))

    protocols = dict.fromkeys(
        one["options"].get("evaluate.protocol", "complete") for one in records
    )
    engines = dict.fromkeys(ENGINES_0_1.get(one["engine"], one["engine"]) for one in records)
    devices = dict.fromkeys(
        one.get("environment", {}).get("device_name", where["device_name"]) for one in records
    )
    versions = ", ".join(
        f"{name} {version}" for name, version in where["packages"].items() if version
    )
    numbers = sorted({one["images"] for one in records})
    images = every("images") if len(numbers) <= 4 else f"{numbers[0]} to {numbers[-1]}"
    words = [
        f"{every('rounds')} rounds",
        f"{every('model')}, width {every('width')}",
        f"{images} training images",
        f"{every('clients')} clients",
        f"seeds {seeds_text([one['seed'] for one in records])}",
        f"protocol {' / '.join(protocols)}",
        f"engine {' / '.join(engines)}, {every('precision')}",
        f"Python {where['python']}, {versions}",
        " / ".join(devices),
    ]
    failed = sum(one["failed_visits"] for one in records)
    skipped = sum(one["skipped_rounds"] for one in records)
    if failed or skipped:
        words.append(f"{failed} failed visits, {skipped} skipped rounds")
    unfinished = len(result["unfinished"])
    if unfinished:
        words.append(f"{unfinished} run{'s' if unfinished > 1 else ''} not finished")
    if own:
        words += own_options(records)
    return f"<sub>{'; '.join(words)}; <code>{' '.join(where['command'])}</code></sub>\n\n"


def own_options(records: Sequence[ResultRow]) -> list[str]:
    """Return the options of training, server and method that differ between a setting's runs."""
    settings = [mine for _, mine in by_setting(records)]
    found: dict[str, dict[str, Any]] = {}
    for mine in settings:
        shared = set.intersection(*(set(map(repr, one["options"].items())) for one in mine))
        for one in mine:
            for name, value in one["options"].items():
                if (
                    name.startswith(("train.", "server.", "method."))
                    and repr((name, value)) not in shared
                ):
                    found.setdefault(one["method"], {})[name] = value
    if not found:
        return []
    texts = [
        f"{method} " + ", ".join(f"{name}={to_toml(value)}" for name, value in its.items())
        for method, its in found.items()
    ]
    return [f"options of its own: {'; '.join(texts)}"]
