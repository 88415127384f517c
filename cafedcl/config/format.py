"""The version of the configs in run folders, and how older ones are read."""

from pathlib import Path
from typing import Any

from cafedcl.config.flags import base_of
from cafedcl.config.sections import read_file
from cafedcl.config.split_options import OWN_OPTIONS, used_options
from cafedcl.core.errors import CafedclError

NEWER_OPTIONS = {"rare_gain": 0.0, "lam_distill": 0.0, "own_classes": "all"}
"""Options of CAFedCL that runs before version 4 may lack, with the values that apply to them."""
BEST_BEFORE_5 = {
    "calibrate": 0.5,
    "smoothing": 1.0,
    "weights": "confidence",
    "own_classes": "all",
}
"""Options of the preset `best` before version 5 that it does not have today."""
FORMAT = 5
"""The version of run folders that this code writes; it reads all earlier versions."""


def upgrade(tables: dict[str, Any], default: int = 1) -> dict[str, Any]:
    """Return the tables of a config as this version writes them, without their version number.

    ``default`` is the version of tables that have no number.

    Version 1 (cafedcl 0.1) has no number. It calls the engines `graphs` and `eager`; on a CPU the
    latter is today's `cpu`. The preset `best` of version 2 is today's `fixed-anchors`. A run of
    CAFedCL before version 4 may lack newer options, such as distillation; its preset `best` did not
    have them. Before version 5, that preset had a class prior and weights by
    confidence.
    """
    recorded = "format" in tables or default < FORMAT
    version = tables.pop("format", default)
    if version not in range(1, FORMAT + 1):
        raise CafedclError(
            f"format = {version!r}: this version of cafedcl reads up to {FORMAT}; update cafedcl"
        )
    if recorded:
        _leave_out_ignored(tables)
    method = tables.get("method")
    if version < 4 and isinstance(method, dict) and _is_cafedcl(method.get("name")):
        if version == 2 and method["name"] == "cafedcl:best":
            method["name"] = "cafedcl:fixed-anchors"
        method = {**NEWER_OPTIONS, **method}
        tables["method"] = method
    if version < 5 and isinstance(method, dict) and method.get("name") == "cafedcl:best":
        tables["method"] = {**BEST_BEFORE_5, **method}
    engine = tables.get("engine")
    if version == 1 and isinstance(engine, dict):
        on_cpu = str(engine.get("device", "cpu")).startswith("cpu")
        names = {"graphs": "cuda", "eager": "cpu" if on_cpu else "reference"}
        name = engine.get("name")
        if isinstance(name, str):
            engine["name"] = names.get(name, name)
    return tables


def read_config(file: str | Path | None) -> dict[str, Any]:
    """Return the tables of a config file, if there is one.

    The config of a run folder has a version number; a file written by a user does not.
    """
    return upgrade(read_file(file), default=FORMAT) if file else {}


def _is_cafedcl(name: Any) -> bool:
    return isinstance(name, str) and base_of(name) == "cafedcl"


def _leave_out_ignored(tables: dict[str, Any]) -> None:
    """Leave out options that earlier versions recorded without effect; they are refused today."""
    split = tables.get("split")
    if isinstance(split, dict) and split.get("kind") in OWN_OPTIONS:
        tables["split"] = {
            key: value for key, value in split.items() if key in used_options(split["kind"])
        }
    federation = tables.get("federation")
    if isinstance(federation, dict) and isinstance(federation.get("drop"), list):
        rounds = federation.get("rounds", 0)
        federation["drop"] = [
            entry for entry in federation["drop"] if not _is_beyond(entry, rounds)
        ]


def _is_beyond(entry: Any, rounds: Any) -> bool:
    """Return whether a drop-out, such as ``3:0,4``, is in a round after the last one."""
    head = str(entry).partition(":")[0]
    return head.isdecimal() and isinstance(rounds, int) and int(head) >= rounds
