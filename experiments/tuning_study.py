"""The study in which every method has the options that its tuning chose."""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from cafedcl.config.options import to_toml

STUDY = """\
# cafedcl reproduce {name} --scale {scale}
#
{about}
# This file is written by
# {command}
title = {title}
methods = {methods}
{options}
{settings}
{tables}"""


def study_of(study: Mapping[str, Any], result: Mapping[str, Any], name: str, command: str) -> str:
    """Return the text of the study in which every method has the options of its best candidate.

    A plan that tuned CAFedCL itself names the preset that has its method options; only its others
    are written.
    """
    each = {method: it["best"] for method, it in result["methods"].items()}
    if "ours" in study:
        ours = each.pop("cafedcl", {})
        each[study["ours"]] = {
            key: value for key, value in ours.items() if not key.startswith("method.")
        }
    settings = (table("[[settings]]", entry) for entry in study["settings"])
    tables = (table(f"[each.{quoted(method)}]", best) for method, best in each.items() if best)
    options = study.get("options")
    return STUDY.format(
        name=name,
        scale=study.get("scale", "short"),
        about=textwrap.fill(study["about"], 118, initial_indent="# ", subsequent_indent="# "),
        command=command,
        title=to_toml(study["title"]),
        methods=to_toml([*study.get("untuned", []), *each]),
        options=table("\n[options]", options) if options else "",
        settings="\n".join(settings),
        tables="\n".join(tables),
    )


def table(title: str, entries: Mapping[str, Any]) -> str:
    """Return a table as TOML."""
    lines = [f"{quoted(key)} = {to_toml(value)}\n" for key, value in entries.items()]
    return "".join([f"{title}\n", *lines])


def quoted(key: str) -> str:
    """Return a key of TOML, in quotes if it needs them."""
    return key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
