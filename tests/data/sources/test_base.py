import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.paths import is_path
from cafedcl.data import data_folder, dataset_names, describe_dataset, load_dataset
from cafedcl.data.sources.medmnist import SETS

KNOWN = {
    "cifar10",
    "cifar100",
    *(
        f"emnist-{kind}"
        for kind in ("balanced", "letters", "digits", "byclass", "bymerge", "mnist")
    ),
    *("mnist", "fashion-mnist", "digits", "ham10000", "gtsrb"),
    *(
        f"{name}mnist"
        for name in ("path", "derma", "oct", "pneumonia", "retina", "breast", "blood", "tissue")
    ),
    *(f"organ{axis}mnist" for axis in "acs"),
}


def test_all_names_are_listed_and_described():
    assert set(dataset_names()) == KNOWN
    for name in KNOWN:
        assert "\n" not in describe_dataset(name)
        assert "classes" in describe_dataset(name)


@pytest.mark.parametrize("name", sorted(KNOWN - {"digits"}))
def test_a_set_that_is_not_there_says_which_file_to_put_where(name, data_dir, load):
    with pytest.raises(CafedclError) as caught:
        load(name)
    message = str(caught.value)
    home = {"emnist": "emnist", "mnist": "medmnist"}.get(
        name.split("-")[0][-6:] if "-" in name else name[-5:], name
    )
    home = name if name in ("mnist", "fashion-mnist") else home
    assert message.startswith(f"data set '{name}': not found; put ")
    assert f" into {data_dir / home}; " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("platform", "env", "expected"),
    [
        ("linux", {}, "/home/me/.cache/cafedcl"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/cafedcl"),
        ("darwin", {}, "/home/me/Library/Caches/cafedcl"),
        ("win32", {}, "/home/me/AppData/Local/cafedcl"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/cafedcl"),
        ("win32", {"CAFEDCL_DATA": "~/mine"}, "/home/me/mine"),
    ],
)
def test_the_data_folder_is_where_the_platform_keeps_such_things(
    platform, env, expected, monkeypatch
):
    for name in ("CAFEDCL_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/me"} | env).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cafedcl.core.paths.sys.platform", platform)
    assert data_folder("") == Path(expected)
    assert data_folder("given") == Path("given")


def test_what_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for name in ("there", "not/there", "a.csv", "a.NPZ", "a.npy", "a.parquet", "/", "~/x"):
        assert is_path(name)
    for name in ("not_there", "package.module:function", "", "a\0b", "x" * 5000):
        assert not is_path(name)


def test_a_known_name_is_not_shadowed_by_a_folder_of_that_name(tmp_path, monkeypatch, load):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert load("digits").classes == 10
    with pytest.raises(CafedclError, match="no images"):
        load("./digits")


def test_a_data_folder_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, load):
    def denied(*_):
        raise PermissionError(13, "Permission denied", "/data")

    monkeypatch.setattr("cafedcl.data.sources.base.Path.exists", denied)
    with pytest.raises(
        CafedclError, match="data set 'cifar10': /data cannot be read: Permission denied"
    ):
        load("cifar10")


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("where", ["", "medmnist/"])
def test_medmnist_is_read_without_its_validation_part(name, where, data_dir, load):
    classes = len(SETS[name][3])
    channels = (3,) if "colour" in SETS[name][1] else ()
    rng = np.random.default_rng(0)
    parts = {}
    for part, n in (("train", 2 * classes), ("val", 3), ("test", classes)):
        parts[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28, *channels), dtype=np.uint8)
        parts[f"{part}_labels"] = (np.arange(n) % classes)[:, None].astype(np.uint8)
    (data_dir / where).mkdir(exist_ok=True)
    np.savez(data_dir / where / f"{name}.npz", **parts)
    data = load(name)
    assert data.classes == classes
    for x, y, part in ((data.train_x, data.train_y, "train"), (data.test_x, data.test_y, "test")):
        expected = parts[f"{part}_images"]
        np.testing.assert_array_equal(
            x, expected.transpose(0, 3, 1, 2) if channels else expected[:, None]
        )
        np.testing.assert_array_equal(y, parts[f"{part}_labels"][:, 0])


def test_a_broken_npz_is_named(data_dir, load):
    path = data_dir / "breastmnist.npz"
    np.savez(path, train_images=np.zeros(3))
    with pytest.raises(CafedclError, match=r"breastmnist.npz: it has no array 'train_labels'"):
        load("breastmnist")
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(CafedclError, match=r"breastmnist.npz: not a complete .npz file"):
        load("breastmnist")
    np.savez(path, train_images=np.array([{}], dtype=object))
    with pytest.raises(CafedclError, match=r"not a complete .npz file of plain arrays"):
        load("breastmnist")


def test_the_core_imports_without_the_extras():
    code = (
        "import sys\n"
        "for name in ('datasets', 'pyarrow', 'torchvision'): sys.modules[name] = None\n"
        "import cafedcl.data\n"
        "print(len(cafedcl.data.dataset_names()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= len(KNOWN)


def test_options_name_a_set_by_default():
    assert load_dataset(DataOptions()).classes == 10
