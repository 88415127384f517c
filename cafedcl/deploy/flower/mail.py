"""Asking many sites at once over Flower's grid, and reading what comes back until all have answered
or time is up.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from cafedcl.deploy.flower.records import unwrap, wrap

PAUSE = (0.05, 0.5)
"""Seconds between two looks for answers: at first, and after a while."""
LOOK = 2.0
"""Seconds between two looks at who is still there."""


@dataclass(frozen=True)
class NoAnswer:
    """Why a site gave no answer."""

    reason: str


Answer = dict[str, bytes] | NoAnswer


class Mail:
    """Sends a round's requests and yields the answers as they come."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self.grid = grid
        self.deadline = deadline

    def online(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self.grid.get_node_ids())

    def ask(
        self, kind: str, requests: dict[int, dict[str, bytes]], limit: int | None
    ) -> Iterator[tuple[int, Answer]]:
        """Ask nodes and yield one answer of each; answers larger than the limit are not decoded."""
        nodes = list(requests)
        messages = [
            Message(wrap(parts), dst_node_id=node, message_type=kind, ttl=self.deadline)
            for node, parts in requests.items()
        ]
        names: list[str | None] = [*self.grid.push_messages(messages)] or [None] * len(nodes)
        for node, name in zip(nodes, names, strict=True):
            if name is None:
                yield node, NoAnswer("Flower did not take the request; it may be too large")
        sent = {name: node for node, name in zip(nodes, names, strict=True) if name is not None}
        until = time.monotonic() + self.deadline
        look = time.monotonic() + LOOK
        pause = PAUSE[0]
        while sent:
            answers = list(self.grid.pull_messages(list(sent)))
            for answer in answers:
                if answer.metadata.reply_to_message_id in sent:
                    yield sent.pop(answer.metadata.reply_to_message_id), read(answer, limit)
            now = time.monotonic()
            if sent and now > look:
                there = self.online()
                look = now + LOOK
                for name in [name for name, node in sent.items() if node not in there]:
                    yield sent.pop(name), NoAnswer("its site went away")
            if now > until:
                break
            pause = PAUSE[0] if answers else min(1.2 * pause, PAUSE[1])
            time.sleep(pause if sent else 0)
        for node in sent.values():
            yield node, NoAnswer(f"no answer within {self.deadline:g} s")


def read(message: Message, limit: int | None) -> Answer:
    """Return what a site answered."""
    if message.has_error():
        reason = " ".join(str(message.error.reason or "no reason given").split())
        return NoAnswer(f"{reason} (Flower's error {message.error.code})")
    try:
        return unwrap(message.content, limit)
    except ValueError as error:
        return NoAnswer(str(error))
