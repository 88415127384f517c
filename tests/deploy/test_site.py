"""A site's two processes, played by short scripts: they are restarted unless that is useless."""

import sys

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.deploy import site as module
from cafedcl.deploy.folders import SiteOptions
from cafedcl.deploy.programs import ServerProcess
from cafedcl.deploy.site import RunningSite

STAY = "import time; time.sleep(60)"


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
        return RunningSite(tmp_path, SiteOptions(name="north"))

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
    running = site(["exit(3)", "exit(4)", STAY], [STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert heard == [f"the worker ended (exit {code}); restarting it" for code in (3, 4)]
    running.stop()
    assert not running.socket_folder.exists()


def test_a_worker_that_dies_again_and_again_is_given_up(site):
    running = site(["print('no disk'); exit(1)"] * 9, [STAY])
    with pytest.raises(CafedclError, match="site north: its worker crashes repeatedly: no disk"):
        running.watch(lambda _: None, 0.01)
    running.stop()


def test_a_supernode_that_lost_its_server_is_started_again(site):
    heard, say = enough_after(2)
    running = site([STAY], ["print('ERROR : no route')", "print('ERROR : no route')", STAY])
    with pytest.raises(EnoughError):
        running.watch(say, 0.01)
    assert "the SuperNode ended; restarting it: no route" in heard[0]
    running.stop()


def test_a_supernode_that_is_refused_is_the_end(site):
    running = site([STAY], ["print('ERROR : [code: 2004] Failed to activate SuperNode.')"])
    with pytest.raises(CafedclError, match="site north: the server refused it"):
        running.watch(lambda _: None, 0.01)
    running.stop()
