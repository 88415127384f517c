"""Submitting a run to a SuperLink and showing its progress as if it ran in this process."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from cafedcl.config.options import to_toml
from cafedcl.config.sections import Config
from cafedcl.core.contract import Failure
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.app import write_app
from cafedcl.deploy.programs import run_flwr
from cafedcl.deploy.superlink import SUPERLINK_NAME
from cafedcl.federation.journal import NAME as JOURNAL
from cafedcl.federation.journal import follow
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.watcher import Record, Watcher

ENDED = "finished"
POLL_PERIOD = 20.0
"""Seconds between two questions to Flower whether a run is still active."""


class FollowedRun:
    """The attributes of a federation that watchers use, read from another process's run folder."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.options = config.federation
        self.folder = folder
        self.history: list[Record] = []
        self.round = 0

    def notify(self, watchers: Sequence[Watcher], event: Mapping[str, Any]) -> None:
        """Pass an event of the journal to the watchers."""
        federation = cast(Federation, self)
        kind = event["event"]
        for watcher in watchers:
            if kind == "notice":
                watcher.noticed(federation, event["message"])
            elif kind == "client":
                failure = Failure(event["client"], event["failure"]) if event["failure"] else None
                watcher.client_done(federation, event["client"], failure)
            elif kind == "round":
                watcher.round_began(federation, event["clients"])
            elif kind == "done":
                watcher.round_done(federation, self.history[-1])

    def catch_up(self, event: Mapping[str, Any]) -> None:
        """Read the run folder's records up to an event."""
        if event["event"] == "round":
            self.round = event["round"]
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]
        elif event["event"] == "done":
            self.round = event["round"] + 1
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]


def submit(
    home: Path, config: Config | None, path: Path, watchers: Sequence[Watcher], federation: str
) -> None:
    """Submit a simulation to the SuperLink of ``home`` and follow it to its end.

    Without a config, the run folder at ``path`` is resumed.
    """
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / JOURNAL).unlink(missing_ok=True)
    words: dict[str, Any] = {"out": str(path.resolve()), "resume": config is None}
    if config is None:
        config = folder.config()
    else:
        file = home / "run.toml"
        file.write_text(config.to_toml(), encoding="utf-8")
        words["config-file"] = str(file.resolve())
    options = home / "run-config.toml"
    options.write_text(
        "".join(f"{name} = {to_toml(value)}\n" for name, value in words.items()), encoding="utf-8"
    )
    number = str(submit_app(home, "--run-config", str(options), "--federation-config", federation))
    followed = FollowedRun(config, folder)
    error = "the run ended without a message"
    try:
        for event in follow(path, ActivityCheck(home, number)):
            followed.catch_up(event)
            followed.notify(watchers, event)
            if event["event"] == "end":
                error = event["error"]
    except BaseException:
        stop_run(home, number)
        raise
    if error:
        raise CafedclError(error)


def submit_app(home: Path, *words: str) -> int:
    """Submit the app to the SuperLink of ``home`` and return the number of its run."""
    app = write_app(home / "cafedcl-run")
    return int(run_flwr(home, "run", str(app), SUPERLINK_NAME, *words)["run-id"])


class ActivityCheck:
    """Tells whether a run is still active. Flower is asked rarely: its command takes seconds."""

    def __init__(self, home: Path, number: str) -> None:
        self.home = home
        self.number = number
        self.asked = time.monotonic()

    def __call__(self) -> bool:
        """Return whether the run is active."""
        if time.monotonic() - self.asked < POLL_PERIOD:
            return True
        active = run_status(self.home, self.number) != ENDED
        self.asked = time.monotonic()
        return active


def run_status(home: Path, number: str) -> str:
    """Return Flower's status of a run; with an unreachable SuperLink, the run has ended."""
    try:
        runs = run_flwr(home, "list", SUPERLINK_NAME, "--run-id", number)["runs"]
    except CafedclError:
        return ENDED
    return str(runs[0]["status"]).partition(":")[0] if runs else ENDED


def stop_run(home: Path, number: str) -> None:
    """Ask Flower to stop a run."""
    # An error means that the run or the SuperLink has ended already.
    with suppress(CafedclError):
        run_flwr(home, "stop", number, SUPERLINK_NAME)
