"""Who is there: which Flower node is which client, found out by asking every node once to enrol."""

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from flwr.app import MessageType

from cafedcl.config.sections import Config
from cafedcl.core.tensors import Header, Tensors
from cafedcl.deploy.flower.mail import Mail, NoAnswer
from cafedcl.deploy.flower.messages import ask_enrol, read_plain
from cafedcl.deploy.flower.records import SHARED
from cafedcl.deploy.population import Enrolled

LARGEST = 1 << 24
"""Bytes of an enrolment at most."""
PAUSE = 0.5
T = TypeVar("T", int, Enrolled)
Read = Callable[[int, Tensors, Header], T]
"""Reads the enrolment of a node; raises ValueError if it cannot take part."""


class Roster(Generic[T]):
    """Nodes by what they enrolled as; a node that comes later, or comes back under a new number, is
    asked then.
    """

    def __init__(
        self, mail: Mail, config: Config, read: "Read[T]", notice: Callable[[str], None]
    ) -> None:
        self.mail = mail
        self.request = ask_enrol(config)
        self.notice = notice
        self.read: Read[T] = read
        self.known: dict[int, T | None] = {}

    def online(self) -> Iterator[tuple[int, T]]:
        """Yield the nodes that are there and what they enrolled as, the newest last; new ones are
        asked first.
        """
        there = self.mail.online()
        for node, found in self.known.items():
            if node not in there and found is not None:
                self.notice(f"{label(found)} is gone")
        self.known = {node: found for node, found in self.known.items() if node in there}
        new = {node: {SHARED: self.request} for node in there - self.known.keys()}
        for node, answer in self.mail.ask(MessageType.QUERY, new, LARGEST) if new else ():
            try:
                if isinstance(answer, NoAnswer):
                    raise ValueError(answer.reason)  # noqa: TRY301, TRY004
                found = self.read(node, *read_plain(answer))
                self.known[node] = found
                self.notice(f"{label(found)} is here")
            except (ValueError, KeyError, TypeError) as error:
                self.known[node] = None
                self.notice(f"a node cannot take part: {error}")
        yield from ((node, found) for node, found in self.known.items() if found is not None)

    def wait(self, number: int, patience: float) -> list[T]:
        """Return who is there as soon as there are so many, or when patience is over."""
        until = time.monotonic() + patience
        while True:
            found = [enrolled for _, enrolled in self.online()]
            if len(found) >= number or time.monotonic() > until:
                return found
            time.sleep(PAUSE)


def label(found: int | Enrolled) -> str:
    """Return how people call a site."""
    return f"site {found.site}" if isinstance(found, Enrolled) else f"the site of client {found}"


def simulated(_node: int, _tensors: Tensors, header: Header) -> int:
    """Read the enrolment of a site that holds a simulated shard: the number of its client."""
    client = header["client"]
    if not isinstance(client, int):
        raise ValueError("its client is not a whole number")  # noqa: TRY004
    return client
