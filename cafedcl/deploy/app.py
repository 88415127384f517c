"""The Flower app that is submitted to a SuperLink. It only names two installed components.

The package itself is not sent. A simulation runs the two components. A deployment runs neither:
there Flower knows a run by the app, and that is all the app is for.
"""

from pathlib import Path
from typing import Any

from cafedcl.config.options import to_toml
from cafedcl.core.version import __version__

RUN_CONFIG: dict[str, Any] = {
    "config-file": "",
    "method": "",
    "data": "",
    "split": "",
    "clients": 0,
    "rounds": 0,
    "seed": -1,
    "settings": "",
    "out": "runs/flower",
    "resume": False,
}
"""The keys of Flower's run config: the flags of `cafedcl run`. Empty values change nothing."""
COMPONENTS = {
    "serverapp": "cafedcl.deploy.flower.server_app:app",
    "clientapp": "cafedcl.deploy.flower.client_app:app",
}


def write_app(folder: Path) -> Path:
    """Write the app into a folder and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        "[project]",
        'name = "cafedcl-run"',
        f"version = {to_toml(__version__)}",
        'description = "A cafedcl run"',
        'license = "Apache-2.0"',
        "",
        "[tool.flwr.app]",
        'publisher = "cafedcl"',
        "fab-format-version = 0",
        "",
        "[tool.flwr.app.components]",
        *(f"{name} = {to_toml(value)}" for name, value in COMPONENTS.items()),
        "",
        "[tool.flwr.app.config]",
        *(f"{name} = {to_toml(value)}" for name, value in RUN_CONFIG.items()),
    ]
    text = "\n".join(lines) + "\n"
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    (folder / "README.md").write_text(
        "A run of cafedcl, which every site has installed.\n", encoding="utf-8"
    )
    return folder
