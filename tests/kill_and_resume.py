"""Starts a run, kills it (SIGKILL) at random moments, resumes it each time, and lets it finish
after the last kill.

    python tests/kill_and_resume.py FOLDER KILLS SEED

Every attempt is a forked child, so none pays for importing PyTorch again. Prints the number of
kills.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from cafedcl import api
from cafedcl.task.resolve import resolve

CONFIG = {
    "method": {"name": "cafedcl"},
    "data": {"images": 300},
    "model": {"name": "mlp", "width": 0.1},
    "train": {"epochs": 1, "iterations": 1},
    "federation": {"clients": 4, "rounds": 25, "participation": 0.75, "dropout": 0.1},
    "engine": {"workers": 1},
    "store": {"checkpoint_every": 2},
}


def go_on(folder: Path) -> None:
    """Start the run, or resume it if it has begun."""
    if (folder / "config.toml").exists():
        api.resume(folder, warn=lambda message: print(message, file=sys.stderr))
    else:
        api.start(resolve(CONFIG), folder, ())


def rounds_of(folder: Path) -> int:
    """Return how many rounds have been written down."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def attempt(folder: Path, rounds: int, seconds: float | None) -> bool:
    """Work on the run in a child; kill it so many rounds and seconds later, and return whether it
    was killed.
    """
    until, child = rounds_of(folder) + rounds, os.fork()
    if child == 0:
        status = 1
        try:
            go_on(folder)
            status = 0
        finally:
            os._exit(status)
    if seconds is not None:
        while rounds_of(folder) < until and not os.waitid(
            os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            time.sleep(0.002)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        sys.exit("the run failed")
    return False


def main() -> None:
    """Kill and resume."""
    folder, kills, draws = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    killed = 0
    while killed < kills:
        if not attempt(folder, draws.randint(0, 3), draws.uniform(0, 0.03)):
            break
        killed += 1
    attempt(folder, 0, None)
    print(killed)


if __name__ == "__main__":
    main()
