import torch

from cafedcl.config.sections import TrainOptions
from cafedcl.engine.flip_and_crop import draw_augmentation, flip_and_crop


def test_without_options_nothing_changes():
    x = torch.randn(4, 3, 8, 8)
    assert flip_and_crop(x, draw_augmentation(len(x), TrainOptions()), TrainOptions()) is x


def test_about_half_of_the_images_are_flipped_and_none_is_changed_otherwise():
    torch.manual_seed(0)
    x = torch.randn(400, 1, 5, 6)
    out = flip_and_crop(
        x, draw_augmentation(len(x), TrainOptions(flip=True)), TrainOptions(flip=True)
    )
    flipped = sum(torch.equal(a, b.flip(2)) for a, b in zip(out, x, strict=True))
    kept = sum(torch.equal(a, b) for a, b in zip(out, x, strict=True))
    assert flipped + kept == 400
    assert 150 < flipped < 250


def test_a_crop_is_the_image_shifted_by_at_most_the_padding_with_zeros_around():
    torch.manual_seed(0)
    x = torch.rand(200, 2, 5, 6) + 1
    out = flip_and_crop(x, draw_augmentation(len(x), TrainOptions(crop=2)), TrainOptions(crop=2))
    assert out.shape == x.shape
    seen = set()
    for image, original in zip(out, x, strict=True):
        wide = torch.zeros(2, 9, 10)
        wide[:, 2:7, 2:8] = original
        slices = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(image, wide[:, i : i + 5, j : j + 6])
        ]
        assert len(slices) == 1
        seen |= set(slices)
    assert len(seen) == 25


def test_augmented_runs_repeat_and_differ_from_plain_ones(tiny):
    runs = []
    for settings in (
        {"train__flip": True, "train__crop": 1},
        {"train__flip": True, "train__crop": 1},
        {},
    ):
        federation = tiny("fedavg", **settings)
        federation.run()
        runs.append(federation.state["model/head.weight"])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
