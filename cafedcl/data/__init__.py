"""Data sets by name, by path to your own data, or by ``package.module:function``."""

import sys
from collections.abc import Callable

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.imports import import_path
from cafedcl.data.cache import cached
from cafedcl.data.dataset import Dataset
from cafedcl.data.packed import packed_files, packed_names, read_packed
from cafedcl.data.sources import cifar, digits, gtsrb, ham10000, idx, medmnist
from cafedcl.data.sources.base import Source, data_folder, is_path

__all__ = ["Dataset", "data_folder", "dataset_names", "describe", "is_own", "load_dataset"]

SOURCES: dict[str, Source] = {
    source.name: source
    for module in (cifar, digits, gtsrb, ham10000, idx, medmnist)
    for source in module.SOURCES
}
ALIASES = {alias: source.name for source in SOURCES.values() for alias in source.aliases}


def dataset_names(folder: str = "") -> list[str]:
    """Return the names of all data sets: those that are known, and those packed in the data folder."""
    return sorted(
        {*SOURCES, *(ALIASES.get(name, name) for name in packed_names(data_folder(folder)))}
    )


def describe(name: str) -> str:
    """Return one line about a data set."""
    known = SOURCES.get(ALIASES.get(name, name))
    return known.about if known else "packed, in the data folder"


def is_own(name: str) -> bool:
    """Return whether a name is a path to your own data; a known set's name never is."""
    return (
        name not in SOURCES and name not in ALIASES and not name.startswith("hf:") and is_path(name)
    )


def load_dataset(options: DataOptions) -> Dataset:
    """Load the data set that the options name; what was left out of your own data is said on
    stderr.
    """
    name = options.name
    if ":" in name and not name.startswith("hf:") and not is_path(name):
        return _imported(name).reduced(options.images)
    try:
        return _load(options).reduced(options.images)
    except OSError as error:
        place = error.filename or data_folder(options.dir)
        raise CafedclError(
            f"data set '{name}': {place} cannot be read: {error.strerror or error}"
        ) from None


def _load(options: DataOptions) -> Dataset:
    name = options.name
    source = SOURCES.get(ALIASES.get(name, name))
    if source is not None:
        return source.load(options)
    if name.startswith("hf:"):
        from cafedcl.data.own.hub import read_hub

        return _said(read_hub(name, options))
    if is_path(name):
        from cafedcl.data.own.reader import read_own

        return _said(read_own(options))
    root = data_folder(options.dir)
    files = packed_files(root, name)
    if files:
        return cached(root, name, files, lambda: (read_packed(files, options), []))[0]
    hint = nearest(name, dataset_names(options.dir))
    raise CafedclError(
        f"data set '{name}': there is no such data set; {hint} (your own: a path, or package.module:function)"
    )


def _said(result: tuple[Dataset, list[str]]) -> Dataset:
    data, remarks = result
    for remark in remarks:
        print(f"warning: {remark}", file=sys.stderr)
    return data


def _imported(name: str) -> Dataset:
    loader: Callable[[], Dataset] = import_path(name, "data set")
    data = loader()
    if not isinstance(data, Dataset):
        raise CafedclError(
            f"data set '{name}': it must return a cafedcl Dataset, not {type(data).__name__}"
        )
    return data
