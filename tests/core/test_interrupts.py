"""Every signal that asks a process to stop is handled alike, unless it is ignored."""

import os
import signal
from collections.abc import Iterator

import pytest

from cafedcl.core.interrupts import STOP_SIGNALS, stop_signals_handled


@pytest.fixture
def ignored_hangup() -> Iterator[None]:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_that_asks_to_stop_interrupts(number: int) -> None:
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with pytest.raises(KeyboardInterrupt), stop_signals_handled():
        os.kill(os.getpid(), number)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


@pytest.mark.usefixtures("ignored_hangup")
def test_an_ignored_hangup_stays_ignored() -> None:
    with stop_signals_handled():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_hangup_does_not_cut_short_what_an_earlier_signal_has_begun_to_save() -> None:
    asked: list[bool] = []
    with stop_signals_handled(lambda: asked.append(True)):
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert len(asked) == 2, "SIGHUP and SIGTERM"
