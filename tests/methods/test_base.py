"""What a class says of its steps, and what the aggregator makes of it."""

import pytest
import torch

from cafedcl.core.contract import Up
from cafedcl.methods import find_method
from cafedcl.methods.fedavg import FedAvg


def test_replies_that_weigh_nothing_are_fine_beside_others(tiny, monkeypatch):
    monkeypatch.setattr("cafedcl.methods.base.REPLIES_AT_A_TIME", 1)
    plain = FedAvg.weigh
    weigh = lambda self, ups: plain(self, ups) * (ups[0].client > 0)  # noqa: E731
    monkeypatch.setattr(FedAvg, "weigh", weigh)
    federation = tiny("fedavg", federation__participation=1.0)
    assert not federation.step().failed


def test_weights_of_a_class_of_ones_own_are_computed_from_all_replies_together():
    class Ranked(FedAvg):
        def weigh(self, ups):
            return torch.arange(1.0, len(ups) + 1)

    class RankedCAFedCL(find_method("cafedcl")[0]):
        weigh = Ranked.weigh

    assert FedAvg.separable
    assert not Ranked.separable
    assert not RankedCAFedCL(RankedCAFedCL.Options(), 3, 8).separable
    method = Ranked(FedAvg.Options(), 3, 8)
    aggregator = method.aggregator({"model/w": torch.zeros(1)})
    for client in range(10):
        aggregator.add(Up(client, 1, {}, {"w": torch.full((1,), float(client))}))
    expected = sum((k + 1) * k for k in range(10)) / sum(range(1, 11))
    assert float(aggregator.finish()["model/w"]) == pytest.approx(expected)
