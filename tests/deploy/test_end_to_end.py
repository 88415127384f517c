"""A whole deployment as processes on the loopback, with TLS and keys: a server and two sites."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("flwr")

from cafedcl import api
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import under, unpack
from cafedcl.deploy.folders import ServerOptions, make_folders, read_site
from cafedcl.deploy.keys import make_node_key
from cafedcl.deploy.server import Server
from cafedcl.deploy.site import RunningSite
from cafedcl.deploy.superlink import free_port
from cafedcl.federation.rounds import Federation
from cafedcl.federation.watcher import Watcher
from cafedcl.task.resolve import resolve

SITES = ("north", "south")
DEADLINE = 3600.0
"""Enough for a round on any machine, however busy: a site that is killed is missed because it
disconnects, not because it is late.
"""


def config(engine):
    return resolve(
        {
            "method": {"name": "cafedcl"},
            "split": {"kind": "pathological", "classes": 6},
            "model": {"name": "mlp"},
            "train": {"epochs": 1, "iterations": 2},
            "federation": {"clients": 2, "rounds": 3},
            "engine": {
                "name": engine,
                "device": "cpu",
                "deadline": DEADLINE,
                "workers": 1,
                "stack": 1,
            },
            "store": {"checkpoint_every": 1},
        }
    )


def started(path):
    return RunningSite(path, read_site(path))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, nginx):
    """A running server and two sites, each with a simulated shard of the digits, and a stranger
    that knocks.
    """
    folder = tmp_path_factory.mktemp("deployment") / "d"
    options = ServerOptions(port=free_port(), superlink=free_port())
    place, *others = make_folders(folder, options, dict.fromkeys(SITES, ""), simulated=True)
    server = Server.of(place)
    running = {}
    link = server.start()
    try:
        with ThreadPoolExecutor() as pool:
            for path, site in zip(others, pool.map(started, others), strict=True):
                running[path.name] = site
        yield server, running
    finally:
        for site in running.values():
            site.stop()
        link.stop()


@pytest.fixture
def stranger(deployment, tmp_path):
    """A node with the right CA but a key that nobody registered."""
    server, _ = deployment
    place = tmp_path / "stranger"
    place.mkdir()
    (place / "ca.crt").write_bytes((server.folder / "ca.crt").read_bytes())
    make_node_key(place / "node.key", place / "node.pub")
    (place / "site.toml").write_text(
        f'[site]\nname = "stranger"\nclient = 0\nport = {server.options.port}\n'
    )
    site = started(place)
    yield site
    site.stop()


class Killer(Watcher):
    """Kills all processes of a site when a round begins."""

    def __init__(self, site, at):
        self.site = site
        self.at = at
        self.rounds = []

    def round_began(self, federation, clients):
        self.rounds.append(federation.round)
        if federation.round == self.at:
            for process in (self.site.node, self.site.worker):
                os.killpg(process.popen.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_deployment_trains_like_one_machine_keeps_strangers_out_and_outlives_a_site(
    deployment, stranger, tmp_path, monkeypatch
):
    """All sites answer for two rounds, which equal the reference engine's; in the third, one is
    killed.
    """
    server, running = deployment
    killer = Killer(running["south"], 2)
    finished = server.run(config("flower"), tmp_path / "run", [killer])

    assert killer.rounds == [0, 1, 2]
    assert [[failure["client"] for failure in line["failed"]] for line in finished.records] == [
        [],
        [],
        [1],
    ]
    assert {line["status"] for line in finished.records} == {"ok"}

    tensors, header = unpack((tmp_path / "run" / "checkpoints" / "000002.safetensors").read_bytes())
    assert header["round"] == 2
    with Federation(config("reference")) as here:
        for _ in range(2):
            here.step()
    deployed = under("state/", tensors)
    assert deployed.keys() == here.state.keys()
    for name, value in here.state.items():
        assert torch.allclose(deployed[name], value, rtol=1e-5, atol=1e-6), name
    for line, record in zip(finished.records, here.history, strict=False):
        assert line["server"] == pytest.approx(record.server)
        assert line["own"] == pytest.approx(record.own)

    monkeypatch.setattr("cafedcl.deploy.site.REFUSAL_LIMIT", 3.0)
    with pytest.raises(CafedclError, match="the server refused it"):
        stranger.watch(print)
    assert sorted(site["name"] for site in server.sites()) == sorted(SITES)
    shown = api.load(tmp_path / "run")
    assert shown.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)).names[0] in shown.names
