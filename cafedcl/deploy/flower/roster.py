"""Maps Flower nodes to clients: every node is asked once to enrol."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from flwr.app import MessageType

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Header, Tensors
from cafedcl.deploy.flower.mail import Mail, NoAnswer, Reminder
from cafedcl.deploy.flower.messages import enrol_request, read_plain
from cafedcl.deploy.flower.records import SHARED
from cafedcl.deploy.folders import node_names
from cafedcl.deploy.population import Enrolled

LARGEST = 1 << 24
"""The most bytes of an enrolment."""
PAUSE = 0.5
"""Seconds between two checks for new nodes."""
MENDING = 60.0
"""Seconds in which sites that cannot take part may be repaired and reconnect, if all others are
there.
"""
T = TypeVar("T", int, Enrolled)
EnrolmentReader = Callable[[Tensors, Header], T]
"""Reads an enrolment; raises ValueError if it is impossible."""


class SiteKeys:
    """The sites of a server's folder, by the nodes that have their keys.

    A simulation has no folder and an insecure deployment no keys; then every node may take part.
    """

    def __init__(self, server: str) -> None:
        self.server = Path(server) if server else None

    def _names(self) -> dict[str, str]:
        # Read anew every time: a site may be revoked during a run.
        names = node_names(self.server) if self.server else {}
        return {node: name for name, node in names.items()}

    def title(self, node: int) -> str:
        """Return how messages name a node's site."""
        name = self._names().get(str(node))
        return f"site {name}" if name else f"node {node}"

    def check(self, node: int, name: str | None = None) -> None:
        """Raise ValueError unless a node has a site's key: that of ``name`` if it is given."""
        names = self._names()
        if not names:
            return
        if str(node) not in names:
            raise ValueError("it has no key of a site")
        if name is not None and names[str(node)] != name:
            raise ValueError(f"its name is {name}, but it has another site's key")

    @property
    def number(self) -> int:
        """The number of sites whose keys are admitted; 0 where sites have no keys."""
        return len(self._names())

    def missing(self, nodes: Iterable[int]) -> list[str]:
        """Return the sites whose keys none of the nodes has."""
        names = self._names()
        return sorted({*names.values()} - {names.get(str(node), "") for node in nodes})


class Roster(Generic[T]):
    """The enrolled nodes. A node that connects later, or again with a new number, enrols then."""

    def __init__(
        self,
        mail: Mail,
        config: Config,
        read: "EnrolmentReader[T]",
        notice: Callable[[str], None],
        keys: SiteKeys,
    ) -> None:
        self.mail = mail
        self.request = enrol_request(config)
        self.notice = notice
        self.keys = keys
        self.read: EnrolmentReader[T] = read
        self.check: Callable[[T], None] = lambda _: None
        """Raises ValueError for an enrolment that does not fit the run."""
        self.enrolled: dict[int, T] = {}
        """Enrolments by node."""
        self.refused: dict[int, str] = {}
        """Why the other nodes cannot take part."""

    def online(self) -> Iterator[tuple[int, T]]:
        """Let new nodes enrol, then yield the connected nodes and their enrolments, newest last."""
        online = self.mail.online()
        for node in [node for node in self.enrolled if node not in online]:
            self.notice(f"{site_title(self.enrolled.pop(node))} disconnected")
        self.refused = {node: why for node, why in self.refused.items() if node in online}
        new = online - self.enrolled.keys() - self.refused.keys()
        if new:
            self._enrol(new)
        yield from self.enrolled.items()

    def _enrol(self, nodes: set[int]) -> None:
        requests = {}
        for node in nodes:
            try:
                self.keys.check(node)
                requests[node] = {SHARED: self.request}
            except ValueError as error:
                self._refuse(node, error)
        answers = self.mail.exchange(MessageType.QUERY, requests, LARGEST, self._remind)
        for node, answer in answers:
            try:
                if isinstance(answer, NoAnswer):
                    raise ValueError(answer.reason)  # noqa: TRY301, TRY004
                found = self.read(*read_plain(answer))
                self.keys.check(node, found.site if isinstance(found, Enrolled) else None)
                self.check(found)
            except Exception as error:  # a hostile site's enrolment can raise anything
                self._refuse(node, error)
            else:
                self.enrolled[node] = found
                self.notice(f"{site_title(found)} connected")

    def _refuse(self, node: int, error: Exception) -> None:
        self.refused[node] = str(error)
        self.notice(f"{self.keys.title(node)} cannot take part: {error}")

    def _remind(self, nodes: Iterable[int]) -> None:
        names = ", ".join(sorted(self.keys.title(node) for node in nodes))
        self.notice(f"no enrolment yet from {names}")

    def wait(self, number: int, patience: float) -> list[T]:
        """Return the connected sites once ``number`` are there, or after ``patience`` seconds.

        Raises an error earlier if the only missing sites are those that cannot take part.
        """
        began = time.monotonic()
        reminder = Reminder()
        stuck: float | None = None
        while True:
            found: dict[int, T] = dict(self.online())
            now = time.monotonic()
            if len(found) >= number or now > began + patience:
                return list(found.values())
            all_answered = self.keys.number > 0 and not self._missing()
            if not self.refused or not all_answered:
                stuck = None
            elif stuck is None:
                stuck = now
            if stuck is not None and now > stuck + MENDING:
                reasons = (f"{self.keys.title(it)}: {why}" for it, why in self.refused.items())
                raise CafedclError(
                    f"{len(found)} of {number} sites can take part ({'; '.join(reasons)}); fix "
                    "that, or lower federation.clients"
                )
            if reminder.is_due():
                until = (
                    began + patience if stuck is None else min(began + patience, stuck + MENDING)
                )
                self.notice(self._waiting(found, number, until - now))
            time.sleep(PAUSE)

    def _missing(self) -> list[str]:
        """Return the sites that have neither enrolled nor been refused."""
        return self.keys.missing([*self.enrolled, *self.refused])

    def _waiting(self, found: Mapping[int, T], number: int, left: float) -> str:
        missing = self._missing()
        titles = sorted(self.keys.title(node) for node in self.refused)
        parts = [f"not here: {', '.join(missing)}"] if missing else []
        parts += [f"cannot take part: {', '.join(titles)}"] if titles else []
        which = f" ({'; '.join(parts)})" if parts else ""
        return f"{len(found)} of {number} sites are ready{which}; waiting {left:.0f} s more"


def site_title(found: int | Enrolled) -> str:
    """Return how messages name a site."""
    if isinstance(found, Enrolled):
        return f"site {found.site}"
    return f"the site of client {found}"


def read_simulated_client(_: Tensors, header: Header) -> int:
    """Return the client's number from the enrolment of a site with a simulated shard."""
    client = header["client"]
    if not isinstance(client, int):
        raise ValueError("its client is not a whole number")  # noqa: TRY004
    return client
