"""Run a command that ends with the process that started it, however that process ends.

``python -m cafedcl.deploy.guard PARENT COMMAND...``: Flower's programs and nginx know nothing about
the process that starts them. If it were killed, they would keep their ports, and a site would stay
online without a worker.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from cafedcl.core.interrupts import STOP_SIGNALS

CHECK = 0.5
"""Seconds between two checks of whether the parent still runs."""
PATIENCE = 5.0
"""Seconds that the command has to end after SIGTERM."""


def run(parent: int, command: Sequence[str]) -> int:
    """Run the command and return its status; end it when this process's parent ends."""
    child = subprocess.Popen(command)
    # The command gets these signals too: it is in the same process group.
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)
    while os.getppid() == parent:
        try:
            return child.wait(CHECK)
        except subprocess.TimeoutExpired:
            continue
    child.terminate()
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
    return 1


if __name__ == "__main__":
    status = run(int(sys.argv[1]), sys.argv[2:])
    # A command that a signal ended has a negative status.
    sys.exit(status if status >= 0 else 128 - status)
