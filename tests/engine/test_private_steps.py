"""Gradients of single images: their sum, and how far one image moves it."""

import pytest
import torch

from cafedcl.core.contract import Batch
from cafedcl.engine.private_steps import LossOfOneImage, summed_gradients
from cafedcl.task.private_steps import PrivateSteps, system_uniform


@pytest.fixture
def site(tiny, visit_with):
    """An engine, its loss, and a few images."""
    federation = tiny("fedprox", privacy__kind="records")
    engine = federation.engine
    task = federation.task
    received = {name: value + 0.01 for name, value in task.initial.items()}
    visit = visit_with(task.clients.client(0).counts, received=received)
    loss = LossOfOneImage(engine.network, task.method, visit)
    x = task.clients.data.images(task.clients.data.train_x[:7])
    batch = Batch(x, task.clients.data.train_y[:7], torch.ones(7))
    return engine, loss, batch


def one_by_one(engine, loss, batch):
    """Every image's gradient, by an ordinary backward pass."""
    rows = []
    for image in zip(*batch[:3], strict=True):
        leaves = list(engine.flat.leaves.values())
        gradients = torch.autograd.grad(loss(*image), leaves)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)


def test_without_clipping_the_sum_is_that_of_ordinary_gradients(site):
    engine, loss, batch = site
    expected = one_by_one(engine, loss, batch).sum(0)
    total = summed_gradients(engine.flat, loss, batch, 1e9)
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-4)


def test_every_image_is_clipped_by_itself(site):
    engine, loss, batch = site
    rows = one_by_one(engine, loss, batch)
    lengths = rows.norm(dim=1)
    longest = float(lengths.median())
    expected = (rows * (longest / lengths).clamp(max=1)[:, None]).sum(0)
    total = summed_gradients(engine.flat, loss, batch, longest)
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-4)


def test_removing_any_image_moves_the_sum_by_at_most_the_longest_gradient(site):
    engine, loss, batch = site
    total = summed_gradients(engine.flat, loss, batch, 0.3)
    for image in range(len(batch.y)):
        rest = torch.arange(len(batch.y)) != image
        without = summed_gradients(engine.flat, loss, Batch(*(p[rest] for p in batch[:3])), 0.3)
        assert float((total - without).norm()) <= 0.3 * (1 + 1e-5)


def test_a_step_without_images_has_a_gradient_of_zero(site):
    engine, loss, batch = site
    none = Batch(*(part[:0] for part in batch[:3]))
    assert not summed_gradients(engine.flat, loss, none, 1.0).any()


def test_every_image_takes_part_in_a_step_independently():
    draws = PrivateSteps(1.0, 1.0, 0, from_system=False).draws(3, 5)
    sizes = torch.tensor([len(draws.batch(200, 0.1)) for _ in range(500)]).double()
    assert float(sizes.mean()) == pytest.approx(20, abs=0.7)
    assert float(sizes.var()) == pytest.approx(200 * 0.1 * 0.9, rel=0.25)
    noise = draws.noise(torch.zeros(20_000))
    assert (float(noise.mean()), float(noise.std())) == pytest.approx((0, 1), abs=0.03)


def test_draws_are_those_of_the_visit_or_of_the_operating_system():
    seeded, system = (PrivateSteps(1.0, 1.0, 0, from_system=it) for it in (False, True))
    like = torch.zeros(20, dtype=torch.float64)
    first = seeded.draws(0, 0).noise(like)
    assert torch.equal(first, seeded.draws(0, 0).noise(like))
    for other in (seeded.draws(1, 0), seeded.draws(0, 1), system.draws(0, 0)):
        assert not torch.isin(first, other.noise(like)).any()
    numbers = system_uniform(10_000)
    assert 0 <= numbers.min() < numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
