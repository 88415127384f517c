"""A safe reader of CIFAR's pickles: plain values and byte arrays only, and no code runs."""

import io
import pickle
from typing import Any

import numpy as np

from cafedcl.core.arrays import Bytes
from cafedcl.core.errors import CafedclError
from cafedcl.data.files.formats import AGAIN


class _RefusedError(Exception):
    """A pickle asks for something other than arrays."""


class _Dtype:
    """Stands in for ``numpy.dtype`` and keeps its name."""

    def __init__(self, name: object = None, *_: object) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: object) -> None:
        pass


class _NdarrayType:
    """Stands in for the class ``numpy.ndarray``, which pickles name but never call."""


class _PickledArray:
    """Stands in for an array of bytes and keeps its shape and content."""

    def __init__(self, *_: object) -> None:
        self.value: Bytes | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        self.value = _bytes_array(content, shape, dtype, fortran)


def _bytes_array(content: Any, shape: Any, dtype: Any, fortran: object) -> Bytes:
    if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", "uint8", "|u1"):
        raise _RefusedError("an array that is not of unsigned bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


def _from_buffer(
    content: Any, dtype: Any, shape: Any, order: object = "C", *_: object
) -> _PickledArray:
    array = _PickledArray()
    array.value = _bytes_array(content, shape, dtype, order == "F")
    return array


def _latin1(text: object, encoding: object = "latin1") -> bytes:
    """Stand in for ``_codecs.encode``, by which Python 3 writes bytes to protocol 2 pickles."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _RefusedError("_codecs.encode")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NdarrayType,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}
# NumPy 2 renamed its module core to _core; files exist from before and after.
for _package in ("numpy.core", "numpy._core"):
    _KNOWN[f"{_package}.multiarray", "_reconstruct"] = _PickledArray
    _KNOWN[f"{_package}.numeric", "_frombuffer"] = _from_buffer


class _SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise _RefusedError(f"{module}.{name}")
        return _KNOWN[module, name]


def unpickle(data: bytes, where: str) -> dict[str, Any]:
    """Return a pickled dict of plain values and byte arrays; anything else is refused."""
    try:
        value = _SafeUnpickler(io.BytesIO(data), encoding="bytes").load()
    except _RefusedError as error:
        raise CafedclError(
            f"{where}: refused: the pickle asks for {error}, and only arrays of bytes are read; "
            "get the official file"
        ) from None
    except Exception as error:  # a broken pickle can raise anything
        raise CafedclError(
            f"{where}: not a complete pickle ({type(error).__name__}: {error}); {AGAIN}"
        ) from None
    if not isinstance(value, dict):
        raise CafedclError(f"{where}: the pickle holds no dict; {AGAIN}")
    return {_text(key): _plain(item) for key, item in value.items()}


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, _PickledArray):
        return value.value
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [_text(item) for item in value]
    return value
