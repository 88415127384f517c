import torch

from cafedcl.functional.novelty import LEAST, fit_limits, pixel_statistics, strangeness


def described(x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"features": x.flatten(1)[:, :6], "pixels": pixel_statistics(x)}


def images(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)
    y = torch.arange(number) % 3
    return torch.randn(number, 1, 4, 4, generator=draws) + y[:, None, None, None], y


def test_pixels_are_described_by_mean_and_spread_of_each_channel() -> None:
    x = torch.tensor([[[[0.0, 2.0]], [[5.0, 5.0]]]])
    assert pixel_statistics(x).tolist() == [[1.0, 5.0, 1.0, 0.0]]


def test_nearly_all_new_images_are_usual_and_strange_ones_are_not() -> None:
    train, y = images(600, 0)
    held, _ = images(300, 1)
    limits = fit_limits(described(train), y, described(held), 3)
    fresh, _ = images(300, 2)
    assert (strangeness(described(fresh), limits) > 1).float().mean() < 0.05
    black = torch.full((1, 1, 4, 4), -3.0)
    far = torch.full((1, 1, 4, 4), 40.0)
    assert (strangeness(described(torch.cat([black, far])), limits) > 1).all()


def test_a_class_without_images_and_a_constant_feature_do_no_harm() -> None:
    train, y = images(90, 0)
    train[:, :, 0, 0] = 7.0
    limits = fit_limits(described(train), y, described(train), 5)
    assert all(value.isfinite().all() for value in limits.values())
    assert strangeness(described(train), limits).isfinite().all()


def test_too_few_validation_images_set_no_limit() -> None:
    train, y = images(90, 0)
    held, _ = images(LEAST - 1, 1)
    assert fit_limits(described(train), y, described(held), 3) == {}
