"""Every method in the corners: tiny clients, missing classes, single images, drop-outs, and a stop
in the middle.
"""

import json
from dataclasses import replace

import pytest
import torch
from quick import QUICK

from cafedcl.core.tensors import pack, unpack
from cafedcl.data.shards import ClientRows
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods import method_names
from cafedcl.task.build import prepare
from cafedcl.task.resolve import resolve

METHODS = method_names()
WITHOUT_SERVER = ("fedproto", "fedtgp", "local")
FEDERATED = [name for name in METHODS if name != "central"]
"""Where a single client's fate is not pooled away."""
CHEAP = {**QUICK, "fedtgp": {"epochs": 5, "batch": 4}, "mp-fedcl": {"k": 2}}
"""Cheaper rounds; and so many batches on FedTGP's server that their order matters."""


def federation_of(name, digits, parts=None, **sections):
    """Four clients with a small MLP, or one for each of ``parts``: the clients' training and
    validation images, if not as split.
    """
    tables = {
        "method": {"name": name, **CHEAP.get(name, {})},
        "split": {"kind": "pathological", "classes": 3},
        "model": {"name": "mlp", "width": 0.25},
        "train": {"epochs": 1, "iterations": 2},
        "federation": {"clients": 4, "rounds": 2},
        "engine": {"device": "cpu", "workers": 1},
        "evaluate": {"full": False},
    }
    if parts is not None:
        tables["split"] = {"kind": "iid"}
        tables["federation"]["clients"] = len(parts)
    for section, table in sections.items():
        tables[section] = {**tables.get(section, {}), **table}
    setup = prepare(resolve(tables), digits)
    if parts is not None:
        train, validation = ([torch.tensor(p[i], dtype=torch.int64) for p in parts] for i in (0, 1))
        counts = torch.stack([torch.bincount(digits.train_y[rows], minlength=10) for rows in train])
        known = counts
        if setup.task.method.pooled:
            train, validation, counts = (
                [torch.cat(train)],
                [torch.cat(validation)],
                counts.sum(0, keepdim=True),
            )
        shards = replace(
            setup.task.clients.shards,
            train=ClientRows.of(train),
            validation=ClientRows.of(validation),
            counts=counts,
        )
        setup = replace(setup, task=setup.task.with_clients(shards=shards), counts=known)
    return Federation(setup, engine=ReferenceEngine(setup.task))


def images(digits, **wanted):
    """Indices of training images: ``images(digits, c3=2, c5=1)`` gives two of class 3 and one of
    class 5.
    """
    rows = [(digits.train_y == int(c[1:])).nonzero().flatten()[:n] for c, n in wanted.items()]
    return torch.cat(rows).tolist()


def check(federation):
    """Run to the end: no client fails, and everything that is kept or sent is finite."""
    for record in federation.run():
        assert record.status == "ok"
        assert record.failed == []
        assert record.loss
        scores = record.server if federation.task.has_server_model else record.own
        assert 0 <= scores["accuracy"] <= 1
    kept = [("server", federation.state), *federation.memories.items()]
    for owner, tensors in kept:
        for name, value in tensors.items():
            assert value.isfinite().all(), f"{owner}: {name}"
    return federation


def broad(digits, skip):
    """What the other clients hold: some images of six classes, and a few more to validate on."""
    classes = {f"c{(skip + j) % 10}": 8 for j in range(6)}
    rows = images(digits, **classes)
    return [r for i, r in enumerate(rows) if i % 8 < 6], [
        r for i, r in enumerate(rows) if i % 8 >= 6
    ]


@pytest.mark.parametrize("name", FEDERATED)
def test_a_client_may_have_a_single_image_and_another_a_single_class(digits, name):
    """The others have many classes, in two epochs: what one client has learned, all receive."""
    alone = images(digits, c9=12)
    parts = [
        (images(digits, c4=1), []),
        (alone[:10], alone[10:]),
        *(broad(digits, skip) for skip in (0, 5)),
    ]
    federation = check(federation_of(name, digits, parts, train={"epochs": 2}))
    assert federation.task.clients.shards.counts[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert federation.task.clients.client(1).holds.tolist() == [9]
    assert {0, 1} <= federation.memories.keys()


@pytest.mark.parametrize("name", FEDERATED)
def test_every_client_may_have_one_and_the_same_class(digits, name):
    rows = images(digits, c6=18)
    parts = [(rows[k : k + 5], rows[k + 5 : k + 6]) for k in range(0, 18, 6)]
    check(federation_of(name, digits, parts))


@pytest.mark.parametrize("name", FEDERATED)
def test_a_class_may_have_no_holder_in_a_round(digits, name):
    """Client 0 alone has class 5: it is missing at first, then there, then gone again; class 8 is
    never there.
    """
    five, others = (
        images(digits, c5=8),
        [images(digits, c0=8, c1=8), images(digits, c2=8, c1=8), images(digits, c0=8)],
    )
    parts = [(five[:6], five[6:]), *((rows[1:], rows[:1]) for rows in others)]
    drop = {"rounds": 3, "drop": ["0:0", "2:0"]}
    federation = check(federation_of(name, digits, parts, federation=drop))
    assert [record.dropped for record in federation.history] == [[0], [], [0]]
    assert federation.task.clients.shards.counts[1:, 5].sum() == 0
    assert federation.task.clients.shards.counts[:, 8].sum() == 0


@pytest.mark.parametrize("name", METHODS)
def test_batches_may_be_of_one_image(digits, name):
    rows = images(digits, c0=3, c1=3, c2=3, c3=3)
    parts = [(rows[k::3][:3], rows[k::3][3:]) for k in range(3)]
    federation = check(federation_of(name, digits, parts, train={"batch_size": 1}))
    assert federation.task.schedule.batch_size(3) == 1


@pytest.mark.parametrize("name", FEDERATED)
def test_clients_may_stay_away_or_drop_out(digits, name):
    away = {"clients": 8, "participation": 0.5, "dropout": 0.4, "rounds": 3}
    federation = check(federation_of(name, digits, federation=away, run={"seed": 12}))
    assert any(record.dropped for record in federation.history)
    assert all(len(record.participants) == 4 for record in federation.history)
    assert len({tuple(record.participants) for record in federation.history}) > 1


def lines(federation):
    """The metrics as they are written, without the seconds."""
    return [json.dumps({**record.line(), "seconds": None}) for record in federation.history]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_stops_in_the_middle_goes_on_bit_for_bit(digits, name):
    absent = {"clients": 5, "participation": 0.6, "dropout": 0.2, "rounds": 4}
    whole, second = (federation_of(name, digits, federation=absent) for _ in range(2))
    whole.step()
    whole.step()
    stopped = pack(*whole.snapshot())
    whole.run()
    second.restore(*unpack(stopped))
    second.run()
    assert lines(second) == lines(whole)[2:]
    (one, header), (other, same) = whole.snapshot(), second.snapshot()
    assert header == same
    assert one.keys() == other.keys()
    for entry, value in one.items():
        assert value.numpy().tobytes() == other[entry].numpy().tobytes(), entry


@pytest.mark.parametrize("name", METHODS)
def test_six_rounds_teach_the_digits(digits, name):
    """FedProc's logits of unit vectors and its contrast without a temperature need larger steps;
    MOON needs more of them, and FedTGP's prototypes more and smaller ones.
    """
    train = {"epochs": 1, "iterations": 6, "lr": 0.2}
    if name == "fedproc":
        train["lr"] = 1.0
    if name == "moon":
        train["epochs"] = 2
    if name == "fedtgp":
        train |= {"epochs": 2, "lr": 0.1}
    federation = federation_of(
        name,
        digits,
        split={"classes": 5},
        train=train,
        federation={"clients": 2, "rounds": 6},
        method={"epochs": 40} if name == "fedtgp" else {},
        # A client's own model is scored only where the server has none.
        evaluate={"loop": 0} | ({} if name in WITHOUT_SERVER else {"own_every": 6}),
        run={"seed": 1},
    )
    assert federation.task.has_server_model == (name not in WITHOUT_SERVER)
    federation.run()
    scores = [
        record.server if federation.task.has_server_model else record.own
        for record in federation.history
    ]
    accuracy = [score["accuracy"] for score in scores]
    assert min(accuracy[-2:]) > accuracy[0] + 0.1
