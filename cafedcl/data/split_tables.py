"""A split as a CSV file with a row per image, which other programs can write and read."""

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from cafedcl.core.arrays import Ints
from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.files import explained, read_content, write_atomically
from cafedcl.data.shards import PARTS, Shards

ENDING = ".csv"
IMAGE = "image"
CLIENT = "client"
LABEL = "label"
PART = "part"
COLUMNS = (IMAGE, LABEL, CLIENT, PART)
OWN_TABLE = re.compile(",".join(COLUMNS).encode())
"""The beginning of a table that was written here."""
LONGEST_NUMBER = 19
"""A number of an image or a class has fewer digits."""


def is_table(path: Path) -> bool:
    """Return whether a file of a split is a table, by its name."""
    return path.suffix.lower() == ENDING


@dataclass(frozen=True)
class SplitTable:
    """What a table says about every training image."""

    owner: Ints
    """The client of every image; −1 for an image that is not in the table."""
    part: Ints
    """The part of every image, as an index of `PARTS`; empty if the table does not say."""
    clients: int
    names: tuple[str, ...]
    """The clients' names; empty if they have numbers only."""

    def owners(self, part: str) -> Ints:
        """Return the client of every image of a part; −1 for the others."""
        return np.where(self.part == PARTS.index(part), self.owner, -1)


def save_table(shards: Shards, labels: Tensor, path: Path) -> None:
    """Write a split to a table: each image by its number in the training set."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    classes = labels.tolist()
    found: dict[int, tuple[str | int, str]] = {}
    for part in PARTS:
        for client, images in enumerate(getattr(shards, part)):
            named = shards.names[client] if shards.names else client
            found |= dict.fromkeys(images.tolist(), (named, part))
    rows.writerows((image, classes[image], *found[image]) for image in sorted(found))
    with explained(path):
        write_atomically(path, text.getvalue().encode())


def check_labels(path: Path) -> None:
    """Refuse a table that cannot be checked when only a part of the data is used."""
    head = read_content(path).decode("utf-8-sig", "replace").partition("\n")[0]
    if LABEL not in (name.strip() for name in head.split(",")):
        raise CafedclError(
            f"{path}: with data.images, images are numbered anew, so the table needs the column "
            "label, which shows that it was made for the same part of the data"
        )


def load_table(path: Path, labels: Ints) -> SplitTable:
    """Read a table; the first mistake in it is named with its line."""
    try:
        lines = list(csv.reader(io.StringIO(read_content(path).decode("utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise CafedclError(f"{path}: not a CSV file in UTF-8: {error}") from None
    head = [name.strip() for name in lines[0]] if lines else []
    _check_head(path, head)
    client_of: dict[int, str] = {}
    part_of: dict[int, int] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        where = f"{path}, line {number}"
        if len(line) != len(head):
            raise CafedclError(f"{where}: {len(line)} values; {', '.join(head)} are expected")
        row = {name: value.strip() for name, value in zip(head, line, strict=True)}
        image = _whole_number(row[IMAGE])
        if image is None or not 0 <= image < len(labels):
            raise CafedclError(
                f"{where}: image = {row[IMAGE]}: the number of a training image is expected, from "
                f"0 to {len(labels) - 1}"
            )
        if image in client_of:
            raise CafedclError(f"{where}: image {image} is listed twice")
        if LABEL in row and _whole_number(row[LABEL]) != labels[image]:
            raise CafedclError(
                f"{where}: image {image} has the label {labels[image]} in these data, and "
                f"{row[LABEL]} in the table: it was made for other data"
            )
        if not row[CLIENT]:
            raise CafedclError(f"{where}: the client is missing")
        client_of[image] = row[CLIENT]
        if PART in row:
            if row[PART] not in PARTS:
                raise CafedclError(f"{where}: part = {row[PART]}: {nearest(row[PART], [*PARTS])}")
            part_of[image] = PARTS.index(row[PART])
    return _numbered(path, client_of, part_of, len(labels))


def _check_head(path: Path, head: list[str]) -> None:
    for name in (IMAGE, CLIENT):
        if name not in head:
            raise CafedclError(
                f"{path}: it has no column '{name}'; a split has the columns image (the number of "
                "a training image) and client, and perhaps label and part"
            )
    for name in head:
        if name not in COLUMNS or head.count(name) > 1:
            problem = "it appears twice" if name in COLUMNS else nearest(name, [*COLUMNS])
            raise CafedclError(f"{path}: column '{name}': {problem}")


def _whole_number(text: str) -> int | None:
    # Python refuses to read numbers of thousands of digits.
    short = len(text) < LONGEST_NUMBER
    return int(text) if short and text.isascii() and text.isdecimal() else None


def _numbered(
    path: Path, client_of: dict[int, str], part_of: dict[int, int], images: int
) -> SplitTable:
    """Return the rows with clients by number: the given numbers, if these are 0 to K−1."""
    # Other numbers, such as those from 1 on, are names, but in numerical order.
    names = sorted(
        set(client_of.values()),
        key=lambda name: (_whole_number(name) is None, _whole_number(name) or 0, name),
    )
    if not names:
        raise CafedclError(f"{path}: it lists no image")
    numbers = [_whole_number(name) for name in names]
    if {*numbers} == {*range(len(names))}:
        index = dict(zip(names, numbers, strict=True))
        names = []
    else:
        index = {name: number for number, name in enumerate(names)}
    owner = np.full(images, -1)
    rows = np.fromiter(client_of, np.int64, len(client_of))
    owner[rows] = [index[name] for name in client_of.values()]
    part: Ints = np.full(images if part_of else 0, -1)
    if part_of:
        part[rows] = [part_of[image] for image in client_of]
    return SplitTable(owner, part, len(index), tuple(names))
