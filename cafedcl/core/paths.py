"""Where files are: absolute paths, the data folder, and which names are paths."""

import os
import sys
from pathlib import Path

from cafedcl.core.errors import CafedclError

OWN_ENDINGS = (".npz", ".npy", ".csv", ".parquet")
"""File endings of your own data."""


def data_folder(given: str) -> Path:
    """Return the data folder: the given one, else CAFEDCL_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("CAFEDCL_DATA", "")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
            return Path(local) / "cafedcl"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "cafedcl"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cafedcl"
    except RuntimeError:
        # `expanduser` and `home` raise it where no home folder is known.
        raise CafedclError(
            "data.dir: no home folder is known here; set data.dir or CAFEDCL_DATA"
        ) from None


def absolute(path: str) -> str:
    """Return an absolute path, with ``~`` replaced by the home folder."""
    try:
        return str(Path(path).expanduser().resolve())
    except RuntimeError:
        # There is no such user, or no home folder is known.
        raise CafedclError(f"{path}: this home folder is not known; give the whole path") from None


def is_path(name: str) -> bool:
    """Return whether a data set's name is a path to your own data."""
    separators = [separator for separator in ("/", os.sep, os.altsep) if separator]
    if any(separator in name for separator in separators) or name.lower().endswith(OWN_ENDINGS):
        return True
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        # The name is too long for a file, or holds a null byte.
        return False


def is_folder(place: str) -> bool:
    """Return whether the place of a model is a folder, and not a name on the Hugging Face hub.

    A name on the hub has no such beginning, but a folder here may have the same name.
    """
    return place.startswith(("/", "~", ".")) or Path(place).expanduser().is_dir()


def npz_names(root: Path) -> list[str]:
    """Return the names of the data sets that are ``NAME.npz`` files in the data folder."""
    return sorted(path.stem for path in root.glob("*.npz"))
