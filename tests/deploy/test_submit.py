"""A run that another process works on, watched as if it ran here; the SuperLink is played by the
test.
"""

import threading
from types import SimpleNamespace

import pytest

from cafedcl import api
from cafedcl.core.errors import CafedclError
from cafedcl.deploy import submit as module
from cafedcl.federation.callback import Callback
from cafedcl.federation.journal import Journal
from cafedcl.federation.run_folder import RunFolder
from cafedcl.task.resolve import resolve


def config(rounds=2):
    return resolve(
        {
            "method": {"name": "fedavg"},
            "model": {"name": "mlp", "width": 0.25},
            "train": {"epochs": 1, "iterations": 1},
            "federation": {"clients": 3, "rounds": rounds, "drop": ["1:2"]},
            "split": {"kind": "iid"},
            "engine": {"workers": 1, "device": "cpu"},
        }
    )


class Notes(Callback):
    def __init__(self):
        self.seen = []

    def noticed(self, federation, message):
        self.seen.append(("noticed", message))

    def round_began(self, federation, clients):
        self.seen.append(("began", federation.round, clients, len(federation.history)))

    def client_done(self, federation, client, failure):
        self.seen.append(("client", client, failure))

    def round_done(self, federation, record):
        self.seen.append(("done", federation.round, record.line()))


class Control:
    """Plays a SuperLink: a submitted run starts in a thread, as Flower's server would."""

    def __init__(self, work):
        self.work = work
        self.submitted = []
        self.stopped = []
        self.thread = None

    def start_run(self, app, config, simulation):
        self.submitted.append((app, config, simulation))
        self.thread = threading.Thread(target=self.work)
        self.thread.start()
        return 7

    def runs(self):
        status = "running" if self.thread.is_alive() else "finished:failed"
        return [SimpleNamespace(id=6, status="running"), SimpleNamespace(id=7, status=status)]

    def stop_run(self, number):
        self.stopped.append(number)


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Returns a function that submits a run whose server does as told, and gives what a callback
    saw.
    """

    def go(work, config=None):
        control = Control(work)
        notes = Notes()
        monkeypatch.setattr(module, "POLL_PERIOD", 0.3)
        nodes = {"num_supernodes": 3}
        try:
            module.submit(control, tmp_path, config, tmp_path / "run", [notes], nodes)
        finally:
            if control.thread:
                control.thread.join()
        return notes.seen, control.submitted

    return go


def server(path, again=False):
    journal = Journal(path, resumed=again)
    journal.say("hello")
    if again:
        api.resume(path, [journal])
    else:
        api.start(config(), path, [journal])
    journal.end(None)


def test_callbacks_see_what_they_would_see_here(submitted, tmp_path):
    seen, submissions = submitted(lambda: server(tmp_path / "run"), config())
    local = Notes()
    api.start(config(), None, [local])

    def timeless(events):
        return [
            (*event[:2], {**event[2], "seconds": 0}) if event[0] == "done" else event
            for event in events
        ]

    assert timeless(seen[1:]) == timeless(local.seen)
    assert seen[0] == ("noticed", "hello")
    words = {
        "out": str(tmp_path / "run"),
        "resume": False,
        "config-file": str(tmp_path / "run.toml"),
    }
    assert submissions == [(tmp_path / "cafedcl-run", words, {"num_supernodes": 3})]


def test_a_run_that_goes_on_is_watched_from_where_it_stands(submitted, tmp_path):
    api.start(config(), tmp_path / "run", [])
    text = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(text.replace("rounds = 2", "rounds = 4"))
    seen, [(_, words, _)] = submitted(lambda: server(tmp_path / "run", again=True))
    assert [event[1:] for event in seen if event[0] == "began"] == [(2, 3, 2), (3, 3, 3)]
    assert words["resume"] is True


def test_an_error_at_the_server_is_the_error_here(submitted, tmp_path):
    with pytest.raises(CafedclError, match="no such method"):
        submitted(lambda: Journal(tmp_path / "run").end("there is no such method"), config())
    RunFolder.create(tmp_path / "run").unlock()


def test_a_server_that_vanishes_is_noticed(submitted, tmp_path):
    with pytest.raises(CafedclError, match="without a message"):
        submitted(lambda: Journal(tmp_path / "run").say("hello"), config())


def test_an_interrupt_stops_the_run(tmp_path):
    control = Control(lambda: Journal(tmp_path / "run").say("hello"))

    class Impatient(Callback):
        def noticed(self, federation, message):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        module.submit(control, tmp_path, config(), tmp_path / "run", [Impatient()], {})
    control.thread.join()
    assert control.stopped == [7]


def test_flower_is_asked_only_after_a_silence(monkeypatch):
    asked = []

    class Asked:
        def runs(self):
            asked.append(now[0])
            return [SimpleNamespace(id=7, status="running")]

    monkeypatch.setattr(module, "POLL_PERIOD", 0.2)
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pulse = module.ActivityCheck(Asked(), 7)
    for _ in range(50):
        assert pulse()
        now[0] += 0.01
    assert len(asked) == 2
