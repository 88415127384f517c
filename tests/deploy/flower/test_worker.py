"""The site's worker behind its socket, and the light client process that relays to it."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Message

from cafedcl.deploy.flower import client_app, worker
from cafedcl.deploy.flower.link import receive, request_worker, send
from cafedcl.deploy.flower.records import unwrap, wrap


class Echo:
    """A site that answers with what it was asked, and for whom."""

    def __init__(self):
        self.busy = threading.Event()

    def answer(self, parts, client):
        if "hang" in parts:
            self.busy.wait(10)
        return {**parts, "client": str(client).encode()}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A worker in a thread of this process; it ends as if its parent had gone."""
    parents = iter([1] + [1] * 10**6)
    gone = threading.Event()
    monkeypatch.setattr(worker, "PARENT_CHECK", 0.05)
    monkeypatch.setattr(worker.os, "getppid", lambda: 0 if gone.is_set() else next(parents))
    path = Path(os.path.relpath(tmp_path / "s"))
    echo = Echo()
    thread = threading.Thread(target=worker.answer_requests, args=(path, echo, 2))
    thread.start()
    while not path.exists():
        pass
    yield path, echo
    gone.set()
    echo.busy.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_message_of_any_parts_goes_there_and_back(site):
    path, _ = site
    parts = {"empty": b"", "large": os.urandom(3_000_000), "näme": b"\0"}
    for _ in range(3):
        assert request_worker(path, parts) == {**parts, "client": b"2"}


def test_only_the_owner_may_open_the_socket(site):
    path, _ = site
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_request_that_is_cut_off_leaves_the_worker_at_work(site, capfd):
    path, _ = site
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        line.sendall(b"\x02\0\0\0\x05")
    assert request_worker(path, {"a": b"1"}) == {"a": b"1", "client": b"2"}
    assert "interrupted" in capfd.readouterr().err


def test_a_worker_that_hangs_is_given_up_in_time(site):
    path, _ = site
    with pytest.raises(TimeoutError):
        request_worker(path, {"hang": b""}, 0.1)


def test_a_length_that_cannot_be_is_refused():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"\x01\0\0\0" + (1 << 60).to_bytes(8, "little"))
        with pytest.raises(ConnectionError, match="too large"):
            receive(here)


def test_a_line_that_breaks_is_an_error():
    here, there = socket.socketpair()
    with here:
        with there:
            send(there, {"a": b"12345"})
        assert receive(here) == {"a": b"12345"}
        with pytest.raises(ConnectionError, match="closed the connection"):
            receive(here)


def test_the_client_process_imports_no_torch():
    """Flower starts one for every message, so what it imports is paid every time."""
    code = "import sys, cafedcl.deploy.flower.client_app\n"
    code += "print({'torch', 'sklearn', 'pandas'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_client_passes_a_message_on_to_the_worker(site, net):
    path, _ = site
    asked = Message(wrap({"a": b"1"}), dst_node_id=1, message_type="train", ttl=5.0)
    answer = client_app.relay(
        asked, SimpleNamespace(node_config={"socket": str(path)}, run_config={})
    )
    assert unwrap(answer.content) == {"a": b"1", "client": b"2"}


def test_without_a_socket_the_client_answers_itself(net, tmp_path, monkeypatch, config):
    from cafedcl.deploy.flower.messages import enrol_request, read_plain
    from cafedcl.deploy.flower.records import SHARED

    monkeypatch.setattr(client_app, "_simulated_site", [])
    asked = Message(
        wrap({SHARED: enrol_request(config())}), dst_node_id=1, message_type="query", ttl=5.0
    )
    context = SimpleNamespace(node_config={"partition-id": 4}, run_config={"out": str(tmp_path)})
    answer = client_app.relay(asked, context)
    assert read_plain(unwrap(answer.content)) == ({}, {"client": 4})
    assert client_app._simulated_site[0].home == tmp_path / "sites"
