"""Whom a run waits for, and for how long."""

import json

import pytest
from sites import settings

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower.mail import Reminder
from cafedcl.deploy.flower.server_app import GridHost


class Clock:
    """A clock that moves only while somebody sleeps: no machine is too slow for it."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("mail", "roster"):
        monkeypatch.setattr(f"cafedcl.deploy.flower.{module}.time", made)
    return made


@pytest.fixture
def refused(clock, config, net, places, journal, deployment):
    """Starts a run of three sites that have these keys, and returns what it says."""

    def start(names, deadline, error):
        (deployment / "nodes.json").write_text(json.dumps(names))
        chosen = config(**settings(engine__deadline=deadline))
        with pytest.raises(CafedclError, match=error):
            GridHost(net, journal.say, str(deployment))(chosen, [], None)
        said = journal.path / "events.jsonl"
        return said.read_text() if said.exists() else ""

    return start


def test_the_run_says_whom_it_waits_for(refused, net):
    del net.sites[13]
    said = refused({"a": "11", "b": "12", "c": "99"}, 20, "2 of 3 sites")
    assert said.count("2 of 3 sites are ready (not here: c)") == 2


def test_a_run_of_more_sites_than_have_keys_is_refused_at_once(refused, clock):
    error = r"federation.clients = 3: only 2 sites have keys .* set federation.clients = 2"
    refused({"a": "11", "b": "12"}, 600, error)
    assert clock.now < 1


def test_more_sites_than_were_waited_for_all_take_part(config, host, places, journal):
    federation = host(config(**settings(federation__clients=2)), [], None)
    assert federation.config.federation.clients == 3
    said = (journal.path / "events.jsonl").read_text()
    assert "all 3 connected sites take part; federation.clients = 2 says" in said


def test_a_site_that_cannot_take_part_is_not_called_absent(refused, places):
    (places / "c.npz").write_bytes(b"")
    said = refused({"a": "11", "b": "12", "c": "13"}, 20, "2 of 3 sites")
    assert said.count("2 of 3 sites are ready (cannot take part: site c)") == 2


def test_a_run_does_not_wait_long_for_sites_that_cannot_take_part(refused, places, clock):
    (places / "c.npz").write_bytes(b"")
    error = r"2 of 3 sites can take part \(site c: .+\); fix that"
    refused({"a": "11", "b": "12", "c": "13"}, 600, error)
    assert 60 < clock.now < 70


def test_a_run_waits_for_a_site_that_is_not_there_whoever_cannot_take_part(refused, places, clock):
    (places / "c.npz").write_bytes(b"")
    names = {"a": "11", "b": "12", "c": "13", "d": "14"}
    refused(names, 600, "2 of 3 sites connected within 600 s")
    assert clock.now > 600


def test_reminders_become_rarer(clock):
    reminder = Reminder()
    told = []
    for _ in range(400):
        clock.sleep(0.5)
        if reminder.is_due():
            told.append(clock.now)
    assert told == [5.5, 16.0, 36.5, 77.0, 137.5, 198.0]


def test_a_site_that_takes_long_to_enrol_is_named(refused, net):
    net.twist[13] = lambda asked, parts: []
    said = refused({"a": "11", "b": "12", "c": "13"}, 6, "2 of 3 sites")
    assert "no enrolment yet from site c" in said
