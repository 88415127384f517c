import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset, load_dataset


def data_with(counts, owners=False):
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    x = torch.arange(len(y), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    names = tuple(str(c) for c in range(len(counts)))
    return Dataset.of(x, y, x[:3], y[:3], names, torch.arange(len(y)) if owners else None)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 200))
def test_a_part_of_the_images_keeps_the_share_of_every_class(counts, images):
    data = data_with(counts)
    if images < min(len(counts), sum(counts)):
        with pytest.raises(
            CafedclError, match=f"data.images = {images}: the {len(counts)} classes"
        ):
            data.reduced(images)
        return
    part = data.reduced(images)
    total = sum(counts)
    kept = np.bincount(part.train_y.numpy(), minlength=len(counts))
    if images >= total:
        assert part is data
    else:
        assert all(
            abs(k - images * n / total) <= 1 and k >= 1 for k, n in zip(kept, counts, strict=True)
        )
    assert len(part.test_y) == len(data.test_y)


def test_the_part_is_the_same_every_time_and_measured_anew():
    data = data_with([20, 10], owners=True)
    part = data.reduced(15)
    assert torch.equal(part.train_x, data.reduced(15).train_x)
    assert torch.equal(part.owners, part.train_x[:, 0, 0, 0].long())
    assert part.mean.item() == pytest.approx(part.train_x.double().mean().item() / 255, rel=1e-6)
    assert data.reduced(0) is data


@pytest.mark.parametrize("x", [torch.rand(4, 1, 2, 2), np.zeros((4, 1, 2, 2), np.int64), [1]])
def test_images_of_another_type_are_told_before_they_are_measured(x):
    y = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(CafedclError, match=r"training images are .*; expected uint8 of shape"):
        Dataset.of(x, y, x, y, ("a",))


def test_arrays_are_as_good_as_tensors():
    x = torch.arange(24, dtype=torch.uint8).reshape(6, 1, 2, 2)
    y = torch.arange(6) % 2
    whose = torch.arange(6)
    arrays = [each.numpy() for each in (x, y, x, y)]
    made = Dataset.of(*arrays, ("a", "b"), whose.numpy(), groups=whose.numpy())
    same = Dataset.of(x, y, x, y, ("a", "b"), whose, groups=whose)
    assert made.plain() == same.plain()
    mine = made.tensors()
    assert all(torch.equal(mine[name], value) for name, value in same.tensors().items())
    flipped = Dataset.of(x.numpy()[::-1], *arrays[1:], ("a", "b"))
    assert torch.equal(flipped.train_x, x.flip(0))
    read = np.frombuffer(x.numpy().tobytes(), np.uint8).reshape(x.shape)
    labels = y.numpy().astype(">i8")
    of_files = Dataset.of(read, labels, read, labels, ("a", "b"))
    assert torch.equal(of_files.train_x, x)
    assert torch.equal(of_files.test_y, y)


def test_colours_become_grey_as_in_an_image_file_and_grey_becomes_three_equal_channels():
    rgb = torch.randint(0, 256, (7, 3, 5, 4), dtype=torch.uint8, generator=torch.manual_seed(0))
    files = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L") for image in rgb]
    grey = torch.from_numpy(np.stack([np.asarray(file) for file in files]))[:, None]
    y = torch.arange(7) % 2
    data = Dataset.of(rgb[:5], y[:5], rgb[5:], y[5:], ("a", "b"))
    found = data.coloured("grey")
    assert torch.equal(found.train_x, grey[:5])
    assert torch.equal(found.test_x, grey[5:])
    assert float(found.mean) == pytest.approx(float(grey[:5].double().mean()) / 255)
    assert found.shape == (1, 5, 4)
    again = found.coloured("rgb")
    assert torch.equal(again.train_x, grey[:5].repeat(1, 3, 1, 1))
    assert again.mean.flatten().tolist() == pytest.approx([float(found.mean)] * 3)
    for same in ("auto", "rgb"):
        assert data.coloured(same) is data


def test_other_channels_have_no_colours():
    x = torch.zeros(2, 4, 5, 5, dtype=torch.uint8)
    data = Dataset.of(x, torch.tensor([0, 1]), x, torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(CafedclError, match=r"data.colours = grey: the images have 4 channels"):
        data.coloured("grey")


def test_any_data_set_can_be_asked_for_in_colours():
    assert load_dataset(DataOptions(colours="rgb")).shape == (3, 8, 8)
    assert load_dataset(DataOptions(colours="grey")).shape == (1, 8, 8)
