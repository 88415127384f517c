"""Hugging Face data sets, saved on disk or by name. Needs the optional package ``datasets``."""

import importlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from cafedcl.config.sections import DataOptions
from cafedcl.core.errors import CafedclError
from cafedcl.data.cache import Remarks
from cafedcl.data.dataset import Dataset
from cafedcl.data.own.items import SIDES, Collection, Item, decode_collection

PREFIX = "hf:"
IMAGE = ("image", "img", "path", "file")
LABEL = ("label", "labels", "class", "fine_label")
SAVED_FILES = ("dataset_info.json", "state.json", "dataset_dict.json")


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds a data set that ``save_to_disk`` wrote."""
    return any((folder / name).is_file() for name in SAVED_FILES)


def read_hub(name: str, options: DataOptions) -> tuple[Dataset, Remarks]:
    """Return a data set saved on disk, or ``hf:NAME`` or ``hf:NAME:CONFIG`` from the hub."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise CafedclError(
            f"{name}: reading it needs Hugging Face datasets; pip install cafedcl[hf]"
        ) from None
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
    for key, part in parts.items():
        side = SIDES.get(str(key).lower())
        if side is not None:
            names = _collect_rows(name, side, part, datasets.Image(decode=False), items)
            classes = classes or names
    if not items:
        raise CafedclError(
            f"{name}: it has no split train or test, but {', '.join(map(str, parts))}"
        )
    return decode_collection(Collection(name, items, classes), options)


def _collect_rows(where: str, side: str, part: Any, undecoded: Any, items: list[Item]) -> list[str]:
    """Append a part's images to ``items`` and return its class names, if it has any."""
    columns = list(part.features)
    image = next((word for word in IMAGE if word in columns), None)
    label = next((word for word in LABEL if word in columns), None)
    if image is None or label is None:
        raise CafedclError(
            f"{where}: it has the columns {', '.join(columns)}; it needs image and label"
        )
    names = list(getattr(part.features[label], "names", None) or [])
    for number, row in enumerate(part.cast_column(image, undecoded)):
        value = row[label]
        if names and not 0 <= int(value) < len(names):
            raise CafedclError(f"{where}: label {value} of {side} image {number} is out of range")
        text = names[int(value)] if names else str(value)
        client = ""
        if "client" in columns and side == "train":
            client = str(row["client"])
        items.append(Item(f"{side} image {number}", _opener(row[image]), text, client, side))
    return names


def _opener(cell: Mapping[str, Any]) -> Path | Callable[[], BinaryIO]:
    content = cell.get("bytes")
    if content is not None:
        return lambda: io.BytesIO(content)
    return Path(str(cell.get("path")))
