"""The replies of one round: in the order of clients, counted, and without the models."""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import Down, Failure, Reply
from cafedcl.core.flat import storage_tensors
from cafedcl.core.tensors import (
    ANCHORS,
    MODEL,
    OWN_MODEL,
    Tensors,
    floats,
    nbytes,
    prefixed,
    under,
)
from cafedcl.engine.base import Engine, SecureSites
from cafedcl.functional.reply_check import ReplyValidator
from cafedcl.task.task import Task


@dataclass
class RoundReplies:
    """What came back in a round.

    Replies are kept without their large parts: the aggregator already has their models.
    """

    per_class: frozenset[str]
    """The names of what clients send per class, which is kept."""
    good: list[Reply] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    floats: int = 0
    bytes: int = 0

    def add(self, result: Reply | Failure) -> None:
        """Add a result."""
        if isinstance(result, Failure):
            self.failures.append(result)
            return
        up = result.up
        for sent in (storage_tensors(up.model), up.tensors):
            self.floats += floats(sent)
            self.bytes += nbytes(sent)
        kept = {name: value for name, value in up.tensors.items() if name in self.per_class}
        self.good.append(replace(result, up=replace(up, model={}, tensors=kept)))

    @property
    def counted(self) -> int:
        """The number of replies that count: not those whose classes are all too small to report.

        No server step could be made from such replies alone.
        """
        return sum(reply.up.samples > 0 for reply in self.good)

    @property
    def notes_bytes(self) -> int:
        """How many bytes of notes clients sent."""
        return sum(nbytes(reply.up.notes) for reply in self.good)

    def traffic(self, down: Down, asked: int, engine: Engine, *, pooled: bool) -> dict[str, int]:
        """Return what was sent: down to every sampled client, and up from every one that replied.

        Nothing is sent where one client has all data. Under secure aggregation the ``engine`` knows
        what was sent, because replies are empty.
        """
        sent = {
            "down_floats": asked * floats(down.tensors),
            "down_bytes": asked * nbytes(down.tensors),
            "up_floats": self.floats,
            "up_bytes": self.bytes,
            "notes_bytes": self.notes_bytes,
        }
        if isinstance(engine, SecureSites):
            sent |= engine.sum_traffic()
        return dict.fromkeys(sent, 0) if pooled else sent

    def mean_losses(self) -> dict[str, float]:
        """Return every term of the loss, averaged over clients by samples; a missing term is 0.

        There are none if no reply counts.
        """
        ups = [reply.up for reply in self.good if reply.up.samples]
        samples = sum(up.samples for up in ups)
        names = dict.fromkeys(name for up in ups for name in up.losses)
        means = {
            name: sum(up.losses.get(name, 0.0) * up.samples for up in ups) / samples
            for name in names
        }
        return {name: value for name, value in means.items() if math.isfinite(value)}


class SummedReplyValidator:
    """Checks replies under secure aggregation: they only show who took part."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def problem(self, reply: Reply) -> str | None:
        """Return why a reply is rejected, or None."""
        up = reply.up
        if not 0 <= up.client < self.clients:
            return f"unknown client {up.client}"
        if up.model or up.tensors or up.notes or reply.correct:
            return "it has numbers that must not be sent under secure aggregation"
        return None


def make_validator(config: Config, task: Task) -> ReplyValidator | SummedReplyValidator:
    """Return what checks the replies of a run."""
    if config.privacy.secure:
        return SummedReplyValidator(len(task.clients.shards))
    return ReplyValidator(
        task.shared(),
        task.fields,
        task.enrolment.counts,
        task.claims,
        task.method.sends_absent,
        task.most_tested,
        task.contradiction,
    )


def with_own_model(reply: Reply, down: Down) -> Reply:
    """Return a reply whose client also keeps its model and the anchors, on the host.

    They are copied: the aggregator frees the model.
    """
    own = {**prefixed(MODEL, reply.up.model), **prefixed(ANCHORS, under(ANCHORS, down.tensors))}
    copied = {name: value.detach().to("cpu", copy=True) for name, value in own.items()}
    return replace(reply, memory={**reply.memory, **prefixed(OWN_MODEL, copied)})


def gather_notes(replies: Iterable[Reply], clients: int) -> Tensors:
    """Return the client notes, (clients, …), with NaN for clients that did not reply."""
    by_name: dict[str, dict[int, Tensor]] = {}
    for reply in replies:
        for name, value in reply.up.notes.items():
            by_name.setdefault(name, {})[reply.up.client] = value.cpu()
    gathered: Tensors = {}
    for name, values in by_name.items():
        rows = torch.stack(list(values.values()))
        gathered[name] = torch.full((clients, *rows.shape[1:]), torch.nan)
        gathered[name][list(values)] = rows.float()
    return gathered


def client_of(result: Reply | Failure) -> int:
    """Return the client that a result belongs to."""
    return result.up.client if isinstance(result, Reply) else result.client


def in_order(
    results: Iterable[Reply | Failure], clients: Iterable[int]
) -> Iterator[Reply | Failure]:
    """Yield results in the order of the clients; those of unknown clients come last.

    Engines finish clients in any order, and float sums depend on it: a fixed order makes the bits
    the same on every engine. Only results that come early are held back.
    """
    early: dict[int, Reply | Failure] = {}
    waiting = deque(clients)
    for result in results:
        early[client_of(result)] = result
        while waiting and waiting[0] in early:
            yield early.pop(waiting.popleft())
    for client in sorted(early):
        yield early[client]
