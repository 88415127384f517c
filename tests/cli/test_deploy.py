"""`cafedcl deploy` at the command line: what it prints, and one line for every mistake."""

import itertools
import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from typer.testing import CliRunner

from cafedcl.cli.main import app
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower.control import NodeStatus, RunStatus
from cafedcl.deploy.folders import node_names, read_server, read_site, remember_run
from cafedcl.deploy.keys import make_node_key
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
    assert read_site(folder / "north").data == "/data/north"


def test_init_notes_what_sites_may_enrol_with(tmp_path):
    limits = ["--class", "benign", "--class", "malignant", "--images-per-class", "5000"]
    invoke("init", tmp_path / "d", "--site", "a", *limits)
    options = read_server(tmp_path / "d" / "server")
    assert (options.classes, options.images_per_class) == (("benign", "malignant"), 5000)


def test_init_warns_where_there_is_no_security(tmp_path):
    said = invoke("init", tmp_path / "d", "--site", "a", "--insecure").stdout
    assert "warning: without TLS and keys" in said


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["init", "d", "--site", "a", "--site", "a=x"], "each site needs a different name"),
        (["init", "d", "--site", "a=x", "--simulated"], "remove =DATA"),
        (["init", "d", "--site", "a/b"], "site 'a/b'"),
        (["init", "d", "--site", "a", "--class", "x", "--class", "x"], "--class: each class needs"),
        (["server", "nowhere"], "deploy init"),
        (["site", "nowhere"], "deploy init"),
        (["status", "nowhere"], "deploy init"),
        (["run", "nowhere"], "deploy init"),
        (["revoke", "nowhere", "a"], "deploy init"),
        (["admit", "nowhere", "a", "a.pub"], "deploy init"),
        (["renew", "nowhere"], "deploy init"),
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
    monkeypatch.setenv("COLUMNS", "300")
    invoke("init", tmp_path / "d", "--site", "north", "--site", "south")
    folder = tmp_path / "d" / "server"
    registered = iter(["11", "12"])

    class Control:
        def register(self, key, name):
            return next(registered)

        def unregister(self, node):
            pass

        def nodes(self):
            return [
                NodeStatus("12", "south", "online", "noon", ""),
                NodeStatus("11", "north", "registered", "", ""),
                NodeStatus("13", "west", "registered", "", ""),
            ]

        def runs(self):
            return [RunStatus(6, "running", 3.0), RunStatus(5, "finished:stopped", 61.4)]

    monkeypatch.setattr(Server, "control", Control())
    monkeypatch.setattr("cafedcl.deploy.superlink.Address.healthy", lambda _: True)
    Server.of(folder).register()
    assert node_names(folder) == {"north": "11", "south": "12"}
    remember_run(folder, 5, tmp_path / "first")
    lines = [line.split() for line in invoke("status", folder).stdout.splitlines()]
    assert ["south", "online", "noon"] in lines
    assert ["north", "registered", "never", "connected"] in lines
    # Registered a moment ago, so the server has not noted its number yet.
    assert ["west", "registered", "never", "connected"] in lines
    assert ["running", "0:03", "number", "6"] in lines
    assert ["stopped", "1:01", str(tmp_path / "first")] in lines
    told = json.loads(invoke("status", folder, "--json").stdout)
    assert told["runs"][1] == {
        "run": "5",
        "folder": str(tmp_path / "first"),
        "status": "finished:stopped",
        "seconds": "61",
    }


@pytest.fixture
def flower(monkeypatch):
    """Plays the node list of a SuperLink: keys by node number."""
    keys = {}
    numbers = itertools.count(12)

    class Control:
        def register(self, key, name):
            number = str(next(numbers))
            keys[number] = key.read_bytes()
            return number

        def unregister(self, node):
            del keys[node]

        def nodes(self):
            return [NodeStatus(number, "", "online", "noon", "") for number in keys]

    monkeypatch.setattr(Server, "control", Control())
    monkeypatch.setattr("cafedcl.deploy.superlink.Address.healthy", lambda _: True)
    return keys


def registered(folder, keys):
    """Return the name of every key that the SuperLink knows."""
    names = {node: name for name, node in node_names(folder).items()}
    assert keys.keys() == names.keys()
    return {
        names[node]: (folder / "sites" / f"{names[node]}.pub").read_bytes() == key
        for node, key in keys.items()
    }


def test_sites_are_registered_once_and_other_keys_are_removed(tmp_path, flower):
    invoke("init", tmp_path / "d", "--site", "north", "--site", "south")
    folder = tmp_path / "d" / "server"
    flower["99"] = b"a key that somebody else registered"
    for _ in range(2):
        Server.of(folder).register()
        assert registered(folder, flower) == {"north": True, "south": True}
    assert node_names(folder) == {"north": "12", "south": "13"}


def test_a_revoked_site_is_removed_at_once(tmp_path, flower):
    invoke("init", tmp_path / "d", "--site", "north", "--site", "south")
    folder = tmp_path / "d" / "server"
    Server.of(folder).register()
    assert "site north is removed" in invoke("revoke", folder, "north").stdout
    assert registered(folder, flower) == {"south": True}
    again = invoke("revoke", folder, "north")
    assert "there is no site north; its sites are: south" in str(again.exception)


def test_a_new_key_replaces_the_old_one(tmp_path, flower):
    invoke("init", tmp_path / "d", "--site", "north", "--site", "south")
    folder = tmp_path / "d" / "server"
    Server.of(folder).register()
    before = dict(flower)
    said = invoke("renew", tmp_path / "d" / "north").stdout
    assert "cafedcl deploy admit SERVER-FOLDER north north.pub" in said
    key = tmp_path / "d" / "north" / "north.pub"
    assert invoke("admit", folder, "north", key).stdout.startswith("site north is admitted with ")
    assert registered(folder, flower) == {"north": True, "south": True}
    assert len({*flower.values()} & {*before.values()}) == 1
    other = tmp_path / "other.pub"
    make_node_key(tmp_path / "node.key", other)
    assert invoke("admit", folder, "nroth", other).stdout.startswith("the new site nroth is ")


def test_a_file_that_is_no_public_key_is_not_admitted(tmp_path, flower):
    invoke("init", tmp_path / "d", "--site", "north")
    folder = tmp_path / "d" / "server"
    for file in (tmp_path / "d" / "north" / "node.key", tmp_path / "nowhere"):
        assert str(file) in str(invoke("admit", folder, "west", file).exception)
    assert not (folder / "sites" / "west.pub").exists()


def test_a_new_certificate_has_a_new_authority(tmp_path, monkeypatch):
    invoke("init", tmp_path / "d", "--site", "north")
    folder = tmp_path / "d" / "server"
    before = [(folder / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")]
    said = invoke("renew", folder).stdout
    assert f"copy {folder}/ca.crt into the folder of every site" in said
    after = [(folder / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")]
    assert not {*before} & {*after}
    authority, leaf = (x509.load_pem_x509_certificate(data) for data in after[:2])
    leaf.verify_directly_issued_by(authority)
    monkeypatch.setattr("cafedcl.deploy.superlink.Address.healthy", lambda _: True)
    assert "stop the server" in str(invoke("renew", folder).exception)


@pytest.mark.parametrize("words", [["renew"], ["revoke", "a"], ["admit", "a", "a.pub"]])
def test_an_insecure_deployment_has_no_keys(words, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--insecure")
    result = invoke(words[0], tmp_path / "d" / "server", *words[1:])
    assert "an insecure deployment has no keys" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "words", "every"),
    [
        ("", [], 1),
        ("[store]\ncheckpoint_every = 7\n", [], 7),
        ("", ["--set", "store.checkpoint_every=3"], 3),
    ],
)
def test_a_deployment_saves_every_round_unless_told_otherwise(
    text, words, every, tmp_path, monkeypatch
):
    class StopError(Exception):
        pass

    chosen = []

    def run(self, config, path, callbacks):
        chosen.append(config)
        raise StopError

    monkeypatch.setattr(Server, "run", run)
    invoke("init", tmp_path / "d", "--site", "a", "--simulated")
    file = tmp_path / "mine.toml"
    file.write_text(text)
    invoke("run", tmp_path / "d" / "server", file, "--out", tmp_path / "r", *words)
    invoke("run", tmp_path / "d" / "server", "--out", tmp_path / "r", *words)
    assert chosen[0].store.checkpoint_every == every
    assert chosen[1].store.checkpoint_every == (every if words else 1)


@pytest.mark.parametrize(
    ("host", "listen"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("fl.example.org", "0.0.0.0")],
)
def test_a_server_listens_where_it_is_reached(host, listen, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--host", host)
    server = Server.of(tmp_path / "d" / "server")
    assert server.options.listen_address == listen
    assert server.address.host == "127.0.0.1"


@pytest.mark.parametrize(("port", "superlink"), [(8000, 8001), (65535, 65534)])
def test_the_superlink_has_a_port_of_its_own(port, superlink, tmp_path):
    invoke("init", tmp_path / "d", "--site", "a", "--port", port)
    assert Server.of(tmp_path / "d" / "server").options.superlink == superlink


WITHOUT_FLOWER = """
import json, sys
sys.modules["flwr"] = None
from cafedcl.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["cafedcl", *words]
    try:
        main()
    except SystemExit as ended:
        print("exit status", ended.code, file=sys.stderr)
"""


def test_without_flower_one_line_says_what_to_install(tmp_path):
    """In a process where flwr cannot be imported; everything else works as before."""
    commands = [
        ["deploy", "site", str(tmp_path)],
        ["run", "--engine", "flower", "--out", str(tmp_path / "r")],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # On a slow machine lines before it say what takes so long.
    *ends, rest = done.stderr.split("exit status ")
    assert rest == "2\n"
    first, second = ends
    for said in (first, second.removeprefix("2\n")):
        error = said.splitlines()[-1]
        assert error.startswith("error: engine.name = flower: ")
        assert "install the extra flower: pip install 'flwr[simulation]<" in error
        assert said.count("error") == 1
