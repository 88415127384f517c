"""Lying clients, for experiments: who they are, and the wrong labels that they train on."""

from dataclasses import replace

import torch

from cafedcl.config.sections import Config
from cafedcl.core.errors import CafedclError
from cafedcl.core.rng import stream
from cafedcl.data.dataset import Dataset
from cafedcl.data.shards import Shards


def liars(config: Config, clients: int) -> frozenset[int]:
    """Return the clients that lie, drawn by the run's random seed."""
    number = config.attack.clients
    if config.attack.kind == "none":
        return frozenset()
    if not 0 < number <= clients:
        raise CafedclError(
            f"attack.clients = {number}: between 1 and {clients} clients can lie; "
            f"for example: --attack {config.attack.kind}:1"
        )
    drawn = stream(config.run.seed, "attack").choice(clients, number, replace=False)
    return frozenset(int(client) for client in drawn)


def with_flipped_labels(config: Config, data: Dataset, shards: Shards) -> tuple[Dataset, Shards]:
    """Return data and shards in which liars hold every image of class y as one of class C−1−y."""
    if config.attack.kind != "label-flip":
        return data, shards
    labels = data.train_y.clone()
    counts = shards.counts.clone()
    for client in liars(config, len(shards)):
        rows = torch.cat([shards.train[client], shards.validation[client]])
        labels[rows] = data.classes - 1 - labels[rows]
        counts[client] = counts[client].flip(0)
    return replace(data, train_y=labels), replace(shards, counts=counts)
