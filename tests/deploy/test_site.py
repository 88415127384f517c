"""A site's two processes, played by short scripts: they are restarted unless that is useless."""

import errno
import os
import stat
import sys

import pytest
from cryptography.hazmat.primitives import serialization

from cafedcl.core.errors import CafedclError
from cafedcl.deploy import keys
from cafedcl.deploy import site as module
from cafedcl.deploy.folders import ServerOptions, SiteOptions, make_folders
from cafedcl.deploy.programs import ServerProcess
from cafedcl.deploy.site import RunningSite

STAY = "import time; time.sleep(600)"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Returns a function that starts a site whose worker and SuperNode run one script after
    another.
    """
    made = []

    def start(workers, nodes):
        def begun(kind, scripts):
            def process(self):
                made.append(
                    ServerProcess(
                        [sys.executable, "-c", scripts.pop(0)], tmp_path / "home", tmp_path / kind
                    )
                )
                setattr(self, kind, made[-1])
                return made[-1]

            return process

        monkeypatch.setattr(RunningSite, "_start_worker", begun("worker", list(workers)))
        monkeypatch.setattr(RunningSite, "_start_node", begun("node", list(nodes)))
        monkeypatch.setattr(module, "RETRY", 0.0)
        monkeypatch.setattr(module, "unreachable", lambda host, port: "")
        running = RunningSite(tmp_path, SiteOptions(name="north", client=0, insecure=True))
        running.was_unreachable = False
        return running

    yield start
    for process in made:
        process.stop()


class EnoughError(Exception):
    pass


def enough_after(number):
    """Make a listener that has heard enough after so many lines."""
    heard = []

    def say(line):
        heard.append(line)
        if len(heard) == number:
            raise EnoughError

    return heard, say


def test_a_worker_that_dies_is_started_again(site):
    heard, say = enough_after(2)
    running = site(["exit(3)", "exit(4)", STAY], [STAY] * 3)
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard == [f"the worker ended (exit {code}); restarting it" for code in (3, 4)]
    running.stop()
    assert not running.runtime.exists()


def test_what_the_worker_says_of_its_data_is_shown(site):
    lines = ["error: patient 'P0' is in both", "a detail", "refused: more", "warning: half a line"]
    heard, say = enough_after(2)
    running = site([f"print({chr(10).join(lines)!r}, end='', flush=True)\n{STAY}"], [STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard == [lines[0], lines[2]]
    running.stop()


def test_a_worker_that_dies_takes_its_supernode_with_it(site):
    """The SuperNode would wait for the worker's answer for ever."""
    _, say = enough_after(2)
    running = site(["exit(3)", "exit(4)", STAY], [STAY] * 3)
    first = running.node
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert not first.alive
    assert running.node is not first
    running.stop()


def test_a_worker_that_dies_again_and_again_is_given_up(site):
    running = site(["print('no disk'); exit(1)"] * 9, [STAY] * 9)
    with pytest.raises(CafedclError, match="site north: its worker crashes repeatedly: no disk"):
        running.watch(lambda _: None, 0.01)
    running.stop()


def test_two_sites_do_not_run_in_one_folder(site):
    running = site([STAY] * 2, [STAY] * 2)
    with pytest.raises(CafedclError, match=r"a site runs in this folder already \(process \d+\)"):
        site([STAY], [STAY])
    running.stop()
    site([STAY], [STAY]).stop()


def test_a_supernode_that_lost_its_server_is_started_again(site):
    heard, say = enough_after(2)
    running = site([STAY], ["print('ERROR : no route')", "print('ERROR : no route')", STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert "the SuperNode ended (exit 0); restarting it: no route" in heard[0]
    running.stop()


def test_a_server_that_nobody_can_reach_is_told_once_and_when_it_is_there(site, monkeypatch):
    heard, say = enough_after(2)
    running = site([STAY], [STAY])
    answers = ["Connection refused", "Connection refused", ""]
    monkeypatch.setattr(module, "unreachable", lambda host, port: answers.pop(0))
    monkeypatch.setattr(module, "PROBE", 0.0)
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard[0].startswith("nobody answers at 127.0.0.1:8000 (Connection refused)")
    assert heard[1] == "there is a server at 127.0.0.1:8000; connecting"
    running.stop()


def test_nothing_is_said_of_a_server_that_cannot_be_tried(site, monkeypatch):
    running = site(["print('warning: enough', flush=True)\n" + STAY], [STAY])
    running.was_unreachable = None
    monkeypatch.setattr(module, "unreachable", lambda host, port: None)
    heard, say = enough_after(1)
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard == ["warning: enough"]
    running.stop()


def test_a_server_that_answers_is_told_once_and_when_it_has_gone(site, monkeypatch):
    heard, say = enough_after(2)
    running = site([STAY], [STAY])
    running.was_unreachable = None
    answers = ["", "", "", "Connection refused"]
    monkeypatch.setattr(module, "unreachable", lambda host, port: answers.pop(0))
    monkeypatch.setattr(module, "LATER_PROBE", 0.0)
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard[0] == "there is a server at 127.0.0.1:8000; connecting"
    assert heard[1].startswith("nobody answers at 127.0.0.1:8000 (Connection refused)")
    running.stop()


def test_a_server_with_another_certificate_is_told_once_with_what_to_do(site):
    heard, say = enough_after(2)
    foreign = (
        "print('ERROR : [SSL: X] certificate verify failed: unable to get local issuer (a.c)')"
    )
    running = site([STAY], [foreign, foreign, "print('ERROR : no route')", STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert "does not vouch for the server at 127.0.0.1:8000 (unable to get local" in heard[0]
    assert "copy ca.crt from the server's folder" in heard[0]
    assert "no route" in heard[1]
    running.stop()


REFUSED = "print('ERROR : [code: 2004] Failed to activate SuperNode.')"


def test_a_supernode_that_is_refused_for_long_is_the_end(site, monkeypatch):
    monkeypatch.setattr(module, "REFUSAL_LIMIT", 0.5)
    running = site([STAY], [REFUSED] * 99)
    heard = []
    with pytest.raises(CafedclError, match=r"site north: the server refused it for 0\.5 s"):
        running.watch(heard.append, 0.01)
    assert len(heard) == 1
    running.stop()


def test_a_site_that_was_killed_waits_until_it_is_let_in_again(site):
    heard, say = enough_after(2)
    lost = "print('ERROR : no route')"
    running = site([STAY], [REFUSED, REFUSED, lost, STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert "does not accept this site:" in heard[0]
    assert "no route" in heard[1]
    assert running.refused_since is None
    running.stop()


@pytest.mark.parametrize(
    "logged", ["INFO : Finished server process [1]", "ERROR : Client error '401 Unauthorized' for"]
)
def test_a_connection_that_the_server_closed_is_no_crash(logged, site):
    heard, say = enough_after(1)
    running = site([STAY], [f"print({logged!r})", STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert "the server closed the connection" in heard[0]
    assert "Finished server process" not in heard[0]
    assert "401" not in heard[0]
    running.stop()


def test_a_supernode_that_was_killed_is_told_with_its_status(site):
    heard, say = enough_after(1)
    killed = "import os; print('INFO : started', flush=True); os.kill(os.getpid(), 9)"
    running = site([STAY], [killed, STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard[0].startswith("the SuperNode ended (exit ")
    assert "the server closed the connection" not in heard[0]
    running.stop()


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({}, "it has no data; set data"),
        ({"data": "/no/where"}, "/no/where: there is no such path; set data"),
        ({"data": "no/where"}, "no/where: there is no such path in /"),
    ],
)
def test_a_site_without_data_does_not_start(options, mistake, tmp_path):
    with pytest.raises(CafedclError, match=f"site north: .*{mistake}"):
        RunningSite(tmp_path, SiteOptions(name="north", **options))


@pytest.mark.parametrize(("name", "mistake"), [("folder", "folder"), ("images.npz", "file")])
def test_a_site_with_empty_data_does_not_start(name, mistake, tmp_path):
    path = tmp_path / name
    if mistake == "folder":
        path.mkdir()
    else:
        path.touch()
    with pytest.raises(CafedclError, match=f"{name}: this {mistake} is empty; set data"):
        RunningSite(tmp_path, SiteOptions(name="north", data=str(path)))


def test_a_folder_of_data_that_may_not_be_listed_is_one_line(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.iterdir", refused)
    with pytest.raises(CafedclError, match="it cannot be read: Permission denied; set data"):
        RunningSite(tmp_path / "site", SiteOptions(name="north", data=str(tmp_path)))


def test_a_folder_in_the_place_of_a_key_is_told_and_kept(tmp_path):
    key = tmp_path / "node.key"
    key.mkdir()
    with pytest.raises(CafedclError, match=r"node\.key: it is a folder; remove it"):
        keys.make_node_key(key, tmp_path / "north.pub")
    with pytest.raises(CafedclError, match=r"node\.key: it is a folder, where a file"):
        keys.refuse_missing(tmp_path, {"node.key": "make one"})
    assert [path.name for path in tmp_path.iterdir()] == ["node.key"]


def test_a_site_with_an_expired_certificate_does_not_start(tmp_path, later):
    (tmp_path / "ca.crt").write_bytes(keys.make_certificates("localhost", tmp_path))
    later(365 * keys.YEARS + 1)
    with pytest.raises(CafedclError, match=r"ca\.crt: this certificate is valid from .*renew"):
        RunningSite(tmp_path, SiteOptions(name="north", client=0, insecure=True))


def test_a_site_whose_certificate_expires_while_it_runs_ends_with_the_reason(site, tmp_path, later):
    running = site([STAY], ["print('ERROR : certificate has expired')"] * 2)
    (tmp_path / "ca.crt").write_bytes(keys.make_certificates("localhost", tmp_path))
    later(365 * keys.YEARS + 1)
    with pytest.raises(CafedclError, match="certificate is valid from"):
        running.watch(lambda _: None, 0.01)
    running.stop()


def test_a_sites_new_private_key_stays_where_it_is(tmp_path):
    north = make_folders(tmp_path / "d", ServerOptions(), {"north": ""}, simulated=True)[1]
    before = (north / "node.key").read_bytes()
    public = module.renew_key(north)
    assert public == north / "north.pub"
    assert (north / "node.key").read_bytes() != before
    assert stat.S_IMODE((north / "node.key").stat().st_mode) == 0o600
    key = serialization.load_ssh_private_key((north / "node.key").read_bytes(), None)
    assert key.public_key() == serialization.load_ssh_public_key(public.read_bytes())


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("node.key", None, r"there is no node\.key; `cafedcl deploy renew .*` makes a new one"),
        ("ca.crt", None, r"there is no ca\.crt; copy it from the server's folder$"),
        ("node.key", "junk", "this is not the key of a site"),
        ("ca.crt", "junk", "this is not a certificate"),
    ],
)
def test_a_site_without_its_keys_does_not_start(file, content, message, tmp_path):
    _, folder = make_folders(tmp_path / "d", ServerOptions(), {"north": ""}, simulated=True)
    (folder / file).unlink()
    if content:
        (folder / file).write_text(content)
    with pytest.raises(CafedclError, match=message):
        RunningSite(folder, SiteOptions(name="north", client=0))


def test_a_public_key_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(CafedclError, match="cannot be read: No such file"):
        keys.read_node_key(tmp_path / "north.pub")
