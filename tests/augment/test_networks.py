import pytest
import torch

from cafedcl.augment.networks import NOISE, Discriminator, Generator, doublings, jitter

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (1, 30, 22), (3, 9, 9)]
STILL = [0.5, 0.5, 0.5, 0.5, 0.999, 0.999]
"""No change of contrast, brightness or place, and a hole in the last corner."""


@pytest.mark.parametrize("shape", SHAPES)
def test_images_of_any_shape_are_made_and_judged(shape: tuple[int, int, int]) -> None:
    y = torch.tensor([0, 2, 1])
    x = Generator(shape, 3, 8)(torch.randn(3, NOISE), y)
    assert x.shape == (3, *shape)
    assert x.abs().max() <= 1
    assert Discriminator(shape, 3, 8)(x, y).shape == (3,)


def test_maps_start_at_four_pixels_or_a_little_more() -> None:
    assert [doublings(shape) for shape in SHAPES] == [1, 2, 3, 4, 2, 1]


def test_both_depend_on_the_class() -> None:
    torch.manual_seed(0)
    generator = Generator((1, 8, 8), 3, 8)
    critic = Discriminator((1, 8, 8), 3, 8).eval()
    noise = torch.randn(1, NOISE).expand(2, -1)
    x = generator(noise, torch.tensor([0, 1]))
    assert not torch.equal(x[0], x[1])
    same = x[:1].expand(2, -1, -1, -1)
    logits = critic(same, torch.tensor([0, 1]))
    assert logits[0] != logits[1]


def test_the_discriminator_changes_no_faster_than_its_input() -> None:
    """Every layer is spectrally normalised: after some passes its largest singular value is one."""
    torch.manual_seed(0)
    critic = Discriminator((1, 8, 8), 3, 8)
    for _ in range(50):
        critic(torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))
    for layer in (*critic.convs, critic.full, critic.logit, critic.label):
        matrix = layer.weight.detach().flatten(1)
        assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(1.0, abs=1e-3)


def test_jitter_moves_cuts_and_changes_contrast_and_brightness() -> None:
    x = torch.rand(1, 2, 16, 16)
    still = jitter(x, torch.tensor([STILL]))
    torch.testing.assert_close(still[:, :, :15, :15], x[:, :, :15, :15])
    assert still[:, :, 15, 15].abs().max() == 0
    moved = jitter(x, torch.tensor([[0.5, 0.5, 0.999, 0.0, 0.999, 0.999]]))
    torch.testing.assert_close(moved[:, :, :14, 2:15], x[:, :, 2:, :13])
    assert moved[:, :, 14:].abs().max() == 0
    bright = jitter(x, torch.tensor([[0.5, 0.9, *STILL[2:]]]))
    torch.testing.assert_close(bright[:, :, :15, :15], x[:, :, :15, :15] + 0.2)
    flat = jitter(x, torch.tensor([[0.0, 0.5, *STILL[2:]]]))
    torch.testing.assert_close(flat[:, :, :15, :15], (0.5 * (x + x.mean()))[:, :, :15, :15])
    hole = jitter(x, torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.25, 0.5]]))
    assert hole[:, :, 4:8, 8:12].abs().max() == 0
    assert (hole != 0).sum() == x.numel() - 2 * 16


def test_jitter_passes_gradients() -> None:
    x = torch.rand(2, 1, 8, 8, requires_grad=True)
    jitter(x, torch.rand(2, 6)).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
