"""The version of the configs in run folders, and how older ones are read."""

from typing import Any

from cafedcl.core.errors import CafedclError

FORMAT = 2
"""The version of run folders that this code writes; it reads all versions before."""


def upgrade(tables: dict[str, Any], default: int = 1) -> dict[str, Any]:
    """Return the tables of a config as this version writes them, without their version number.

    ``default`` is the version of tables that have no number.

    Version 1 (cafedcl 0.1) has no number. It calls the engines `graphs` and `eager`; on a CPU the
    latter is today's `cpu`. Its preset `fixed-anchors` is today's `best`.
    """
    version = tables.pop("format", default)
    if version not in range(1, FORMAT + 1):
        raise CafedclError(
            f"config.toml: format = {version!r}: this version of cafedcl reads up to {FORMAT}; "
            "update cafedcl"
        )
    if version > 1:
        return tables
    method = tables.get("method")
    if isinstance(method, dict) and method.get("name") == "cafedcl:fixed-anchors":
        method["name"] = "cafedcl:best"
    engine = tables.get("engine")
    if isinstance(engine, dict):
        on_cpu = str(engine.get("device", "cpu")).startswith("cpu")
        names = {"graphs": "cuda", "eager": "cpu" if on_cpu else "reference"}
        name = engine.get("name")
        if isinstance(name, str):
            engine["name"] = names.get(name, name)
    return tables
