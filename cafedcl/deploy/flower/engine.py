"""The flower engine: sends every client's job to its site and reads the answers."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import torch
from flwr.app import MessageType
from torch import Tensor

from cafedcl.core.contract import Down, Failure, Job
from cafedcl.core.errors import CafedclError
from cafedcl.core.steps import step
from cafedcl.core.tensors import Tensors, nbytes
from cafedcl.deploy.flower.mail import Mail, NoAnswer
from cafedcl.deploy.flower.messages import (
    SURVEY,
    TRAIN,
    Terms,
    client_request,
    read_plain,
    read_train,
    shared_request,
)
from cafedcl.deploy.flower.records import OWN, SHARED
from cafedcl.deploy.flower.secure_round import SecureRound
from cafedcl.deploy.flower.uncounted import UncountedReplies
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.contributions import ContributionBounds
from cafedcl.functional.reply_check import MOST_TESTED
from cafedcl.methods import checked
from cafedcl.task.task import Task

EXTRA_BYTES = 1 << 20
"""Bytes that a reply may have beyond its tensors: names, notes, losses."""

PAUSE = 1.0
"""Seconds between two checks of which sites are connected."""

ClientNodes = Callable[[], Mapping[int, int]]
"""Returns the node of every client that is connected now."""


class FlowerEngine:
    """Runs jobs at sites. A client's memory stays at its site; the server has a ticket for it."""

    name: ClassVar[str] = "flower"

    def __init__(
        self,
        task: Task,
        terms: Terms,
        mail: Mail,
        nodes: ClientNodes,
        uncounted: UncountedReplies,
    ) -> None:
        self.task = task
        self.terms = terms
        self.mail = mail
        self.nodes = nodes
        self.uncounted = uncounted
        self.local = ReferenceEngine(task)
        self._sum: Tensor | None = None
        self._sum_traffic: dict[str, int] = {}

    def train(self, jobs: Iterable[Job]) -> Results:
        """Send the jobs of one round to their sites and yield the results."""
        jobs = list(jobs)
        nodes = self._connected() if jobs else {}
        for job in jobs:
            if job.client not in nodes:
                yield Failure(job.client, "its site is not connected")
        asked = {nodes[job.client]: job for job in jobs if job.client in nodes}
        if not asked:
            return
        if self.terms.config.privacy.secure:
            yield from self._sum_securely(asked)
            return
        down = jobs[0].down
        shared = shared_request(TRAIN, down, self.terms)
        requests = {
            node: {
                SHARED: shared,
                OWN: client_request(
                    job.client, job.memory, job.evaluate, **self.uncounted.told(job.client)
                ),
            }
            for node, job in asked.items()
        }
        for node, answer in self.mail.exchange(MessageType.TRAIN, requests, self.reply_limit(down)):
            client = asked[node].client
            if isinstance(answer, NoAnswer):
                yield Failure(client, answer.reason)
            else:
                yield read_train(answer, client, down.round)

    def _connected(self) -> Mapping[int, int]:
        """Return the nodes of connected clients; wait while there are none.

        Rounds without any site take no time, so an outage of a minute would use up all rounds.
        """
        nodes = self.nodes()
        if nodes:
            return nodes
        deadline = self.mail.deadline
        until = time.monotonic() + deadline
        with step("waiting for a site to connect", expected=deadline):
            while not (nodes := self.nodes()):
                if time.monotonic() >= until:
                    raise CafedclError(
                        f"no site has been connected for {deadline:g} s (engine.deadline); start "
                        "the sites, then continue with cafedcl resume"
                    )
                time.sleep(PAUSE)
        return nodes

    def _sum_securely(self, asked: dict[int, Job]) -> Results:
        """Yield every site's result; the sum of their contributions is kept."""
        bounds = ContributionBounds(self.terms.config.privacy, self.task)
        size = bounds.contributions(next(iter(asked.values())).down.tensors).size
        samples = self.task.enrolment.counts.sum(1).tolist()
        secure = SecureRound(asked, self.terms, self.mail, size, samples, self.uncounted)
        self._sum, results = secure.run()
        self._sum_traffic = {"up_floats": size * len(secure.vectors), "up_bytes": secure.bytes}
        yield from results

    def take_sum(self) -> Tensor | None:
        """Return the secure sum of the last round, once; None if there is none."""
        summed = self._sum
        self._sum = None
        return summed

    def sum_traffic(self) -> dict[str, int]:
        """Return what sites sent for the last secure sum; empty if there is none."""
        return self._sum_traffic

    def reply_limit(self, down: Down) -> int:
        """Return the most bytes of a reply: twice this method's largest reply, and a bit more."""
        classes = self.task.method.classes
        fields = self.task.fields.values()
        numbers = sum(
            math.prod(field.shape) * (classes * field.rows_per_class if field.per_class else 1)
            for field in fields
        )
        tensors = nbytes(self.task.shared()) + nbytes(down.tensors) + 4 * numbers
        return EXTRA_BYTES + 2 * tensors

    def survey(self, tensors: Tensors) -> Tensors:
        """Return the server's model's correct predictions on the test images of every site.

        Both counts, ``tested`` and ``all``, are per client and class, and 0 without an answer.
        """
        nodes = self.nodes()
        clients = {node: client for client, node in nodes.items()}
        down = Down(0, checked.broadcast(self.task.method, tensors))
        shared = shared_request(SURVEY, down, self.terms)
        requests = {
            node: {SHARED: shared, OWN: client_request(client, {}, False)}
            for node, client in clients.items()
        }
        shape = (len(self.task.clients.shards), self.task.method.classes)
        found = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tested", "all")}
        if not nodes:
            return found
        enrolled = self.task.most_tested
        possible = torch.tensor(MOST_TESTED)
        limit = EXTRA_BYTES + 64 * shape[1]
        for node, answer in self.mail.exchange(MessageType.EVALUATE, requests, limit):
            if isinstance(answer, NoAnswer):
                continue
            try:
                counted, _ = read_plain(answer)
                most = possible if enrolled is None else enrolled[clients[node]]
                most = torch.minimum(counted["tested"], most)
                for name, table in found.items():
                    table[clients[node]] = validated_counts(counted[name], most)
            except (ValueError, KeyError, RuntimeError):
                # An unusable answer counts as none, even if its first table was fine.
                for table in found.values():
                    table[clients[node]] = 0
        return found

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the server's own test images with its model."""
        return self.local.predict(tensors)

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of the server's own training images."""
        return self.local.embed(tensors, rows)

    def close(self) -> None:
        """Do nothing: the sites wait for the next run."""


def validated_counts(counts: Tensor, most: Tensor) -> Tensor:
    """Return a site's counts per class if they are possible; raises ValueError otherwise."""
    possible = counts.dtype == torch.int64 and not (counts < 0).any()
    if not possible or (counts > most).any():
        raise ValueError("these are not counts per class")
    return counts
