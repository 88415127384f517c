"""Processes that are started, awaited, and stopped with everything they started."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cafedcl.core.errors import CafedclError
from cafedcl.deploy.programs import ServerProcess, descendants, flower_environment

CHILD = """
import subprocess, sys, time
command = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(command, start_new_session=True)
print(child.pid, flush=True)
{}
time.sleep(600)
"""


def running(pid):
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "manner", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
)
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
def test_a_process_is_stopped_with_children_that_left_its_group(manner, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # small containers have no `ps`
    process = ServerProcess(
        [sys.executable, "-c", CHILD.format(manner)], tmp_path / "home", tmp_path / "log"
    )
    process.wait_until(lambda: (tmp_path / "log").read_text().endswith("\n"), "child")
    child = int((tmp_path / "log").read_text())
    # The guard's command, and the child of that.
    assert len(descendants(process.popen.pid)) == 2
    assert child in descendants(process.popen.pid)
    time.sleep(0.2)
    process.stop(1.0)
    assert not process.alive
    deadline = time.monotonic() + 600
    while running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(child)


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_children_are_found_without_proc(monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = descendants(os.getpid())
        child.communicate(b"\n")
    assert child.pid in found


def test_a_process_that_ends_too_early_is_quoted(tmp_path):
    process = ServerProcess(
        [sys.executable, "-c", "print('no such key'); exit(3)"], tmp_path, tmp_path / "log"
    )
    with pytest.raises(
        CafedclError, match=r"node: the process ended \(exit 3\): no such key \(see .*log\)"
    ):
        process.wait_until(lambda: False, "node")
    process.stop()


def test_the_last_error_in_a_log_says_more_than_its_last_line(tmp_path):
    said = "INFO: hello\\n\\x1b[91mERROR\\x1b[0m :   Exit Code: 305\\nNo key.\\n\\nINFO: bye"
    process = ServerProcess([sys.executable, "-c", f"print('{said}')"], tmp_path, tmp_path / "log")
    process.popen.wait()
    assert process.last_error() == f"Exit Code: 305 No key. (see {tmp_path}/log)"
    silent = ServerProcess([sys.executable, "-c", ""], tmp_path, tmp_path / "log")
    silent.popen.wait()
    assert silent.last_error() == f"the log is empty (see {tmp_path}/log)"


def test_a_traceback_of_the_shutdown_does_not_hide_the_error(tmp_path):
    said = "ERROR :  No key.\\n\\nINFO: bye\\nERROR:  Traceback (most recent call last):\\n  File"
    process = ServerProcess([sys.executable, "-c", f"print('{said}')"], tmp_path, tmp_path / "log")
    process.popen.wait()
    assert process.last_error() == f"No key. (see {tmp_path}/log)"


LOST_SERVER = """INFO :      Starting Flower SuperNode
WARNING :   Connection attempt failed, retrying in 13.00 seconds
Exception in thread Thread-2 (_run):
Traceback (most recent call last):
  File "threading.py", line 1045, in _bootstrap_inner
INFO :      SuperNode terminated gracefully.
    self.run()
  File "httpx/_models.py", line 829, in raise_for_status
httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'http://127.0.0.1:18473/v1/fleet'
For more information check: https://developer.mozilla.org
INFO:     Shutting down
INFO:     Finished server process [10336]
"""
SHUT_DOWN = """ERROR:    Traceback (most recent call last):
  File "starlette/routing.py", line 638, in lifespan
    await receive()
asyncio.exceptions.CancelledError

"""
IN_A_REQUEST = """ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "starlette/routing.py", line 638, in app
    raise exc
RuntimeError: no space left
INFO:     Shutting down
"""


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        (LOST_SERVER, "httpx.HTTPStatusError: Client error '401 Unauthorized' for url "),
        (LOST_SERVER + SHUT_DOWN, "httpx.HTTPStatusError: Client error '401 Unauthorized' for url"),
        (IN_A_REQUEST, "Exception in ASGI application raised: RuntimeError: no space left (see "),
        (f"INFO: bye\n{SHUT_DOWN}", "INFO: bye (see "),
    ],
    ids=["lost server", "and shut down", "in a request", "only shut down"],
)
def test_of_a_traceback_only_the_exception_is_quoted(logged, said, tmp_path):
    process = ServerProcess(
        [sys.executable, "-c", f"print({logged!r}, end='')"], tmp_path, tmp_path / "log"
    )
    process.popen.wait()
    assert process.last_error().startswith(said)


def test_a_process_that_takes_too_long_is_named(tmp_path):
    process = ServerProcess(
        [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, tmp_path / "log"
    )
    with pytest.raises(CafedclError, match=r"node: not ready within 0.1 s; see"):
        process.wait_until(lambda: False, "node", 0.1)
    process.stop()


def test_flower_sends_nothing_home_and_finds_its_own_programs(tmp_path):
    made = flower_environment(tmp_path)
    assert made["PYTHONIOENCODING"] == "utf-8", "logs are read as UTF-8"
    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_HOME"] == str(tmp_path)
    assert made["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
