"""Single files of a run folder, read strictly: a damaged one raises an error that names it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from cafedcl.core.arrays import Array
from cafedcl.core.digests import checked_header
from cafedcl.core.errors import CafedclError
from cafedcl.federation.sparse_tables import (
    NUMBER,
    ROWS,
    SERVER_CLIENTS,
    with_all_rows,
    with_server_clients,
)

if TYPE_CHECKING:
    from cafedcl.core.tensors import Tensors


def read_environment(file: Path) -> dict[str, Any]:
    """Return where and how a run was made; empty if the file does not exist."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        check_environment(about)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CafedclError(f"{file}: damaged: {reason(error)}; delete it to do without") from None
    assert isinstance(about, dict)
    return about


def check_environment(about: Any) -> None:
    """Raise ValueError or TypeError unless the parts that are read later are as expected."""
    if not isinstance(about, dict):
        raise TypeError("not a JSON object")
    packages = about.get("packages", {})
    if not isinstance(packages, dict) or not all(
        version is None or isinstance(version, str) for version in packages.values()
    ):
        raise ValueError("packages: names with versions are expected")
    for key in ("command", "notices"):
        words = about.get(key, [])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{key}: a list of words is expected")
    if not isinstance(about.get("flower", {}), dict):
        raise TypeError("flower: an object is expected")


def read_tables(
    file: Path, number: int, wanted: tuple[str, ...], counts: Array | None
) -> dict[str, Array]:
    """Return the entries of a round's file that begin with one of the wanted names.

    ``counts`` are the images per client and class, if they are known.
    """
    accepted = tuple(prefix + name for prefix in ("", ROWS) for name in wanted)
    header = checked_header(file.read_bytes())
    if header is not None and header != {"round": number}:
        raise ValueError(f"it says that it holds {header}, not round {number}")
    with safe_open(str(file), framework="numpy") as packed:
        names = [
            name
            for name in packed.keys()  # noqa: SIM118
            if name.startswith(accepted) or name == NUMBER
        ]
        tables = with_all_rows({name: packed.get_tensor(name) for name in names})
    if counts is None or not SERVER_CLIENTS.startswith(wanted):
        return tables
    return with_server_clients(tables, counts)


def read_data(file: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return counts per client and class, mean and std of pixels; names and image shape."""
    try:
        header = checked_header(file.read_bytes())
        with safe_open(file, framework="numpy") as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        check_data(arrays, header)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CafedclError(
            f"{file}: damaged: {reason(error)}; restore it from a backup, or run again"
        ) from None
    return arrays, header


def read_frozen(file: Path, *, needed: bool) -> "Tensors":
    """Return the frozen weights; none if the file does not exist and is not needed."""
    # Imported here because reading only scores needs no PyTorch.
    from cafedcl.core.tensors import digest, unpack

    if not file.exists():
        if needed:
            raise CafedclError(f"{file}: it is missing; restore it from a backup")
        return {}
    try:
        weights, header = unpack(file.read_bytes())
        whole = header.get("digest") == digest(weights)
    except (OSError, ValueError) as error:
        raise CafedclError(
            f"{file}: damaged: {reason(error)}; restore it from a backup, or run again"
        ) from None
    if not whole:
        raise CafedclError(
            f"{file}: damaged: its content does not match its digest; restore it from a backup, or "
            "run again"
        )
    return weights


def check_data(arrays: dict[str, Array], header: Any) -> None:
    """Raise unless counts, pixel moments, names and shape are there and fit together."""
    if not isinstance(header, dict):
        raise TypeError("its header is not a JSON object")
    names = header["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names: a list of texts is expected")
    shape = header["shape"]
    if not isinstance(shape, list) or [type(size) for size in shape] != [int] * 3:
        raise ValueError("shape: three whole numbers are expected")
    window = header.get("window", [])
    if not isinstance(window, list) or not all(type(limit) in (int, float) for limit in window):
        raise ValueError("window: numbers are expected")
    if len(window) not in (0, 2):
        raise ValueError("window: two numbers are expected")
    counts = arrays["counts"]
    if counts.dtype != np.int64 or counts.ndim != 2 or not counts.size:
        raise ValueError("counts: a table of whole numbers is expected")
    if counts.shape[1] != len(names):
        raise ValueError(f"counts of {counts.shape[1]} classes for {len(names)} names")
    clients = header.get("clients", [])
    if not isinstance(clients, list) or not all(isinstance(name, str) for name in clients):
        raise ValueError("clients: a list of texts is expected")
    if len(clients) not in (0, len(counts)):
        raise ValueError(f"counts of {len(counts)} clients for {len(clients)} names")
    if counts.min() < 0:
        raise ValueError("counts: there is a negative number")
    tested = arrays.get("tested", counts)
    if tested.dtype != np.int64 or tested.shape != counts.shape or tested.min() < 0:
        raise ValueError("tested: a table of whole numbers as large as that of counts is expected")
    for name in ("mean", "std"):
        values = arrays[name]
        fits = values.dtype == np.float32 and values.shape == (1, shape[0], 1, 1)
        if not fits or not np.isfinite(values).all():
            raise ValueError(f"{name}: a finite number per channel is expected")


def reason(error: Exception) -> str:
    """Return what is wrong with a file, without its name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text (byte {error.start})"
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error)
