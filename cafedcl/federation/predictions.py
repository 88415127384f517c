"""Images from users, and a model's predictions for them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.data.grey_values import Window
from cafedcl.data.images import ENDINGS, is_hidden, is_image_file, read_image

if TYPE_CHECKING:
    import pandas as pd

Pixels = Tensor | np.ndarray[Any, Any]
"""Images in memory."""
DecideBy = Literal["score", "probability"]
"""Whether an image's class is the one with the highest score or the most probable one."""
Paths = str | Path | Sequence[str | Path]
"""Image files, or folders of them."""


@dataclass(frozen=True)
class ReadImages:
    """Images as pixels, and their files."""

    pixels: Tensor
    files: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)
    """Files that could not be read, and why."""
    shallow: list[Path] = field(default_factory=list)
    """Files of 8 bits, where the run has a window for images with more."""


@dataclass(frozen=True)
class Predictions:
    """Predicted classes of images, by number and by name, with their scores."""

    labels: Tensor
    """Predicted classes: those with the highest score, or the most probable ones if asked for."""
    names: list[str]
    similarity: Tensor
    """The score of the predicted class: a cosine similarity or a probability, by the method."""
    probabilities: Tensor
    """(images, classes); calibrated if the run had validation images."""
    strangeness: Tensor | None
    """Above 1, an image is unlike those seen in training; None where that is not known."""
    classes: tuple[str, ...]
    files: list[Path] = field(default_factory=list)
    """The images' files, if they were read from files."""
    failed: dict[Path, str] = field(default_factory=dict)
    """Files that could not be read, and why."""
    shallow: list[Path] = field(default_factory=list)
    """Files of 8 bits, where the run has a window for images with more: they may show other grey
    values as black and white.
    """

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def improbable(self) -> int:
        """The number of images whose predicted class is not the most probable one."""
        return int((self.labels != self.probabilities.argmax(1)).sum())

    @property
    def unusual(self) -> list[bool | None]:
        """Whether each image is unlike those seen in training; None where that is not known."""
        if self.strangeness is None:
            return [None] * len(self)
        return [bool(value > 1) for value in self.strangeness]

    def top(self, k: int) -> list[list[tuple[str, float]]]:
        """Return the k most probable classes of every image, with their probabilities."""
        if k < 1:
            raise CafedclError(f"top: {k} classes: 1 or more is expected")
        best, labels = self.probabilities.topk(min(k, len(self.classes)), dim=1)
        return [
            [(self.classes[label], p) for label, p in zip(row, chances, strict=True)]
            for row, chances in zip(labels.tolist(), best.tolist(), strict=True)
        ]

    def rows(self, k: int = 1) -> list[dict[str, Any]]:
        """Return one plain record per image, and one per file that could not be read."""
        chance = self.probabilities.gather(1, self.labels[:, None])[:, 0].tolist()
        strange: list[float | None] = [None] * len(self)
        if self.strangeness is not None:
            strange = [float(value) for value in self.strangeness]
        rows = []
        for index, best in enumerate(self.top(k)):
            row: dict[str, Any] = {"image": str(self.files[index]) if self.files else index}
            row |= {"class": self.names[index], "probability": chance[index]}
            row |= {"similarity": float(self.similarity[index])}
            row |= {"unusual": self.unusual[index], "strangeness": strange[index]}
            if k > 1:
                row["top"] = [{"class": name, "probability": p} for name, p in best]
            rows.append(row)
        return rows + [{"image": str(file), "error": why} for file, why in self.failed.items()]

    def frame(self) -> "pd.DataFrame":
        """Return a table with a row per image and a column for the probability of every class."""
        import pandas as pd

        rows = [row for row in self.rows() if "error" not in row]
        chances = [f"p[{name}]" for name in self.classes]
        scores = pd.DataFrame(self.probabilities.numpy(), columns=chances)
        return pd.concat([pd.DataFrame(rows), scores], axis=1)


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return image files: those that are given, and all those in folders that are given."""
    found: list[Path] = []
    for path in paths:
        if not str(path):
            raise CafedclError("an empty path names no image; `.` is the current folder")
        given = Path(path)
        if not given.is_dir():
            if given.exists() and not given.is_file():
                # A pipe would be waited for, perhaps forever.
                raise CafedclError(f"{given}: it is neither a file nor a folder")
            found.append(given)
            continue
        inside = sorted(filter(is_image_file, _files_below(given)))
        if not inside:
            raise CafedclError(
                f"{given}: there are no images in this folder: no DICOM, and no name that ends "
                f"with {', '.join(ENDINGS)}"
            )
        found += inside
    return found


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files of a folder that are not hidden; refuse folders that cannot be read."""

    def refuse(error: OSError) -> None:
        raise CafedclError(f"{error.filename}: cannot be read: {error.strerror}")

    searched = {os.path.realpath(folder)}
    # Links are followed, as in training, but not in circles.
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        places = {name: os.path.realpath(Path(place, name)) for name in folders}
        # Folders that are removed from this list are not searched.
        folders[:] = [
            name for name in sorted(folders) if not is_hidden(name) and places[name] not in searched
        ]
        searched.update(places[name] for name in folders)
        yield from (Path(place) / name for name in names if not is_hidden(name))


def read_each(files: Sequence[Path], shape: Shape, window: Window) -> ReadImages:
    """Read image files, as far as they can be read."""
    images = [torch.zeros(0, *shape, dtype=torch.uint8)]
    good: list[Path] = []
    failed: dict[Path, str] = {}
    shallow: list[Path] = []
    for file in files:
        try:
            pixels, deep = read_image(file, shape, window)
        except CafedclError as error:
            failed[file] = str(error).removeprefix(f"{file}: ")
            continue
        images.append(pixels[None])
        good.append(file)
        if window.is_chosen and not deep:
            shallow.append(file)
    return ReadImages(torch.cat(images), good, failed, shallow)


def given_paths(x: Pixels | Paths) -> list[str | Path] | None:
    """Return the paths of images that are given as such; None for images in memory."""
    if isinstance(x, str | Path):
        return [x]
    if isinstance(x, list | tuple) and x and all(isinstance(each, str | Path) for each in x):
        return list(x)
    return None


def as_images(x: Any, shape: Shape) -> Tensor:
    """Return images as uint8 (N, channels, height, width); raise if they do not fit."""
    try:
        # Copied, because PyTorch warns of arrays that it must not write to.
        images = x.cpu() if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
    except (TypeError, ValueError):
        raise CafedclError(
            "images must be files, folders, or an array of numbers of one shape, "
            f"not {type(x).__name__}"
        ) from None
    if images.is_floating_point():
        if images.isnan().any():
            raise CafedclError("images contain NaN; replace it, or leave those images out")
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):
            raise CafedclError("images as floats must lie in [0, 1]; give uint8 for 0 to 255")
        # In 16 bits, the product would be rounded first.
        images = (images.double() * 255).round().to(torch.uint8)
    elif images.dtype != torch.uint8:
        raise CafedclError(
            "images must be uint8 or floats in [0, 1], not "
            f"{str(images.dtype).removeprefix('torch.')}; scale them to 0 to 255 as in training, "
            "with the run's data.window if it has one"
        )
    channels, height, width = shape
    single = {(height, width), shape, (height, width, channels)}
    if tuple(images.shape) in single:
        images = images[None]
    if channels == 1 and tuple(images.shape[1:]) == (height, width):
        images = images[:, None]
    if tuple(images.shape[1:]) == (height, width, channels):
        images = images.permute(0, 3, 1, 2)
    if tuple(images.shape[1:]) != shape:
        raise CafedclError(
            f"images have shape {tuple(images.shape)}; "
            f"this run expects (N, {channels}, {height}, {width})"
            + (f" or (N, {height}, {width})" if channels == 1 else "")
        )
    return images
