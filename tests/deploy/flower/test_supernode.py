"""The pace of a SuperNode: quick while its site takes part in a run, else Flower's own."""

import inspect
import re

import pytest


@pytest.fixture(scope="module")
def supernode():
    """The module; Flower's SuperNode takes two seconds to import."""
    from cafedcl.deploy.flower import supernode

    return supernode


@pytest.fixture
def slept(monkeypatch, supernode):
    """A clock, how long it slept, and a function that lets time pass."""
    now = [100.0]
    pauses = []
    monkeypatch.setattr(supernode.time, "sleep", pauses.append)
    monkeypatch.setattr(supernode.time, "monotonic", lambda: now[0])

    def pass_time(seconds):
        now[0] += seconds

    return supernode.SiteClock(), pauses, pass_time


def test_a_site_without_a_run_asks_at_flowers_pace(slept):
    clock, pauses, _ = slept
    clock.sleep(3)
    assert pauses == [3]


def test_a_site_that_takes_part_asks_often_until_it_has_been_idle_for_a_while(slept, supernode):
    clock, pauses, pass_time = slept
    clock.sleep(0.5)
    clock.sleep(3)
    pass_time(supernode.BUSY - 1)
    clock.sleep(3)
    pass_time(2)
    clock.sleep(3)
    assert pauses == [supernode.ANSWER_PAUSE, *[supernode.REQUEST_PAUSE] * 2, 3]


def test_flowers_pauses_are_the_ones_that_are_replaced(supernode):
    """Fails when another version of Flower sleeps differently."""
    pauses = re.findall(r"time\.sleep\(([^)]*)\)", inspect.getsource(supernode.supernode_loop))
    assert sorted(pauses) == ["0.5", "0.5", "3"]
    assert float(max(pauses)) == supernode.IDLE_PAUSE
