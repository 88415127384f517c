"""Runs on Flower's simulation engine, each with its own SuperLink and Ray."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.deploy.programs import require_flower
from cafedcl.deploy.server import Server
from cafedcl.deploy.submit import submit
from cafedcl.deploy.superlink import Address, free_port, start_superlink
from cafedcl.federation import runs
from cafedcl.federation.callback import Callback
from cafedcl.federation.result import Run
from cafedcl.federation.run_folder import RunFolder


def simulate(config: Config, out: str | Path | None, callbacks: Sequence[Callback]) -> Run:
    """Run a config with its clients as Flower's simulated nodes."""
    if config.at_sites:
        raise CafedclError("data.name = sites: a simulation has no sites; use `cafedcl deploy run`")
    if config.privacy.secure:
        raise CafedclError(
            "privacy.secure = true: a simulation moves clients between processes, where their keys "
            "would be lost; use `cafedcl deploy`, or leave it out: the sums are the same"
        )
    if out is None:
        with tempfile.TemporaryDirectory(prefix="cafedcl-") as folder:
            return replace(simulate(config, folder, callbacks), path=None)
    RunFolder.create(out).unlock()
    return _run_simulation(config, Path(out), callbacks, config.federation.clients_wanted)


def resume_on_flower(folder: RunFolder, callbacks: Sequence[Callback]) -> Run:
    """Resume a Flower run where it ran: in its deployment or as a simulation."""
    # Damaged or missing is the same here: only this file leads to what the sites keep of the run.
    stored = folder.described(lambda _: None).get("flower")
    if stored is None:
        raise CafedclError(
            f"{folder.path / 'environment.json'}: it does not say where this run on Flower ran, or "
            "is missing or damaged; restore it from a backup"
        )
    deployment = stored.get("deployment")
    if deployment:
        return Server.of(Path(deployment)).run(None, folder.path, callbacks)
    return _run_simulation(None, folder.path, callbacks, folder.config().federation.clients)


def _run_simulation(
    config: Config | None, path: Path, callbacks: Sequence[Callback], clients: int
) -> Run:
    require_flower()
    optional("ray", "flower", "a simulation on Flower")
    from cafedcl.deploy.flower.control import Control

    with tempfile.TemporaryDirectory(prefix="cafedcl-flower-") as folder:
        home = Path(folder)
        address = Address("127.0.0.1", free_port(), None)
        process = start_superlink(
            address, home, home / "superlink.log", ["--insecure", "--simulation"]
        )
        try:
            nodes = {"num_supernodes": clients, "client_resources_num_cpus": 1}
            submit(Control(address), home, config, path, callbacks, nodes)
        finally:
            process.stop()
    return runs.load(path)
