"""A public image set: the file forms it exists in, and where its files come from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.paths import data_folder
from cafedcl.data.cache import cached
from cafedcl.data.dataset import Dataset
from cafedcl.data.files.download import Remote, fetch

Reader = Callable[[Sequence[Path], DataOptions], Dataset]


@dataclass(frozen=True)
class FileForm:
    """One form of a set's files: paths that must all exist, and the function that reads them."""

    paths: tuple[str, ...]
    read: Reader
    fits: Callable[[Sequence[Path]], bool] = lambda files: True  # noqa: ARG005
    """Whether files with these names belong to this set; some sets share file names."""
    resizes: bool = False
    """Whether ``data.size`` changes the images."""


@dataclass(frozen=True)
class Source:
    """A public image set. The first form is the one that is downloaded."""

    name: str
    about: str
    forms: tuple[FileForm, ...]
    remote: tuple[Remote, ...] = ()
    folder: str = ""
    """Its subfolder of the data folder, if not its name."""
    aliases: tuple[str, ...] = ()
    origin: str = ""
    """Web page of a set that has to be downloaded by hand."""

    def home(self, root: Path) -> Path:
        """Return the set's own subfolder of the data folder."""
        return root / (self.folder or self.name)

    def locate(self, root: Path) -> tuple[FileForm, list[Path]] | None:
        """Return the first form whose files all exist, in the set's subfolder or the data folder.

        Official files come first; ``NAME.npz`` is a form of every set.
        """
        names = (self.name, *self.aliases)
        plain = [FileForm((f"{name}.npz",), _read_plain_npz, resizes=True) for name in names]
        # An ordered set: two of these folders are often the same.
        folders = dict.fromkeys([self.home(root), *(root / name for name in names), root])
        for form in (*self.forms, *plain):
            for folder in folders:
                files = [folder / path for path in form.paths]
                if all(file.exists() for file in files) and form.fits(files):
                    return form, files
        return None

    def load(self, options: DataOptions) -> Dataset:
        """Load the set from the cache or from files in the data folder; download missing files."""
        if self.embedded:
            return self.forms[0].read((), options)
        root = data_folder(options.dir)
        found = self.locate(root)
        if found is None:
            self._download(root, options)
            found = self.locate(root)
        if found is None:
            raise CafedclError(self._absent(root, "the downloaded files are not complete"))
        form, files = found
        label = self.name
        if form.resizes and options.size:
            label = f"{self.name}_{options.size}"
        data, _ = cached(root, label, files, lambda: (form.read(files, options), []))
        return data

    @property
    def embedded(self) -> bool:
        """Whether the set comes with an installed package."""
        return not self.forms[0].paths

    def _download(self, root: Path, options: DataOptions) -> None:
        if not self.remote:
            raise CafedclError(self._absent(root, f"get them from {self.origin}"))
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


def _read_plain_npz(files: Sequence[Path], options: DataOptions) -> Dataset:
    # Imported here because it loads Pillow, which most sets do not need.
    from cafedcl.data.own.arrays import read_npz_set

    data, _ = read_npz_set(files[0], options)
    return data
