import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cafedcl.core.contract import Census, Client, Enrolment, Up
from cafedcl.functional.ridge import (
    MOMENTS,
    balanced_moments,
    fitted,
    moment_fields,
    moments,
    not_balanced_moments,
    not_moments,
    rare_targets,
    summed,
)

CLASSES, DIM = 3, 4


def images(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(number, DIM))), torch.from_numpy(
        rng.integers(-1, CLASSES, number)
    )


@given(st.integers(1, 20), st.integers(0, 1000))
def test_moments_are_weighted_sums_over_the_images_of_a_class(number: int, seed: int) -> None:
    z, y = images(number, seed)
    weight = torch.tensor([0.5, 2.0, 0.0]).double()
    found = moments(z, y, weight)
    gram = np.zeros((DIM, DIM))
    targets = np.zeros((CLASSES, DIM))
    for point, label in zip(z.numpy(), y.tolist(), strict=True):
        if label >= 0:
            gram += float(weight[label]) * np.outer(point, point)
            targets[label] += float(weight[label]) * point
    np.testing.assert_allclose(found["gram"], gram, atol=1e-10)
    np.testing.assert_allclose(found["targets"], targets, atol=1e-10)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.floats(0.0, 1.0))
def test_targets_are_1_for_the_rarest_class_and_fall_with_the_number_of_images(
    total: list[int], gain: float
) -> None:
    found = rare_targets(torch.tensor(total).double(), gain).tolist()
    there = [n for n in total if n]
    for n, target in zip(total, found, strict=True):
        assert 0 < target <= 1
        if n:
            assert target == pytest.approx((min(there) / n) ** gain)


def test_a_target_scales_the_row_of_its_class_and_no_other() -> None:
    """Least squares are linear in what they are to give."""
    z, y = images(30, 5)
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    plain = fitted(moments(z, y, weight), 0.3)
    scaled = fitted(moments(z, y, weight, torch.tensor([1.0, 0.25, 0.5]).double()), 0.3)
    np.testing.assert_allclose(scaled, plain * torch.tensor([[1.0], [0.25], [0.5]]), atol=1e-6)


@pytest.mark.parametrize("prior", [False, True])
def test_the_classifier_has_the_least_weighted_squares_around_its_prior(prior: bool) -> None:
    """By least squares on rows that stand for the images and for the prior."""
    z, y = images(30, 5)
    weight = torch.tensor([0.5, 2.0, 1.0]).double()
    around = np.random.default_rng(1).normal(size=(CLASSES, DIM)) if prior else None
    known = y >= 0
    root = weight[y[known]].sqrt()[:, None].numpy()
    rows = np.concatenate([root * z[known].numpy(), np.sqrt(0.3) * np.eye(DIM)])
    wanted = np.concatenate(
        [
            root * np.eye(CLASSES)[y[known].numpy()],
            np.sqrt(0.3) * (np.zeros((DIM, CLASSES)) if around is None else around.T),
        ]
    )
    expected = np.linalg.lstsq(rows, wanted, rcond=None)[0].T
    given_prior = None if around is None else torch.from_numpy(around)
    np.testing.assert_allclose(fitted(moments(z, y, weight), 0.3, given_prior), expected, atol=1e-6)


def test_sums_over_clients_are_the_moments_of_all_images() -> None:
    z, y = images(12, 2)
    weight = torch.ones(CLASSES).double()
    ups = [
        Up(k, 1, moments(z[part], y[part], weight))
        for k, part in enumerate(torch.arange(12).split(5))
    ]
    whole = moments(z, y, weight)
    for name in MOMENTS:
        torch.testing.assert_close(summed(ups)[name], whole[name])


# what a client may send


WEIGHT = torch.tensor([0.5, 2.0, 1.0]).double()


def weights_of(y: torch.Tensor) -> torch.Tensor:
    """What all images of each class weigh together."""
    return torch.bincount(y[y >= 0], minlength=CLASSES) * WEIGHT


@given(st.integers(0, 40), st.integers(0, 1000), st.booleans())
def test_moments_of_unit_features_are_accepted(number: int, seed: int, rare: bool) -> None:
    z, y = images(number, seed)
    z = z / z.norm(dim=1, keepdim=True)
    target = torch.tensor([1.0, 0.3, 0.7]).double() if rare else None
    sums = moments(z, y, WEIGHT, target)
    fields = moment_fields(CLASSES, DIM)
    assert fields.keys() == sums.keys() == set(MOMENTS)
    assert all(tuple(value.shape) == fields[name].shape for name, value in sums.items())
    assert not_moments(sums, weights_of(y)) is None


@pytest.mark.parametrize(
    ("number", "spread"), [(300_000, 0.0), (300_000, 1e-3), (20_000, 1e-4), (20_000, 10.0)]
)
def test_rounding_in_single_precision_is_accepted(number: int, spread: float) -> None:
    """Features of many images, all nearly the same, as after a collapse, or all different."""
    drawn = torch.Generator().manual_seed(0)
    noise = torch.randn(number, 64, generator=drawn)
    z = torch.nn.functional.normalize(torch.rand(64, generator=drawn) + spread * noise)
    y = torch.randint(0, CLASSES, (number,), generator=drawn)
    for weight in (torch.ones(CLASSES), torch.tensor([1 / 700, 1 / 3, 1 / 11])):
        sums = moments(z, y, weight)
        assert all(value.dtype == torch.float32 for value in sums.values())
        assert not_moments(sums, torch.bincount(y, minlength=CLASSES) * weight) is None


def lies() -> dict[str, tuple[str, torch.Tensor, torch.Tensor]]:
    """Sums that 40 images cannot have: the reason, the Gram matrix and the targets."""
    z, y = images(40, 0)
    z = z / z.norm(dim=1, keepdim=True)
    sums = moments(z, y, WEIGHT)
    gram, targets = sums["gram"], sums["targets"]
    total = float(weights_of(y).sum())
    direction = torch.eye(DIM).double()[0]
    pulled = weights_of(y)[:, None] * direction
    flat = total / DIM**0.5 * torch.eye(DIM).double()
    corner = torch.zeros(DIM, DIM).double()
    corner[0, 1] = 1e-3 * total
    impossible = "'gram' and 'targets' cannot be sums over images"
    return {
        "more images": ("'gram' has the trace", 2 * gram, targets),
        "as long, in all directions": ("'gram' has the trace", flat, targets),
        "targets without images": (impossible, 0 * gram, targets),
        "a pull without the images for it": (impossible, gram, pulled),
        "larger targets": (impossible, gram, 3 * targets),
        "against others": (impossible, -0.01 * gram, 0 * targets),
        "one negative direction": (
            impossible,
            gram - 2 * torch.outer(direction, direction) * total,
            targets,
        ),
        "one triangle": ("'gram' is not symmetric", gram + corner, targets),
    }


@pytest.mark.parametrize("name", lies())
def test_sums_that_no_images_can_have_are_known(name: str) -> None:
    reason, gram, targets = lies()[name]
    _, y = images(40, 0)
    found = not_moments({"gram": gram.float(), "targets": targets.float()}, weights_of(y))
    assert found is not None
    assert found.startswith(reason)


def test_the_pull_is_accepted_with_the_images_for_it() -> None:
    z = torch.eye(DIM).double()[:1].expand(40, DIM)
    _, y = images(40, 0)
    assert not_moments(moments(z, y, WEIGHT), weights_of(y)) is None


def test_the_weight_of_balanced_moments_follows_from_enrolment() -> None:
    """Client 0 has three quarters of class 0 and half of class 2."""
    counts = torch.tensor([[3, 0, 1], [1, 0, 1]])
    census = Census(counts.amax(0), counts.amax(0), counts.sum(0))
    enrolment = Enrolment(counts, torch.zeros_like(counts), census)
    z = torch.eye(DIM)[:1].expand(4, DIM)
    sums = moments(z, torch.tensor([0, 0, 0, 2]), torch.tensor([0.25, 0.0, 0.5]))
    assert not_balanced_moments(Up(0, 4, sums), enrolment) is None
    found = not_balanced_moments(Up(1, 2, sums), enrolment)
    assert found == "'gram' has the trace 1.25; the images it enrolled with have at most 0.75"


def test_the_tolerance_for_rounding_is_no_way_to_ruin_the_classifier() -> None:
    """A liar with half of very many images takes as much as it can where nobody has a feature."""
    number = 1_000_000
    counts = torch.tensor([number // 2, number - number // 2, 0])
    means = torch.eye(DIM).double()[:CLASSES]
    weight = counts.double()
    honest = {"gram": (means.T * weight) @ means, "targets": weight[:, None] * means}
    lie = {name: value.clone() for name, value in honest.items()}
    for taken in (4.9e-6, 1e-4):
        lie["gram"][DIM - 1, DIM - 1] = -taken * number
        assert (not_moments(lie, counts) is None) == (taken < 5e-6)
    lie["gram"][DIM - 1, DIM - 1] = -4.9e-6 * number
    both = {name: honest[name] + lie[name] for name in MOMENTS}
    found = fitted(both, 1.0)
    expected = fitted({name: 2 * value for name, value in honest.items()}, 1.0)
    torch.testing.assert_close(found, expected)
    few = {name: value / number for name, value in honest.items()}
    exact = few["targets"] @ torch.linalg.inv(few["gram"] + 1.0 * torch.eye(DIM).double())
    torch.testing.assert_close(fitted(few, 1.0).double(), exact, atol=1e-6, rtol=1e-6)


@given(st.integers(0, 1000))
def test_sums_that_are_accepted_are_sums_over_images(seed: int) -> None:
    """Images with given sums, as docs/theory.md makes them."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.1, 1.0, CLASSES)
    means = rng.normal(size=(CLASSES, DIM)) / (2 * DIM)
    half = rng.normal(size=(DIM, DIM)) / DIM
    gram = (means.T * weight) @ means + half @ half.T
    gram *= weight.sum() / max(gram.trace(), weight.sum())
    sent = {"gram": torch.from_numpy(gram), "targets": torch.from_numpy(weight[:, None] * means)}
    accepted = not_moments(sent, torch.from_numpy(weight)) is None
    rest, directions = np.linalg.eigh(gram - (means.T * weight) @ means)
    # In between, it depends on the tolerance for rounding.
    assume(rest.min() >= 0 or rest.min() < -1e-3)
    assert accepted == (rest.min() >= 0)
    if not accepted:
        return
    points = [(weight[c], c, means[c]) for c in range(1, CLASSES)]
    for number, direction in zip(rest.clip(min=0), directions.T, strict=True):
        for sign in (1, -1):
            moved = means[0] + sign * np.sqrt(DIM * number / weight[0]) * direction
            points.append((weight[0] / (2 * DIM), 0, moved))
    found = sum(w * np.outer(z, z) for w, _, z in points)
    np.testing.assert_allclose(found, gram, atol=1e-5)
    for c in range(CLASSES):
        mean = sum(w * z for w, label, z in points if label == c)
        np.testing.assert_allclose(mean, sent["targets"][c], atol=1e-10)
    assert sum(w * z @ z for w, _, z in points) <= weight.sum() * (1 + 1e-4)


# docs/theory.md, "The fitted classifier"


def balanced(z: torch.Tensor, y: torch.Tensor, classes: int = CLASSES) -> torch.Tensor:
    """The weights under which every class counts the same."""
    return 1 / torch.bincount(y[y >= 0], minlength=classes).clamp_min(1).to(z)


@given(st.integers(2, 30), st.integers(1, 6), st.integers(0, 1000))
def test_the_division_among_clients_does_not_change_the_classifier(
    number: int, clients: int, seed: int
) -> None:
    z, y = images(number, seed)
    weight = balanced(z, y)
    owners = torch.from_numpy(np.random.default_rng(seed).integers(0, clients, number))
    ups = [Up(k, 1, moments(z[owners == k], y[owners == k], weight)) for k in range(clients)]
    anchors = torch.eye(CLASSES, DIM).double()
    torch.testing.assert_close(
        fitted(summed(ups), 0.1, anchors), fitted(moments(z, y, weight), 0.1, anchors)
    )


@given(st.integers(1, 5), st.integers(0, CLASSES - 1), st.integers(0, 1000))
def test_a_class_counts_the_same_however_frequent_it_is(times: int, chosen: int, seed: int) -> None:
    z, y = images(20, seed)
    more = torch.cat([torch.arange(20), *[torch.nonzero(y == chosen)[:, 0]] * times])
    anchors = torch.eye(CLASSES, DIM).double()
    found = [
        fitted(moments(a, b, balanced(a, b)), 0.1, anchors) for a, b in ((z, y), (z[more], y[more]))
    ]
    torch.testing.assert_close(found[0], found[1])


@given(st.floats(1e-3, 10), st.integers(0, 1000))
def test_features_on_their_anchors_give_the_anchors_back(ridge: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    anchors = torch.from_numpy(np.linalg.qr(rng.normal(size=(DIM, CLASSES)))[0].T)
    y = torch.from_numpy(rng.permutation([0, 0, 0, 0, 1, 1, 2]))
    z = anchors[y]
    found = fitted(moments(z, y, balanced(z, y)), ridge, anchors)
    torch.testing.assert_close(found, anchors.float())


def test_a_linear_distortion_misleads_the_anchors_and_not_the_fit() -> None:
    """All features are drawn towards the first anchor, until it is the nearest to all of them."""
    anchors = torch.eye(CLASSES, DIM).double()
    distortion = torch.eye(DIM).double()
    distortion[0] += 2
    y = torch.tensor([0, 1, 1, 2])
    z = anchors[y] @ distortion.T
    z = z / z.norm(dim=1, keepdim=True)
    assert (z @ anchors.T).argmax(1).tolist() == [0, 0, 0, 0]
    found = fitted(moments(z, y, balanced(z, y)), 1e-6, anchors).double()
    assert (z @ found.T).argmax(1).tolist() == y.tolist()


def test_a_class_without_images_keeps_its_anchor_where_no_other_class_is() -> None:
    """The other two classes lie on the first two axes, with a weight of 1 along each."""
    anchors = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0.6, 0.8, 0]]).double()
    z = anchors[:2]
    y = torch.tensor([0, 1])
    ridge = 0.25
    found = fitted(moments(z, y, balanced(z, y)), ridge, anchors)[2]
    shrunk = 0.6 * ridge / (1 + ridge)
    torch.testing.assert_close(found, torch.tensor([0.0, shrunk, 0.8, 0.0]))


@given(st.integers(3, 30), st.integers(0, 1000))
def test_what_a_client_adds_has_the_trace_of_its_shares(number: int, seed: int) -> None:
    z, y = images(number, seed)
    z = z / z.norm(dim=1, keepdim=True)
    mine = slice(0, number // 2)
    shares = [int((y[mine] == c).sum()) / max(int((y == c).sum()), 1) for c in range(CLASSES)]
    added = moments(z[mine], y[mine], balanced(z, y))["gram"]
    assert float(added.trace()) == pytest.approx(sum(shares), abs=1e-9)


def test_the_weights_are_of_real_images_whatever_counts_with_synthetic_ones_are() -> None:
    """Two clients with all images: those of each class weigh 1 together, and the rarest has the
    highest target.
    """
    counts = torch.tensor([[3.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    counted = torch.tensor([9.0, 40.0, 50.0])
    sums = []
    for number, own in enumerate(counts):
        y = torch.arange(3).repeat_interleave(own.long())
        z = torch.eye(DIM)[:1].expand(len(y), DIM)
        census = Census(counted, counted, counts.sum(0))
        client = Client(number, len(y), own, own.nonzero().flatten(), census)
        sums.append(balanced_moments(z, y, client, 0.5))
    assert float(sum(part["gram"].trace() for part in sums)) == pytest.approx(3)
    targets = sum(part["targets"] for part in sums)[:, 0]
    assert targets.tolist() == pytest.approx([(1 / 4) ** 0.5, (1 / 2) ** 0.5, 1.0])
