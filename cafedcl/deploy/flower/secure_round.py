"""A round of secure aggregation over Flower: four exchanges, each of which may lose sites."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import MessageType
from torch import Tensor

from cafedcl.core.contract import TICKET, Down, Failure, Job, Reply, Up
from cafedcl.core.tensors import Header, Tensors
from cafedcl.deploy.flower.mail import Answer, Mail, NoAnswer
from cafedcl.deploy.flower.messages import (
    KEYS,
    MASKED,
    SHARES,
    UNMASK,
    Terms,
    client_request,
    read_plain,
    shared_request,
)
from cafedcl.deploy.flower.records import OWN, SHARED
from cafedcl.deploy.flower.secure_sum import Masked, PublicKeys, threshold, unmasked_sum
from cafedcl.deploy.flower.uncounted import UncountedReplies

SMALL_REPLY = 1 << 20
"""The most bytes of a reply without a vector, and of what a reply has besides its vector."""
SHARE_BYTES = 4096
"""Bytes of one site's shares for another, at most."""
Read = Callable[[int, Tensors, Mapping[str, Any]], None]
"""Takes a client's answer; raises ValueError, KeyError or TypeError if it cannot be used."""


class SecureRound:
    """Asks the sites of one round, phase by phase, and records which are lost and why."""

    def __init__(
        self,
        jobs: Mapping[int, Job],
        terms: Terms,
        mail: Mail,
        size: int,
        samples: Sequence[int],
        uncounted: UncountedReplies,
    ) -> None:
        self.jobs = dict(jobs)
        """The job of every node."""
        self.terms = terms
        self.mail = mail
        self.size = size
        self.samples = samples
        self.uncounted = uncounted
        self.failures: list[Failure] = []
        self.keys: dict[int, PublicKeys] = {}
        self.tokens: dict[int, dict[int, str]] = {}
        self.vectors: dict[int, Masked] = {}
        self.tickets: dict[int, Tensors] = {}
        self.shares: dict[int, dict[int, str]] = {}
        self.bytes = 0
        """All that sites sent: keys, shares and masked vectors."""

    def run(self) -> tuple[Tensor | None, list[Reply | Failure]]:
        """Return the sum, if enough sites stayed, and every site's result."""
        try:
            self._phase(KEYS, SMALL_REPLY, self.uncounted.told, self._take_keys)
            keys = {str(client): list(pair) for client, pair in self.keys.items()}
            limit = SMALL_REPLY + SHARE_BYTES * len(keys)
            self._phase(SHARES, limit, lambda _: {"keys": keys}, self._take_tokens)
            self._enough(self.tokens)
            self._phase(MASKED, limit + 8 * self.size, self._for_masking, self._take_vector)
            self._enough(self.vectors)
            dropped = sorted(self.tokens.keys() - self.vectors.keys())
            told = {"survivors": sorted(self.vectors), "dropped": dropped}
            self._phase(UNMASK, limit, lambda _: told, self._take_shares)
            total = unmasked_sum(self.vectors, dropped, self.keys, self.shares)
        except ValueError as error:
            lost = [job.client for job in self.jobs.values()]
            named = {failure.client for failure in self.failures}
            self.failures += [
                Failure(client, f"the secure sum failed: {error}")
                for client in {*lost, *self.vectors} - named
            ]
            return None, list(self.failures)
        taken = set(self.vectors)
        replies: list[Reply | Failure] = [
            Reply(Up(client, self.samples[client], {}), self.tickets[client], {})
            for client in sorted(taken)
        ]
        # A site that was lost after its vector arrived is still in the sum.
        lost_before = [failure for failure in self.failures if failure.client not in taken]
        return torch.from_numpy(total), [*replies, *lost_before]

    def _phase(
        self, kind: str, limit: int, own: Callable[[int], dict[str, Any]], take: Read
    ) -> None:
        """Ask all remaining sites; those without a usable answer are lost."""
        if not self.jobs:
            return
        down = next(iter(self.jobs.values())).down
        trains = kind == MASKED
        sent = down if trains else Down(down.round, {})
        shared = shared_request(kind, sent, self.terms)
        requests = {}
        for node, job in self.jobs.items():
            memory = job.memory if trains else {}
            mine = client_request(job.client, memory, False, **own(job.client))
            requests[node] = {SHARED: shared, OWN: mine}
        for node, answer in self.mail.exchange(MessageType.TRAIN, requests, limit):
            client = self.jobs[node].client
            if not isinstance(answer, NoAnswer):
                self.bytes += sum(map(len, answer.values()))
            try:
                take(client, *read_answer(answer, down.round))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self.failures.append(Failure(client, f"{kind}: {error}"))
                del self.jobs[node]

    def _enough(self, stayed: Mapping[int, object]) -> None:
        needed = threshold(len(self.keys))
        if len(stayed) < needed:
            raise ValueError(f"{len(stayed)} of {len(self.keys)} sites stayed; it takes {needed}")

    def _for_masking(self, client: int) -> dict[str, Any]:
        others = {other: mine for other, mine in self.tokens.items() if other != client}
        return {"shares": {str(other): mine[client] for other, mine in others.items()}}

    def _take_keys(self, client: int, _: Tensors, header: Mapping[str, Any]) -> None:
        encryption, masking = header["keys"]
        if not isinstance(encryption, str) or not isinstance(masking, str):
            raise ValueError("its keys are not text")  # noqa: TRY004
        self.keys[client] = (encryption, masking)

    def _take_tokens(self, client: int, _: Tensors, header: Mapping[str, Any]) -> None:
        tokens = {int(other): token for other, token in header["shares"].items()}
        if tokens.keys() != self.keys.keys() - {client}:
            raise ValueError("its shares are not for all others")
        if not all(isinstance(token, str) for token in tokens.values()):
            raise ValueError("its shares are not text")
        self.tokens[client] = tokens

    def _take_vector(self, client: int, tensors: Tensors, _: Mapping[str, Any]) -> None:
        vector = tensors["masked"]
        if vector.dtype != torch.int32 or tuple(vector.shape) != (self.size,):
            raise ValueError("its vector has another type or size")
        ticket = {name: value for name, value in tensors.items() if name == TICKET}
        if len(ticket) + 1 != len(tensors):
            raise ValueError("it has entries that were not asked for")
        self.vectors[client] = vector.numpy().view(np.uint32)
        self.tickets[client] = ticket

    def _take_shares(self, client: int, _: Tensors, header: Mapping[str, Any]) -> None:
        shares = {int(other): share for other, share in header["shares"].items()}
        if shares.keys() != self.tokens.keys():
            raise ValueError("its shares are not of all sites")
        # Text that is not a number is detected here, not when the secrets are combined.
        for share in shares.values():
            bytes.fromhex(share)
        self.shares[client] = shares


def read_answer(answer: Answer, round: int) -> tuple[Tensors, Header]:
    """Return the content of an answer in a round; raises ValueError if there is none."""
    if isinstance(answer, NoAnswer):
        raise ValueError(answer.reason)  # noqa: TRY004
    tensors, header = read_plain(answer)
    if header.get("round") != round:
        raise ValueError(f"it answered for round {header.get('round')}, not {round}")
    return tensors, header
