"""Which Flower node is which client: every node is asked once to enrol."""

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from flwr.app import MessageType

from cafedcl.config.sections import Config
from cafedcl.core.tensors import Header, Tensors
from cafedcl.deploy.flower.mail import Mail, NoAnswer
from cafedcl.deploy.flower.messages import enrol_request, read_plain
from cafedcl.deploy.flower.records import SHARED
from cafedcl.deploy.population import Enrolled

LARGEST = 1 << 24
"""The most bytes of an enrolment."""
PAUSE = 0.5
"""Seconds between two looks for new nodes."""
T = TypeVar("T", int, Enrolled)
EnrolmentReader = Callable[[int, Tensors, Header], T]
"""Reads the enrolment of a node; raises ValueError if it cannot take part."""


class Roster(Generic[T]):
    """The enrolled nodes. Nodes that connect later, or again under a new number, enrol then."""

    def __init__(
        self, mail: Mail, config: Config, read: "EnrolmentReader[T]", notice: Callable[[str], None]
    ) -> None:
        self.mail = mail
        self.request = enrol_request(config)
        self.notice = notice
        self.read: EnrolmentReader[T] = read
        self.enrolled: dict[int, T | None] = {}
        """Enrolments by node; None for a node that cannot take part."""

    def online(self) -> Iterator[tuple[int, T]]:
        """Let new nodes enrol, then yield the connected nodes and their enrolments, newest last."""
        online = self.mail.online()
        for node, found in self.enrolled.items():
            if node not in online and found is not None:
                self.notice(f"{site_title(found)} disconnected")
        self.enrolled = {node: found for node, found in self.enrolled.items() if node in online}
        new = online - self.enrolled.keys()
        if new:
            self._enrol(new)
        yield from ((node, found) for node, found in self.enrolled.items() if found is not None)

    def _enrol(self, nodes: set[int]) -> None:
        requests = {node: {SHARED: self.request} for node in nodes}
        for node, answer in self.mail.exchange(MessageType.QUERY, requests, LARGEST):
            try:
                if isinstance(answer, NoAnswer):
                    raise ValueError(answer.reason)  # noqa: TRY301, TRY004
                found = self.read(node, *read_plain(answer))
            except (ValueError, KeyError, TypeError) as error:
                self.enrolled[node] = None
                self.notice(f"a node cannot take part: {error}")
            else:
                self.enrolled[node] = found
                self.notice(f"{site_title(found)} connected")

    def wait(self, number: int, patience: float) -> list[T]:
        """Return the connected sites once ``number`` are there, or after ``patience`` seconds."""
        until = time.monotonic() + patience
        while True:
            found = [enrolled for _, enrolled in self.online()]
            if len(found) >= number or time.monotonic() > until:
                return found
            time.sleep(PAUSE)


def site_title(found: int | Enrolled) -> str:
    """Return a site's name in messages."""
    if isinstance(found, Enrolled):
        return f"site {found.site}"
    return f"the site of client {found}"


def read_simulated_client(_node: int, _tensors: Tensors, header: Header) -> int:
    """Return the client's number from the enrolment of a site with a simulated shard."""
    client = header["client"]
    if not isinstance(client, int):
        raise ValueError("its client is not a whole number")  # noqa: TRY004
    return client
