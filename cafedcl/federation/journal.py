"""What happens in a run, written down as it happens, so that another process can watch it."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cafedcl.core.contract import Failure
from cafedcl.federation.rounds import Federation
from cafedcl.federation.watcher import Record, Watcher

NAME = "events.jsonl"


class Journal(Watcher):
    """Appends events to RUN/events.jsonl: notices, rounds that begin, clients that reply or fail,
    and the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True, exist_ok=True)
        (path / NAME).unlink(missing_ok=True)

    def write(self, event: str, **details: Any) -> None:
        """Append an event."""
        with (self.path / NAME).open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"event": event, "time": round(time.time(), 3), **details}) + "\n"
            )

    def say(self, message: str) -> None:
        """Note something that people should see."""
        self.write("notice", message=message)

    def end(self, error: str | None) -> None:
        """Note that the run is over, or why it broke off."""
        self.write("end", error=error)

    def noticed(self, federation: Federation, message: str) -> None:  # noqa: ARG002
        """Note what is not as it was asked for."""
        self.say(message)

    def round_began(self, federation: Federation, clients: int) -> None:
        """Note that a round asks its clients."""
        self.write("round", round=federation.round, clients=clients)

    def client_done(self, federation: Federation, client: int, failure: Failure | None) -> None:
        """Note that a client replied or failed."""
        self.write(
            "client", round=federation.round, client=client, failure=failure and failure.reason
        )

    def round_done(self, federation: Federation, record: Record) -> None:  # noqa: ARG002
        """Note that a round is over; its numbers are in the metrics."""
        self.write("done", round=record.round)


def follow(path: Path, alive: Callable[[], bool], pause: float = 0.1) -> Iterator[dict[str, Any]]:
    """Yield a journal's events as they are written, until the end or until nobody writes any more."""
    at = 0
    running = True
    while True:
        try:
            with (path / NAME).open("rb") as file:
                file.seek(at)
                lines = file.read()
        except FileNotFoundError:
            lines = b""
        whole = lines[: lines.rfind(b"\n") + 1]
        at += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            yield event
            if event["event"] == "end":
                return
        if not whole:
            if not running:
                return
            running = alive()
            time.sleep(pause)
