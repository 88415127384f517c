"""The data folder of these tests is a temporary one, and files are built in the forms people have
them in.
"""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cafedcl.config.sections import DataOptions
from cafedcl.data import Dataset, load_dataset


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data folder"
    folder.mkdir()
    monkeypatch.setenv("CAFEDCL_DATA", str(folder))
    return folder


@pytest.fixture
def load() -> Callable[..., Dataset]:
    """Load a data set without ever going to the network."""

    def make(name: object, **options: object) -> Dataset:
        return load_dataset(DataOptions(name=str(name), **{"download": False, **options}))

    return make


@pytest.fixture
def paint() -> Callable[..., Path]:
    """Write an image of one colour; a number is grey, three are RGB."""

    def make(
        path: Path, colour: object = 128, size: tuple[int, int] = (8, 8), mode: str = ""
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode or ("L" if isinstance(colour, int) else "RGB"), size, colour).save(path)
        return path

    return make


@pytest.fixture
def write_idx() -> Callable[..., bytes]:
    """Write an array as an IDX file, packed if the name ends in .gz, and return its bytes."""

    def make(path: Path, array: np.ndarray) -> bytes:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (
            struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            + array.astype(np.uint8).tobytes()
        )
        data = gzip.compress(data) if path.suffix == ".gz" else data
        path.write_bytes(data)
        return data

    return make
