"""Data sets by name. A file here that has a ``load`` function is a data set; nothing has to be registered."""

import importlib
import pkgutil
from collections.abc import Callable

from cafedcl.config import DataOptions
from cafedcl.data.dataset import Dataset
from cafedcl.errors import CafedclError, nearest
from cafedcl.plugins import import_path

__all__ = ["Dataset", "dataset_names", "find_dataset", "load_dataset"]

_NOT_DATASETS = {"dataset", "shards", "splits"}


def dataset_names() -> list[str]:
    """Return the names of all embedded or readable data sets."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NOT_DATASETS)


def find_dataset(name: str) -> Callable[[], Dataset]:
    """Return the function that loads a data set, by name or by ``package.module:function``."""
    if ":" in name:
        loader: Callable[[], Dataset] = import_path(name, "data set")
        return loader
    if name not in dataset_names():
        hint = nearest(name, dataset_names())
        raise CafedclError(f"data set '{name}': there is no such data set; {hint} (your own: package.module:function)")
    module = importlib.import_module(f"{__name__}.{name}")
    return module.load  # type: ignore[no-any-return]


def load_dataset(options: DataOptions) -> Dataset:
    """Load the data set that the options name."""
    data = find_dataset(options.name)()
    if not isinstance(data, Dataset):
        raise CafedclError(f"data set '{options.name}': it must return a cafedcl Dataset, not {type(data).__name__}")
    return data
