"""A whole deployment as processes on the loopback, with TLS and keys: a server and two sites.

First it is attacked: by a stranger outside, a program on the server's machine, and the server. Then
a site and the server go and come back. Last it trains, and loses a site. All tests share it, since
its processes take half a minute of a core to start.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.constant import TaskType

from cafedcl import api
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import under, unpack
from cafedcl.deploy.flower.control import Control
from cafedcl.deploy.flower.records import SHARED, wrap
from cafedcl.deploy.flower.runtime import Runtime
from cafedcl.deploy.flower.server_task import TaskGrid
from cafedcl.deploy.folders import ServerOptions, make_folders, node_names, read_site
from cafedcl.deploy.keys import make_node_key
from cafedcl.deploy.proxy import is_listening
from cafedcl.deploy.server import Server
from cafedcl.deploy.site import REFUSED, RunningSite, renew_key
from cafedcl.deploy.superlink import Address, free_port
from cafedcl.federation.callback import Callback
from cafedcl.federation.rounds import Federation
from cafedcl.task.resolve import resolve

SITES = ("north", "south")
DEADLINE = 3600.0
"""Enough for a round on any machine, however busy: a site that is killed is missed because it
disconnects, not because it is late.
"""


pytestmark = pytest.mark.slow


def wait_until(condition):
    """Wait for something that will be so; a test that hangs is ended after ten minutes."""
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.3)


def all_online(server):
    return [site["status"] for site in server.sites()] == ["online"] * 2


def start(server):
    """Start the server's process, and wait until it says that it is ready."""
    command = [sys.executable, "-m", "cafedcl", "deploy", "server", str(server.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said = [process.stdout.readline() for _ in range(2)]
    assert said == [f"server at 127.0.0.1:{server.options.port}\n", "ready\n"]
    return process


def end(process, number, server):
    """End the server's process by a signal: its SuperLink and its proxy end too."""
    with process:
        process.send_signal(number)
    ports = (server.options.port, server.options.superlink)
    wait_until(lambda: not any(is_listening("127.0.0.1", port) for port in ports))


@pytest.fixture(scope="module")
def deployment(tmp_path_factory, nginx):
    """A running server and two sites with simulated shards."""
    options = ServerOptions(port=free_port(), superlink=free_port())
    folder = tmp_path_factory.mktemp("deployment") / "d"
    place, *others = make_folders(folder, options, dict.fromkeys(SITES, ""), simulated=True)
    server = Server.of(place)
    running = [start(server)]
    sites = []
    try:
        sites += [RunningSite(path, read_site(path)) for path in others]
        wait_until(lambda: all_online(server))
        yield server, sites, running
    finally:
        for site in sites:
            site.stop()
        for process in running:
            end(process, signal.SIGTERM, server)


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """An app whose server and client each write a file when they are imported."""
    folder = tmp_path_factory.mktemp("evil-app") / "evil"
    (folder / "evil").mkdir(parents=True)
    traces = tmp_path_factory.mktemp("traces")
    for part, kind in (("client", "ClientApp"), ("server", "ServerApp")):
        (folder / "evil" / f"{part}.py").write_text(
            f"open({str(traces / part)!r}, 'w').close()\n"
            f"from flwr.{part}app import {kind}\napp = {kind}()\n"
        )
    (folder / "evil" / "__init__.py").write_text("")
    (folder / "pyproject.toml").write_text(
        "[project]\nname = 'evil'\nversion = '1.0'\ndescription = ''\nlicense = 'MIT'\n"
        "[tool.flwr.app]\npublisher = 'mallory'\nfab-format-version = 0\n"
        "[tool.flwr.app.components]\n"
        "serverapp = 'evil.server:app'\nclientapp = 'evil.client:app'\n[tool.flwr.app.config]\n"
    )
    return folder, traces


def test_a_stranger_outside_can_neither_submit_nor_register_nor_list(deployment, evil, tmp_path):
    """The stranger has the CA's certificate and knows what the sites know."""
    server, *_ = deployment
    app, traces = evil
    make_node_key(tmp_path / "node.key", tmp_path / "node.pub")
    before = server.control.nodes()
    outside = Control(Address("127.0.0.1", server.options.port, server.folder / "ca.crt"))
    for attack in (
        lambda: outside.start_run(app, {}, {}),
        lambda: outside.register(tmp_path / "node.pub", "north"),
        lambda: outside.unregister(before[0].id),
        outside.nodes,
        outside.runs,
    ):
        with pytest.raises(CafedclError, match="status 404"):
            attack()
    assert server.runs() == []
    assert [node.id for node in server.control.nodes()] == [node.id for node in before]
    assert not list(traces.iterdir())
    assert "/v1/control/" in (server.folder / "proxy-refused.log").read_text()


def test_an_app_that_is_submitted_on_the_servers_machine_runs_nowhere(deployment, evil):
    """The SuperLink's own port is open to every program of that machine."""
    server, *_ = deployment
    app, traces = evil
    server.control.start_run(app, {}, {})
    time.sleep(5)
    assert [run["status"].partition(":")[0] for run in server.runs()] == ["pending"]
    assert not list(traces.iterdir())


def test_a_hostile_server_runs_no_code_at_a_site(deployment, evil):
    """The operator's secret is in the wrong hands: the stranger's app can talk to all sites."""
    server, sites, _ = deployment
    _, traces = evil
    address = server.address
    runtime = Runtime(str(address), server.secret.read_bytes(), address.ca.read_bytes())
    with runtime.acquire((TaskType.SERVER_APP,)) as task:
        assert task.app.startswith("mallory/evil 1.0")
        grid = TaskGrid(address, task)
        nodes = list(grid.get_node_ids())
        assert len(nodes) == 2
        contents = [wrap({SHARED: b"x"}), RecordDict({"x": ConfigRecord({"run": "id"})})]
        messages = [
            Message(content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=DEADLINE)
            for node, content in zip(nodes, contents, strict=True)
        ]
        answers = list(grid.send_and_receive(messages, timeout=DEADLINE))
        assert len(answers) == 2
        for answer in answers:
            assert "not the app of cafedcl" in answer.error.reason
        task.finish()
        grid.close()
    runtime.close()
    for site in sites:
        assert "refused: mallory/evil 1.0" in (site.folder / "worker.log").read_text()
        assert site.worker.alive
        assert site.node.alive
        assert not list((site.folder / "flower").rglob("evil*"))
    assert not list(traces.iterdir())


def test_the_sites_go_on_working_and_the_operator_hears_of_the_strangers_run(
    deployment, evil, tmp_path
):
    server, *_ = deployment
    app, traces = evil
    server.control.start_run(app, {}, {})
    heard = []

    class Notes(Callback):
        def noticed(self, federation, message):
            heard.append(message)

    config = resolve(
        {
            "method": {"name": "fedavg"},
            "split": {"kind": "iid"},
            "model": {"name": "mlp"},
            "train": {"epochs": 1, "iterations": 2},
            "federation": {"clients": 2, "rounds": 2},
            "engine": {"name": "flower", "device": "cpu", "deadline": DEADLINE},
        }
    )
    finished = server.run(config, tmp_path / "run", [Notes()])
    assert [line["failed"] for line in finished.records] == [[], []]
    assert any(
        line.startswith("refused: mallory/evil 1.0") and "was not submitted with" in line
        for line in heard
    )
    assert not list(traces.iterdir())


def test_a_site_is_refused_when_it_is_revoked_and_until_its_new_key_is_admitted(
    deployment, monkeypatch
):
    """First the SuperLink no longer has its key, then it never had it."""
    server, sites, _ = deployment
    south = sites[1]
    monkeypatch.setattr("cafedcl.deploy.site.RETRY", 0.0)

    server.revoke("south")
    wait_until(lambda: not south.node.alive)
    south.node = south._start_node()
    wait_until(lambda: not south.node.alive)
    assert REFUSED in south.node.last_error()
    assert [site["name"] for site in server.sites()] == ["north"]

    renew_key(south.folder)
    monkeypatch.setattr("cafedcl.deploy.site.REFUSAL_LIMIT", 0.0)
    with pytest.raises(CafedclError, match="the server refused it"):
        south.watch(print)
    assert [site["name"] for site in server.sites()] == ["north"]


def test_sites_come_back_when_the_server_was_killed_and_is_started_again(deployment):
    """A killed server leaves nothing behind. The new SuperLink knows none of the old nodes, so it
    sends north away; south's new key is admitted only now.
    """
    server, (north, south), running = deployment
    before = set(node_names(server.folder).values())
    end(running.pop(), signal.SIGKILL, server)
    running.append(start(server))
    server.admit("south", south.folder / "south.pub")
    south.node = south._start_node()
    wait_until(lambda: not north.node.alive)
    said = []
    north._restart_node(north.node, said.append)
    wait_until(lambda: all_online(server))
    assert not before & set(node_names(server.folder).values())
    assert "the server closed the connection: probably it was started again" in said[0]


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


class Interrupter(Callback):
    """Presses Ctrl-C when a round begins."""

    def round_began(self, federation, clients):
        raise KeyboardInterrupt


def test_a_run_that_is_interrupted_is_stopped_and_has_not_failed(deployment, tmp_path):
    server, *_ = deployment
    with pytest.raises(KeyboardInterrupt):
        server.run(config("flower"), tmp_path / "run", [Interrupter()])
    newest = server.runs()[0]
    assert newest["status"] == "finished:stopped"
    assert newest["folder"] == str(tmp_path / "run")


class Killer(Callback):
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


def test_a_deployment_trains_like_one_machine_and_outlives_a_site(deployment, tmp_path):
    """All sites answer for two rounds, which equal the reference engine's; in the third, one is
    killed.
    """
    server, sites, _ = deployment
    killer = Killer(sites[1], 2)
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

    assert sorted(site["name"] for site in server.sites()) == sorted(SITES)
    shown = api.load(tmp_path / "run")
    assert shown.predict(torch.zeros(1, 8, 8, dtype=torch.uint8)).names[0] in shown.names
