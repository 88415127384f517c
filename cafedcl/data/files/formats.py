"""File formats of published image sets: IDX, gzip, tar, zip and NumPy archives.

Nothing is unpacked to disk: members of an archive are read by their exact names.
"""

import gzip
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

from cafedcl.core.arrays import Array, Bytes
from cafedcl.core.errors import CafedclError

ImagesAndLabels = tuple[Array, Array]

BROKEN = (
    EOFError,
    OSError,
    ValueError,
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    struct.error,
)
"""The errors that a damaged file can raise in its reader."""
AGAIN = "delete it and get it again"
NPZ_NAMES = (("x_{}", "y_{}"), ("{}_images", "{}_labels"), ("{}_x", "{}_y"))
"""Names of images and labels in ``.npz`` files, for train, test or val."""
UNSPLIT_NAMES = (("x", "y"), ("images", "labels"))
"""Those of training images, or of all, in files without names for training images."""


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, decompressed if its name ends in ``.gz``."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CafedclError(f"{path}: cannot be read: {error.strerror or error}") from None
    return gunzip(data, str(path)) if path.suffix == ".gz" else data


def gunzip(data: bytes, where: str) -> bytes:
    """Return a gzip file's content; an incomplete file is an error."""
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error, struct.error) as error:
        raise CafedclError(f"{where}: not a complete gzip file ({error}); {AGAIN}") from None


def parse_idx(data: bytes, where: str) -> Bytes:
    """Return the array of an IDX file of unsigned bytes (MNIST's format)."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise CafedclError(f"{where}: not an IDX file of bytes; {AGAIN}")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise CafedclError(f"{where}: the IDX header is cut off; {AGAIN}")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    # Python's integers, since a damaged header can ask for more than 64 bits hold.
    size = int(np.prod(shape, dtype=object)) if shape else 0
    if len(data) - start != size:
        raise CafedclError(
            f"{where}: {len(data) - start} bytes where the header says {size}; {AGAIN}"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def tar_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the named members of a tar archive; a missing one is an error."""
    wanted = set(names)
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                _refuse_escape(path, member.name)
                if member.name in wanted and member.isfile():
                    content = archive.extractfile(member)
                    found[member.name] = content.read() if content else b""
    except BROKEN as error:
        raise CafedclError(f"{path}: not a complete archive ({error}); {AGAIN}") from None
    return _complete(path, wanted, found)


def zip_names(path: Path) -> list[str]:
    """Return the names of all files in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except BROKEN as error:
        raise CafedclError(f"{path}: not a complete archive ({error}); {AGAIN}") from None
    for name in names:
        _refuse_escape(path, name)
    return names


def zip_members(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the named members of a zip archive; a missing one is an error."""
    wanted = set(names)
    present = wanted & set(zip_names(path))
    try:
        with zipfile.ZipFile(path) as archive:
            found = {name: archive.read(name) for name in present}
    except (*BROKEN, RuntimeError, NotImplementedError) as error:
        raise CafedclError(f"{path}: not a complete archive ({error}); {AGAIN}") from None
    return _complete(path, wanted, found)


def _complete(path: Path, wanted: set[str], found: dict[str, bytes]) -> dict[str, bytes]:
    missing = sorted(wanted - found.keys())
    if missing:
        raise CafedclError(
            f"{path}: it is not the official archive, since it has no '{missing[0]}'; {AGAIN}"
        )
    return found


def _refuse_escape(path: Path, name: str) -> None:
    windows = PureWindowsPath(name)
    if windows.drive or windows.root or PurePosixPath(name).is_absolute() or ".." in windows.parts:
        raise CafedclError(
            f"{path}: refused: its member '{name}' lies outside the archive; get the official file"
        )


def read_npz(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` file by name; pickled objects are refused."""
    try:
        # Opened here because numpy never closes a file that it opened itself if the archive is
        # broken.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            arrays: dict[str, Array] = {}
            if not isinstance(archive, np.ndarray):
                arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged or hostile archive can raise anything
        raise CafedclError(
            f"{path}: not a complete .npz file of plain arrays ({_first_line(error)})"
            + _about_objects(error)
        ) from None
    if isinstance(archive, np.ndarray):
        raise CafedclError(f"{path}: it holds one array, not the named arrays of an .npz file")
    for name, array in arrays.items():
        # numpy returns the bytes of a member that is not an array, such as a pickle.
        if not isinstance(array, np.ndarray):
            raise CafedclError(
                f"{path}: its member '{name}' is not a plain array; write it with np.savez"
            )
    return arrays


def names_of_side(
    arrays: Mapping[str, Array], side: str, others: Sequence[tuple[str, str]] = ()
) -> tuple[str, str] | None:
    """Return the names of the images and labels of train, test or val in an ``.npz`` file.

    If it has them under several names, these are the first of NPZ_NAMES, then of ``others``.
    """
    usual = [(images.format(side), labels.format(side)) for images, labels in NPZ_NAMES]
    return next((pair for pair in [*usual, *others] if {*pair} <= arrays.keys()), None)


def images_and_labels(
    arrays: Mapping[str, Array], side: str, others: Sequence[tuple[str, str]] = ()
) -> ImagesAndLabels | None:
    """Return the images and labels of train, test or val, as `names_of_side` finds them."""
    names = names_of_side(arrays, side, others)
    return None if names is None else (arrays[names[0]], arrays[names[1]])


def read_npy(path: Path) -> Array:
    """Return the array of an ``.npy`` file; pickled objects are refused."""
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except Exception as error:  # a damaged or hostile file can raise anything
        raise CafedclError(
            f"{path}: not a complete .npy file of plain numbers ({_first_line(error)})"
            + _about_objects(error)
        ) from None
    if not isinstance(array, np.ndarray):
        raise CafedclError(f"{path}: it holds several arrays; name it .npz")
    return array


def _about_objects(error: BaseException) -> str:
    """Return what to do about arrays of Python objects, such as a column of pandas."""
    if "Object arrays" not in str(error):
        return ""
    return "; save texts as y.astype(str), and images as one array of numbers"


def _first_line(error: BaseException) -> str:
    if "allow_pickle" in str(error) and "Object arrays" not in str(error):
        # numpy takes unknown content for pickled objects, and advises loading them.
        return "it is no array"
    return (str(error).splitlines() or [type(error).__name__])[0]
