"""A run handed to a SuperLink and watched from here, as if it ran in this process."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cafedcl.config.options import to_toml
from cafedcl.config.sections import Config
from cafedcl.core.contract import Failure
from cafedcl.core.errors import CafedclError
from cafedcl.deploy.app import write_app
from cafedcl.deploy.programs import ask
from cafedcl.deploy.superlink import NAME
from cafedcl.federation.journal import NAME as JOURNAL
from cafedcl.federation.journal import follow
from cafedcl.federation.rounds import Federation, Record, Watcher
from cafedcl.federation.run_folder import RunFolder

ENDED = "finished"
PULSE = 20.0
"""Seconds of silence after which Flower is asked whether a run is still going on."""


class Followed:
    """As much of a federation as its watchers look at, read from the run folder that another
    process writes.
    """

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.options = config.federation
        self.folder = folder
        self.history: list[Record] = []
        self.round = 0

    def tell(self, watchers: Sequence[Watcher], event: Mapping[str, Any]) -> None:
        """Let the watchers see an event of the journal."""
        seen = cast(Federation, self)
        kind = event["event"]
        for watcher in watchers:
            if kind == "notice":
                watcher.noticed(seen, event["message"])
            elif kind == "client":
                failure = Failure(event["client"], event["failure"]) if event["failure"] else None
                watcher.client_done(seen, event["client"], failure)
            elif kind == "round":
                watcher.round_began(seen, event["clients"])
            elif kind == "done":
                watcher.round_done(seen, self.history[-1])

    def catch_up(self, event: Mapping[str, Any]) -> None:
        """Read what the run folder says up to an event."""
        if event["event"] == "round":
            self.round = event["round"]
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]
        elif event["event"] == "done":
            self.round = event["round"] + 1
            self.history = [Record(**line) for line in self.folder.metrics()[: self.round]]


def submit(
    home: Path,
    config: Config | None,
    path: Path,
    watchers: Sequence[Watcher],
    federation: str = "",
    **extra: str,
) -> None:
    """Hand a run to the SuperLink of ``home`` and watch it to its end; without a config, a run
    folder is resumed.
    """
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / JOURNAL).unlink(missing_ok=True)
    words = {"out": str(path.resolve()), "resume": config is None, **extra}
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
    more = ["--federation-config", federation] if federation else []
    app = write_app(home / "cafedcl-run")
    number = str(ask(home, "run", str(app), NAME, "--run-config", str(options), *more)["run-id"])
    followed = Followed(config, folder)
    error = "the run broke off without a word"
    try:
        for event in follow(path, Pulse(home, number)):
            followed.catch_up(event)
            followed.tell(watchers, event)
            if event["event"] == "end":
                error = event["error"]
    except BaseException:
        stop(home, number)
        raise
    if error:
        raise CafedclError(error)


class Pulse:
    """Says whether a run is still going on; Flower is asked only now and then, because its command
    takes seconds.
    """

    def __init__(self, home: Path, number: str) -> None:
        self.home = home
        self.number = number
        self.asked = time.monotonic()

    def __call__(self) -> bool:
        """Return whether it is."""
        if time.monotonic() - self.asked < PULSE:
            return True
        going = status(self.home, self.number) != ENDED
        self.asked = time.monotonic()
        return going


def status(home: Path, number: str) -> str:
    """Return what Flower says of a run; an unreachable SuperLink has no runs any more."""
    try:
        runs = ask(home, "list", NAME, "--run-id", number)["runs"]
    except CafedclError:
        return ENDED
    return str(runs[0]["status"]).partition(":")[0] if runs else ENDED


def stop(home: Path, number: str) -> None:
    """Ask Flower to stop a run that nobody waits for any more."""
    try:
        ask(home, "stop", number, NAME)
    except CafedclError:
        """It is over already, or the SuperLink is."""
