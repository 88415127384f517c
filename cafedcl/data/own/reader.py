"""Your own data, by path: image folders, tables, arrays, and Hugging Face data sets on disk."""

from pathlib import Path

from cafedcl.config.data_options import NONE, DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.cache import Remarks
from cafedcl.data.dataset import Dataset
from cafedcl.data.own.arrays import read_npy_set, read_npz_set
from cafedcl.data.own.hub import is_saved, read_hub
from cafedcl.data.own.items import load_items

FORMS = "expected a folder of images, .csv, .parquet, .npz or .npy"


def read_own(options: DataOptions) -> tuple[Dataset, Remarks]:
    """Return the data set at the given path, with remarks on images that were left out."""
    try:
        path = Path(options.name).expanduser()
        exists = path.exists()
        is_folder = path.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise CafedclError(f"data.name = '{options.name}': not a path: {error}") from None
    if not exists:
        raise CafedclError(f"{path}: there is no such file or folder; {FORMS}")
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise CafedclError(
            f"{path}: its path is not UTF-8 text, which the config of a run cannot hold; rename "
            "it, or make a link to it"
        ) from None
    ending = path.suffix.lower()
    if is_folder:
        if is_saved(path):
            return read_hub(str(path), options)
        if (path / "images.npy").exists():
            refuse_columns(path, options)
            return read_npy_set(path, options)
        from cafedcl.data.own.folders import read_folder

        refuse_columns(path, options)
        collection, files = read_folder(path)
        return load_items(collection, options, files)
    if ending in (".csv", ".parquet"):
        from cafedcl.data.own.tables import read_table

        collection, files = read_table(path, options)
        return load_items(collection, options, files)
    if ending == ".npz":
        return read_npz_set(path, options)
    if ending == ".npy":
        refuse_columns(path, options)
        return read_npy_set(path, options)
    raise CafedclError(f"{path}: this format is not supported; {FORMS}")


def refuse_columns(path: Path, options: DataOptions) -> None:
    """Refuse options that name columns, for data that have none."""
    for name in ("client", "group"):
        value = getattr(options, name)
        if value not in ("", NONE):
            raise CafedclError(
                f"{path}: data.{name} = {value}: these data have no columns; list the images in a "
                "table with the columns path, label and so on"
            )
