"""Submitting a run to a SuperLink and showing its progress as if it ran in this process."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cafedcl.config.sections import Config
from cafedcl.core.contract import Failure
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.app import write_app
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.journal import clear_journal, follow
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder

if TYPE_CHECKING:
    from cafedcl.deploy.flower.control import Control

ENDED = "finished"
POLL_PERIOD = 20.0
"""Seconds between two checks with Flower whether a run is still active."""


class FollowedRun:
    """The attributes of a federation that callbacks use, read from another process's run folder."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.options = config.federation
        self.folder = folder
        self.history: list[Record] = []
        self.round = 0

    def notify(self, callbacks: Sequence[Callback], event: Mapping[str, Any]) -> None:
        """Pass an event of the journal to the callbacks."""
        federation = cast(Federation, self)
        kind = event["event"]
        for callback in callbacks:
            if kind == "notice":
                callback.noticed(federation, event["message"])
            elif kind == "client":
                failure = Failure(event["client"], event["failure"]) if event["failure"] else None
                callback.client_done(federation, event["client"], failure)
            elif kind == "round":
                callback.round_began(federation, event["clients"])
            elif kind == "done":
                callback.round_done(federation, self.history[-1])

    def catch_up(self, event: Mapping[str, Any]) -> None:
        """Read the run folder's records up to an event."""
        if event["event"] == "round":
            self.round = event["round"]
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]
        elif event["event"] == "done":
            self.round = event["round"] + 1
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]


def submit(
    control: "Control",
    home: Path,
    config: Config | None,
    path: Path,
    callbacks: Sequence[Callback],
    simulation: Mapping[str, Any],
) -> None:
    """Submit a simulation to a SuperLink and follow it to its end.

    ``home`` is the folder of its files, and ``simulation`` are Flower's options for it. Without a
    config, the run folder at ``path`` is resumed.
    """
    folder = RunFolder(path)
    clear_journal(path, resumed=config is None)
    words: dict[str, Any] = {"out": str(path.resolve()), "resume": config is None}
    if config is None:
        config = folder.config()
    else:
        file = home / "run.toml"
        file.write_text(config.to_toml(), encoding="utf-8")
        words["config-file"] = str(file.resolve())
    number = submit_app(control, home, words, simulation)
    followed = FollowedRun(config, folder)
    error = "the run ended without a message"
    try:
        for event in follow(path, ActivityCheck(control, number)):
            followed.catch_up(event)
            followed.notify(callbacks, event)
            if event["event"] == "end":
                error = event["error"]
    except BaseException:
        # An error here means that the run or the SuperLink has ended already.
        with suppress(CafedclError):
            control.stop_run(number)
        raise
    if error:
        raise CafedclError(error)


def submit_app(
    control: "Control",
    home: Path,
    config: Mapping[str, Any] | None = None,
    simulation: Mapping[str, Any] | None = None,
) -> int:
    """Submit the app to a SuperLink and return the number of its run."""
    return control.start_run(write_app(home / "cafedcl-run"), config or {}, simulation or {})


class ActivityCheck:
    """Checks whether a run is still active, by asking Flower now and then."""

    def __init__(self, control: "Control", number: int) -> None:
        self.control = control
        self.number = number
        self.asked = time.monotonic()

    def __call__(self) -> bool:
        """Return whether the run is active."""
        if time.monotonic() - self.asked < POLL_PERIOD:
            return True
        active = run_status(self.control, self.number) != ENDED
        self.asked = time.monotonic()
        return active


def run_status(control: "Control", number: int) -> str:
    """Return Flower's status of a run; if the SuperLink is unreachable, the run has ended."""
    try:
        runs = control.runs()
    except CafedclError:
        return ENDED
    found = [run.status.partition(":")[0] for run in runs if run.id == number]
    return found[0] if found else ENDED
