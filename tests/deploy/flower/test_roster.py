"""Whom a run waits for, and for how long."""

import pytest
from sites import settings

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.flower.server_app import GridHost


class Clock:
    """A clock that moves only while somebody sleeps: no machine is too slow for it."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_the_run_says_whom_it_waits_for(config, net, places, journal, deployment, monkeypatch):
    monkeypatch.setattr("cafedcl.deploy.flower.roster.time", Clock())
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "99"}')
    del net.sites[13]
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=12)), [], None
        )
    said = (journal.path / "events.jsonl").read_text()
    assert said.count("2 of 3 sites are connected (not here: c)") == 2


def test_more_sites_than_were_waited_for_all_take_part(config, host, places, journal):
    federation = host(config(**settings(federation__clients=2)), [], None)
    assert federation.config.federation.clients == 3
    said = (journal.path / "events.jsonl").read_text()
    assert "all 3 connected sites take part; federation.clients = 2 says" in said


def test_a_site_that_cannot_take_part_is_not_called_absent(
    config, net, places, journal, deployment, monkeypatch
):
    monkeypatch.setattr("cafedcl.deploy.flower.roster.time", Clock())
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "13"}')
    (places / "c.npz").write_bytes(b"")
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=12)), [], None
        )
    said = (journal.path / "events.jsonl").read_text()
    assert said.count("2 of 3 sites are connected (cannot take part: site c)") == 2


def test_a_run_does_not_wait_long_for_sites_that_cannot_take_part(
    config, net, places, journal, deployment, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr("cafedcl.deploy.flower.roster.time", clock)
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "13"}')
    (places / "c.npz").write_bytes(b"")
    began = clock.now
    with pytest.raises(CafedclError, match=r"2 of 3 sites can take part \(site c: .+\); set that"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=600)), [], None
        )
    assert 60 < clock.now - began < 70


def test_a_run_waits_for_a_site_that_is_not_there_whoever_cannot_take_part(
    config, net, places, journal, deployment, monkeypatch
):
    clock = Clock()
    monkeypatch.setattr("cafedcl.deploy.flower.roster.time", clock)
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "13", "d": "14"}')
    (places / "c.npz").write_bytes(b"")
    began = clock.now
    with pytest.raises(CafedclError, match="2 of 3 sites connected within 600 s"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=600)), [], None
        )
    assert clock.now - began > 600


def test_a_site_that_takes_long_to_enrol_is_named(
    config, net, places, journal, deployment, monkeypatch
):
    for module in ("mail", "roster"):
        monkeypatch.setattr(f"cafedcl.deploy.flower.{module}.time", Clock())
    (deployment / "nodes.json").write_text('{"a": "11", "b": "12", "c": "13"}')
    net.twist[13] = lambda asked, parts: []
    with pytest.raises(CafedclError, match="2 of 3 sites"):
        GridHost(net, journal.say, str(deployment))(
            config(**settings(engine__deadline=6)), [], None
        )
    assert "no enrolment yet from site c" in (journal.path / "events.jsonl").read_text()
