import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.core.contract import Up
from cafedcl.core.flat import FlatModel, WeightSlice
from cafedcl.functional import confidence as conf
from cafedcl.functional.aggregation import (
    Average,
    Entries,
    mean_prototypes,
    merge_prototypes,
    no_prototypes,
    normalise,
)

CLASSES, DIM = 4, 3


def up(client, classes, dim=DIM, seed=0):
    rng = np.random.default_rng([seed, client])
    prototypes = torch.from_numpy(rng.normal(size=(len(classes), dim)).astype(np.float32))
    trust = torch.from_numpy(rng.uniform(0.1, 1, len(classes)).astype(np.float32))
    return Up(
        client,
        10,
        {
            "classes": torch.tensor(classes, dtype=torch.int64),
            "prototypes": prototypes,
            "confidence": trust,
        },
    )


@st.composite
def worlds(draw):
    """Clients' confidences (zero where a class is absent) and prototypes, in float64."""
    clients, classes = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    held = rng.random((clients, classes)) < draw(st.floats(0.1, 1))
    trust = np.where(held, rng.uniform(0.05, 1, held.shape), 0.0)
    return held, trust, rng.normal(size=(clients, classes, DIM)) * held[..., None]


# Eq. 12


def weighted_mean(models, weights, epsilon=0.0):
    average = Average(epsilon)
    for model, weight in zip(models, weights, strict=True):
        average.add(model, float(weight))
    return average.result()


def test_models_are_averaged_entry_by_entry():
    rng = np.random.default_rng(0)
    arrays = [{"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)} for _ in range(3)]
    conf_k = np.array([0.2, 0.9, 0.5])
    models = [{name: torch.from_numpy(value) for name, value in model.items()} for model in arrays]
    ours = weighted_mean(models, conf_k)
    for name in ("a", "b"):
        expected = (
            sum(c * model[name] for c, model in zip(conf_k, arrays, strict=True)) / conf_k.sum()
        )
        np.testing.assert_allclose(ours[name], expected, atol=1e-14)


def test_the_mean_keeps_the_type_and_is_summed_in_double_precision():
    models = [
        {"w": torch.tensor([1e8 + 8])},
        {"w": torch.tensor([1.0])},
        {"w": torch.tensor([-1e8 - 8])},
    ]
    mean = weighted_mean(models, [1, 1, 1])
    assert mean["w"].dtype == torch.float32
    assert float(mean["w"]) == pytest.approx(1 / 3, abs=1e-6)


def test_counters_are_taken_from_the_client_that_has_seen_most():
    models = [{"n": torch.tensor(3)}, {"n": torch.tensor(7)}, {"n": torch.tensor(5)}]
    mean = weighted_mean(models, [0.8, 0.1, 0.1])
    assert mean["n"].dtype == torch.int64
    assert int(mean["n"]) == 7


def test_one_client_alone_is_the_mean():
    model = {"w": torch.randn(5, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(weighted_mean([model], [0.3])["w"], model["w"])


def test_the_printed_epsilon_shrinks_the_mean_by_the_sum_over_sum_plus_epsilon():
    weights, models = [0.2, 0.3], [{"w": torch.ones(2).double()}] * 2
    assert weighted_mean(models, weights, 0.125)["w"].tolist() == pytest.approx([0.5 / 0.625] * 2)
    assert weighted_mean(models, weights)["w"].tolist() == pytest.approx([1, 1], abs=1e-15)


def test_models_are_averaged_by_name_in_whatever_order_their_entries_come():
    one = {"a": torch.full((2, 2), 1.0), "b": torch.full((3,), 10.0), "n": torch.tensor(1)}
    other = dict(reversed([(name, 3 * value) for name, value in one.items()]))
    mean = weighted_mean([one, other], [1, 1])
    assert mean["a"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert mean["b"].tolist() == [20.0, 20.0, 20.0]


def test_a_model_nobody_vouches_for_moves_nothing():
    assert weighted_mean([{"w": torch.ones(2)}] * 3, [0, 0, 0]) == {}


def test_models_can_be_let_go_as_soon_as_they_are_added():
    average = Average()
    for value in (1.0, 2.0, 6.0):
        model = {"w": torch.full((2,), value), "n": torch.tensor(int(value))}
        average.add(model, 1.0)
        model["w"].fill_(torch.nan)
    assert average.result()["w"].tolist() == [3.0, 3.0]


def in_form(arrays, form):
    """A model of a (2, 3, 2, 2) and a (4,) weight: each by itself, or laid in one vector in one of
    three ways.
    """
    if form == "plain":
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    slices, parts, begin = {}, [], 0
    for name in ("b", "a") if form == "turned" else ("a", "b"):
        last = form == "last" and name == "a"
        slices[name] = WeightSlice.at(begin, torch.Size(arrays[name].shape), last=last)
        parts.append((arrays[name].transpose(0, 2, 3, 1) if last else arrays[name]).ravel())
        begin += arrays[name].size
    return FlatModel(torch.from_numpy(np.concatenate(parts)), slices)


FORMS = st.lists(st.sampled_from(["plain", "laid", "last", "turned"]), min_size=1, max_size=5)


@given(FORMS, st.integers(0, 10_000))
@settings(max_examples=60)
def test_models_that_are_laid_in_one_vector_are_averaged_like_plain_ones(forms, seed):
    """Exactly: products of float32 and a small whole number have room in float64."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (2, 3, 2, 2), "b": (4,)}
    arrays = [
        {n: rng.uniform(1, 2, shape).astype(np.float32) for n, shape in shapes.items()}
        for _ in forms
    ]
    weights = rng.integers(1, 9, len(forms))
    ours = weighted_mean(
        [in_form(model, form) for model, form in zip(arrays, forms, strict=True)], weights
    )
    plain = weighted_mean([in_form(model, "plain") for model in arrays], weights)
    assert ours.keys() == plain.keys() == shapes.keys()
    for name, shape in shapes.items():
        assert (ours[name].dtype, tuple(ours[name].shape)) == (torch.float32, shape)
        assert torch.equal(ours[name], plain[name])
        expected = np.average(
            [model[name].astype(np.float64) for model in arrays], axis=0, weights=weights
        )
        np.testing.assert_array_equal(ours[name], expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laid_models_can_be_let_go_as_soon_as_they_are_added(dtype):
    average = Average()
    for value in (1.0, 2.0, 6.0):
        model = FlatModel(
            torch.full((2,), value, dtype=dtype),
            {"w": WeightSlice.at(0, torch.Size((2,)), last=False)},
        )
        average.add(model, 1.0)
        assert model["w"].tolist() == [value] * 2
        model.vector.fill_(torch.nan)
    assert average.result()["w"].tolist() == [3.0, 3.0]


def test_where_nobody_has_weight_all_count_alike():
    assert normalise(torch.tensor([[0.0, 1.0], [0.0, 3.0]])).tolist() == [[0.5, 0.25], [0.5, 0.75]]


# Eqs. 2, 7 and 10


def test_prototypes_are_averaged_by_class():
    rng = np.random.default_rng(1)
    trust, prototypes = rng.uniform(0.1, 1, (3, CLASSES)), rng.normal(size=(3, CLASSES, DIM))
    expected = np.zeros((CLASSES, DIM))
    for c in range(CLASSES):
        for k in range(3):
            expected[c] += trust[k, c] / trust[:, c].sum() * prototypes[k, c]
    alpha = normalise(torch.from_numpy(trust))
    everything = torch.ones(CLASSES, dtype=torch.bool)
    previous = torch.zeros(CLASSES, DIM).double()
    ours = mean_prototypes(torch.from_numpy(prototypes), alpha, everything, previous)
    np.testing.assert_allclose(ours, expected, atol=1e-14)


@given(worlds())
@settings(max_examples=60)
def test_weights_of_a_held_class_sum_to_one_and_absent_clients_have_none(world):
    held, trust, _ = world
    alpha = normalise(torch.from_numpy(trust)).numpy()
    seen = held.any(0)
    np.testing.assert_allclose(alpha.sum(0)[seen], 1, atol=1e-12)
    assert not alpha[:, seen][~held[:, seen]].any()


@given(worlds())
@settings(max_examples=60)
def test_classes_nobody_reported_keep_their_prototype_bit_for_bit(world):
    held, trust, prototypes = world
    previous = torch.from_numpy(
        np.random.default_rng(5).normal(size=prototypes.shape[1:]).astype(np.float32)
    )
    seen = torch.from_numpy(held.any(0))
    alpha = normalise(torch.from_numpy(trust))
    ours = mean_prototypes(torch.from_numpy(prototypes), alpha, seen, previous)
    assert torch.equal(ours[~seen], previous[~seen])
    assert not torch.isclose(ours[seen], previous[seen]).all(1).any()


@given(worlds(), st.integers(0, 100))
@settings(max_examples=60)
def test_the_order_of_the_clients_does_not_matter(world, seed):
    held, trust, prototypes = world
    order = np.random.default_rng(seed).permutation(len(held))
    seen, previous = torch.from_numpy(held.any(0)), torch.zeros(prototypes.shape[1:]).double()
    one, other = (
        mean_prototypes(
            torch.from_numpy(prototypes[rows]),
            normalise(torch.from_numpy(trust[rows])),
            seen,
            previous,
        )
        for rows in (np.arange(len(held)), order)
    )
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    weights = torch.from_numpy(trust.sum(1) + 0.1)
    models = [{"w": torch.from_numpy(row)} for row in prototypes]
    torch.testing.assert_close(
        weighted_mean(models, weights)["w"],
        weighted_mean([models[k] for k in order], weights[torch.from_numpy(order)])["w"],
        atol=1e-12,
        rtol=0,
    )


@given(worlds(), st.integers(1, 1000))
@settings(max_examples=60)
def test_confidence_from_counts_alone_is_the_count_weighted_mean(world, most):
    """Eq. 10 with w = (1, 0, 0), no clipping and no synthetic data equals Eq. 2."""
    held, _, prototypes = world
    counts = np.where(
        held, np.random.default_rng(most).integers(1, most + 1, held.shape), 0
    ).astype(float)
    n, uncertain = torch.from_numpy(counts), torch.full(held.shape, 0.5).double()
    data = conf.data_confidence(n, n.amax(0), n.sum(0), "max", 10.0)
    val = conf.validation_confidence(uncertain, 0.5)
    alpha = normalise(
        conf.confidence(data, val, (1.0, 0.0, 0.0), None, None, "renormalise").clamp(0, 1)
    )
    seen = held.any(0)
    expected = np.zeros(prototypes.shape[1:])
    for c in np.flatnonzero(seen):
        expected[c] = (
            sum(counts[k, c] * prototypes[k, c] for k in range(len(held))) / counts[:, c].sum()
        )
    ours = mean_prototypes(
        torch.from_numpy(prototypes),
        alpha,
        torch.from_numpy(seen),
        torch.zeros(prototypes.shape[1:]).double(),
    )
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_a_scale_of_the_client_itself_is_not_the_count_weighted_mean():
    counts = torch.tensor([[90.0, 10.0], [5.0, 5.0]]).double()
    own = torch.stack([conf.data_confidence(row, row, row, "own", 1.0) for row in counts])
    assert not torch.allclose(normalise(own), counts / counts.sum(0), atol=0.05)


def test_equal_confidences_give_the_plain_mean_over_the_holders_only():
    prototypes = torch.tensor([[[2.0]], [[4.0]], [[0.0]]])
    trust = torch.tensor([[0.7], [0.7], [0.0]])
    ours = mean_prototypes(prototypes, normalise(trust), torch.tensor([True]), torch.zeros(1, 1))
    assert float(ours) == pytest.approx(3)


@pytest.mark.parametrize(
    ("weights", "injected", "squares"),
    [("counts", 0.009009, 0.820), ("confidence", 0.056890, 0.394), ("uniform", 0.123333, 0.333)],
)
def test_the_variance_each_rule_injects_for_a_hundred_ten_and_one_samples(
    weights, injected, squares
):
    n = torch.tensor([100.0, 10.0, 1.0]).double()
    data = conf.data_confidence(n, n.max(), n.sum(), "max", 10.0)
    val = conf.validation_confidence(torch.full((3,), 0.2).double(), 0.5)
    blend = conf.confidence(data, val, (0.4, 0.3, 0.3), None, None, "renormalise").clamp(0.05, 1.0)
    alpha = normalise(conf.trust(weights, blend, n, n, torch.zeros(3, 1).double())).numpy()
    assert np.sum(alpha**2 / n.numpy()) == pytest.approx(injected, abs=5e-7)
    assert np.sum(alpha**2) == pytest.approx(squares, abs=5e-4)


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3))
@settings(max_examples=40)
def test_no_weights_inject_less_variance_than_the_counts(weights):
    n, other = np.array([100.0, 10.0, 1.0]), np.array(weights) / np.sum(weights)
    alpha = normalise(torch.from_numpy(n)).numpy()
    assert np.sum(alpha**2 / n) <= np.sum(other**2 / n) + 1e-15


# what clients report


def test_entries_lay_out_the_clients_reports():
    ups = [up(0, [0, 2]), up(1, [3]), up(2, [])]
    sent = Entries(ups, CLASSES)
    assert sent.held.tolist() == [
        [True, False, True, False],
        [False, False, False, True],
        [False] * 4,
    ]
    dense = sent["prototypes"]
    assert dense.shape == (3, CLASSES, DIM)
    assert torch.equal(dense[0, 2], ups[0].tensors["prototypes"][1])
    assert torch.equal(dense[1, 3], ups[1].tensors["prototypes"][0])
    assert int(dense.any(2).sum()) == 3
    assert sent["confidence"].shape == (3, CLASSES)


@pytest.mark.parametrize(
    "listed", [[[0, 1, 2, 3]] * 3, [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3]], [[3, 2, 1, 0]] * 2]
)
def test_entries_lie_at_their_classes_whether_or_not_every_client_has_all(listed):
    ups = [up(client, classes) for client, classes in enumerate(listed)]
    dense = Entries(ups, CLASSES)["prototypes"]
    for client, classes in enumerate(listed):
        for c in range(CLASSES):
            row = (
                ups[client].tensors["prototypes"][classes.index(c)]
                if c in classes
                else torch.zeros(DIM)
            )
            assert torch.equal(dense[client, c], row)


def test_merged_prototypes_are_plain_means_over_holders_and_remembered():
    ups = [up(0, [0, 1]), up(1, [1])]
    state = no_prototypes(CLASSES, DIM)
    state["anchors/prototypes"][3], state["anchors/known"][3] = 1.5, True
    merged = merge_prototypes(state, ups)
    a, b = (u.tensors["prototypes"].numpy() for u in ups)
    expected = np.stack([a[0], (a[1] + b[0]) / 2, np.zeros(DIM), np.full(DIM, 1.5)])
    np.testing.assert_allclose(merged["anchors/prototypes"], expected, atol=1e-6)
    assert merged["anchors/known"].tolist() == [True, True, False, True]
