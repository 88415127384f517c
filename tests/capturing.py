"""Federations that are run by captures, and how two of them are compared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cafedcl.config.sections import EngineOptions
from cafedcl.core.contract import Down, Job, Reply, Up
from cafedcl.core.tensors import MODEL, Tensors, prefixed, under, without
from cafedcl.engine.cuda.engine import CudaEngine
from cafedcl.federation.callback import Record
from cafedcl.federation.rounds import Federation
from cafedcl.methods.fedavg import FedAvg

Tiny = Callable[..., Federation]
UNEQUAL = {"split__kind": "dirichlet", "split__form": "class", "split__alpha": 0.3}
EVERYONE = {"federation__participation": 1.0}
SHORT = {"fedtgp": {"method__epochs": 5}}


def captured(federation: Federation, streams: int = 2, precision: str = "fp32") -> Federation:
    """Let a federation be run by captures; on a CPU they are executed plainly."""
    sampled = federation.options.participants(len(federation.task.clients.shards))
    options = replace(EngineOptions(), precision=precision, streams=streams)
    federation.engine = CudaEngine(federation.task, options, sampled, compiled=False)
    return federation


def pair(tiny: Tiny, method: str, **settings: Any) -> tuple[Federation, Federation]:
    """The same federation on both engines."""
    return tiny(method, **settings), captured(tiny(method, **settings))


def jobs_of(
    federation: Federation, *clients: int, evaluate: bool = False, round: int | None = None
) -> list[Job]:
    down = Down(
        federation.round if round is None else round, federation.method.broadcast(federation.state)
    )
    return [Job(client, down, federation.memories.get(client, {}), evaluate) for client in clients]


def distance(one: Tensor, other: Tensor) -> float:
    """Relative to the norm."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    return (
        float((one.double() - other.double()).norm() / one.double().norm().clamp_min(1e-3))
        if one.numel()
        else 0.0
    )


def assert_near(one: Tensors, other: Tensors, within: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if value.is_floating_point():
            assert distance(value.nan_to_num(-1), other[name].nan_to_num(-1)) <= within, name
        else:
            assert torch.equal(value, other[name]), name


def assert_same(one: Federation, other: Federation, within: float) -> None:
    """State and memories to a relative distance; whoever took part and what was sent, exactly."""
    assert_near(one.state, other.state, within)
    assert one.memories.keys() == other.memories.keys()
    for client, memory in one.memories.items():
        assert_near(memory, other.memories[client], within)
    for here, there in zip(one.history, other.history, strict=True):
        assert (here.status, here.failed, here.dropped) == (
            there.status,
            there.failed,
            there.dropped,
        )
        assert (here.participants, here.traffic, here.lr) == (
            there.participants,
            there.traffic,
            there.lr,
        )
        assert here.loss == pytest.approx(there.loss, rel=within, abs=within)
        assert here.loss


def assert_same_records(one: Record, other: Record, within: float) -> None:
    """Scores to one test image in a hundred, because a prediction at a tie may go either way; notes
    to a distance.
    """
    assert (one.server is None) == (other.server is None)
    for here, there in ((one.server, other.server), (one.own, other.own)):
        if here:
            assert here["accuracy"] == pytest.approx(there["accuracy"], abs=0.01)
    assert one.tables.keys() == other.tables.keys()
    for name, value in one.tables.items():
        if name.startswith("notes/"):
            assert torch.equal(value.isnan(), other.tables[name].isnan())
            assert distance(value.nan_to_num(-1), other.tables[name].nan_to_num(-1)) <= within, name


def agreement(one: Tensor, other: Tensor) -> float:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    return float((one == other).double().mean())


def sent(up: Up) -> Tensors:
    """All that is counted as traffic, the weights as ``model/…``."""
    return {**prefixed(MODEL, up.model), **up.tensors}


def with_sent(up: Up, entries: Tensors) -> Up:
    """The same with other entries, named as those of :func:`sent`."""
    return replace(up, model=under(MODEL, entries), tensors=without(MODEL, entries))


def contents(reply: Reply) -> dict[str, Tensors]:
    return {
        "sent": sent(reply.up),
        "notes": reply.up.notes,
        "kept": reply.memory,
        "correct": reply.correct,
    }


def with_method(federation: Federation, method: type[FedAvg]) -> Federation:
    old = federation.method
    made = method(old.options, old.classes, old.dim, old.clients)
    federation.task = replace(federation.task, method=made)
    federation.method = made
    federation.state |= made.start(federation.task.network)
    return federation
