"""The flower engine: sends every client's job to its site, and takes whatever comes back as far as
it can be read.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from flwr.app import MessageType
from torch import Tensor

from cafedcl.core.contract import Down, Failure, Job
from cafedcl.core.tensors import Tensors, nbytes
from cafedcl.deploy.flower.mail import Mail, NoAnswer
from cafedcl.deploy.flower.messages import (
    SURVEY,
    TRAIN,
    Terms,
    ask_all,
    ask_one,
    read_plain,
    read_train,
)
from cafedcl.deploy.flower.records import OWN, SHARED
from cafedcl.engine.base import Pending, Results
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.task.task import Task

ROOM = 1 << 20
"""Bytes that a reply may have beyond what is expected: names, notes, losses."""
REPEATED = 64
"""How often a reply may list a class, where the method allows more than once."""


Where = Callable[[], Mapping[int, int]]
"""Returns the node of every client that is there now."""


class FlowerEngine:
    """Runs jobs at sites. What a client keeps stays at its site; here it is only a ticket."""

    def __init__(self, task: Task, terms: Terms, mail: Mail, where: Where) -> None:
        self.task = task
        self.terms = terms
        self.mail = mail
        self.where = where
        self.local = ReferenceEngine(task)

    def train(self, jobs: Iterable[Job]) -> Results:
        """Send the jobs of one round to their sites and yield what they answer."""
        jobs = list(jobs)
        nodes = self.where() if jobs else {}
        for job in jobs:
            if job.client not in nodes:
                yield Failure(job.client, "its site is not connected")
        asked = {nodes[job.client]: job for job in jobs if job.client in nodes}
        if not asked:
            return
        down = jobs[0].down
        shared = ask_all(TRAIN, down, self.terms)
        requests = {
            node: {SHARED: shared, OWN: ask_one(job.client, job.memory, job.evaluate)}
            for node, job in asked.items()
        }
        for node, answer in self.mail.ask(MessageType.TRAIN, requests, self.limit(down)):
            client = asked[node].client
            if isinstance(answer, NoAnswer):
                yield Failure(client, answer.reason)
            else:
                yield read_train(answer, client, down.round)

    def limit(self, down: Down) -> int:
        """Return how many bytes a reply may have: twice what a whole one of this method takes, and
        some room.
        """
        classes = self.task.method.classes
        fields = self.task.fields.values()
        numbers = sum(
            math.prod(field.shape) * (classes if field.per_class else 1) for field in fields
        )
        copies = REPEATED if any(field.repeated for field in fields) else 1
        return ROOM + 2 * (nbytes(self.task.shared()) + nbytes(down.tensors) + 4 * numbers * copies)

    def survey(self, tensors: Tensors) -> Tensors:
        """Return how the server's model does at every site, on the site's own test images; 0 where
        there is none.
        """
        nodes = self.where()
        clients = {node: client for client, node in nodes.items()}
        shared = ask_all(SURVEY, Down(0, self.task.method.broadcast(tensors)), self.terms)
        requests = {
            node: {SHARED: shared, OWN: ask_one(client, {}, False)}
            for node, client in clients.items()
        }
        shape = (len(self.task.clients.shards), self.task.method.classes)
        found = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tested", "all")}
        for node, answer in (
            self.mail.ask(MessageType.EVALUATE, requests, ROOM + 64 * shape[1]) if nodes else ()
        ):
            if isinstance(answer, NoAnswer):
                continue
            try:
                told, _ = read_plain(answer)
                for name, table in found.items():
                    table[clients[node]] = counts(told[name], told["tested"])
            except (ValueError, KeyError, RuntimeError):
                for table in found.values():
                    table[clients[node]] = 0
        return found

    def predict(self, tensors: Tensors) -> Pending:
        """Predict the test images here by the server's model."""
        return self.local.predict(tensors)

    def embed(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of training images here under the server's model."""
        return self.local.embed(tensors, rows)

    def close(self) -> None:
        """Nothing to let go of; the sites go on waiting for the next run."""


def counts(told: Tensor, tested: Tensor) -> Tensor:
    """Return a site's numbers per class if they can be; raises ValueError otherwise."""
    if told.dtype != torch.int64 or (told < 0).any() or (told > tested).any():
        raise ValueError("it is no count per class")
    return told
