"""`cafedcl deploy` at the command line: what it prints, and one line for every mistake."""

import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.folders import node_names, read_site
from cafedcl.deploy.server import Server


def invoke(*words):
    return CliRunner().invoke(app, ["deploy", *map(str, words)], catch_exceptions=True)


def test_init_prints_the_commands_that_come_next(tmp_path):
    folder = tmp_path / "d"
    said = invoke(
        "init", folder, "--site", "north=/data/north", "--site", "south", "--host", "fl.example.org"
    ).stdout
    assert f"cafedcl deploy server {folder}/server" in said
    assert f"at north, with a copy of {folder}/north:\n  cafedcl deploy site {folder}/north" in said
    assert (
        f"at south, with a copy of {folder}/south, once its site.toml says where the data are:"
        in said
    )
    assert f"cafedcl deploy run {folder}/server" in said
    assert "ca.key" in said
    assert read_site(folder / "north").data == "/data/north"


def test_init_warns_where_there_is_no_security(tmp_path):
    said = invoke("init", tmp_path / "d", "--site", "a", "--insecure").stdout
    assert "warning: without TLS and keys" in said
    assert "ca.key" not in said


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["init", "d", "--site", "a", "--site", "a=x"], "each site needs a different name"),
        (["init", "d", "--site", "a=x", "--simulated"], "remove =DATA"),
        (["init", "d", "--site", "a/b"], "--site a/b"),
        (["server", "nowhere"], "deploy init"),
        (["site", "nowhere"], "deploy init"),
        (["status", "nowhere"], "deploy init"),
        (["run", "nowhere"], "deploy init"),
    ],
)
def test_a_mistake_is_one_line(words, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*words)
    assert isinstance(result.exception, CafedclError)
    assert mistake in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("command", ["status", "run"])
def test_without_a_server_the_command_that_starts_it_is_named(command, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--port", 1)
    result = invoke(command, tmp_path / "d" / "server")
    assert f"cafedcl deploy server {tmp_path}/d/server" in str(result.exception)


def test_status_shows_sites_by_name_and_runs(tmp_path, monkeypatch):
    invoke("init", tmp_path / "d", "--site", "north", "--site", "south")
    folder = tmp_path / "d" / "server"
    registered = iter(["11", "12"])

    def run_flwr(home, *words):
        if words[:2] == ("supernode", "register"):
            return {"node-id": next(registered)}
        if words[0] == "supernode":
            node = {"status": "online", "online-at": "noon", "offline-at": ""}
            return {
                "nodes": [
                    {**node, "node-id": "12"},
                    {**node, "node-id": "11", "status": "registered"},
                ]
            }
        return {"runs": [{"run-id": 5, "status": "finished:completed", "elapsed": 61.4}]}

    monkeypatch.setattr("cafedcl.deploy.server.run_flwr", run_flwr)
    monkeypatch.setattr("cafedcl.deploy.superlink.Address.healthy", lambda _: True)
    Server.of(folder).register()
    assert node_names(folder) == {"north": "11", "south": "12"}
    lines = [line.split() for line in invoke("status", folder).stdout.splitlines()]
    assert ["south", "online", "noon"] in lines
    assert ["north", "registered", "never", "connected"] in lines
    assert ["5", "finished:completed", "61"] in lines


def test_sites_are_registered_once(tmp_path, monkeypatch):
    invoke("init", tmp_path / "d", "--site", "north")
    calls = []

    def run_flwr(home, *words):
        calls.append(words[1])
        return {"node-id": "11", "nodes": [{"node-id": "11"}] if "register" in calls else []}

    monkeypatch.setattr("cafedcl.deploy.server.run_flwr", run_flwr)
    for _ in range(2):
        Server.of(tmp_path / "d" / "server").register()
    assert calls == ["list", "register", "list"]


@pytest.mark.parametrize(
    ("host", "listen"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("fl.example.org", "0.0.0.0")],
)
def test_a_server_listens_where_it_is_reached(host, listen, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--host", host)
    server = Server.of(tmp_path / "d" / "server")
    assert server.listen == listen
    assert server.address.host == "127.0.0.1"


@pytest.mark.parametrize(("port", "superlink"), [(8000, 8001), (65535, 65534)])
def test_the_superlink_has_a_port_of_its_own(port, superlink, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--port", port)
    assert Server.of(tmp_path / "d" / "server").options.superlink == superlink


def test_without_flower_one_line_says_what_to_install(tmp_path):
    """In a process where flwr cannot be imported; everything else works as before."""
    code = (
        "import sys; sys.modules['flwr'] = None; "
        "from cafedcl.cli.main import main; sys.argv = {}; main()"
    )
    for words in (
        ["run", "--engine", "flower", "--out", str(tmp_path / "r")],
        ["deploy", "site", str(tmp_path)],
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(["cafedcl", *words])],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("error: engine.name = flower: ")
        assert "pip install cafedcl[flower]" in done.stderr
        assert len(done.stderr.splitlines()) == 1
