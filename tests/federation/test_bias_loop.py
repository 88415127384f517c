import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cafedcl.federation.bias_loop import Injection, decompose, reference_rows
from cafedcl.federation.callback import Callback
from cafedcl.functional.contrast import class_scatter
from cafedcl.methods.fedavg import FedAvg

PARTS = ("feedback", "heterogeneity", "variance")


class Tables(Callback):
    def __init__(self):
        self.rounds, self.states = [], []

    def round_done(self, federation, record):
        self.rounds.append({n: v for n, v in record.tables.items() if n.startswith("loop/")})
        self.states.append(dict(federation.state))


@given(st.integers(0, 10_000), st.floats(0, 2))
def test_the_parts_add_up_to_the_drift_and_none_is_negative(seed, noise):
    rng = np.random.default_rng(seed)
    old, new, centre = (torch.from_numpy(rng.normal(size=(5, 3))) for _ in range(3))
    found = decompose(old, new, centre, torch.full((5,), noise))
    drift = ((new - centre) ** 2).sum(1)
    torch.testing.assert_close(found["drift"], drift)
    torch.testing.assert_close(sum(found[part] for part in PARTS), drift, atol=1e-9, rtol=0)
    assert all((found[part] >= 0).all() for part in PARTS)
    assert ((found["attraction"] >= 0) & (found["attraction"] <= 1)).all()


def test_known_embeddings_are_taken_apart_as_they_were_made():
    """e⁺ = ρ e + (1−ρ) b + ξ with b and ξ orthogonal to e: ρ is found, and the parts are the
    squares of each.
    """
    rho, e, b = 0.6, np.array([2.0, 0, 0, 0]), np.array([0, 1.0, 0, 0])
    xi = np.array([0, 0, 0.3, 0])
    centre = np.array([0.5, -0.2, 0.1, 0.9])
    old, new = centre + e, centre + rho * e + (1 - rho) * b + xi
    found = decompose(
        *(torch.from_numpy(v)[None] for v in (old, new, centre)), torch.tensor([0.09])
    )
    assert float(found["attraction"]) == pytest.approx(rho, abs=1e-12)
    assert float(found["feedback"]) == pytest.approx((rho * 2) ** 2, abs=1e-6)
    assert float(found["heterogeneity"]) == pytest.approx((1 - rho) ** 2, abs=1e-6)
    assert float(found["variance"]) == pytest.approx(0.09, abs=1e-6)
    assert float(sum(found[part] for part in PARTS)) == pytest.approx(
        float(((new - centre) ** 2).sum()), abs=1e-6
    )


def test_an_anchor_that_did_not_drift_feeds_nothing_back():
    centre = torch.ones(1, 3)
    found = decompose(centre, centre + 1, centre, torch.tensor([torch.nan]))
    assert float(found["feedback"]) == float(found["variance"]) == 0.0
    assert float(found["heterogeneity"]) == pytest.approx(3.0)


def test_the_injected_variance_is_by_hand():
    counts = torch.tensor([[100.0, 4], [10, 0], [1, 6]]).double()
    scatter = torch.tensor([[2.0, 1.0], [4.0, torch.nan], [torch.nan, 3.0]]).double()
    alpha = torch.tensor([[0.5, 0.25], [0.3, 0.0], [0.2, 0.75]]).double()
    pooled = (99 * 2 + 9 * 4) / 108
    s = np.array([2 / 100, 4 / 10, pooled / 1])
    found = {
        name: value.numpy() for name, value in Injection(alpha, counts, scatter).tables().items()
    }
    assert found["injected"][0] == pytest.approx(np.array([0.5, 0.3, 0.2]) ** 2 @ s)
    assert found["injected"][1] == pytest.approx(0.25**2 * 1 / 4 + 0.75**2 * 3 / 6)
    assert found["injected_uniform"][0] == pytest.approx(s.sum() / 9)
    assert found["injected_uniform"][1] == pytest.approx((1 / 4 + 3 / 6) / 4)
    assert found["injected_counts"][0] == pytest.approx(((np.array([100, 10, 1]) / 111) ** 2) @ s)
    assert found["injected_best"][0] == pytest.approx(1 / (1 / s).sum())
    assert found["clients"][1] == pytest.approx(1 / (0.25**2 + 0.75**2))
    assert (found["injected_best"] <= found["injected_counts"] + 1e-12).all()


def test_the_scatter_is_the_unbiased_variance():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(20, 3)), np.array([0] * 12 + [1] * 7 + [2])
    found = class_scatter(torch.from_numpy(z), torch.from_numpy(y), 4).numpy()
    assert found[0] == pytest.approx(z[:12].var(0, ddof=1).sum())
    assert found[1] == pytest.approx(z[12:19].var(0, ddof=1).sum())
    assert np.isnan(found[2:]).all()


def test_reference_images_are_training_images_at_most_so_many_of_each_class(tiny):
    task = tiny("cafedcl").task
    rows = reference_rows(task.clients.data.train_y, task.clients.shards, 9, 3)
    assert set(rows.tolist()) <= set(task.clients.shards.train.indices.tolist())
    total = torch.bincount(
        task.clients.data.train_y[task.clients.shards.train.indices], minlength=10
    )
    assert (
        torch.bincount(task.clients.data.train_y[rows], minlength=10).tolist()
        == total.clamp(max=9).tolist()
    )
    assert torch.equal(rows, reference_rows(task.clients.data.train_y, task.clients.shards, 9, 3))


def test_in_a_run_the_drift_is_that_of_the_anchors_from_the_mean_embedding_of_all_training_images(
    tiny,
):
    tables = Tables()
    federation = tiny("cafedcl", evaluate__loop=10_000, federation__participation=1.0)
    federation.callbacks = [tables]
    federation.run()
    task = federation.task
    rows = task.clients.shards.train.indices
    network = task.network.double().eval()
    state = {
        n.removeprefix("model/"): v.double()
        for n, v in federation.state.items()
        if n.startswith("model/")
    }
    network.load_state_dict(state)
    with torch.no_grad():
        z = network.encoder(
            task.clients.data.images(task.clients.data.train_x[rows]).double()
        ).numpy()
    z /= np.linalg.norm(z, axis=1, keepdims=True).clip(1e-12)
    y = task.clients.data.train_y[rows].numpy()
    means = np.stack([z[y == c].mean(0) for c in range(10)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    anchors = federation.state["anchors/prototypes"].double().numpy()
    last = tables.rounds[-1]
    np.testing.assert_allclose(last["loop/drift"], ((anchors - means) ** 2).sum(1), atol=1e-5)
    np.testing.assert_allclose(
        sum(last[f"loop/{part}"] for part in PARTS), last["loop/drift"], atol=1e-6
    )
    assert (last["loop/injected"] >= last["loop/injected_best"] - 1e-7).all()


@pytest.mark.parametrize(
    "method", ["fedproto", "fedproc", "fednh", "fedtgp", "cafedcl:fixed-anchors"]
)
def test_every_method_with_prototypes_shows_its_drift(tiny, method):
    tables = Tables()
    federation = tiny(method)
    federation.callbacks = [tables]
    federation.run()
    for found in tables.rounds:
        drift = found["loop/drift"]
        assert drift.isfinite().any()
        parts = sum(found[f"loop/{part}"] for part in PARTS)
        torch.testing.assert_close(parts, drift, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_it_can_be_turned_off_and_methods_without_prototypes_have_none(tiny):
    for federation in (tiny("cafedcl", evaluate__loop=0), tiny("fedavg"), tiny("mp-fedcl")):
        tables = Tables()
        federation.callbacks = [tables]
        federation.run()
        assert all(not found for found in tables.rounds)


def test_measuring_changes_nothing(tiny):
    states = []
    for images in (0, 64):
        federation = tiny("cafedcl", evaluate__loop=images)
        federation.run()
        states.append(federation.state)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


class FixedTable(FedAvg):
    """Calls its anchors prototypes, although clients send none."""

    name = "fixed-table"

    def start(self, model):
        return {"anchors/prototypes": torch.eye(self.classes)}


def test_nothing_is_measured_where_clients_send_no_prototypes(tiny):
    tables = Tables()
    federation = tiny(f"{__name__}:FixedTable")
    federation.callbacks = [tables]
    federation.run()
    assert tables.rounds == [{}] * len(tables.rounds)
