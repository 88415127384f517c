"""Image folders: CLASS/IMAGE or CLIENT/CLASS/IMAGE, optionally below train/ and test/."""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cafedcl.core.errors import CafedclError
from cafedcl.data.images import is_hidden, is_image_file
from cafedcl.data.own.items import LISTED, SIDES, Collection, Item

LAYOUT = "expected CLASS/IMAGE or CLIENT/CLASS/IMAGE, both also below train/ and test/"


def read_folder(root: Path) -> tuple[Collection, list[Path]]:
    """Return a folder's images with their classes and clients, and the image files."""
    tops = _subfolders(root)
    sides = {name: SIDES[name.lower()] for name in tops if name.lower() in SIDES}
    # A folder "train" with images directly in it is a class that happens to have this name.
    split = bool(sides) and not any(map(_has_images, (root / name for name in sides)))
    if split and "train" not in sides.values():
        if len(sides) == len(tops):
            raise CafedclError(
                f"{root}: it has {' and '.join(sides)} but no training images; {LAYOUT}"
            )
        # A client or a class that happens to have this name.
        split = False
    if not split:
        collection, files = _collect(root, {root: "train"})
        remarks = [*collection.remarks, *_sides_remark(root, tops, collection)]
        return replace(collection, remarks=remarks), files
    others = [name for name in tops if name not in sides]
    if others:
        raise CafedclError(
            f"{root}: the folder '{others[0]}' is beside the training folder; {LAYOUT}"
        )
    return _collect(root, {root / name: side for name, side in sides.items()})


def _collect(root: Path, parts: dict[Path, str]) -> tuple[Collection, list[Path]]:
    """Return the images below each folder of ``parts``, which is one side of the split."""
    items: list[Item] = []
    others: list[Path] = []
    classes: set[str] = set()
    clients: set[str] = set()
    for folder, side in parts.items():
        found, rest = _walk(folder, ())
        depth = _depth(folder, found)
        tops = _subfolders(folder)
        if depth == 2:
            classes |= {name for top in tops for name in _subfolders(folder / top)}
            if side == "train":
                clients |= set(tops)
        else:
            classes |= set(tops)
        # A folder at the depth of the classes may hold nothing but files that cannot be read.
        others += [path for path in rest if len(path.relative_to(folder).parts) == depth + 1]
        for path, inside in found:
            client = inside[0] if depth == 2 else ""
            items.append(Item(str(path.relative_to(root)), path, inside[-1], client, side))
    remarks = _others_remark(root, others)
    collection = Collection(str(root), items, classes, clients, remarks=remarks)
    return collection, [*(root / item.name for item in items), *others]


def _depth(folder: Path, found: list[tuple[Path, tuple[str, ...]]]) -> int:
    """Return how many folders deep all images are: 1 below classes, 2 below clients and classes."""
    examples = {len(inside): path for path, inside in found}
    if not examples:
        tables = sorted(
            path.name
            for path in folder.iterdir()
            if path.suffix.lower() in (".csv", ".parquet", ".npz")
        )
        hint = f"did you mean {folder / tables[0]}?" if tables else LAYOUT
        raise CafedclError(f"{folder}: there are no images in it; {hint}")
    if len(examples) > 1:
        one, other = (str(path.relative_to(folder)) for path in list(examples.values())[:2])
        raise CafedclError(f"{folder}: {one} and {other} are not at the same depth; {LAYOUT}")
    depth = next(iter(examples))
    if depth not in (1, 2):
        raise CafedclError(
            f"{folder}: {examples[depth].relative_to(folder)} is not at the right depth; {LAYOUT}"
        )
    return depth


def _walk(
    folder: Path, inside: tuple[str, ...]
) -> tuple[list[tuple[Path, tuple[str, ...]]], list[Path]]:
    """Return all images below a folder, each with the names of the folders it is in; other files.

    Four levels are searched: enough to report images that are too deep.
    """
    found: list[tuple[Path, tuple[str, ...]]] = []
    rest: list[Path] = []
    for path in _files(folder):
        if is_image_file(path):
            found.append((path, inside))
        else:
            rest.append(path)
    if len(inside) < 4:
        for name in _subfolders(folder):
            deeper, others = _walk(folder / name, (*inside, name))
            found += deeper
            rest += others
    return found, rest


def _subfolders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(folder) if entry.is_dir())


def _others_remark(root: Path, others: Sequence[Path]) -> list[str]:
    if not others:
        return []
    files = f"{len(others)} files are" if len(others) > 1 else "a file is"
    listed = ", ".join(str(path.relative_to(root)) for path in others[:LISTED])
    more = ", …" if len(others) > LISTED else ""
    return [f"{root}: {files} left out (no supported image format): {listed}{more}"]


def _sides_remark(root: Path, tops: Sequence[str], collection: Collection) -> list[str]:
    """Return a remark on classes or clients that are most likely test or validation images."""
    suspects = [name for name in tops if set(re.split("[^a-z]+", name.lower())) & SIDES.keys()]
    if not suspects:
        return []
    kind = "client" if collection.clients else "class"
    return [
        f"{root}: the folder '{suspects[0]}' is taken for a {kind} and trained on; if it holds "
        "images to test or validate with, put all others below a folder 'train' beside 'test'"
    ]


def _has_images(folder: Path) -> bool:
    return any(map(is_image_file, _files(folder)))


def _files(folder: Path) -> list[Path]:
    return sorted(folder / entry.name for entry in _entries(folder) if not entry.is_dir())


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden(entry.name)]
    except OSError as error:
        raise CafedclError(f"{folder}: cannot be read: {error.strerror or error}") from None
