"""What the pages of the methods say from the code and from the result files."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cafedcl.compare.results import ResultRow, by_setting, scores
from cafedcl.config.options import to_toml
from cafedcl.methods import find_method, method_names
from cafedcl.methods.base import Method
from cafedcl.report.table import Cell
from cafedcl.task.build import build
from cafedcl.task.resolve import resolve
from site_generator.markdown import code, plain, table
from site_generator.options import options_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
SCORES = {
    "server.accuracy": "server: accuracy",
    "server.client_std": "server: client std",
    "own.client_mean": "own: client mean",
    "own.client_std": "own: client std",
}
SHAPE = (1, 8, 8)
CLASSES = 10


def index_table() -> str:
    """Return a table of all methods, with a link to the page of each."""
    rows = []
    for name in method_names():
        method = find_method(name)[0]
        authors = method.paper.partition(",")[0]
        source = f"{authors} {method.year}" if method.year else authors
        page = f"[{code(name)}](methods/{name}.md)"
        rows.append([page, plain(source), plain(method.sends), plain(method.predicts)])
    return table(["method", "source", "clients and server exchange", "predicts by"], rows)


def facts(name: str) -> str:
    """Return the table at the top of a method's page."""
    method = find_method(name)[0]
    rows = [["use it with", code(f"--method {name}")]]
    if method.year:
        rows.append(["paper", plain(f"{method.paper}, {method.year}")])
    else:
        rows.append(["source", plain(method.paper)])
    rows += [
        ["clients and server exchange", plain(method.sends)],
        ["besides the weights, a client sends", sent(name)],
        ["predicts by", plain(method.predicts)],
        ["server's model", server_model(method)],
        ["[differential privacy](../privacy.md)", privacy(method)],
    ]
    return table(["", ""], rows)


def built(name: str) -> tuple[Method, Any]:
    """Return a method with its default options and a small network for it."""
    config = resolve({"method": {"name": name}, "model": {"name": "mlp"}})
    method, network, _ = build(config, SHAPE, CLASSES)
    return method, network


def sent(name: str) -> str:
    """Return what a client sends besides the weights of its model, by the names in the code."""
    method, network = built(name)
    found: dict[str, str] = {}
    for field, form in method.fields(network).items():
        # SCAFFOLD has an entry for every weight of the network, such as control/head.bias.
        short, slash, _ = field.partition("/")
        often = "for each class" if form.per_class else "once"
        found[short] = "for every weight" if slash else often
    return ", ".join(f"{code(short)} {often}" for short, often in found.items()) or "nothing"


def server_model(method: type[Method]) -> str:
    """Return whether the server has a model of its own to score."""
    if method.personal and not method.personal_is_optional:
        return "none: compare the clients' own models"
    if method.personal:
        return "yes, without the clients' personal weights"
    return "yes"


def privacy(method: type[Method]) -> str:
    """Return which kinds of differential privacy a method can have with its default options."""
    kinds = []
    if built(method.name)[0].averages is not None:
        kinds.append("of clients")
        if method.per_image:
            kinds.append("of images")
    return " and ".join(kinds) or "not available"


def details(name: str) -> str:
    """Return the lower part of a method's page: options, presets and results."""
    method = find_method(name)[0]
    text = "## Options\n\n"
    if dataclasses.fields(method.Options):
        text += f"{plain(method.Options.__doc__ or '')}\n\n"
    text += options_table(method.Options)
    if method.presets:
        text += "### Presets\n\n" + presets(method)
    return text + "## Our results\n\n" + results(name)


def presets(method: type[Method]) -> str:
    """Return a table of a method's presets and the options they set."""
    rows = [
        [
            code(f"{method.name}:{title}"),
            ", ".join(code(f"{key} = {to_toml(value)}") for key, value in values.items()),
        ]
        for title, values in method.presets.items()
    ]
    return table(["preset", "sets"], rows)


def results(name: str, folder: Path = RESULTS) -> str:
    """Return a method's rows in the result files, those with presets and augmentations included."""
    text = "".join(_of_study(name, path) for path in sorted(folder.glob("*.json")))
    if not text:
        return (
            "No result file has it yet. [How to run a comparison](../compare.md) says how to "
            "measure it.\n\n"
        )
    return (
        "In %, mean ± standard deviation over seeds. [What the scores mean](../runs.md); "
        "[all methods beside each other](../long-tails.md).\n\n"
    ) + text


def _of_study(name: str, path: Path) -> str:
    result = json.loads(path.read_text(encoding="utf-8"))
    if "study" not in result:
        return ""
    rows = list(_rows(name, result["runs"]))
    if not rows:
        return ""
    command = " ".join(result["environment"]["command"])
    where = f"../../{path.relative_to(ROOT)}" if path.is_relative_to(ROOT) else path.name
    head = ["setting", "data and split", "method", *SCORES.values(), "seeds"]
    return (
        f"### {plain(result['title'])} ({result['scale']['name']})\n\n"
        f"Scale {code(result['scale']['name'])}: {plain(result['scale']['about'])}. "
        f"[Result file]({where}), made by {code(command)}.\n\n"
    ) + table(head, rows)


def _rows(name: str, runs: Sequence[ResultRow]) -> Iterator[list[str]]:
    for setting, mine in by_setting(runs):
        for variant in dict.fromkeys(one["method"] for one in mine):
            if re.split("[:+]", variant)[0] != name:
                continue
            yield _row(setting, variant, [one for one in mine if one["method"] == variant])


def _row(setting: str, variant: str, runs: Sequence[ResultRow]) -> list[str]:
    cells = [Cell(tuple(scores(runs, variant, score).values())) for score in SCORES]
    return [
        plain(setting),
        plain(f"{runs[0]['data']}, `{runs[0]['split']}`"),
        code(variant),
        *(cell.text for cell in cells),
        str(len(runs)),
    ]
