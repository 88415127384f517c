import os
import signal
import subprocess
import time

import pytest

from cafedcl.core.interrupts import STOP_SIGNALS, stop_signals_handled
from cafedcl.engine.cpu.worker import Forked


def closed() -> None:
    raise EOFError


def broken() -> None:
    raise RuntimeError("no more memory")


@pytest.mark.parametrize(
    ("work", "code"), [(lambda: None, 0), (closed, 0), (broken, 1), (lambda: os._exit(7), 7)]
)
def test_a_forked_process_ends_with_its_work(
    work, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    process = Forked(work)
    assert process.wait() == process.returncode == code
    assert process.wait(0) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert ("RuntimeError: no more memory" in said.err) == (work is broken)


def test_a_forked_process_is_waited_for_so_long_and_can_be_killed() -> None:
    process = Forked(lambda: time.sleep(3600))
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    assert 0.04 < time.monotonic() - began < 600
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.kill()


def test_a_forked_process_does_nothing_of_its_parents_twice(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither the blocks around it, nor what is left to print."""
    print("once", end="")
    try:
        assert Forked(lambda: None).wait() == 0
    finally:
        print(" only", flush=True)
    assert capfd.readouterr().out == "once only\n"


def test_a_forked_process_is_out_of_reach_of_the_terminals_signals() -> None:
    read, write = os.pipe()

    def tell() -> None:
        ends = all(signal.getsignal(number) == signal.SIG_DFL for number in STOP_SIGNALS)
        os.write(write, f"{os.getsid(0)} {ends}".encode())

    with stop_signals_handled():
        process = Forked(tell)
    assert process.wait() == 0
    assert os.read(read, 100).decode() == f"{process.pid} True"
    os.close(read)
    os.close(write)
