"""Data sets by name, by path to your own data, or by ``package.module:function``."""

import sys
from collections.abc import Callable

from cafedcl.config.data_options import NONE, DataOptions
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.imports import explained_failure, import_path
from cafedcl.core.paths import data_folder, is_path, npz_names
from cafedcl.core.printable import printable
from cafedcl.data.cache import Remarks, cached, choice_digest
from cafedcl.data.checked import check_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.data.sources import cifar, digits, gtsrb, ham10000, idx, medmnist
from cafedcl.data.sources.base import Source

__all__ = ["Dataset", "data_folder", "dataset_names", "describe_dataset", "is_own", "load_dataset"]

SOURCES: dict[str, Source] = {
    source.name: source
    for module in (cifar, digits, gtsrb, ham10000, idx, medmnist)
    for source in module.SOURCES
}
ALIASES = {alias: source.name for source in SOURCES.values() for alias in source.aliases}


def dataset_names(folder: str = "") -> list[str]:
    """Return the names of all data sets: the public ones, and ``NAME.npz`` in the data folder."""
    in_folder = (ALIASES.get(name, name) for name in npz_names(data_folder(folder)))
    return sorted({*SOURCES, *in_folder})


def describe_dataset(name: str) -> str:
    """Return one line about a data set."""
    source = SOURCES.get(ALIASES.get(name, name))
    if source is None:
        return f"{name}.npz in the data folder"
    return source.about


def is_own(name: str) -> bool:
    """Return whether a name is a path to your own data; a public set's name never is."""
    if name in SOURCES or name in ALIASES or name.startswith("hf:"):
        return False
    return is_path(name)


def load_dataset(options: DataOptions) -> Dataset:
    """Load the data set that the options name; images that were left out are reported on stderr."""
    name = options.name
    if ":" in name and not name.startswith("hf:") and not is_path(name):
        _refuse_own_options(options)
        return _import_dataset(name).coloured(options.colours).reduced(options.images)
    try:
        data = _load(options)
        data = data.ungrouped() if options.group == NONE else data
        return data.coloured(options.colours).reduced(options.images)
    except OSError as error:
        where = error.filename or data_folder(options.dir)
        raise CafedclError(
            f"data set '{name}': {where} cannot be read: {error.strerror or error}"
        ) from None


def _load(options: DataOptions) -> Dataset:
    name = options.name
    source = SOURCES.get(ALIASES.get(name, name))
    if source is not None:
        _refuse_own_options(options)
        return source.load(options)
    # Readers of your own data are imported only when needed: they load pandas and Pillow.
    if name.startswith("hf:"):
        from cafedcl.data.own.hub import read_hub

        return _with_warnings(read_hub(name, options))
    if is_path(name):
        from cafedcl.data.own.reader import read_own

        return _with_warnings(read_own(options))
    root = data_folder(options.dir)
    file = root / f"{name}.npz"
    if file.exists():
        from cafedcl.data.own.arrays import read_npz_set

        label = f"{name}_{options.size}" if options.size else name
        chosen = (options.client, options.group, options.window)
        if chosen != ("", "", "auto"):
            # An entry that was read with other options must not be used.
            label += f"-{choice_digest(*chosen)}"
        return _with_warnings(cached(root, label, [file], lambda: read_npz_set(file, options)))
    hint = nearest(name, dataset_names(options.dir))
    raise CafedclError(
        f"data set '{name}': there is no such data set; {hint} "
        f"(your own: a path, {name}.npz in {root}, or package.module:function)"
    )


def _refuse_own_options(options: DataOptions) -> None:
    """Refuse options that only apply to your own data."""
    given = {"client": options.client, "group": options.group}
    if options.window != "auto":
        given["window"] = options.window
    for key, value in given.items():
        if value not in ("", NONE):
            raise CafedclError(
                f"data.{key} = {value}: it is for your own data, by path, and not for "
                f"'{options.name}'; leave it out"
            )


def _with_warnings(result: tuple[Dataset, Remarks]) -> Dataset:
    """Print a reader's remarks and return its data set."""
    data, remarks = result
    for remark in remarks:
        print(printable(f"warning: {remark}"), file=sys.stderr)
    return data


def _import_dataset(name: str) -> Dataset:
    where = f"data set '{name}'"
    loader: Callable[[], Dataset] = import_path(name, "data set")
    if not callable(loader):
        raise CafedclError(
            f"{where}: it must be a function without arguments, not {type(loader).__name__}"
        )
    with explained_failure(f"{where}: the function failed"):
        data = loader()
    if not isinstance(data, Dataset):
        raise CafedclError(f"{where}: it must return a cafedcl Dataset, not {type(data).__name__}")
    check_dataset(where, data)
    return data
