"""Sites with data of their own: what they tell, how the server puts it together, and that nothing
else is needed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset
from cafedcl.deploy.population import (
    Enrolled,
    EnrolmentLimits,
    Population,
    enrol,
    prepare_server,
    prepare_site,
)
from cafedcl.task.resolve import resolve


def config(**settings):
    tables = {
        "data": {"name": "sites"},
        "engine": {"name": "flower", "device": "cpu"},
        "model": {"name": "mlp"},
        # Exact counts, to compare with.
        "release": {"fewest": 1, "counts": "exact"},
    }
    return resolve({**tables, "federation": {"clients": 2}, **settings})


def images(numbers, names, seed=0, test=2):
    """Random images, so many of each class, and a few of each for testing."""
    rng = np.random.default_rng(seed)
    y = torch.tensor([c for c, n in enumerate(numbers) for _ in range(n)])
    tested = torch.tensor([c for c, n in enumerate(numbers) for _ in range(test if n else 0)])
    x, t = (
        torch.from_numpy(rng.integers(0, 256, (len(part), 1, 4, 4), dtype=np.uint8))
        for part in (y, tested)
    )
    return Dataset.of(x, y, t, tested, tuple(names))


NORTH = images([10, 4], ["cat", "dog"], 1)
SOUTH = images([6, 20, 1], ["ant", "cat", "dog"], 2)


@pytest.fixture
def population():
    return Population.of([enrol(config(), SOUTH, "south"), enrol(config(), NORTH, "north")])


def test_by_default_a_site_tells_neither_exact_counts_nor_rare_classes():
    enrolled = enrol(config(release={}), images([3, 13, 26], ["ant", "cat", "dog"], 3, 6), "east")
    # A tenth is held out for validation, so there are 2, 12 and 23 images.
    assert enrolled.counts.tolist() == [0, 10, 20]
    assert enrolled.tested.tolist() == [10, 10, 10]
    assert enrolled.mean.tolist() == [round(value, 2) for value in enrolled.mean.tolist()]
    with pytest.raises(CafedclError, match="no class has 5 training images"):
        enrol(config(release={}), images([3, 2], ["ant", "cat"], 3), "west")


def test_a_site_does_not_choose_grey_values_of_its_own() -> None:
    deep = replace(SOUTH, window=(300.0, 2340.0))
    with pytest.raises(CafedclError, match=r"more than 8 bits .* --set data.window=LOW,HIGH"):
        enrol(config(), deep, "south")
    assert (
        enrol(config(data={"name": "sites", "window": "300,2340"}), deep, "south").site == "south"
    )


def test_the_server_knows_every_class_that_any_site_has(population):
    assert population.sites == ("north", "south")
    assert population.names == ("ant", "cat", "dog")
    # A tenth of every class is held out for validation: at least one where there are two, never the
    # last.
    assert population.counts.tolist() == [[0, 9, 3], [5, 18, 1]]


def test_images_are_standardised_as_if_they_lay_in_one_place(population):
    """Weighted by the training images of each site, without the validation part."""
    share = np.array([12, 24]) / 36
    scaled = [data.train_x.numpy() / 255 for data in (NORTH, SOUTH)]
    mean = sum(w * x.mean() for w, x in zip(share, scaled, strict=True))
    square = sum(w * (x**2).mean() for w, x in zip(share, scaled, strict=True))
    assert float(population.mean) == pytest.approx(mean, rel=1e-6)
    assert float(population.std) == pytest.approx((square - mean**2) ** 0.5, rel=1e-6)


def test_a_site_is_told_the_census_and_nobody_elses_counts(population):
    census = prepare_server(config(), population).task.clients.census
    assigned = population.assignment("south", census)
    assert (assigned.client, assigned.clients) == (1, 2)
    assert assigned.most == (5, 18, 3)
    assert assigned.total == (5, 27, 4)
    assert assigned.images == (5, 27, 4)
    task = prepare_site(config(), SOUTH, assigned, "south")
    client = task.clients.client(1)
    assert client.counts.tolist() == [5, 18, 1]
    assert client.census.most.tolist() == [5, 18, 3]
    assert task.clients.shards.counts[0].sum() == 0
    assert torch.equal(task.clients.data.mean, population.mean)
    assert torch.equal(task.clients.data.std, population.std)


def test_a_site_numbers_its_classes_as_the_run_does(population):
    census = prepare_server(config(), population).task.clients.census
    task = prepare_site(config(), NORTH, population.assignment("north", census), "north")
    assert task.clients.data.train_y.unique().tolist() == [1, 2]
    assert task.clients.client(0).holds.tolist() == [1, 2]


def test_the_server_needs_no_images(population):
    setup = prepare_server(config(), population)
    assert setup.task.clients.remote
    assert setup.config.federation.clients == 2
    assert torch.equal(setup.counts, population.counts)


def test_a_class_that_no_site_has_is_named(population):
    with pytest.raises(CafedclError, match="'eel' is not a class of"):
        images([1], ["eel"]).relabelled(population.names, "data.test")


def test_images_of_different_sizes_are_named():
    other = enrol(config(), replace(SOUTH, train_x=SOUTH.train_x[:, :, :2]), "south")
    with pytest.raises(CafedclError, match=r"south.*data\.size"):
        Population.of([enrol(config(), NORTH, "north"), other])


def test_pooling_all_data_in_one_place_is_refused(population):
    with pytest.raises(CafedclError, match="sites keep theirs"):
        prepare_server(config(method={"name": "central"}), population)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": torch.tensor([-1, 2])}, "counts"),
        ({"counts": torch.tensor([1, 2, 3])}, "counts"),
        ({"tested": torch.tensor([1.0, 2.0])}, "counts"),
        ({"mean": torch.tensor([2.0])}, "moments"),
        ({"square": torch.tensor([torch.nan])}, "moments"),
        ({"counts": torch.tensor([0, 0])}, "no training images"),
    ],
)
def test_an_enrolment_that_cannot_be_is_refused(change, words):
    tensors, header = enrol(config(), NORTH, "north").packed()
    again = Enrolled.unpacked(tensors, header)
    assert (again.site, again.names, again.shape) == ("north", NORTH.names, NORTH.shape)
    with pytest.raises(ValueError, match=words):
        Enrolled.unpacked({**tensors, **change}, header)


@pytest.mark.parametrize("shape", [[1, 4], [1, 0, 4], [1, 4, 10**9], ["1", 4, 4]])
def test_an_image_shape_that_cannot_be_is_refused(shape):
    tensors, header = enrol(config(), NORTH, "north").packed()
    with pytest.raises(ValueError, match="shape"):
        Enrolled.unpacked(tensors, {**header, "shape": shape})


def test_two_sites_of_the_same_name_are_refused():
    with pytest.raises(CafedclError, match="two sites are named 'north'"):
        Population.of([enrol(config(), data, "north") for data in (NORTH, SOUTH)])


def test_a_site_with_a_class_or_a_count_beyond_the_deployments_limits_is_refused():
    packed = enrol(config(), NORTH, "north").packed()
    assert EnrolmentLimits(("cat", "dog"), 9).read(*packed).counts.tolist() == [9, 3]
    with pytest.raises(ValueError, match="the class 'dog', which is not among"):
        EnrolmentLimits(("cat", "cow")).read(*packed)
    with pytest.raises(ValueError, match=r"claims 9 images of a class, and .* is 8"):
        EnrolmentLimits(images_per_class=8).read(*packed)


def test_the_classes_of_a_deployment_are_those_of_its_config():
    sites = [enrol(config(), NORTH, "north")]
    population = Population.of(sites, ("cow", "dog", "cat"))
    assert population.names == ("cow", "dog", "cat")
    assert population.counts.tolist() == [[0, 3, 9]]
    assert population.unreported == ["cow"]


@pytest.mark.parametrize(("part", "kind"), [("counts", "training"), ("tested", "test")])
def test_a_site_that_comes_back_with_other_images_is_refused(part, kind, population):
    north = enrol(config(), NORTH, "north")
    population.check(north)
    population.check(replace(north, site="a new site"))
    changed = getattr(north, part).clone()
    changed[0] += 5
    with pytest.raises(ValueError, match=f"its images have changed since .*{kind} images of"):
        population.check(replace(north, **{part: changed}))


def test_advice_on_images_of_other_shapes_is_advice_that_helps(population):
    north = enrol(config(), NORTH, "north")
    south = enrol(config(), SOUTH, "south")
    channels, height, width = north.shape
    with pytest.raises(CafedclError, match=r"set data.size to resize all of them"):
        Population.of([north, replace(south, shape=(channels, height + 1, width))])
    with pytest.raises(CafedclError, match=r"set data.colours = grey or rgb to convert all"):
        Population.of([north, replace(south, shape=(channels + 2, height, width))])


def test_classes_that_may_be_one_are_remarked_on():
    two = (images([4, 3], ("Benign", "naevus")), images([4, 3], ("benign", "naevus")))
    found = Population.of([enrol(config(), data, f"site-{i}") for i, data in enumerate(two)])
    (remark,) = found.remarks
    assert remark.startswith("the sites: the classes 'Benign' (site-0) and 'benign' (site-1)")
