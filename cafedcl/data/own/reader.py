"""Your own data, by path: image folders, tables, arrays, and Hugging Face data sets on disk."""

from pathlib import Path

from cafedcl.config.sections import DataOptions
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
    ending = path.suffix.lower()
    if is_folder:
        if is_saved(path):
            return read_hub(str(path), options)
        if (path / "images.npy").exists():
            return read_npy_set(path, options), []
        from cafedcl.data.own.folders import read_folder

        collection, files = read_folder(path)
        return load_items(collection, options, files)
    if ending in (".csv", ".parquet"):
        from cafedcl.data.own.tables import read_table

        collection, files = read_table(path)
        return load_items(collection, options, files)
    if ending == ".npz":
        return read_npz_set(path, options)
    if ending == ".npy":
        return read_npy_set(path, options), []
    raise CafedclError(f"{path}: this format is not supported; {FORMS}")
