"""The events of a run, written as they happen, so that another process can follow them."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cafedcl.core.contract import Failure
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder

NAME = "events.jsonl"


class Journal(Callback):
    """Appends events to RUN/events.jsonl: notices, rounds, replies and failures, and the end."""

    def __init__(self, path: Path, resumed: bool = False) -> None:
        self.path = path
        clear_journal(path, resumed)

    def write(self, event: str, **details: Any) -> None:
        """Append an event."""
        with (self.path / NAME).open("a", encoding="utf-8") as file:
            line = {"event": event, "time": round(time.time(), 3), **details}
            file.write(json.dumps(line) + "\n")

    def say(self, message: str) -> None:
        """Write a notice for people."""
        self.write("notice", message=message)

    def end(self, error: str | None) -> None:
        """Write that the run is over, or why it ended early."""
        self.write("end", error=error)

    def noticed(self, federation: Federation, message: str) -> None:  # noqa: ARG002
        """Write what differs from the request."""
        self.say(message)

    def round_began(self, federation: Federation, clients: int) -> None:
        """Write that a round begins."""
        self.write("round", round=federation.round, clients=clients)

    def client_done(self, federation: Federation, client: int, failure: Failure | None) -> None:
        """Write that a client replied or failed."""
        self.write(
            "client", round=federation.round, client=client, failure=failure and failure.reason
        )

    def round_done(self, federation: Federation, record: Record) -> None:  # noqa: ARG002
        """Write that a round is over; its numbers are in metrics.jsonl."""
        self.write("done", round=record.round)


def clear_journal(path: Path, resumed: bool) -> None:
    """Remove the events of an earlier process that used the run folder.

    A folder that another process is using is refused, and so is one that holds a run, unless the
    run is resumed. So no other run's events are lost.
    """
    folder = RunFolder(path)
    if not resumed:
        folder.refuse_occupied()
    with folder.held():
        (path / NAME).unlink(missing_ok=True)


def follow(path: Path, alive: Callable[[], bool], pause: float = 0.1) -> Iterator[dict[str, Any]]:
    """Yield events as they are written, until the end, or until the writer is not alive."""
    at = 0
    running = True
    while True:
        try:
            with (path / NAME).open("rb") as file:
                file.seek(at)
                lines = file.read()
        except FileNotFoundError:
            lines = b""
        # The last line may be half written.
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
