"""Tables of images: CSV or Parquet with a row per image; `columns` finds their meaning."""

import csv
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.data.own.columns import find_columns
from cafedcl.data.own.items import SIDES, Collection, Item


def read_table(path: Path, options: DataOptions) -> tuple[Collection, list[Path]]:
    """Return a table's images with classes and clients, and all files: the table and the images."""
    frame = _read_frame(path)
    columns, remarks = find_columns(path, list(frame.columns), options)
    _refuse_namesakes(path, columns.values())
    if frame.empty:
        raise CafedclError(f"{path}: the table has no rows")
    values = {what: frame[column].astype(str).tolist() for what, column in columns.items()}
    for what, column in columns.items():
        gaps = [row for row, value in enumerate(values[what]) if not value.strip()]
        # Only training images need a client.
        if what in ("client", "source") and "split" in values:
            gaps = [
                row for row in gaps if SIDES.get(values["split"][row].strip().lower()) == "train"
            ]
        if gaps:
            place = _places(path, gaps[:1])
            raise CafedclError(f"{path}: {place} has no {column}; fill it in or remove the row")
    n = len(frame)
    sides = [
        _side(path, row, value) for row, value in enumerate(values.get("split", ["train"] * n))
    ]
    kind = "source" if "source" in values else "natural"
    clients = values.get("source" if kind == "source" else "client", [""] * n)
    groups = [value.strip() for value in values.get("group", [""] * n)]
    files = [path.parent / name.strip() for name in values["path"]]
    missing = [row for row, file in enumerate(files) if not file.is_file()]
    if missing:
        first = values["path"][missing[0]]
        raise CafedclError(
            f"{path}: {len(missing)} of {n} images are missing, first {first} "
            f"in {_places(path, missing[:1])}; paths are relative to {path.parent}"
            + (" and written with / instead of \\" if "\\" in first else "")
        )
    _refuse_repeated(path, files, values["label"], sides)
    items = [
        Item(name, file, label, client, side, group)
        for name, file, label, client, side, group in zip(
            values["path"], files, values["label"], clients, sides, groups, strict=True
        )
    ]
    collection = Collection(
        str(path),
        items,
        clients={name for name in clients if name.strip()},
        client_kind=kind,
        group_kind=columns.get("group", ""),
        remarks=remarks,
    )
    return collection, [path, *files]


def _refuse_images(path: Path, frame: pd.DataFrame) -> None:
    """Refuse a column that holds images instead of paths, which would be printed in full."""
    for name, column in frame.items():
        if column.map(lambda value: isinstance(value, bytes | dict)).any():
            raise CafedclError(
                f"{path}: column '{name}' holds images or other bytes, not texts; write the images "
                "to files, and their paths into the table"
            )


def _read_frame(path: Path) -> pd.DataFrame:
    try:
        if path.suffix.lower() == ".csv":
            # Everything is read as text, so that a class called NA or 007 keeps its name.
            frame = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,
                encoding="utf-8-sig",
                sep=_separator(path),
            )
        else:
            optional("pyarrow", "parquet", f"{path}: reading Parquet")
            frame = pd.read_parquet(path)
            _refuse_images(path, frame)
            # As texts, since a column of numbers cannot hold an empty one.
            frame = frame.apply(lambda column: column.astype(str).where(column.notna(), ""))
    except CafedclError:
        raise
    except UnicodeDecodeError:
        raise CafedclError(f"{path}: it is not UTF-8 text; save it as CSV in UTF-8") from None
    except OSError as error:
        raise CafedclError(f"{path}: cannot be read: {error.strerror or error}") from None
    except pd.errors.EmptyDataError:
        raise CafedclError(
            f"{path}: it is empty; a table has a head, and a row per image"
        ) from None
    except Exception as error:  # pyarrow has its own errors
        raise CafedclError(f"{path}: {_why_unreadable(error)}") from None
    # pandas treats values without a column name as row names, and so shifts all the others.
    if path.suffix.lower() == ".csv" and not isinstance(frame.index, pd.RangeIndex):
        raise CafedclError(
            f"{path}: its rows have more values than its first line names columns; name every "
            "column, and quote values that contain the separator"
        )
    return frame


def _refuse_namesakes(path: Path, columns: Iterable[str]) -> None:
    """Refuse a CSV file with two columns of the same used name: pandas renames the second."""
    if path.suffix.lower() != ".csv":
        return
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file, delimiter=_separator(path)))
    for column in columns:
        if names.count(column) > 1:
            raise CafedclError(f"{path}: two columns are called '{column}'; rename or remove one")


def _why_unreadable(error: Exception) -> str:
    """Return what is wrong with a table, in words, since pandas describes its own internals."""
    uneven = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error))
    if uneven:
        expected, line, found = uneven.groups()
        return (
            f"line {line} has {found} values, but there are {expected} columns; put a value with a "
            "comma or semicolon in it in quotes"
        )
    return f"not a readable table: {error}"


def _separator(path: Path) -> str:
    """Return the separator of a CSV file: where the comma is the decimal sign, Excel writes
    semicolons.
    """
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline()
    # A name in quotes may have any of them in it.
    head = re.sub(r'"[^"]*"', "", head)
    return max(",;\t", key=head.count)


def _side(path: Path, row: int, value: str) -> str:
    side = SIDES.get(value.strip().lower())
    if side is None:
        place = _places(path, [row])
        raise CafedclError(f"{path}: split '{value}' in {place} is not train or test")
    return side


def _refuse_repeated(
    path: Path, files: Sequence[Path], labels: Sequence[str], sides: Sequence[str]
) -> None:
    """Refuse an image that is listed twice: it could be trained on and tested with."""
    first: dict[str, int] = {}
    for row, file in enumerate(files):
        # Different spellings and links may lead to one file.
        real = os.path.normcase(os.path.realpath(file))
        if real not in first:
            first[real] = row
            continue
        before = first[real]
        problem = "is listed twice"
        if labels[before] != labels[row]:
            problem = f"has two labels, '{labels[before]}' and '{labels[row]}'"
        elif sides[before] != sides[row]:
            problem = f"is in {sides[before]} and in {sides[row]}"
        raise CafedclError(
            f"{path}: {file.name} {problem}, in {_places(path, [before, row])}; keep one of them"
        )


def _places(path: Path, rows: Sequence[int]) -> str:
    """Return where rows are: their lines in a text file, or else their numbers."""
    word = "row"
    numbers = [row + 1 for row in rows]
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=_separator(path))
            # Blank lines are not rows, and a quoted text may have several lines.
            ends = [reader.line_num for cells in reader if cells]
        word = "line"
        numbers = [ends[row + 1] for row in rows]
    plural = "s" if len(rows) > 1 else ""
    return f"{word}{plural} {' and '.join(map(str, numbers))}"
