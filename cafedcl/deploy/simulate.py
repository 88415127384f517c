"""A whole run on Flower's simulation engine: a SuperLink for this run alone, with Ray behind it."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cafedcl import api
from cafedcl.config import Config
from cafedcl.deploy.flower import require
from cafedcl.deploy.submit import submit
from cafedcl.deploy.superlink import Address, free_port, start_superlink
from cafedcl.errors import CafedclError
from cafedcl.federation import Watcher
from cafedcl.optional import optional
from cafedcl.remote import is_remote
from cafedcl.store import RunFolder


def simulate(config: Config, out: str | Path | None, watchers: Sequence[Watcher]) -> api.Run:
    """Run a config with its clients as Flower's simulated nodes."""
    if is_remote(config):
        raise CafedclError("data.name = sites: a simulation has no sites with data; use `cafedcl deploy run`")
    if out is None:
        with tempfile.TemporaryDirectory(prefix="cafedcl-") as folder:
            return replace(simulate(config, folder, watchers), path=None)
    RunFolder.create(out).unlock()
    return _simulated(config, Path(out), watchers, config.federation.clients)


def go_on(folder: RunFolder, watchers: Sequence[Watcher]) -> api.Run:
    """Go on with a run on Flower where it ran: in its deployment, or as a simulation."""
    deployment = folder.environment().get("flower", {}).get("deployment")
    if deployment:
        from cafedcl.deploy.server import resume_run

        return resume_run(Path(deployment), folder.path, watchers)
    return _simulated(None, folder.path, watchers, folder.config().federation.clients)


def _simulated(config: Config | None, path: Path, watchers: Sequence[Watcher], clients: int) -> api.Run:
    require()
    optional("ray", "cafedcl[flower]", "a simulation on Flower")
    with tempfile.TemporaryDirectory(prefix="cafedcl-flower-") as folder:
        home, address = Path(folder), Address("127.0.0.1", free_port(), None)
        process = start_superlink(address, address.host, home, home / "superlink.log", ["--insecure", "--simulation"])
        try:
            nodes = f"num-supernodes={clients} client-resources-num-cpus=1"
            submit(home, config, path, watchers, nodes)
        finally:
            process.stop()
    return api.load(path)
