"""The real sets, if CAFEDCL_TEST_DATA is a folder with them. Nothing is downloaded.

Sets in the packed form of experiments/unpack.py are converted first.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cafedcl.config.sections import DataOptions
from cafedcl.data import load_dataset

FOLDER = os.environ.get("CAFEDCL_TEST_DATA", "")
UNPACK = Path(__file__).parents[2] / "experiments" / "unpack.py"
pytestmark = pytest.mark.skipif(not FOLDER, reason="CAFEDCL_TEST_DATA is not set")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """A folder with links to the real files and converted packed sets; a cache can be written."""
    folder = tmp_path_factory.mktemp("real")
    for path in Path(FOLDER).iterdir():
        if path.name == "cache":
            continue
        (folder / path.name).symlink_to(path)
    if any(folder.glob("*.meta.npz")):
        subprocess.run([sys.executable, str(UNPACK), str(folder), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def real(mirror):
    def make(name):
        try:
            return load_dataset(DataOptions(name=name, dir=str(mirror), download=False))
        except Exception as error:
            if "not found" in str(error) or "no such data set" in str(error):
                pytest.skip(f"{name} is not in {FOLDER}")
            raise

    return make


def counts(y):
    return torch.bincount(y).tolist()


def test_cifar10(real):
    data = real("cifar10")
    assert (data.train_x.shape, data.test_x.shape) == ((50000, 3, 32, 32), (10000, 3, 32, 32))
    assert counts(data.train_y) == [5000] * 10
    assert counts(data.test_y) == [1000] * 10
    assert data.names[0] == "airplane"
    torch.testing.assert_close(
        data.mean.flatten(), torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        data.std.flatten(), torch.tensor([0.2470, 0.2435, 0.2616]), atol=1e-4, rtol=0
    )


def test_fashion_mnist(real):
    data = real("fashion-mnist")
    assert (data.train_x.shape, data.test_x.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    assert counts(data.train_y) == [6000] * 10
    assert data.mean.item() == pytest.approx(0.28604, abs=1e-5)
    assert data.std.item() == pytest.approx(0.35302, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes"),
    [
        ("gtsrb32_third", 13229, 4210, (3, 32, 32), 43),
        ("ham10000_32", 7964, 2051, (3, 32, 32), 7),
        ("magnetic_tile_64", 940, 404, (1, 64, 64), 6),
        ("retinamnist", 1080, 400, (3, 28, 28), 5),
        ("pneumoniamnist", 4708, 624, (1, 28, 28), 2),
    ],
)
def test_the_smaller_sets(name, train, test, shape, classes, real):
    data = real(name)
    assert (len(data.train_y), len(data.test_y), data.shape, data.classes) == (
        train,
        test,
        shape,
        classes,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="memory is measured the Unix way")
def test_the_second_load_of_cifar10_is_quick_and_small(real, mirror):
    """Memory is measured in a process of its own, after many pixels were read."""
    real("cifar10")
    code = f"""
import resource, sys, time
from cafedcl.config.sections import DataOptions
from cafedcl.data import load_dataset
import cafedcl.data.own.reader
scale = 1 if sys.platform == "darwin" else 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
began = time.process_time()
data = load_dataset(DataOptions(name="cifar10", dir={str(mirror)!r}, download=False))
total = int(data.train_x[::7].max()) + int(data.test_x.max())
took = time.process_time() - began
print(took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    took, grown = map(float, done.stdout.split())
    assert took < 60
    assert grown < 2 * 60000 * 3072


def test_a_folder_that_cannot_be_written_to(real, mirror, tmp_path):
    if not (mirror / "retinamnist.npz").exists():
        pytest.skip("retinamnist is not there")
    shutil.copy(mirror / "retinamnist.npz", tmp_path)
    (tmp_path / "cache").write_text("in the way")
    began = time.process_time()
    data = load_dataset(DataOptions(name="retinamnist", dir=str(tmp_path), download=False))
    assert torch.equal(data.train_x, real("retinamnist").train_x)
    assert time.process_time() - began < 60
