"""NAME.npz in the data folder is a data set called NAME."""

import numpy as np
import pytest

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data import dataset_names, describe_dataset, load_dataset

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
Y = np.arange(20) % 2


def write_npz(folder, name, x=X, **others):
    folder.mkdir(exist_ok=True)
    arrays = {"x_train": x, "y_train": Y, "x_test": x[:4], "y_test": Y[:4]} | others
    np.savez(folder / f"{name}.npz", **arrays)


def test_a_file_is_loaded_by_its_name_and_listed(data_dir, load):
    write_npz(data_dir, "some_set", classes=["a", "b"])
    assert "some_set" in dataset_names()
    assert describe_dataset("some_set") == "some_set.npz in the data folder"
    data = load("some_set")
    np.testing.assert_array_equal(data.train_x, X.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(data.test_y, Y[:4])
    assert data.names == ("a", "b")


def test_the_folder_is_an_option(tmp_path):
    write_npz(tmp_path / "other", "some_set")
    folder = str(tmp_path / "other")
    assert "some_set" in dataset_names(folder)
    assert "some_set" not in dataset_names()
    assert len(load_dataset(DataOptions(name="some_set", dir=folder)).train_y) == 20


def test_it_is_one_more_form_of_a_public_set_under_either_spelling(data_dir, load):
    write_npz(data_dir, "fashion_mnist", X[..., 0])
    for name in ("fashion-mnist", "fashion_mnist"):
        np.testing.assert_array_equal(load(name).train_x[:, 0], X[..., 0])
    assert "fashion_mnist" not in dataset_names()


def test_a_medmnist_set_may_use_the_usual_names(data_dir, load):
    write_npz(data_dir, "breastmnist", X[..., 0])
    data = load("breastmnist")
    np.testing.assert_array_equal(data.train_x[:, 0], X[..., 0])
    assert data.names == ("malignant", "normal, benign")


def test_official_files_come_first(data_dir, load, write_idx):
    write_npz(data_dir, "fashion_mnist", X[..., 0])
    for part, number in (("train", 30), ("t10k", 10)):
        images = np.zeros((number, 28, 28), np.uint8)
        write_idx(data_dir / f"{part}-images-idx3-ubyte", images)
        write_idx(data_dir / f"{part}-labels-idx1-ubyte", np.arange(number) % 10)
    assert load("fashion-mnist").shape == (1, 28, 28)


@pytest.mark.parametrize("name", ["some_set", "cifar10"])
def test_decoded_images_are_cached_for_every_size(name, data_dir, load):
    write_npz(data_dir, name)
    assert load(name).shape == (3, 6, 6)
    assert load(name, size=4).shape == (3, 4, 4)
    assert load(name).shape == (3, 6, 6)
    cached = sorted(path.name.rsplit("-", 1)[0] for path in (data_dir / "cache").iterdir())
    assert cached == [name, f"{name}_4"]


def test_validation_images_are_left_out_with_a_warning(data_dir, load, capsys):
    write_npz(data_dir, "some_set", x_val=X[:3], y_val=Y[:3])
    assert len(load("some_set").test_y) == 4
    assert "3 validation images are left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK", r"some_set.npz: not a complete .npz file"),
        (None, r"'some_set': there is no such data set; .*some_set.npz in .*data folder"),
    ],
)
def test_what_is_missing_or_broken_is_one_line(content, words, data_dir, load):
    if content is not None:
        (data_dir / "some_set.npz").write_bytes(content)
    with pytest.raises(CafedclError, match=words) as caught:
        load("some_set")
    assert "\n" not in str(caught.value)


def test_other_options_are_not_answered_from_the_cache(data_dir, load):
    write_npz(data_dir, "some_set", X.astype(np.uint16) * 16, hospital_train=np.arange(20) % 3)
    dark = load("some_set", window="0,4080")
    assert dark.owner_names == ("0", "1", "2")
    assert (load("some_set", window="0,2040").train_x >= dark.train_x).all()
    assert (load("some_set", window="0,2040").train_x != dark.train_x).any()
    assert load("some_set", window="0,4080", client="none").owner_names == ()
    with pytest.raises(CafedclError, match="expected 0 to 255"):
        load("some_set")
