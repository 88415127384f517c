"""Flower's SuperNode, which asks for work more often while its site takes part in a run.

A SuperNode sleeps three seconds whenever the server has no request for it, so every exchange would
take three seconds longer than its work. Flower has no option to change that. This program is
Flower's ``flower-supernode`` with another clock in the one module that sleeps; a site that takes
part in no run still asks at Flower's pace.
"""

import time
from typing import Any

import flwr.supernode.start_client_internal as supernode_loop
from flwr.supernode.cli import flower_supernode

IDLE_PAUSE = 3.0
"""Flower's pause in seconds if there is no request."""
REQUEST_PAUSE = 0.5
"""The pause to use instead while the site is busy."""
ANSWER_PAUSE = 0.1
"""The longest pause in seconds between two checks for the worker's answer."""
BUSY = 60.0
"""Seconds for which a site counts as busy after it worked on a request."""


class SiteClock:
    """Stands in for the module ``time``; only ``sleep`` differs."""

    def __init__(self) -> None:
        self.busy_until = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep for as long as necessary: see the constants above."""
        if seconds < IDLE_PAUSE:
            # The SuperNode waits for the worker's answer to a request.
            self.busy_until = time.monotonic() + BUSY
            time.sleep(min(seconds, ANSWER_PAUSE))
        elif time.monotonic() < self.busy_until:
            time.sleep(REQUEST_PAUSE)
        else:
            time.sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


if __name__ == "__main__":
    supernode_loop.time = SiteClock()  # type: ignore[attr-defined, assignment]
    flower_supernode()
