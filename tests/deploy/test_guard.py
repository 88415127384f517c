"""A process that is started for a server or a site does not outlive it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cafedcl.core.interrupts import STOP_SIGNALS
from cafedcl.deploy.guard import run

STAY = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAY}"
OWNER = """
import sys
from pathlib import Path
from cafedcl.deploy.programs import ServerProcess, descendants
folder = Path(sys.argv[1])
process = ServerProcess([sys.executable, "-c", sys.argv[2]], folder, folder / "log")
process.wait_until(lambda: "here" in (folder / "log").read_text(), "command")
print(*descendants(process.popen.pid), flush=True)
process.popen.wait()
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("code", [STAY, STUBBORN])
def test_a_command_ends_when_its_owner_is_killed(code, tmp_path):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), code], stdout=subprocess.PIPE, text=True
    )
    commands = [int(word) for word in owner.stdout.readline().split()]
    assert commands
    assert all(map(is_running, commands))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 600
    while any(map(is_running, commands)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_running, commands))


def test_a_command_whose_owner_ended_while_it_started_is_ended():
    """The owner gives its number, so it is missed even if it was gone before anyone looked. A
    command that was left to its end would give 0.
    """
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        assert run(os.getppid() + 1, [sys.executable, "-c", STAY]) == 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
