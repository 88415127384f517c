"""What a loss needs of images that no step changes, on every engine."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import EVERYONE, UNEQUAL, Tiny, captured, jobs_of, with_method
from torch import Tensor

from cafedcl.core.contract import Batch, Failure, Visit
from cafedcl.core.tensors import Tensors
from cafedcl.engine.cpu.stacked import StackedClients
from cafedcl.engine.cuda import constants as constants_module
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods.fedavg import FedAvg
from cafedcl.models import Network

pytestmark = pytest.mark.usefixtures("plain_kernels", "no_engine_outlives_its_test")

EPOCHS = 3
IMAGES = list[int]()
"""How many images each call of ``constants`` was given."""


class Comparing(FedAvg):
    """Adds how far the constants it is given are from those of the batch itself."""

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        IMAGES.append(len(x))
        return self.of(model, x, visit)

    @staticmethod
    def of(model: Network, x: Tensor, visit: Visit) -> Tensors:
        return {"pixels": x.flatten(1)[:, ::5], "received": model.frozen(visit.received, x)}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        right = self.of(model, batch.x, visit)
        assert batch.constants.keys() == right.keys()
        off = [
            ((batch.constants[name] - value).abs().sum(1) * batch.weight).sum()
            for name, value in right.items()
        ]
        return {**super().loss(model, batch, visit), "off": torch.stack(off).sum().detach()}


def reference(federation: Federation) -> Federation:
    federation.engine = ReferenceEngine(federation.task)
    return federation


def stacked(federation: Federation) -> Federation:
    federation.engine = StackedClients(federation.task, 3)
    return federation


ENGINES: dict[str, Callable[[Federation], Federation]] = {
    "reference": reference,
    "stacked": stacked,
    "captured": captured,
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several passes": {"evaluate__batch": 70},
    "transforms": {"train__flip": True, "train__crop": 1},
    "synthetic images": {"augment__name": "cutmix"},
    "shifted features": {"augment__name": "gaussian"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_has_the_constants_of_its_images(tiny: Tiny, engine: str, way: str) -> None:
    settings = {**UNEQUAL, **EVERYONE, "train__epochs": EPOCHS, "train__lr": 0.1, **WAYS[way]}
    federation = ENGINES[engine](with_method(tiny("fedavg", **settings), Comparing))
    for _ in range(2):
        record = federation.step()
        assert record.failed == []
        assert record.loss["off"] == pytest.approx(0, abs=1e-4)
        assert record.loss["ce"] > 0


def calls_in_a_later_round(federation: Federation) -> int:
    federation.step()
    IMAGES.clear()
    assert federation.step().failed == []
    return len(IMAGES)


@pytest.mark.parametrize("engine", ENGINES)
def test_constants_are_computed_once_in_a_visit(tiny: Tiny, engine: str) -> None:
    settings = {**UNEQUAL, **EVERYONE, "train__epochs": EPOCHS, "evaluate__batch": 70}
    federation = ENGINES[engine](with_method(tiny("fedavg", **settings), Comparing))
    passes = [-(-len(rows) // 70) for rows in federation.task.clients.shards.train]
    assert max(passes) > 1
    assert calls_in_a_later_round(federation) == sum(passes)


@pytest.mark.parametrize("why", ["transforms", "large tables"])
def test_where_they_cannot_be_kept_every_step_computes_its_own(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    settings = {**UNEQUAL, **EVERYONE, "train__epochs": EPOCHS}
    if why == "transforms":
        settings["train__flip"] = True
    else:
        monkeypatch.setattr(constants_module, "MOST_BYTES", 1000)
    federation = captured(with_method(tiny("fedavg", **settings), Comparing))
    task = federation.task
    steps = [task.schedule.steps(len(rows)) for rows in task.clients.shards.train]
    assert calls_in_a_later_round(federation) == sum(steps)


def test_dp_sgd_computes_them_image_by_image(tiny: Tiny) -> None:
    pytest.importorskip("dp_accounting")
    settings = {**EVERYONE, "privacy__kind": "records", "privacy__noise": 1.0}
    federation = reference(with_method(tiny("fedavg", **settings), Comparing))
    IMAGES.clear()
    assert federation.step().failed == []
    assert set(IMAGES) == {1}


@pytest.mark.parametrize("engine", ENGINES)
def test_constants_without_a_row_per_image_are_one_line(tiny: Tiny, engine: str) -> None:
    class Short(Comparing):
        @staticmethod
        def of(model: Network, x: Tensor, visit: Visit) -> Tensors:
            return {"pixels": x.flatten(1)[:3]}

    federation = ENGINES[engine](with_method(tiny("fedavg", **EVERYONE), Short))
    (failure,) = federation.engine.train(jobs_of(federation, 0))
    assert isinstance(failure, Failure)
    assert re.search(
        r"fedavg: its constants returns a tensor of shape \(3, 64\) as 'pixels'; "
        r"\d+ rows are expected, one per image \(.*test_constants.py",
        failure.reason,
    )
