"""The Control API of a SuperLink, which the test plays."""

import http.server
import threading

import pytest
from flwr.common.serde import user_config_from_proto
from flwr.proto.control_pb2 import (
    ListNodesResponse,
    ListRunsResponse,
    RegisterNodeRequest,
    RegisterNodeResponse,
    StartRunRequest,
    StartRunResponse,
    StopRunRequest,
    StopRunResponse,
    UnregisterNodeRequest,
    UnregisterNodeResponse,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.app import write_app
from cafedcl.deploy.flower.control import Control, NodeStatus
from cafedcl.deploy.flower.runtime import app_files
from cafedcl.deploy.keys import make_node_key
from cafedcl.deploy.superlink import Address, free_port


class SuperLink(http.server.BaseHTTPRequestHandler):
    """Answers with what is prepared for a path, and remembers the requests."""

    def do_POST(self):
        self.server.asked.append(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answers.get(self.path, (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def link():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SuperLink)
    server.asked = []
    server.answers = {}
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def control(link):
    return Control(Address("127.0.0.1", link.server_port, None))


def answer(link, path, message):
    link.answers[f"/v1/control/{path}"] = (200, message.SerializeToString())


def node(number, status, registered, online="", offline=""):
    return NodeInfo(
        node_id=number,
        name=f"site {number}",
        status=status,
        registered_at=registered,
        last_activated_at=online,
        last_deactivated_at=offline,
    )


def test_nodes_are_listed_in_order_and_without_those_that_are_gone(link, control):
    day = "2026-11-16T12:00:0{}.123456+00:00"
    nodes = [
        node(3, "offline", day.format(2), day.format(3), day.format(4)),
        node(1, "unregistered", day.format(0)),
        node(2, "registered", day.format(1)),
    ]
    answer(link, "list-nodes", ListNodesResponse(nodes_info=nodes, now=day.format(9)))
    assert control.nodes() == [
        NodeStatus("2", "site 2", "registered", "", ""),
        NodeStatus("3", "site 3", "offline", "2026-11-16 12:00:03Z", "2026-11-16 12:00:04Z"),
    ]


def test_a_key_is_registered_and_a_node_removed(link, control, tmp_path):
    make_node_key(tmp_path / "node.key", tmp_path / "node.pub")
    answer(link, "register-node", RegisterNodeResponse(node_id=2**63 + 5))
    assert control.register(tmp_path / "node.pub", "north") == str(2**63 + 5)
    asked = RegisterNodeRequest.FromString(link.asked[0])
    assert asked.name == "north"
    assert asked.public_key.startswith(b"-----BEGIN PUBLIC KEY-----")
    answer(link, "unregister-node", UnregisterNodeResponse())
    control.unregister("7")
    assert UnregisterNodeRequest.FromString(link.asked[1]).node_id == 7


def run(number, begin, running="", finished="", sub=""):
    status = "finished" if finished else "running" if running else "pending"
    return Run(
        run_id=number,
        pending_at=begin,
        running_at=running,
        finished_at=finished,
        status=RunStatus(status=status, sub_status=sub),
    )


def test_runs_are_listed_with_their_time(link, control):
    minute = "2026-11-16T12:{:02}:00+00:00"
    runs = {
        1: run(1, minute.format(0), minute.format(1), minute.format(3), "completed"),
        2: run(2, minute.format(4), minute.format(5)),
        3: run(3, minute.format(6)),
    }
    answer(link, "list-runs", ListRunsResponse(run_dict=runs, now=minute.format(8)))
    assert [(it.id, it.status, it.seconds) for it in control.runs()] == [
        (3, "pending", 0.0),
        (2, "running", 180.0),
        (1, "finished:completed", 120.0),
    ]


def test_an_app_is_submitted_with_its_options_and_stopped(link, control, tmp_path):
    app = write_app(tmp_path / "app")
    answer(link, "start-run", StartRunResponse(run_id=9))
    words = {"out": "runs/x", "resume": False, "rounds": 3}
    assert control.start_run(app, words, {"num_supernodes": 4}) == 9
    asked = StartRunRequest.FromString(link.asked[0])
    assert "pyproject.toml" in app_files(asked.fab.content)
    assert user_config_from_proto(asked.override_config) == words
    assert asked.override_federation_config.num_supernodes == 4
    control.start_run(app, {}, {})
    assert not StartRunRequest.FromString(link.asked[1]).HasField("override_federation_config")
    answer(link, "stop-run", StopRunResponse(success=True))
    control.stop_run(9)
    assert StopRunRequest.FromString(link.asked[2]).run_id == 9


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b"", "status 404"),
        (409, b'{"code": 1, "detail": "the key\\nis in use"}', "the key is in use"),
        (500, b"no json", "status 500"),
    ],
)
def test_a_refusal_is_one_line_with_flowers_reason(link, control, status, body, reason):
    link.answers["/v1/control/list-runs"] = (status, body)
    with pytest.raises(CafedclError, match=reason) as found:
        control.runs()
    assert "\n" not in str(found.value)
    assert str(control.address) in str(found.value)


def test_a_superlink_that_is_not_there_is_named():
    address = Address("127.0.0.1", free_port(), None)
    with pytest.raises(CafedclError, match=f"SuperLink at {address}: no answer"):
        Control(address).nodes()


def test_a_superlink_is_never_asked_through_a_proxy(link, control, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    answer(link, "list-nodes", ListNodesResponse())
    assert control.nodes() == []
