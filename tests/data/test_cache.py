import os

import numpy as np
import pytest
import torch

from cafedcl.data.cache import cached
from cafedcl.data.dataset import Dataset


def some_data(value=1):
    x = torch.full((4, 1, 2, 2), value, dtype=torch.uint8)
    y = torch.tensor([0, 1, 0, 1])
    return Dataset.of(
        x, y, x[:2], y[:2], ("a", "b"), owners=torch.tensor([0, 0, 1, 1]), owner_names=("p", "q")
    )


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_text("x")
    return path


@pytest.fixture
def kept(data_dir):
    return lambda: sorted(
        path.name for path in (data_dir / "cache").glob("*") if not path.name.startswith(".")
    )


def never():
    raise AssertionError("it should have come from the cache")


def test_the_second_load_is_the_same_and_decodes_nothing(data_dir, source, kept):
    first = cached(data_dir, "set", [source], lambda: (some_data(), ["a remark"]))
    again, remarks = cached(data_dir, "set", [source], never)
    assert remarks == ["a remark"]
    for name, tensor in first[0].tensors().items():
        assert torch.equal(again.tensors()[name], tensor)
    assert (again.names, again.owner_names) == (("a", "b"), ("p", "q"))
    assert len(kept()) == 1


@pytest.mark.parametrize("change", ["size", "time", "name", "more"])
def test_a_change_of_the_files_is_noticed_and_the_old_one_forgotten(
    change, data_dir, source, kept, tmp_path
):
    cached(data_dir, "set", [source], lambda: (some_data(1), []))
    cached(data_dir, "set_2", [source], lambda: (some_data(2), []))
    before = kept()
    files = [source]
    if change == "size":
        source.write_text("xy")
    elif change == "time":
        os.utime(source, (1, 1))
    elif change == "name":
        files = [source.rename(tmp_path / "other")]
    else:
        (tmp_path / "more").write_text("")
        files.append(tmp_path / "more")
    data, _ = cached(data_dir, "set", files, lambda: (some_data(3), []))
    assert int(data.train_x[0, 0, 0, 0]) == 3
    assert len(kept()) == 2
    assert len(set(kept()) & set(before)) == 1


@pytest.mark.parametrize("damage", [b"", b"\xff" * 50, None])
def test_a_damaged_cache_is_made_again(damage, data_dir, source, kept):
    cached(data_dir, "set", [source], lambda: (some_data(1), []))
    path = data_dir / "cache" / kept()[0]
    path.write_bytes(path.read_bytes()[:-5] if damage is None else damage)
    assert int(cached(data_dir, "set", [source], lambda: (some_data(4), []))[0].train_x.max()) == 4
    assert int(cached(data_dir, "set", [source], never)[0].train_x.max()) == 4


def test_what_was_loaded_outlives_its_cache(data_dir, source, kept):
    cached(data_dir, "set", [source], lambda: (some_data(1), []))
    data, _ = cached(data_dir, "set", [source], never)
    source.write_text("changed")
    cached(data_dir, "set", [source], lambda: (some_data(2), []))
    assert int(data.train_x.max()) == 1


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path, source, monkeypatch):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "cache").write_text("in the way")
    for value in (1, 2):
        assert (
            int(
                cached(blocked, "set", [source], lambda v=value: (some_data(v), []))[
                    0
                ].train_x.max()
            )
            == value
        )


def test_a_full_disk_leaves_no_half_file(data_dir, source, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cafedcl.data.cache.Path.replace", full)
    assert len(cached(data_dir, "set", [source], lambda: (some_data(), []))[0].train_y) == 4
    assert list((data_dir / "cache").iterdir()) == []


def test_a_read_only_data_folder_works(data_dir, load):
    np.savez(data_dir / "breastmnist.npz", **medmnist(2))
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        (data_dir / "cache").write_text("in the way, for root may write anywhere")
    data_dir.chmod(0o500)
    try:
        assert load("breastmnist").classes == 2
    finally:
        data_dir.chmod(0o700)


def medmnist(classes):
    x = np.zeros((classes, 28, 28), np.uint8)
    y = np.arange(classes)[:, None]
    return {
        f"{part}_{what}": a
        for part in ("train", "val", "test")
        for what, a in (("images", x), ("labels", y))
    }


def test_a_set_is_cached_in_the_data_folder(data_dir, load, kept, monkeypatch):
    np.savez(data_dir / "breastmnist.npz", **medmnist(2))
    load("breastmnist")
    assert [name.startswith("breastmnist-") for name in kept()] == [True]
    monkeypatch.setattr(np, "load", lambda *_, **__: never())
    assert load("breastmnist").names == ("malignant", "normal, benign")


def test_digits_need_no_folder(monkeypatch, load, tmp_path):
    monkeypatch.setenv("CAFEDCL_DATA", str(tmp_path / "nowhere"))
    assert load("digits").classes == 10
    assert not (tmp_path / "nowhere").exists()
