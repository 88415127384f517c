import numpy as np
import pytest
import torch

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import Dataset, dataset_names, load_dataset
from cafedcl.data.sources import digits as digits_module


def rows(x):
    return [bytes(image.flatten().tolist()) for image in x]


def test_training_and_test_images_are_scikit_learns_each_once(digits):
    from sklearn.datasets import load_digits

    bunch = load_digits()
    expected = [bytes(int(v * 255 / 16 + 0.5) for v in image.flatten()) for image in bunch.images]
    ours = rows(digits.train_x) + rows(digits.test_x)
    labels = digits.train_y.tolist() + digits.test_y.tolist()
    assert sorted(zip(ours, labels, strict=True)) == sorted(
        zip(expected, bunch.target.tolist(), strict=True)
    )


def test_a_fifth_of_every_class_is_kept_for_testing(digits):
    train, test = (
        torch.bincount(y, minlength=10).tolist() for y in (digits.train_y, digits.test_y)
    )
    assert test == [round(0.2 * (a + b)) for a, b in zip(train, test, strict=True)]


def test_the_test_set_is_the_same_every_time(digits):
    # As in another process, which prepares them anew.
    digits_module._prepared.cache_clear()
    again = load_dataset(DataOptions(name="digits"))
    assert torch.equal(again.test_x, digits.test_x)
    assert torch.equal(again.test_y, digits.test_y)


def test_whoever_changes_images_in_place_changes_only_their_own(digits):
    changed = load_dataset(DataOptions(name="digits"))
    for tensor in (changed.train_x, changed.train_y, changed.test_x, changed.test_y, changed.mean):
        tensor.zero_()
    again = load_dataset(DataOptions(name="digits"))
    for name, value in vars(digits).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(again, name), value), name


def test_shape_types_and_names(digits):
    assert digits.shape == (1, 8, 8)
    assert digits.classes == 10
    assert digits.names == tuple("0123456789")
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_y.dtype == torch.int64


def test_images_are_standardised_by_the_training_set(digits):
    pixels = digits.train_x.numpy() / 255
    expected = (pixels - pixels.mean()) / pixels.std()
    np.testing.assert_allclose(digits.images(digits.train_x), expected, atol=1e-5)


def test_every_channel_has_its_own_mean_and_a_constant_one_is_not_divided_by_zero():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    x[:, 1] = 51
    data = Dataset.of(
        torch.from_numpy(x),
        torch.zeros(5).long(),
        torch.from_numpy(x),
        torch.zeros(5).long(),
        ("a",),
    )
    scaled = x / 255
    np.testing.assert_allclose(data.mean.flatten(), scaled.mean((0, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(data.std.flatten()[[0, 2]], scaled.std((0, 2, 3))[[0, 2]], atol=1e-6)
    np.testing.assert_allclose(data.images(data.train_x)[:, 1], 0, atol=1e-6)


def test_an_unknown_data_set_suggests_the_nearest():
    assert "digits" in dataset_names()
    with pytest.raises(
        CafedclError, match=r"'digit': there is no such data set; did you mean 'digits'\?"
    ):
        load_dataset(DataOptions(name="digit"))


def test_your_own_data_set_is_found_by_import_path_and_must_be_one(tmp_path, monkeypatch):
    (tmp_path / "own_data_for_test.py").write_text(
        "from cafedcl.data.sources.digits import load_digits\n\n\ndef broken():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_dataset(DataOptions(name="own_data_for_test:load_digits")).classes == 10
    with pytest.raises(CafedclError, match="must return a cafedcl Dataset, not int"):
        load_dataset(DataOptions(name="own_data_for_test:broken"))
