"""CIFAR's batches are Python pickles. Here a pickle may hold plain values and byte arrays, and can
run nothing.
"""

import io
import pickle
from typing import Any

import numpy as np

from cafedcl.core.errors import CafedclError
from cafedcl.data.files.formats import AGAIN, Bytes


class _RefusedError(Exception):
    """A pickle asked for something besides arrays."""


class _Dtype:
    """Stands for ``numpy.dtype``: remembers its name."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass


class _NdarrayType:
    """Stands for the class ``numpy.ndarray``, which is named but never called."""


class _Array:
    """Stands for an array of bytes: remembers its shape and content."""

    def __init__(self, *_: object) -> None:
        self.value: Bytes | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.value = _bytes_array(content, shape, dtype, fortran)


def _bytes_array(content: Any, shape: Any, dtype: Any, fortran: object) -> Bytes:
    if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", "uint8", "|u1"):
        raise _RefusedError("an array that is not of unsigned bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _from_buffer(content: Any, dtype: Any, shape: Any, order: object = "C", *_: object) -> _Array:
    array = _Array()
    array.value = _bytes_array(content, shape, dtype, order == "F")
    return array


def _latin1(text: object, encoding: object = "latin1") -> bytes:
    """Stand for ``_codecs.encode``, with which Python 3 writes bytes into an old pickle."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _RefusedError("_codecs.encode")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NdarrayType,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}
for _package in ("numpy.core", "numpy._core"):
    _KNOWN[f"{_package}.multiarray", "_reconstruct"] = _Array
    _KNOWN[f"{_package}.numeric", "_frombuffer"] = _from_buffer


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise _RefusedError(f"{module}.{name}")
        return _KNOWN[module, name]


def unpickle(data: bytes, where: str) -> dict[str, Any]:
    """Return a pickled dict of plain values and byte arrays; anything else in it is refused, and
    nothing runs.
    """
    try:
        value = _Reader(io.BytesIO(data), encoding="bytes").load()
    except _RefusedError as error:
        raise CafedclError(
            f"{where}: refused: the pickle asks for {error}, and only arrays of bytes are read; get the official file"
        ) from None
    except Exception as error:  # a broken pickle can raise anything
        raise CafedclError(
            f"{where}: not a whole pickle ({type(error).__name__}: {error}); {AGAIN}"
        ) from None
    if not isinstance(value, dict):
        raise CafedclError(f"{where}: the pickle holds no dict; {AGAIN}")
    return {_text(key): _plain(item) for key, item in value.items()}


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [_text(item) for item in value]
    return value
