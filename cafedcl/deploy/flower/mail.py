"""Sends requests to many sites over Flower's grid, and collects answers until a deadline."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from cafedcl.deploy.flower.records import MessageParts, unwrap, wrap

PAUSE = (0.05, 0.5)
"""Shortest and longest pause in seconds before looking for answers again."""
ONLINE_CHECK = 2.0
"""Seconds between two checks of which nodes are online."""
GONE = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Flower's errors for a node that does not answer any more."""
REMINDERS = (5.0, 60.0)
"""Seconds until the first reminder of the missing sites, and the most between two reminders."""


class Reminder:
    """Decides when to report again what is being waited for: at growing intervals."""

    def __init__(self) -> None:
        self.pause = REMINDERS[0]
        self.next = time.monotonic() + self.pause

    def is_due(self) -> bool:
        """Return whether a reminder is due; if so, schedule the next one after a longer pause."""
        now = time.monotonic()
        if now <= self.next:
            return False
        self.pause = min(2 * self.pause, REMINDERS[1])
        self.next = now + self.pause
        return True


@dataclass(frozen=True)
class NoAnswer:
    """Why a site gave no answer."""

    reason: str


Answer = MessageParts | NoAnswer


class Mail:
    """Sends requests to nodes and yields the answers as they arrive."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self.grid = grid
        self.deadline = deadline

    def online(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self.grid.get_node_ids())

    def exchange(
        self,
        kind: str,
        requests: dict[int, MessageParts],
        limit: int | None,
        remind: Callable[[Iterable[int]], None] = lambda _: None,
    ) -> Iterator[tuple[int, Answer]]:
        """Send a request to each node and yield one answer from each.

        Answers of more than ``limit`` bytes are refused without decoding them. ``remind`` is called
        now and then with the nodes that have not answered.
        """
        nodes = list(requests)
        messages = [
            Message(wrap(parts), dst_node_id=node, message_type=kind, ttl=self.deadline)
            for node, parts in requests.items()
        ]
        # Flower returns nothing at all if it could not push any message.
        ids: list[str | None] = [*self.grid.push_messages(messages)] or [None] * len(nodes)
        for node, message_id in zip(nodes, ids, strict=True):
            if message_id is None:
                yield node, NoAnswer("Flower did not accept the request; it may be too large")
        sent = {
            message_id: node
            for node, message_id in zip(nodes, ids, strict=True)
            if message_id is not None
        }
        until = time.monotonic() + self.deadline
        next_check = time.monotonic() + ONLINE_CHECK
        reminder = Reminder()
        pause = PAUSE[0]
        while sent:
            answers = list(self.grid.pull_messages(list(sent)))
            for answer in answers:
                if answer.metadata.reply_to_message_id in sent:
                    node = sent.pop(answer.metadata.reply_to_message_id)
                    yield node, read_answer(answer, limit)
            now = time.monotonic()
            if sent and now > next_check:
                online = self.online()
                next_check = now + ONLINE_CHECK
                for message_id in [key for key, node in sent.items() if node not in online]:
                    yield sent.pop(message_id), NoAnswer("its site disconnected")
            if now > until:
                break
            if sent and reminder.is_due():
                remind(sent.values())
            # Pauses grow while nothing arrives, and start short again after an answer.
            pause = PAUSE[0] if answers else min(1.2 * pause, PAUSE[1])
            if sent:
                time.sleep(pause)
        for node in sent.values():
            yield node, NoAnswer(f"no answer within {self.deadline:g} s")


def read_answer(message: Message, limit: int | None) -> Answer:
    """Return a site's answer, or why there is none."""
    if message.has_error():
        if message.error.code in GONE:
            return NoAnswer("its site was killed, cut off or removed before it answered")
        reason = " ".join(str(message.error.reason or "no reason given").split())
        return NoAnswer(f"{reason} (Flower's error {message.error.code})")
    try:
        return unwrap(message.content, limit)
    except ValueError as error:
        return NoAnswer(str(error))
