import numpy as np
import pytest
import torch

from cafedcl.core.contract import Reply
from cafedcl.core.tensors import under
from cafedcl.engine.reference import ReferenceEngine

RESNET = {
    "model__name": "resnet18",
    "model__width": 0.05,
    "federation__clients": 3,
    "split__classes": 4,
    "federation__participation": 1.0,
    "train__batch_size": 100,
}

SIZES = {name: value for name, value in RESNET.items() if name != "split__classes"}
"""The same for a split that has no number of classes."""


class Listening(ReferenceEngine):
    """Keeps every round's replies."""

    def __init__(self, task):
        super().__init__(task)
        self.replies = []

    def train(self, jobs):
        results = [self.attempt(job) for job in jobs]
        assert all(isinstance(result, Reply) for result in results)
        self.replies.append({result.up.client: result for result in results})
        yield from results


@pytest.fixture(scope="module")
def after(tiny):
    """Two rounds on a narrow ResNet."""
    federation = tiny("fedbn", **RESNET)
    federation.engine = Listening(federation.task)
    federation.run()
    return federation


@pytest.fixture(scope="module")
def norms(after):
    """The names of all weights of normalisation layers, found by their type."""
    layers = [
        name
        for name, module in after.task.network.named_modules()
        if isinstance(module, torch.nn.GroupNorm)
    ]
    assert len(layers) == 1 + 8 * 2 + 3
    assert sum("shortcut" in name for name in layers) == 3
    return {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}


def test_the_weights_of_every_normalisation_layer_stay_with_their_client(after, norms):
    weights = set(after.task.initial)
    assert norms < weights
    for memory in after.memories.values():
        assert under("model/", memory).keys() == norms
    for reply in after.engine.replies[-1].values():
        assert reply.up.model.keys() == weights - norms
    assert under("model/", after.state).keys() == weights - norms
    assert under("model/", after.method.broadcast(after.state)).keys() == weights - norms


def test_clients_go_on_from_their_own_normalisation(after, norms):
    first, second = after.engine.replies
    clients = sorted(second)
    for name in norms:
        values = [second[k].memory[f"model/{name}"] for k in clients]
        for k, value in zip(clients, values, strict=True):
            assert torch.equal(value, after.memories[k][f"model/{name}"])
    told = "encoder.blocks.2.shortcut.norm.weight"
    assert told in norms
    for k in clients:
        start, then, now = (
            after.task.initial[told],
            first[k].memory[f"model/{told}"],
            second[k].memory[f"model/{told}"],
        )
        assert (then - start).abs().max() > 0
        assert (now - then).abs().max() > 0
    assert not torch.equal(second[0].memory[f"model/{told}"], second[1].memory[f"model/{told}"])


def test_a_visit_trains_the_received_weights_with_the_clients_own_normalisation(after, norms, tiny):
    """Before any step: the network of a second visit is the server's, with the memory's
    normalisation in it.
    """
    federation = tiny("fedbn", **RESNET)
    federation.step()
    seen, loss = {}, federation.method.loss

    def listen(model, batch, visit):
        now = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen.setdefault(visit.client.index, now)
        return loss(model, batch, visit)

    federation.method.loss = listen
    memories, state = dict(federation.memories), federation.state
    federation.step()
    for client, weights in seen.items():
        for name, value in weights.items():
            assert torch.equal(
                value,
                memories[client][f"model/{name}"] if name in norms else state[f"model/{name}"],
            )


def test_all_other_weights_are_averaged_by_samples(after, norms):
    replies = after.engine.replies[-1]
    sizes = [after.task.clients.shards.counts[k].sum().item() for k in replies]
    for name in after.task.initial.keys() - norms:
        models = [reply.up.model[name].double().numpy() for reply in replies.values()]
        np.testing.assert_allclose(
            after.state[f"model/{name}"], np.average(models, 0, sizes), atol=1e-6
        )


def test_as_in_the_authors_code_clients_may_count_equally(tiny):
    federation = tiny("fedbn", method__weights="uniform", split__kind="quantity", **SIZES)
    federation.engine = Listening(federation.task)
    federation.step()
    (replies,) = federation.engine.replies
    assert len({reply.up.samples for reply in replies.values()}) > 1
    name = "head.weight"
    models = [reply.up.model[name].double().numpy() for reply in replies.values()]
    np.testing.assert_allclose(federation.state[f"model/{name}"], np.mean(models, 0), atol=1e-6)


def test_there_is_no_server_model_and_normalisation_costs_no_traffic(after, norms):
    record = after.history[-1]
    assert record.server is None
    assert record.own["accuracy"] is not None
    weights = sum(value.numel() for name, value in after.task.initial.items() if name not in norms)
    assert record.traffic["up_floats"] == record.traffic["down_floats"] == 3 * weights


@pytest.mark.parametrize("model", ["mlp", "cnn8"])
def test_without_normalisation_it_is_fedavg_bit_for_bit(tiny, model):
    ours, plain = (tiny(name, model__name=model) for name in ("fedbn", "fedavg"))
    for federation in (ours, plain):
        federation.run()
    assert ours.state.keys() == plain.state.keys()
    assert all(torch.equal(ours.state[name], value) for name, value in plain.state.items())
    assert [record.server for record in ours.history] == [record.server for record in plain.history]
    assert ours.history[-1].server is not None
