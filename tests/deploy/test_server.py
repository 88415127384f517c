"""What keeps a server from starting is said in one line, before anything runs."""

import os
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from cafedcl.api import run
from cafedcl.core.errors import CafedclError
from cafedcl.deploy import keys
from cafedcl.deploy import server as module
from cafedcl.deploy.flower.control import RunStatus
from cafedcl.deploy.folders import (
    ServerOptions,
    lock_folder,
    make_folders,
    node_names,
    remember_run,
    site_names,
)
from cafedcl.deploy.server import Server
from cafedcl.deploy.superlink import free_port


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server whose programs must not be started."""

    def started(*_):
        pytest.fail("a process was started")

    monkeypatch.setattr(module, "nginx_program", lambda: "nginx")
    monkeypatch.setattr(module, "start_superlink", started)
    monkeypatch.setattr(module, "start_proxy", started)
    options = ServerOptions(port=free_port(), superlink=free_port())
    return Server.of(make_folders(tmp_path / "d", options, {"a": ""}, simulated=True)[0])


@pytest.mark.parametrize("option", ["port", "superlink"])
def test_a_port_that_another_program_has_is_named(option, server):
    port = getattr(server.options, option)
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(CafedclError, match=f"port {port} of 127.0.0.1 .*change {option} in"),
    ):
        server.start()
    with lock_folder(server.folder, "server"):
        pass


def test_two_servers_do_not_run_in_one_folder(server):
    with (
        lock_folder(server.folder, "server"),
        pytest.raises(CafedclError, match=rf"already \(process {os.getpid()}\)"),
    ):
        server.start()
    with lock_folder(server.folder, "server"):
        pass


@pytest.mark.parametrize("do", [Server.start, Server.check])
def test_a_server_with_an_expired_certificate_neither_starts_nor_runs(server, later, do):
    later(365 * keys.YEARS + 1)
    with pytest.raises(CafedclError, match=r"certificate is valid from .*cafedcl deploy renew"):
        do(server)


def test_a_server_says_when_its_certificate_expires_soon(server, later):
    assert server.expiry_notice() == ""
    later(365 * keys.YEARS - 30)
    assert "the certificate expires in 29 days" in server.expiry_notice()


def test_the_superlink_is_reached_on_the_loopback_only(server):
    assert server.address.host == "127.0.0.1"
    assert server.address.port == server.options.superlink


def test_a_key_that_another_site_has_is_not_admitted(server):
    keys.make_node_key(server.folder / "b.key", server.folder / "b.pub")
    server.admit("b", server.folder / "b.pub")
    with pytest.raises(CafedclError, match="this is the key of site b; every site needs its own"):
        server.admit("c", server.folder / "b.pub")
    assert site_names(server.folder) == ["a", "b"]


def test_a_key_that_flower_refuses_costs_no_other_site_its_place(server, monkeypatch):
    """Flower does not accept a key again that was removed, until it is started again."""

    class Control:
        def nodes(self):
            return []

        def register(self, key, name):
            if name == "a":
                raise CafedclError("Public key already in use.")
            return "7"

    monkeypatch.setattr(Server, "control", Control())
    keys.make_node_key(server.folder / "b.key", server.folder / "b.pub")
    server.admit("b", server.folder / "b.pub")
    with pytest.raises(CafedclError, match=r"site a: its key is saved, .*already in use.*again"):
        server.register()
    assert node_names(server.folder) == {"b": "7"}


def test_a_restarted_server_knows_earlier_runs_by_their_folders(server, tmp_path, monkeypatch):
    """The SuperLink has only run 3, which resumes the run in ``resumed``."""
    places = {name: tmp_path / name for name in ("done", "resumed", "removed")}
    run(
        "fedavg",
        out=places["done"],
        settings={"model.name": "mlp", "train.epochs": 1, "engine.workers": 1},
        clients=3,
        rounds=1,
        device="cpu",
    )
    for number, name in enumerate(("removed", "resumed", "done", "resumed")):
        remember_run(server.folder, number, places[name])
    known = SimpleNamespace(runs=lambda: [RunStatus(3, "running", 7.0)])
    monkeypatch.setattr(Server, "control", known)
    first, second = server.runs()
    assert first == {
        "run": "3",
        "folder": str(places["resumed"]),
        "status": "running",
        "seconds": "7",
    }
    assert (second["run"], second["folder"]) == ("2", str(places["done"]))
    assert second["status"] == "finished"
    assert second["seconds"].isdigit()
