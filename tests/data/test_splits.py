import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.config.split_options import SplitOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import pack, unpack
from cafedcl.data import splits
from cafedcl.data.shards import (
    NO_ROWS,
    ClientRows,
    Shards,
    choose_held_out,
    load_shards,
    merge_clients,
    save_shards,
    stratified_rows,
)
from cafedcl.data.splits import dirichlet_per_client, long_tail, pathological

BALANCED = torch.arange(10).repeat(60)
NOBODY = torch.zeros(0, dtype=torch.int64)


def split(labels, classes, clients, options, seed, test_share):
    """Split data without clients of their own."""
    return splits.split(labels, NOBODY, classes, clients, options, seed, test_share)


def parts_of(owner, clients):
    return [np.flatnonzero(owner == client) for client in range(clients)]


def labels_of(sizes, seed=0):
    y = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(np.random.default_rng(seed).permutation(y))


def tail_by_hand(n_max, ir, classes):
    """The largest k with k ≤ n_max·IR^(−c/(C−1)), in whole numbers only: k^(C−1)·IR^c ≤
    n_max^(C−1).
    """
    kept = []
    for c in range(classes):
        k = n_max
        while k ** (classes - 1) * ir**c > n_max ** (classes - 1):
            k -= 1
        kept.append(k)
    return kept


def assigned(shards, client):
    parts = (
        shards.train[client],
        shards.validation[client],
        *([shards.test[client]] if shards.test else []),
    )
    return torch.cat(parts).tolist()


def attempt(*request):
    """Return the shards, or why there are none."""
    try:
        return split(*request)
    except CafedclError as error:
        return str(error)


@st.composite
def requests(draw):
    classes = draw(st.integers(1, 8))
    clients = draw(st.integers(1, 12))
    sizes = draw(st.lists(st.integers(0, 40), min_size=classes, max_size=classes))
    options = SplitOptions(
        kind=draw(st.sampled_from(["dirichlet", "pathological", "iid", "quantity"])),
        form=draw(st.sampled_from(["client", "class"])),
        alpha=draw(st.sampled_from([1e-3, 0.05, 0.1, 1.0, 100.0])),
        classes=draw(st.integers(1, 9)),
        ir=float(draw(st.sampled_from([1, 2, 10, 100]))),
        validation=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9])),
    )
    return (
        labels_of(sizes),
        classes,
        clients,
        options,
        draw(st.integers(0, 50)),
        draw(st.sampled_from([0.0, 0.25])),
    )


@given(requests())
@settings(max_examples=150)
def test_any_request_deals_every_image_once_or_says_why_not(request):
    labels, classes, clients, options, seed, test_share = request
    have = torch.bincount(labels, minlength=classes).tolist()
    tail = (
        tail_by_hand(max(have), int(options.ir), classes) if options.ir > 1 and any(have) else have
    )
    kept = [min(pair) for pair in zip(have, tail, strict=True)]
    shards = attempt(labels, classes, clients, options, seed, test_share)
    equal_sizes = options.kind == "iid" or (
        options.kind == "dirichlet" and options.form == "client"
    )
    if isinstance(shards, str):
        assert shards.startswith("split")
        assert "\n" not in shards
        lost = any(has and not keeps for has, keeps in zip(have, kept, strict=True))
        assert not equal_sizes or sum(kept) < clients or lost
        return
    everything = [assigned(shards, client) for client in range(clients)]
    together = [index for part in everything for index in part]
    assert len(shards) == len(shards.train) == len(shards.validation) == clients
    assert len(shards.test) == (clients if test_share else 0)
    assert len(together) == len(set(together))
    assert torch.bincount(labels[together], minlength=classes).tolist() == kept
    sizes = [len(part) for part in everything]
    for client, part in enumerate(everything):
        assert len(shards.train[client]) > 0
        counts = torch.bincount(labels[shards.train[client]], minlength=classes)
        assert shards.counts[client].tolist() == counts.tolist()
        assert set(labels[part].tolist()) == set(counts.nonzero().flatten().tolist())
    if equal_sizes:
        assert max(sizes) - min(sizes) <= 1
    elif options.kind == "pathological":
        assert (shards.counts > 0).sum(1).tolist() == [options.classes] * clients
        assert (shards.counts > 0).any(0).all()
    elif options.kind == "dirichlet":
        assert min(sizes) >= 10


@pytest.mark.parametrize("kind", ["dirichlet", "pathological", "iid", "quantity"])
@pytest.mark.parametrize("form", ["client", "class"])
def test_the_seed_alone_makes_the_split(kind, form):
    options = SplitOptions(kind=kind, form=form, ir=3.0)
    one, same, other = (split(BALANCED, 10, 8, options, seed, 0.25) for seed in (1, 1, 2))
    for name in ("train", "validation", "test"):
        first, second, third = (getattr(s, name) for s in (one, same, other))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(first, third, strict=True))


def test_the_split_does_not_depend_on_the_share_held_out():
    a = split(BALANCED, 10, 8, SplitOptions(validation=0.0), 0, 0.0)
    b = split(BALANCED, 10, 8, SplitOptions(validation=0.3), 0, 0.25)
    assert all(sorted(assigned(a, k)) == sorted(assigned(b, k)) for k in range(8))


@pytest.mark.parametrize(
    ("ir", "classes", "n_max"), [(100, 3, 100), (10, 10, 142), (50, 10, 500), (100, 100, 50)]
)
def test_the_long_tail_is_exact(ir, classes, n_max):
    labels = labels_of([n_max] * classes).numpy()
    kept = long_tail(labels, classes, float(ir), "exponential", np.random.default_rng(0))
    assert np.bincount(labels[kept], minlength=classes).tolist() == tail_by_hand(n_max, ir, classes)
    assert len(set(kept.tolist())) == len(kept)


def test_the_long_tail_comes_before_the_split():
    labels = labels_of([100] * 5)
    shards = split(labels, 5, 4, SplitOptions(kind="iid", ir=100.0, validation=0.0), 0, 0.0)
    assert shards.counts.sum(0).tolist() == [100, 31, 10, 3, 1]


def test_two_classes_per_client_cover_all_classes_evenly():
    shards = split(
        BALANCED, 10, 20, SplitOptions(kind="pathological", classes=2, validation=0.0), 0, 0.0
    )
    held = shards.counts > 0
    assert held.sum(1).tolist() == [2] * 20
    assert held.sum(0).tolist() == [4] * 10
    assert set(shards.counts[held].tolist()) == {15}
    assert len({tuple(row.nonzero().flatten().tolist()) for row in held}) > 5


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(0, 20))
@settings(max_examples=60)
def test_holders_of_a_class_have_equal_parts_of_it(clients, classes, held, seed):
    labels = np.repeat(np.arange(classes), 30)
    if held > classes or clients * held < classes:
        with pytest.raises(CafedclError, match="classes"):
            pathological(labels, clients, classes, held, np.random.default_rng(seed))
        return
    parts = parts_of(
        pathological(labels, clients, classes, held, np.random.default_rng(seed)), clients
    )
    for c in range(classes):
        shares = [n for n in (int((labels[part] == c).sum()) for part in parts) if n]
        assert sum(shares) == 30
        assert max(shares) - min(shares) <= 1
    number = [int(sum((labels[part] == c).any() for part in parts)) for c in range(classes)]
    assert max(number) - min(number) <= 1


def test_proportions_of_the_first_client_follow_the_dirichlet():
    """Mean 1/C; variance that of Dir(α) plus that of drawing n images from it."""
    classes = 4
    alpha = 0.3
    clients = 40
    repeats = 300
    labels = np.repeat(np.arange(classes), 1000)
    shares = np.stack(
        [
            np.bincount(
                labels[dirichlet_per_client(labels, clients, classes, alpha, rng) == 0],
                minlength=classes,
            )
            / 100
            for rng in map(np.random.default_rng, range(repeats))
        ]
    )
    assert np.allclose(shares.sum(1), 1)
    spread = (1 / classes) * (1 - 1 / classes) / (classes * alpha + 1)
    drawn = (1 / classes - spread - 1 / classes**2) / 100
    np.testing.assert_allclose(shares.mean(0), 1 / classes, atol=4 * np.sqrt(spread / repeats))
    assert shares.var() == pytest.approx(spread + drawn, rel=0.12)


def test_a_smaller_alpha_gives_fewer_classes_per_client():
    held = [
        float(
            (split(BALANCED, 10, 10, SplitOptions(alpha=alpha), 0, 0.0).counts > 0)
            .double()
            .sum(1)
            .mean()
        )
        for alpha in (0.01, 0.3, 100.0)
    ]
    assert held[0] < held[1] < held[2]


@pytest.mark.parametrize("form", ["client", "class"])
@pytest.mark.parametrize("alpha", [5e-324, 1e-100, 1e100, 1e308])
def test_extreme_concentrations_still_deal_every_image_once(form, alpha):
    shards = split(BALANCED, 10, 3, SplitOptions(form=form, alpha=alpha, validation=0.0), 0, 0.0)
    assert sorted(index for k in range(3) for index in assigned(shards, k)) == list(range(600))


def test_one_client_may_hold_everything_though_a_class_is_empty():
    shards = split(labels_of([20, 0]), 2, 1, SplitOptions(form="class", validation=0.0), 0, 0.0)
    assert shards.counts.tolist() == [[20, 0]]


@pytest.mark.parametrize(
    ("sizes", "clients", "options", "words"),
    [
        ([3, 3], 7, {"kind": "iid"}, "6 images are too few for 7 clients"),
        ([3, 3], 7, {}, "6 images are too few for 7 clients"),
        ([30, 30], 7, {"form": "class"}, "60 images cannot give 7 clients 10 each.*fewer clients"),
        ([90], 9, {"form": "class", "alpha": 1e-9}, "none of 1000 draws gave.*larger alpha"),
        (
            [9] * 4,
            3,
            {"kind": "pathological", "classes": 5},
            "split.classes = 5: there are only 4 classes",
        ),
        (
            [9] * 10,
            4,
            {"kind": "pathological", "classes": 2},
            "cannot cover 10 classes; use at least 3 classes",
        ),
        (
            [9, 1],
            3,
            {"kind": "pathological", "classes": 2},
            "class 1 has 1 images for 3 clients.*smaller ir",
        ),
    ],
)
def test_an_impossible_request_says_what_would_be_possible(sizes, clients, options, words):
    with pytest.raises(CafedclError, match=words):
        split(labels_of(sizes), len(sizes), clients, SplitOptions(**options), 0, 0.0)


@given(st.lists(st.integers(0, 25), min_size=1, max_size=6), st.floats(0, 0.9), st.integers(0, 20))
@settings(max_examples=100)
def test_a_hold_out_is_stratified_takes_one_of_two_and_never_the_last(sizes, share, seed):
    labels = labels_of(sizes, seed).numpy()
    shard = np.flatnonzero(np.random.default_rng(seed).random(len(labels)) < 0.8)
    owner = np.full(len(labels), -1)
    owner[shard] = 3
    out = (
        np.flatnonzero(choose_held_out(labels, owner, share, np.random.default_rng(seed)))
        if len(labels)
        else shard
    )
    assert set(out) <= set(shard)
    for c in range(len(sizes)):
        n = int((labels[shard] == c).sum())
        taken = int((labels[out] == c).sum())
        if n < 2 or share == 0:
            assert taken == 0
        else:
            assert 1 <= taken <= n - 1
            assert abs(taken - share * n) <= 0.5 or taken in (1, n - 1)


def test_pooled_shards_are_one_client_with_everything():
    shards = split(BALANCED, 10, 4, SplitOptions(), 0, 0.25)
    pooled = merge_clients(shards)
    assert len(pooled) == 1
    assert sorted(assigned(pooled, 0)) == list(range(600))
    assert pooled.counts.tolist() == [shards.counts.sum(0).tolist()]
    assert not merge_clients(split(BALANCED, 10, 4, SplitOptions(), 0, 0.0)).test


def test_a_step_tail_keeps_all_of_the_first_half_and_a_share_of_the_rest():
    labels = labels_of([100] * 5)
    shards = split(
        labels, 5, 4, SplitOptions(kind="iid", ir=8.0, tail="step", validation=0.0), 0, 0.0
    )
    assert shards.counts.sum(0).tolist() == [100, 100, 100, 12, 12]


def test_quantity_skew_is_in_sizes_not_in_labels():
    options = SplitOptions(kind="quantity", alpha=0.5, validation=0.0)
    shards = split(torch.arange(10).repeat(2000), 10, 8, options, 0, 0.0)
    sizes = shards.counts.sum(1)
    assert sizes.min() >= 1
    assert sizes.max() > 3 * sizes.min()
    large = shards.counts[sizes.argmax()] / sizes.max()
    assert (large - 0.1).abs().max() < 0.03


def test_natural_clients_are_used_as_they_are():
    owners = torch.tensor([0, 1, 1, 2, 2, 2, 2, 0])
    labels = torch.tensor([0, 0, 1, 1, 0, 1, 0, 1])
    shards = splits.split(
        labels, owners, 2, 3, SplitOptions(kind="natural", validation=0.0), 0, 0.0
    )
    assert [part.tolist() for part in shards.train] == [[0, 7], [1, 2], [3, 4, 5, 6]]


def test_the_same_image_is_held_out_whatever_the_other_clients_do():
    """The draw belongs to the image: assigning the others differently does not change it."""
    labels = np.repeat(np.arange(2), 20)
    together = np.zeros(40, dtype=np.int64)
    alone = np.where(np.arange(40) % 2 == 0, 0, -1)
    held = choose_held_out(labels, alone, 0.3, np.random.default_rng(5))
    again = choose_held_out(labels, np.where(alone < 0, 1, 0), 0.3, np.random.default_rng(5))
    assert (held[alone == 0] == again[alone == 0]).all()
    assert choose_held_out(labels, together, 0.3, np.random.default_rng(5)).sum() == 12


def test_a_saved_split_is_the_split(tmp_path):
    shards = split(BALANCED, 10, 7, SplitOptions(), 3, 0.25)
    save_shards(shards, BALANCED, tmp_path / "split.safetensors")
    options = SplitOptions(kind="file", file=str(tmp_path / "split.safetensors"))
    again = split(BALANCED, 10, 99, options, 8, 0.25)
    assert torch.equal(shards.counts, again.counts)
    for name in ("train", "validation", "test"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(getattr(shards, name), getattr(again, name), strict=True)
        )


def test_a_saved_split_knows_its_data_and_itself(tmp_path):
    path = tmp_path / "split.safetensors"
    save_shards(split(BALANCED, 10, 7, SplitOptions(), 3, 0.0), BALANCED, path)
    with pytest.raises(CafedclError, match=r"made for other data \(600 training images\)"):
        load_shards(path, BALANCED.flip(0))
    good = path.read_bytes()
    path.write_bytes(good[:50])
    with pytest.raises(CafedclError, match="not a split written by"):
        load_shards(path, BALANCED)
    tensors, header = unpack(good)
    for name, change in (
        ("train/indices", lambda rows: rows + 600),
        ("train/indices", lambda rows: rows.flip(0)),
        ("validation/indices", lambda rows: rows * 0),
        ("train/indices", lambda rows: rows.float()),
        ("counts", lambda counts: counts + 1),
        ("counts", lambda counts: counts[1:]),
        ("validation/sizes", lambda sizes: sizes[1:]),
    ):
        path.write_bytes(pack({**tensors, name: change(tensors[name])}, header))
        with pytest.raises(CafedclError, match=r"damaged: export it again|not a split written by"):
            load_shards(path, BALANCED)
    with pytest.raises(CafedclError, match="No such file"):
        load_shards(tmp_path / "none", BALANCED)
    with pytest.raises(CafedclError, match="cannot be written"):
        save_shards(
            split(BALANCED, 10, 7, SplitOptions(), 3, 0.0), BALANCED, tmp_path / "none" / "x"
        )


@pytest.mark.slow
def test_twenty_thousand_clients_are_split_in_seconds():
    """If each client were compared with each other one, it would take many minutes."""
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 62, 160_000))
    began = time.process_time()
    shards = split(labels, 62, 20_000, SplitOptions(), 0, 0.0)
    assert time.process_time() - began < 60
    assert len(shards) == 20_000
    assert int(shards.counts.sum()) + sum(len(part) for part in shards.validation) == 160_000


def test_rows_of_clients_are_parts_of_one_tensor():
    parts = [torch.tensor([4, 1]), torch.zeros(0, dtype=torch.int64), torch.tensor([7])]
    rows = ClientRows.of(parts)
    assert len(rows) == 3
    assert rows.sizes.tolist() == [2, 0, 1]
    assert [part.tolist() for part in rows] == [[4, 1], [], [7]]
    assert rows[-1].tolist() == [7]
    assert rows[0].data_ptr() == rows.indices.data_ptr(), "nothing is copied"
    with pytest.raises(IndexError):
        rows[3]
    assert not NO_ROWS


@pytest.mark.parametrize(
    "sizes", [torch.tensor([-1, 4]), torch.tensor([1, 1]), torch.tensor([1.0, 2.0])]
)
def test_sizes_that_do_not_fit_the_indices_are_refused(sizes):
    shards = split(BALANCED, 10, 2, SplitOptions(), 0, 0.0)
    tensors = {**shards.tensors(), "train/sizes": sizes}
    with pytest.raises(ValueError, match="train/sizes does not fit"):
        Shards.from_tensors(tensors, ())


def test_a_stratified_part_has_every_class_in_its_share():
    labels = torch.cat([torch.zeros(900), torch.ones(99), torch.tensor([4.0])]).long()
    labels = labels[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    rows = stratified_rows(labels, 100)
    assert torch.bincount(labels[rows]).tolist() == [90, 10, 0, 0, 1]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert stratified_rows(labels, 0).tolist() == list(range(1000))
    assert stratified_rows(labels, 2000).tolist() == list(range(1000))
    assert len(stratified_rows(labels, 1)) == 3, "one of each class at least"
