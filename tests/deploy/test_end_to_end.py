"""A whole deployment as processes on the loopback, with TLS and keys: a SuperLink and three SuperNodes."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr")

from cafedcl import api
from cafedcl.config import resolve
from cafedcl.deploy.keys import make_node_key
from cafedcl.deploy.places import ServerOptions, make_places, read_site
from cafedcl.deploy.server import Server
from cafedcl.deploy.site import RunningSite
from cafedcl.deploy.superlink import free_port
from cafedcl.federation import Watcher

SITES = ("north", "south", "west")
DEADLINE = 30.0


def config(**settings):
    return resolve(
        {
            "method": {"name": "cafedcl"},
            "split": {"kind": "pathological", "classes": 4},
            "model": {"name": "mlp"},
            "train": {"epochs": 1, "iterations": 2},
            "federation": {"clients": 3, "rounds": 3},
            "engine": {"name": "flower", "device": "cpu", "deadline": DEADLINE},
            "store": {"checkpoint_every": 1},
            **settings,
        }
    )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """A running server and three sites, each with a simulated shard of the digits."""
    folder = tmp_path_factory.mktemp("deployment") / "d"
    options = ServerOptions(port=free_port())
    place, *others = make_places(folder, options, dict.fromkeys(SITES, ""), simulated=True)
    server = Server.of(place)
    running = {}
    link = server.start()
    try:
        for path in others:
            running[path.name] = RunningSite(path, read_site(path))
        yield server, running
    finally:
        for site in running.values():
            site.stop()
        link.stop()


@pytest.mark.slow
def test_a_deployed_run_equals_the_eager_engine_and_survives_a_dead_site(deployment, tmp_path):
    server, running = deployment
    equals_eager(server, tmp_path)
    stranger_is_refused(server, tmp_path)
    dead_site(server, running, tmp_path)


def equals_eager(server, tmp_path):
    deployed = server.run(config(), tmp_path / "deployed", [])
    here = api.start(replace(config(), engine=replace(config().engine, name="eager")), None, [])
    assert deployed.state.keys() == here.state.keys()
    for name, value in here.state.items():
        assert torch.allclose(deployed.state[name].double(), value.double(), rtol=1e-5, atol=1e-6), name
    assert [line["failed"] for line in deployed.records] == [[], [], []]
    assert deployed.records[-1]["server"] == pytest.approx(here.records[-1]["server"])
    shown = api.load(tmp_path / "deployed")
    assert shown.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)).names[0] in shown.names


def stranger_is_refused(server, tmp_path):
    """A node with the right CA but a key that nobody registered."""
    place = tmp_path / "stranger"
    place.mkdir()
    (place / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
    make_node_key(place / "node.key", place / "node.pub")
    options = replace(read_site(server.folder.parent / "north"), name="stranger")
    (place / "site.toml").write_text(f'[site]\nname = "stranger"\nport = {options.port}\n')
    before = len(server.nodes())
    stranger = RunningSite(place, options)
    try:
        until = time.monotonic() + 60
        while stranger.node.alive and time.monotonic() < until:
            time.sleep(0.2)
        assert not stranger.node.alive
    finally:
        stranger.stop()
    assert len(server.nodes()) == before


class Killer(Watcher):
    """Kills all processes of a site when a round begins."""

    def __init__(self, site, at):
        self.site, self.at, self.rounds = site, at, []

    def round_began(self, federation, clients):
        self.rounds.append(clients)
        if federation.round == self.at:
            for process in (self.site.node, self.site.worker):
                os.killpg(process.popen.pid, signal.SIGKILL)


def dead_site(server, running, tmp_path):
    killer = Killer(running["south"], 1)
    chosen = config(federation={"clients": 3, "rounds": 2}, engine={**plain(config()), "deadline": 15.0})
    finished = server.run(chosen, tmp_path / "killed", [killer])
    assert killer.rounds == [3, 3]
    assert [[f["client"] for f in line["failed"]] for line in finished.records] == [[], [1]]
    assert [line["status"] for line in finished.records] == ["ok", "ok"]


def plain(config):
    return config.to_plain()["engine"]
