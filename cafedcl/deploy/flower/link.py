"""The line between Flower's short-lived client process and a site's worker: a Unix socket only its
owner may open.

Both ways a message is a number of parts, each a name and bytes, with their lengths in front. Free
of PyTorch.
"""

import socket
import struct
from pathlib import Path

Parts = dict[str, bytes]
LARGEST = 1 << 34
_NUMBER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def send(line: socket.socket, parts: Parts) -> None:
    """Send a message."""
    line.sendall(_NUMBER.pack(len(parts)))
    for name, data in parts.items():
        for piece in (name.encode(), data):
            line.sendall(_LENGTH.pack(len(piece)))
            line.sendall(piece)


def receive(line: socket.socket) -> Parts:
    """Receive a message; raises ConnectionError if the other side is gone before it is whole."""
    (number,) = _NUMBER.unpack(_exactly(line, _NUMBER.size))
    parts: Parts = {}
    for _ in range(number):
        name = _piece(line).decode()
        parts[name] = _piece(line)
    return parts


def ask(path: str | Path, parts: Parts, patience: float | None = None) -> Parts:
    """Send a message to the worker behind a socket and return its answer; raises if there is none
    in time.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(patience)
        line.connect(str(path))
        send(line, parts)
        return receive(line)


def _piece(line: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    if length > LARGEST:
        raise ConnectionError(f"a part of {length} bytes is announced")
    return _exactly(line, length)


def _exactly(line: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view = memoryview(data)
    got = 0
    while got < length:
        size = line.recv_into(view[got:])
        if not size:
            raise ConnectionError("the site's worker hung up")
        got += size
    return bytes(data)
