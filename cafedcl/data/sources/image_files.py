"""Sets published as single image files, in folders or zip archives."""

import io
import zipfile
from collections.abc import Callable, Sequence
from typing import BinaryIO

from cafedcl.core.arrays import Bytes
from cafedcl.core.errors import CafedclError
from cafedcl.data.files.formats import AGAIN
from cafedcl.data.images import Opener, decode_images


def decode_all(
    where: object, names: Sequence[str], openers: Sequence[Opener], size: int, *, crop: bool
) -> Bytes:
    """Return all images (N, height, width, channels); a broken image is an error."""
    decoded = decode_images(openers, size, crop=crop)
    if decoded.bad:
        index, reason = next(iter(decoded.bad.items()))
        raise CafedclError(
            f"{where}: {names[index]} cannot be read ({reason}; "
            f"{len(decoded.bad)} broken images in total); {AGAIN}"
        )
    return decoded.pixels


def zip_opener(archive: zipfile.ZipFile, name: str) -> Callable[[], BinaryIO]:
    """Return a function that opens a member of an archive in memory."""
    return lambda: io.BytesIO(archive.read(name))
