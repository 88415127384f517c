"""All images of a patient are on one side of every split."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cafedcl.config.split_options import SplitOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.checked import choose_test
from cafedcl.data.dataset import Dataset
from cafedcl.data.groups import to_units
from cafedcl.data.shards import load_shards, save_shards
from cafedcl.data.splits import SplitWords, split

KINDS = ["dirichlet", "pathological", "quantity", "iid", "natural", "source"]
NOBODY = torch.zeros(0, dtype=torch.int64)


@st.composite
def patients(draw):
    """Labels, patients and hospitals of images; a patient may have several classes, not places."""
    classes = draw(st.integers(1, 5))
    number = draw(st.integers(4, 40))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    images = rng.integers(1, 6, number)
    group = np.repeat(rng.permutation(number), images)
    usual = np.repeat(rng.integers(0, classes, number), images)
    mixed = rng.random(len(usual)) < draw(st.sampled_from([0.0, 0.3]))
    labels = np.where(mixed, rng.integers(0, classes, len(usual)), usual)
    hospital = np.repeat(rng.integers(0, 3, number), images)
    hospital[: images[0]] = 0
    _, hospital = np.unique(hospital, return_inverse=True)
    return labels, group, hospital, classes


def places_of(shards, images):
    """Return the client and the part of every image, −1 where it is unused."""
    client = np.full(images, -1)
    part = np.full(images, -1)
    for number, parts in enumerate((shards.train, shards.validation, shards.test)):
        for owner, rows in enumerate(parts):
            client[rows] = owner
            part[rows] = number
    return client, part


@given(
    patients(),
    st.sampled_from(KINDS),
    st.sampled_from(["client", "class"]),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([0.0, 0.25]),
    st.sampled_from([1.0, 3.0]),
    st.integers(0, 9),
)
@settings(max_examples=200)
def test_no_split_takes_a_patient_apart(data, kind, form, validation, test_share, ir, seed):
    labels, group, hospital, classes = data
    options = SplitOptions(kind=kind, form=form, classes=1, validation=validation, ir=ir, alpha=0.5)
    natural = torch.from_numpy(hospital)
    clients = int(hospital.max()) + 1 if kind in ("natural", "source") else 3
    try:
        shards = split(
            torch.from_numpy(labels),
            natural,
            classes,
            clients,
            options,
            seed,
            test_share,
            torch.from_numpy(group),
        )
    except CafedclError as error:
        assert str(error).startswith("split")  # noqa: PT017 - an impossible request is fine
        return
    client, part = places_of(shards, len(labels))
    for one in np.unique(group):
        rows = (group == one) & (client >= 0)
        assert len(np.unique(client[rows])) <= 1
        assert len(np.unique(part[rows])) <= 1
    # Whatever a client holds out, it also trains on.
    for owner in range(clients):
        trained = set(labels[(client == owner) & (part == 0)])
        assert trained >= set(labels[(client == owner) & (part > 0)])


@given(patients(), st.booleans())
@settings(max_examples=100)
def test_the_test_set_takes_no_patient_apart(data, natural):
    labels, group, hospital, _ = data
    held = choose_test(labels, hospital if natural else None, group)
    for one in np.unique(group):
        assert len(np.unique(held[group == one])) == 1
    assert set(labels[~held]) == set(labels)
    if natural:
        assert set(hospital[~held]) == set(hospital)


def test_a_fifth_of_the_patients_is_tested_of_every_class():
    labels = np.repeat([0, 1], [80, 40])
    group = np.arange(120) // 4
    held = choose_test(labels, None, group)
    assert np.bincount(labels[held]).tolist() == [16, 8]


def test_a_group_counts_as_its_rarest_class():
    unit, labels = to_units(np.array([0, 0, 1, 0, 0, 2]), np.array([7, 7, 7, 9, 9, 9]))
    assert unit.tolist() == [0, 0, 0, 1, 1, 1]
    assert labels.tolist() == [1, 2]


def test_patients_of_two_hospitals_are_held_out_as_a_whole():
    labels = np.zeros(40, dtype=np.int64)
    group = np.arange(40) // 2
    hospital = np.arange(40) % 2
    held = choose_test(labels, hospital, group)
    assert held.sum() == 8
    assert (held[::2] == held[1::2]).all()
    options = SplitOptions(kind="natural", validation=0.5)
    shards = split(*map(torch.from_numpy, (labels, hospital)), 1, 2, options, 0, 0.0,
                   torch.from_numpy(group))  # fmt: skip
    client, part = places_of(shards, 40)
    assert (client == hospital).all()
    assert (part[::2] == part[1::2]).all()
    assert part.sum() == 20


def test_without_groups_nothing_changes():
    labels = torch.arange(4).repeat(30)
    options = SplitOptions(kind="dirichlet")
    one = split(labels, NOBODY, 4, 5, options, 3, 0.0)
    other = split(labels, NOBODY, 4, 5, options, 3, 0.0, NOBODY)
    assert torch.equal(one.train.indices, other.train.indices)


def test_a_saved_split_that_ignored_the_groups_is_refused(tmp_path):
    labels = torch.arange(2).repeat(50)
    group = torch.arange(100) // 10
    options = SplitOptions(kind="iid", validation=0.2)
    path = tmp_path / "split.safetensors"
    save_shards(split(labels, NOBODY, 2, 3, options, 0, 0.0), labels, path)
    with pytest.raises(CafedclError, match="made without the data's groups"):
        load_shards(path, labels, group.numpy())
    save_shards(split(labels, NOBODY, 2, 3, options, 0, 0.0, group), labels, path)
    assert len(load_shards(path, labels, group.numpy())) == 3


def test_groups_stay_with_their_images_when_data_are_reduced_or_merged():
    x = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    y = torch.arange(20) % 2
    data = Dataset.of(
        x, y, x[:4] + 100, y[:4], ("a", "b"), groups=torch.arange(20), test_groups=torch.arange(4)
    )
    few = data.reduced(6)
    assert few.groups.tolist() == few.train_x.flatten().tolist()
    assert data.merged().groups.tolist() == [*range(20), *range(4)]
    assert not len(data.ungrouped().groups)


def test_messages_name_classes_and_clients():
    labels = torch.tensor([0] * 30 + [1] * 2)
    words = SplitWords(classes=("nevus", "melanoma"), clients=("North", "South"))
    options = SplitOptions(kind="pathological", classes=2)
    with pytest.raises(CafedclError, match="class 'melanoma' has 2 images for 5 clients"):
        split(labels, NOBODY, 2, 5, options, 0, 0.0, None, words)
    options = SplitOptions(kind="natural", ir=30.0)
    # The long tail keeps one of the two melanomas; with seed 0 it is not South's.
    hospital = torch.tensor([0] * 31 + [1])
    with pytest.raises(CafedclError, match="split: South has no training images"):
        split(labels, hospital, 2, 2, options, 0, 0.0, None, words)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=2, max_size=60),
)
def test_every_class_of_two_images_is_tested_if_its_clients_can_spare_one(images):
    labels, owners = (np.array(column) for column in zip(*images, strict=True))
    held = choose_test(labels, owners)
    for label in np.unique(labels):
        mine = labels == label
        assert (mine & ~held).any()
        # A client that keeps another image for training can spare one.
        can_spare = [
            owner for owner in np.unique(owners[mine]) if ((owners == owner) & ~held).sum() > 1
        ]
        if mine.sum() > 1 and can_spare:
            assert (mine & held).any()
    for owner in np.unique(owners):
        assert ((owners == owner) & ~held).any()
