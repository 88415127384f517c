"""Replies of any content, through the real decoder: each is a client's failure or is harmless.

A site may send what it likes. Nothing of it ends a run, and nothing that is accepted goes beyond
what the site enrolled with.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.core.contract import TICKET, Failure, Job, Reply
from cafedcl.core.tensors import pack, unpack
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

messages = pytest.importorskip("cafedcl.deploy.flower.messages")

LIAR = 1
METHODS = ["cafedcl", "cafedcl:best", "fednh", "fedproto", "mp-fedcl", "scaffold", "spherefed"]
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
]
VALUES = [0.0, -1.0, 1.0, 1.5, 1e9, -3e38, 3e38, float("nan"), float("inf")]
PLAIN: list[Any] = [
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    "text",
    [],
    {},
    [[1]],
    "x" * 999,
]


class Wire(ReferenceEngine):
    """Sends replies over the wire and changes those of one client on their way."""

    parts: dict[str, bytes] | None = None

    def train(self, jobs: Any) -> Iterator[Reply | Failure]:
        for job in jobs:
            yield self.deliver(job)

    def deliver(self, job: Job) -> Reply | Failure:
        if job.client == LIAR and self.parts is not None:
            return messages.read_train(self.parts, job.client, job.down.round)
        return self.attempt(job)


@cache
def honest(method: str) -> tuple[Any, dict[str, bytes]]:
    """A federation that is not run yet, and an honest answer of its client."""
    tables = {
        "method": {"name": method},
        "data": {"images": 200},
        "model": {"name": "mlp", "width": 0.1},
        "train": {"epochs": 1, "iterations": 1},
        "split": {"kind": "pathological", "classes": 4},
        "federation": {"clients": 3, "rounds": 2},
        "evaluate": {"loop": 0, "full": False},
        "engine": {"name": "reference"},
    }
    setup = prepare(resolve(tables))
    federation = Federation(setup, engine=Wire(setup.task))
    replies: dict[int, Reply | Failure] = {}
    deliver = federation.engine.deliver
    federation.engine.deliver = lambda job: replies.setdefault(job.client, deliver(job))
    federation.step()
    reply = replies[LIAR]
    # What a site remembers stays there; it sends the number of the round.
    ticket = {TICKET: torch.tensor(0)} if reply.memory else {}
    return setup, messages.answer_train(replace(reply, memory=ticket), 0)


def step_with(method: str, parts: dict[str, bytes]) -> tuple[Federation, Any]:
    setup, _ = honest(method)
    engine = Wire(setup.task)
    engine.parts = parts
    federation = Federation(setup, engine=engine)
    return federation, federation.step()


def check(federation: Federation, record: Any) -> None:
    """The round counts, the state is finite, and whoever failed is the liar."""
    assert record.status == "ok"
    assert {failure["client"] for failure in record.failed} <= {LIAR}
    assert all(value.isfinite().all() for value in federation.state.values())
    record.line()


def test_memory_stays_at_its_site() -> None:
    """It would be stored in every checkpoint."""
    parts = honest("scaffold")[1]
    tensors, header = unpack(parts[messages.SHARED])
    more = {**tensors, "memory/more": torch.zeros(3)}
    _, record = step_with("scaffold", {**parts, messages.SHARED: pack(more, header)})
    (failure,) = record.failed
    assert failure["reason"] == "its memory is more than the ticket for it"


def test_a_long_error_is_cut() -> None:
    _, record = step_with("fedproto", messages.answer_error("x" * 10_000))
    assert len(record.failed[0]["reason"]) < 600


def test_a_class_has_no_more_rows_than_the_method_makes() -> None:
    """All clients would get them, and a client with many would have the pool to itself."""
    parts = honest("mp-fedcl")[1]
    tensors, header = unpack(parts[messages.SHARED])
    rows = {name: tensors[name].repeat_interleave(9, 0) for name in ("up/classes", "up/prototypes")}
    packed = pack({**tensors, **rows}, header)
    _, record = step_with("mp-fedcl", {**parts, messages.SHARED: packed})
    assert "lists a class more than 3 times" in record.failed[0]["reason"]


def test_a_loss_that_would_outweigh_everybody_is_refused() -> None:
    parts = honest("qffl")[1]
    tensors, header = unpack(parts[messages.SHARED])
    huge = {**tensors, "up/loss": torch.tensor(1e38)}
    assert "up/loss" in tensors
    _, record = step_with("qffl", {**parts, messages.SHARED: pack(huge, header)})
    assert "'loss' lies in" in record.failed[0]["reason"]


@pytest.mark.parametrize("method", ["spherefed", "cafedcl:best"])
@pytest.mark.parametrize(
    ("entry", "factor", "reason"),
    [
        ("gram", 1.5, "'gram' has the trace"),
        ("gram", -0.5, "'gram' and 'targets' cannot be sums over images"),
        ("gram", 0.0, "'gram' and 'targets' cannot be sums over images"),
        ("targets", 50.0, "'gram' and 'targets' cannot be sums over images"),
    ],
)
def test_nobody_counts_for_more_images_than_it_has(
    method: str, entry: str, factor: float, reason: str
) -> None:
    """The server's classifier is fitted to sums over all clients' images."""
    parts = honest(method)[1]
    tensors, header = unpack(parts[messages.SHARED])
    lie = {**tensors, f"up/{entry}": factor * tensors[f"up/{entry}"]}
    _, record = step_with(method, {**parts, messages.SHARED: pack(lie, header)})
    (failure,) = record.failed
    assert failure["reason"].startswith(reason)


@st.composite
def changes(draw: st.DrawFn, method: str) -> dict[str, bytes]:
    """An honest answer in which something is another dtype, shape, value, name, or plain value."""
    parts = dict(honest(method)[1])
    name = draw(st.sampled_from(sorted(parts)))
    tensors, header = unpack(parts[name])
    kind = draw(st.sampled_from(["tensor", "header", "drop", "add", "bytes"]))
    if kind == "bytes":
        data = bytearray(parts[name])
        for _ in range(draw(st.integers(1, 4))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return {**parts, name: bytes(data[: draw(st.integers(0, len(data)))])}
    keys = sorted(tensors)
    if kind == "header" or not keys:
        key = draw(st.sampled_from([*sorted(header), "losses", "extra"]))
        value = draw(st.sampled_from(PLAIN))
        header[key] = {"i2p": value} if draw(st.booleans()) else value
    elif kind == "drop":
        del tensors[draw(st.sampled_from(keys))]
    else:
        key = draw(st.sampled_from(keys))
        if kind == "add":
            prefix = draw(st.sampled_from(["up/", "notes/", "memory/", "correct/", "model/", ""]))
            key = prefix + draw(st.sampled_from(["extra", "hits", "\u202e", "x" * 300]))
        like = tensors.get(key, torch.zeros(10))
        shape = draw(st.sampled_from([tuple(like.shape), (), (0,), (3,), (2, 2)]))
        value = torch.full(shape, 0.0) + draw(st.sampled_from(VALUES))
        tensors[key] = value.to(draw(st.sampled_from(DTYPES)))
    return {**parts, name: pack(tensors, header)}


@pytest.mark.parametrize("method", METHODS)
def test_an_honest_answer_is_accepted(method: str) -> None:
    federation, record = step_with(method, honest(method)[1])
    check(federation, record)
    assert record.failed == []


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data())
@settings(max_examples=50)
def test_no_answer_ends_a_run(method: str, data: st.DataObject) -> None:
    check(*step_with(method, data.draw(changes(method))))


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(max_examples=25)
def test_no_bytes_end_a_run(one: bytes, other: bytes) -> None:
    federation, record = step_with("cafedcl", {"own": one, "shared": other})
    check(federation, record)
    assert [failure["client"] for failure in record.failed] == [LIAR]
