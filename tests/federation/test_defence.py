"""Server steps that liars cannot ruin, for every method that averages."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cafedcl.config.trust_options import DEFENCES
from cafedcl.core.contract import Up
from cafedcl.core.tensors import MODEL, prefixed, under
from cafedcl.federation.rounds import Federation
from cafedcl.methods import find_method, method_names

Tiny = Callable[..., Federation]
EVERYONE = {"federation__participation": 1.0}
METHODS = [name for name in method_names() if not find_method(name)[0].pooled]
KINDS = [kind for kind in DEFENCES if kind != "none"]


# What a defence does depends on what kinds of entries a method sends. So every defence is tried
# with a method of each kind, and every method with the recommended defence.
SENDERS = ("fedavg", "cafedcl", "scaffold", "fedproto", "mp-fedcl")
PAIRS = [(method, "peers") for method in METHODS]
PAIRS += [(method, kind) for method in SENDERS for kind in KINDS if kind != "peers"]


@pytest.mark.parametrize(("method", "kind"), PAIRS)
def test_every_method_and_every_defence_run(tiny: Tiny, method: str, kind: str) -> None:
    short = {"method__epochs": 3} if method == "fedtgp" else {}
    record = tiny(method, defence__kind=kind, **EVERYONE, **short).step()
    assert (record.status, record.failed) == ("ok", [])


@pytest.mark.parametrize("method", ["fedavg", "cafedcl", "scaffold", "fedproto"])
def test_with_nothing_to_clip_the_result_is_the_same_to_the_bit(tiny: Tiny, method: str) -> None:
    plain = tiny(method, **EVERYONE)
    defended = tiny(method, defence__kind="clip", defence__factor=1e5, **EVERYONE)
    plain.run()
    defended.run()
    one = plain.snapshot()[0]
    other = defended.snapshot()[0]
    assert one.keys() == other.keys()
    assert all(one[name].numpy().tobytes() == other[name].numpy().tobytes() for name in one)


def replies(federation: Federation, updates: list[float]) -> list[Up]:
    """Replies whose updates are the given constants."""
    start = under(MODEL, federation.state)
    return [
        Up(
            client,
            int(federation.counts[client].sum()),
            {},
            model={name: value + update for name, value in start.items()},
        )
        for client, update in enumerate(updates)
    ]


def step(federation: Federation, updates: list[float]) -> float:
    """The update of the server's first weight."""
    aggregator = federation.aggregator()
    for up in replies(federation, updates):
        aggregator.add(up)
    state = aggregator.finish()
    name = next(iter(prefixed(MODEL, under(MODEL, federation.state))))
    moved = state[name] - federation.state[name]
    assert moved.numpy() == pytest.approx(float(moved.flatten()[0]), abs=1e-5)
    return float(moved.flatten()[0])


UPDATES = [1.0, 2.0, 3.0, 4.0, -100.0]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("none", {}, lambda n: np.average(UPDATES, weights=n)),
        ("clip", {"factor": 1.0}, lambda n: np.average([1, 2, 3, 3, -3], weights=n)),
        ("clip", {"factor": 2.0}, lambda n: np.average([1, 2, 3, 4, -6], weights=n)),
        ("peers", {"factor": 1.0}, lambda n: np.average([1, 2, 2.5, 2.5], weights=n[:4])),
        ("peers", {"factor": 9.0}, lambda n: np.average([1, 2, 3, 4], weights=n[:4])),
        ("trimmed-mean", {"liars": 0.2}, lambda n: 2.0),
        ("median", {}, lambda n: 2.0),
        ("krum", {"liars": 0.2}, lambda n: 2.0),
        ("multi-krum", {"liars": 0.2}, lambda n: np.average(UPDATES[:4], weights=n[:4])),
    ],
)
def test_updates_are_combined_as_the_defence_says(
    tiny: Tiny, kind: str, options: dict[str, Any], expected: Any
) -> None:
    settings = {f"defence__{name}": value for name, value in options.items()}
    federation = tiny("fedavg", defence__kind=kind, split__kind="iid", **settings, **EVERYONE)
    sizes = federation.counts.sum(1).numpy()
    assert step(federation, UPDATES) == pytest.approx(expected(sizes), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_two_replies_are_averaged_as_they_are(tiny: Tiny, kind: str) -> None:
    federation = tiny("fedavg", defence__kind=kind, **EVERYONE)
    sizes = federation.counts.sum(1).numpy()[:2]
    assert step(federation, [1.0, 9.0]) == pytest.approx(
        np.average([1, 9], weights=sizes), abs=1e-4
    )


@pytest.mark.parametrize("kind", ["clip", "trimmed-mean", "median"])
def test_a_prototype_far_from_the_others_moves_the_mean_by_little(tiny: Tiny, kind: str) -> None:
    federation = tiny("fedproto", defence__kind=kind, split__kind="iid", split__classes=2)
    width = federation.method.dim
    aggregator = federation.aggregator()
    for client, at in enumerate([1.0, 1.1, 0.9, 1.05, 1000.0]):
        sent = {"classes": torch.tensor([3]), "prototypes": torch.full((1, width), at)}
        aggregator.add(Up(client, int(federation.counts[client].sum()), sent))
    table = aggregator.finish()["anchors/prototypes"]
    assert table[3].numpy() == pytest.approx(1.0, abs=0.15)


def test_a_client_that_the_defence_leaves_out_is_named_in_the_record(tiny: Tiny) -> None:
    attack = {"attack__kind": "scale", "attack__clients": 1, "split__kind": "iid"}
    federation = tiny("fedavg", defence__kind="peers", **attack, **EVERYONE)
    liar = next(iter(federation.attack.liars))
    records = federation.run()
    assert [record.left_out for record in records] == [[liar], [liar]]
    assert tiny("fedavg", **attack, **EVERYONE).step().left_out == []


def test_a_swapped_prototype_loses_the_confidence_that_it_claims(tiny: Tiny) -> None:
    attack = {"attack__kind": "swap", "attack__clients": 1, "attack__claim": "most"}
    shares = {}
    for check in (False, True):
        federation = tiny(
            "cafedcl",
            split__kind="iid",
            defence__kind="clip",
            defence__factor=1e5,
            defence__cross_check=check,
            **attack,
            **EVERYONE,
        )
        federation.step()
        aggregator = federation.aggregator()
        for result in federation.train(federation.down(), list(range(5))):
            aggregator.add(result.up)
        claimed = {up.client: up.tensors["confidence"].mean() for up in aggregator.defended()}
        liar = next(iter(federation.attack.liars))
        shares[check] = float(claimed[liar] / sum(claimed.values()))
    assert shares[False] > 0.2
    assert shares[True] < 0.8 * shares[False]


@pytest.mark.parametrize("clients", [3, 4])
def test_peers_of_three_clients_cannot_leave_anybody_out(clients: int, tiny: Tiny) -> None:
    options = {"federation__clients": clients, "split__classes": 5}
    federation = tiny("fedavg", **options, defence__kind="peers")
    told = [it for it in federation.notices if "nobody is left out" in it]
    assert bool(told) == (clients == 3)


@pytest.mark.parametrize("method", ["local", "fedproto", "fedavg"])
@pytest.mark.parametrize("kind", ["krum", "multi-krum", "peers", "clip", "median", "trimmed-mean"])
def test_a_defence_of_what_the_method_does_not_send_is_told(
    kind: str, method: str, tiny: Tiny
) -> None:
    plain = tiny(method, federation__participation=1.0)
    federation = tiny(method, federation__participation=1.0, defence__kind=kind)
    told = [it for it in federation.notices if "so the defence changes nothing" in it]
    # Clients of fedproto send prototypes, and those of local nothing at all.
    in_vain = {"local"} | ({"fedproto"} if kind in ("krum", "multi-krum", "peers") else set())
    assert bool(told) == (method in in_vain)
    if told:
        plain.step()
        federation.step()
        for name, value in plain.state.items():
            assert torch.equal(value, federation.state[name])


@pytest.mark.parametrize(("method", "told"), [("fedavg", True), ("cafedcl", False)])
def test_a_cross_check_of_nothing_is_said(tiny: Tiny, method: str, told: bool) -> None:
    federation = tiny(method, defence__kind="clip", defence__cross_check=True, **EVERYONE)
    said = f"defence.cross_check = true: clients of {method} claim no confidences"
    assert any(notice.startswith(said) for notice in federation.notices) is told


@pytest.mark.parametrize("kind", ["clip", "trimmed-mean", "median", "peers"])
def test_second_moments_of_all_images_are_added_up_as_they_are(tiny: Tiny, kind: str) -> None:
    """A coordinate's mean over clients with other classes would be no sum over anybody's images."""
    federation = tiny("cafedcl:best", defence__kind=kind, **EVERYONE)
    aggregator = federation.aggregator()
    sent = [result.up for result in federation.train(federation.down(), list(range(5)))]
    for up in sent:
        aggregator.add(up)
    by_client = {up.client: up.tensors for up in sent}
    for up in aggregator.defended():
        assert torch.equal(up.tensors["gram"], by_client[up.client]["gram"])


def class_sums(federation: Federation, means: np.ndarray) -> list[np.ndarray]:
    """The sums of a class that a server adds up, of clients whose images have these means in it."""
    dim = federation.method.dim
    counts = federation.counts.numpy()
    counts[:, 1:] = 0
    federation.task.enrolment.counts[:] = torch.from_numpy(counts)
    aggregator = federation.aggregator()
    for client, mean in enumerate(means):
        targets = torch.zeros(10, dim)
        targets[0, : len(mean)] = torch.from_numpy(counts[client, 0] * mean)
        # Nothing that has no images may become NaN.
        gram = torch.eye(dim)
        model = {name: value.clone() for name, value in under(MODEL, federation.state).items()}
        sums = {"gram": gram, "targets": targets}
        aggregator.add(Up(client, int(counts[client].sum()), sums, model))
    return [up.tensors["targets"].numpy() for up in aggregator.defended()]


NEARBY = [[0.9, 0.1], [0.8, -0.1], [0.85, 0.0], [0.9, -0.2]]


def middle_of(points: np.ndarray) -> np.ndarray:
    """The geometric median, as the best point of a fine grid."""
    axes = np.linspace(points.min(0), points.max(0), 401).T
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    return grid[np.linalg.norm(grid[:, None] - points, axis=2).sum(1).argmin()]


@pytest.mark.parametrize(("kind", "factor"), [("clip", 2.0), ("clip", 1.5), ("peers", 2.0)])
def test_the_opposite_sums_of_a_liar_are_pulled_in_to_those_of_the_others(
    tiny: Tiny, kind: str, factor: float
) -> None:
    options = {"defence__kind": kind, "defence__factor": factor, "split__kind": "iid"}
    federation = tiny("spherefed", **options, **EVERYONE)
    means = np.array([*NEARBY, [-0.87, 0.05]])
    images = federation.counts[:, 0].numpy()
    found = class_sums(federation, means)
    middle = middle_of(means)
    lengths = np.linalg.norm(means - middle, axis=1)
    limit = factor * np.median(lengths)
    assert (lengths[:4] < limit).all(), "the example: only the liar is far from the others"
    for client in range(4):
        np.testing.assert_array_equal(
            found[client][0, :2], (images[client] * means[client]).astype(np.float32)
        )
    pulled = found[4][0, :2] / images[4]
    np.testing.assert_allclose(
        pulled, middle + limit * (means[4] - middle) / lengths[4], atol=0.005
    )
    for sums in found:
        assert not sums[1:].any()


@pytest.mark.parametrize("kind", ["clip", "median", "trimmed-mean"])
def test_of_two_holders_nobody_can_say_whose_sums_are_wrong(tiny: Tiny, kind: str) -> None:
    federation = tiny("spherefed", defence__kind=kind, split__kind="iid", **EVERYONE)
    means = np.array([NEARBY[0], [-0.9, 0.0], *[[0.0, 0.0]] * 3])
    images = federation.counts[:, 0].numpy().copy()
    federation.counts[2:, 0] = 0
    found = class_sums(federation, means)
    for client in range(2):
        np.testing.assert_array_equal(
            found[client][0, :2], (images[client] * means[client]).astype(np.float32)
        )


def test_a_median_of_sums_is_that_of_their_means(tiny: Tiny) -> None:
    federation = tiny("spherefed", defence__kind="median", split__kind="iid", **EVERYONE)
    means = np.array([*NEARBY, [-0.87, 0.05]])
    images = federation.counts[:, 0].numpy()
    middle = middle_of(means)
    for client, sums in enumerate(class_sums(federation, means)):
        np.testing.assert_allclose(sums[0, :2] / images[client], middle, atol=0.005)
