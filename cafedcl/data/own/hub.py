"""Hugging Face data sets, saved on disk or by name. Needs the optional package ``datasets``."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cafedcl.config.data_options import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.data.cache import Remarks
from cafedcl.data.dataset import Dataset
from cafedcl.data.own.columns import TABLE_WORDS, find_columns
from cafedcl.data.own.items import SIDES, Collection, Item, decode_collection

PREFIX = "hf:"
HUB_WORDS = {
    "path": ("image", "img", "path", "file"),
    "label": ("label", "labels", "class", "fine_label"),
    **{role: TABLE_WORDS[role] for role in ("client", "source", "group")},
}
"""The names of columns by their role. Data sets of the hub have their parts instead of a split."""
SAVED_FILES = ("dataset_info.json", "state.json", "dataset_dict.json")


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds a data set that ``save_to_disk`` wrote."""
    return any((folder / name).is_file() for name in SAVED_FILES)


def read_hub(name: str, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Return a data set saved on disk, or ``hf:NAME`` or ``hf:NAME:CONFIG`` from the hub."""
    datasets = optional("datasets", "hf", name)
    if name.startswith(PREFIX) and not options.download:
        raise CafedclError(
            f"{name}: it has to be downloaded from the hub; set data.download = true"
        )
    try:
        if name.startswith(PREFIX):
            loaded = datasets.load_dataset(*name.removeprefix(PREFIX).split(":", 1))
        else:
            loaded = datasets.load_from_disk(name)
    except Exception as error:  # network, hub, cache and file format have different errors
        raise CafedclError(f"{name}: cannot be loaded: {error}") from None
    parts = loaded if isinstance(loaded, Mapping) else {"train": loaded}
    items: list[Item] = []
    classes: list[str] = []
    columns: dict[str, str] = {}
    remarks: list[str] = []
    for key, part in parts.items():
        side = SIDES.get(str(key).lower())
        if side is not None:
            columns, remarks = find_columns(name, list(part.features), options, HUB_WORDS)
            names = _collect_rows(name, side, part, columns, datasets.Image(decode=False), items)
            classes = classes or names
    if not items:
        raise CafedclError(
            f"{name}: it has no split train or test, but {', '.join(map(str, parts))}"
        )
    collection = Collection(
        name,
        items,
        classes,
        client_kind="source" if "source" in columns else "natural",
        group_kind=columns.get("group", ""),
        remarks=remarks,
    )
    return decode_collection(collection, options)


def _collect_rows(
    where: str,
    side: str,
    part: Any,
    columns: Mapping[str, str],
    undecoded: Any,
    items: list[Item],
) -> list[str]:
    """Append a part's images to ``items`` and return its class names, if it has any."""
    image = columns["path"]
    label = columns["label"]
    owner = columns.get("client") or columns.get("source")
    group = columns.get("group")
    names = list(getattr(part.features[label], "names", None) or [])
    # Only training images need a client.
    needed = [image, label, *filter(None, (owner if side == "train" else None, group))]
    try:
        rows = part.cast_column(image, undecoded)
    except Exception as error:  # of datasets or of pyarrow, by what the column holds
        raise CafedclError(f"{where}: the column '{image}' holds no images: {error}") from None
    for number, row in enumerate(rows):
        for column in needed:
            if row[column] is None or not str(row[column]).strip():
                raise CafedclError(
                    f"{where}: {side} image {number} has no {column}; fill it in or remove the row"
                )
        value = row[label]
        if names and not 0 <= int(value) < len(names):
            raise CafedclError(f"{where}: label {value} of {side} image {number} is out of range")
        text = names[int(value)] if names else str(value)
        items.append(
            Item(
                f"{side} image {number}",
                _opener(row[image]),
                text,
                str(row[owner]) if owner and side == "train" else "",
                side,
                str(row[group]) if group else "",
            )
        )
    return names


def _opener(cell: Mapping[str, Any]) -> Path | Callable[[], BinaryIO]:
    content = cell.get("bytes")
    if content is not None:
        return lambda: io.BytesIO(content)
    return Path(str(cell.get("path")))
