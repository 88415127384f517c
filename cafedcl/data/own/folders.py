"""Image folders: one folder per class, or one per client with one per class inside, perhaps below
train/ and test/.
"""

import os
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.data.images import ENDINGS
from cafedcl.data.own.items import SIDES, Collection, Item

LAYOUT = "expected is CLASS/IMAGE or CLIENT/CLASS/IMAGE, both also below train/ and test/"
_NOT_OURS = ("__MACOSX", "@eaDir")


def read_folder(root: Path) -> tuple[Collection, list[Path]]:
    """Return a folder's images with their classes and clients, and the image files."""
    tops = _subfolders(root)
    sides = {name: SIDES[name.lower()] for name in tops if name.lower() in SIDES}
    split = "train" in sides.values() and not any(_images(root / name) for name in sides)
    if not split:
        return _gather(root, {root: "train"})
    strangers = [name for name in tops if name not in sides]
    if strangers:
        raise CafedclError(
            f"{root}: the folder '{strangers[0]}' stands beside a folder for training; {LAYOUT}"
        )
    return _gather(root, {root / name: side for name, side in sides.items()})


def _gather(root: Path, parts: dict[Path, str]) -> tuple[Collection, list[Path]]:
    items: list[Item] = []
    classes: set[str] = set()
    clients: set[str] = set()
    for folder, side in parts.items():
        found = _walk(folder, ())
        depth = _depth(folder, found)
        tops = _subfolders(folder)
        if depth == 2:
            classes |= {name for top in tops for name in _subfolders(folder / top)}
            clients |= set(tops) if side == "train" else set()
        else:
            classes |= set(tops)
        for path, inside in found:
            client = inside[0] if depth == 2 else ""
            items.append(Item(str(path.relative_to(root)), path, inside[-1], client, side))
    return Collection(str(root), items, classes, clients), [
        path for item in items if (path := root / item.name)
    ]


def _depth(folder: Path, found: list[tuple[Path, tuple[str, ...]]]) -> int:
    """Return how many folders deep all images are: 1 below classes, 2 below clients and classes."""
    examples = {len(inside): path for path, inside in found}
    if not examples:
        tables = sorted(
            path.name
            for path in folder.iterdir()
            if path.suffix.lower() in (".csv", ".parquet", ".npz")
        )
        hint = f"; did you mean {folder / tables[0]}?" if tables else f"; {LAYOUT}"
        raise CafedclError(f"{folder}: there are no images in it{hint}")
    if len(examples) > 1:
        one, other = (str(path.relative_to(folder)) for path in list(examples.values())[:2])
        raise CafedclError(f"{folder}: {one} and {other} are not equally deep; {LAYOUT}")
    depth = next(iter(examples))
    if depth not in (1, 2):
        raise CafedclError(
            f"{folder}: {examples[depth].relative_to(folder)} is not where it should be; {LAYOUT}"
        )
    return depth


def _walk(folder: Path, inside: tuple[str, ...]) -> list[tuple[Path, tuple[str, ...]]]:
    """Return all images below a folder with the names of the folders they are in; four levels are
    enough to see.
    """
    found = [(path, inside) for path in _images(folder)]
    if len(inside) < 4:
        for name in _subfolders(folder):
            found += _walk(folder / name, (*inside, name))
    return found


def _subfolders(folder: Path) -> list[str]:
    return sorted(
        entry.name for entry in _entries(folder) if entry.is_dir() and entry.name not in _NOT_OURS
    )


def _images(folder: Path) -> list[Path]:
    names = [
        entry.name
        for entry in _entries(folder)
        if entry.name.lower().endswith(ENDINGS) and entry.is_file()
    ]
    return [folder / name for name in sorted(names)]


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise CafedclError(f"{folder}: cannot be read: {error.strerror or error}") from None
