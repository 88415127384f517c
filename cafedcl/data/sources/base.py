"""A named image set: the forms in which people have its files, and where the files come from."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.cache import cached
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote, fetch
from cafedcl.data.packed import packed_files, read_packed

OWN = (".npz", ".npy", ".csv", ".parquet")
"""How the files of your own data end."""

Reader = Callable[[Sequence[Path], DataOptions], Dataset]


@dataclass(frozen=True)
class Form:
    """One form of a set's files: paths that must all be there, and how they are read."""

    paths: tuple[str, ...]
    read: Reader
    fits: Callable[[Sequence[Path]], bool] = lambda files: True  # noqa: ARG005
    """Whether files of these names are this set's, where two sets share file names."""


@dataclass(frozen=True)
class Source:
    """A named image set. The first form is what is downloaded."""

    name: str
    about: str
    forms: tuple[Form, ...]
    remote: tuple[Remote, ...] = ()
    folder: str = ""
    """Its own subfolder of the data folder, if not its name."""
    aliases: tuple[str, ...] = ()
    resized: bool = False
    """Whether ``data.size`` makes a difference."""
    origin: str = ""
    """Where people get files that cannot be downloaded without a person."""

    def home(self, root: Path) -> Path:
        """Return the set's own folder."""
        return root / (self.folder or self.name)

    def locate(self, root: Path) -> tuple[Form, list[Path]] | None:
        """Return the first form whose files are all there, in the set's own folder or in the data
        folder.
        """
        for form in self.forms:
            for place in dict.fromkeys(
                [self.home(root), *(root / name for name in (self.name, *self.aliases)), root]
            ):
                files = [place / path for path in form.paths]
                if all(file.exists() for file in files) and form.fits(files):
                    return form, files
        for name in (self.name, *self.aliases):
            for place in (root, self.home(root)):
                if files := packed_files(place, name):
                    return Form((), read_packed), files
        return None

    def load(self, options: DataOptions) -> Dataset:
        """Load the set from files in the data folder, from the cache of decoded sets, or from its
        address.
        """
        if self.embedded:
            return self.forms[0].read((), options)
        root = data_folder(options.dir)
        found = self.locate(root)
        if found is None:
            self._download(root, options)
            found = self.locate(root)
        if found is None:
            raise CafedclError(
                self._absent(root, "the files that were fetched do not make up the set")
            )
        form, files = found
        label = f"{self.name}_{options.size}" if self.resized and options.size else self.name
        return cached(root, label, files, lambda: (form.read(files, options), []))[0]

    @property
    def embedded(self) -> bool:
        """Whether the set comes with an installed package."""
        return not self.forms[0].paths

    def _download(self, root: Path, options: DataOptions) -> None:
        if not self.remote:
            raise CafedclError(self._absent(root, f"they are to be had from {self.origin}"))
        if not options.download:
            raise CafedclError(self._absent(root, "or set data.download = true"))
        for remote in self.remote:
            try:
                fetch(remote, self.home(root))
            except CafedclError as error:
                raise CafedclError(
                    f"{error}; or put {remote.name} into {self.home(root)} yourself"
                ) from None

    def _absent(self, root: Path, then: str) -> str:
        names = ", ".join(self.forms[0].paths)
        return f"data set '{self.name}': not found; put {names} into {self.home(root)}; {then}"


def data_folder(given: str) -> Path:
    """Return the folder with data files: the one given, else CAFEDCL_DATA, else the platform's
    cache folder.
    """
    chosen = given or os.environ.get("CAFEDCL_DATA", "")
    try:
        if chosen:
            return Path(chosen).expanduser()
        if sys.platform == "win32":
            return (
                Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
                / "cafedcl"
            )
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "cafedcl"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cafedcl"
    except RuntimeError:
        raise CafedclError(
            "data.dir: there is no home folder here; set data.dir or CAFEDCL_DATA"
        ) from None


def is_path(name: str) -> bool:
    """Return whether a data set's name is a path to your own data."""
    separators = [separator for separator in ("/", os.sep, os.altsep) if separator]
    if any(separator in name for separator in separators) or name.lower().endswith(OWN):
        return True
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):
        return False
