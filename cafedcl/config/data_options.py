"""The options of the data set."""

import math
from dataclasses import dataclass

from cafedcl.config.options import option

NONE = "none"
"""The value for the column of clients or groups if the data have none."""


@dataclass(frozen=True)
class DataOptions:
    """The data set."""

    name: str = option(
        "digits",
        "data set (see `cafedcl datasets`), path to your own data, package.module:function, "
        "or sites: each Flower site has its own data",
    )
    test: str = option(
        "",
        "sites: data set whose test images the server evaluates on; empty: only the sites evaluate",
    )
    dir: str = option(
        "", "folder with data files; empty: $CAFEDCL_DATA, or the user's cache folder"
    )
    download: bool = option(True, "download missing files of a data set from its official address")
    images: int = option(
        0,
        "maximum number of training images: the same share of every class, and the same images "
        "for every seed; 0: all",
        low=0,
    )
    size: int = option(
        0,
        "image size in pixels for your own data, .npz files, gtsrb and ham10000; "
        "0: the most common size, 32 for gtsrb and ham10000",
        low=0,
        high=4096,
    )
    colours: str = option(
        "auto",
        "grey or rgb: convert all images; auto: leave them as they are; own images stay grey if "
        "all files are grey",
        choices=("auto", "grey", "rgb"),
    )
    client: str = option(
        "",
        "column of your own table whose values are the clients; empty: client, site, hospital or "
        "institution; none: no column",
    )
    group: str = option(
        "",
        "column of your own table whose values group images that stay together in every split; "
        "empty: patient, lesion or group; none: no column",
    )
    window: str = option(
        "auto",
        "grey values LOW,HIGH of your own images with more than 8 bits that become black and "
        "white; auto: a DICOM file's own window, else the range of all images; auto:LOW,HIGH: a "
        "DICOM file's own window, else these values",
    )
    strict: bool = option(
        False, "refuse your own data if an image is corrupt, instead of skipping the image"
    )

    @property
    def limits(self) -> tuple[float, ...]:
        """The lowest and the highest grey value of the window; empty if it is chosen."""
        return _numbers(self.window.removeprefix("auto:"))

    def contradiction(self) -> str | None:
        """Return what is wrong with the window, or None."""
        if self.window == "auto":
            return None
        limits = self.limits
        if len(limits) == 2 and limits[0] < limits[1]:
            return None
        return (
            f'window = "{self.window}": auto, LOW,HIGH or auto:LOW,HIGH is expected, such as '
            "-160,240"
        )


def _numbers(text: str) -> tuple[float, ...]:
    """Return the finite numbers of a text such as ``-160,240``; nothing if it is anything else."""
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        return ()
    return numbers if all(math.isfinite(number) for number in numbers) else ()
