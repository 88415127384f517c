"""Messages between Flower's short-lived client process and a site's worker, over a Unix socket.

In both directions a message is the number of parts, then each part's name and bytes, each preceded
by its length. This module does not import PyTorch.
"""

import socket
import struct
from pathlib import Path

MessageParts = dict[str, bytes]
"""A message: its parts by name."""

LARGEST = 1 << 34
"""The most bytes of a part."""
_NUMBER = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")


def send(line: socket.socket, parts: MessageParts) -> None:
    """Send a message."""
    line.sendall(_NUMBER.pack(len(parts)))
    for name, data in parts.items():
        for piece in (name.encode(), data):
            line.sendall(_LENGTH.pack(len(piece)))
            line.sendall(piece)


def receive(line: socket.socket) -> MessageParts:
    """Receive a message; raises ConnectionError if the connection ends before it is complete."""
    (number,) = _NUMBER.unpack(_receive_exactly(line, _NUMBER.size))
    parts: MessageParts = {}
    for _ in range(number):
        name = _receive_piece(line).decode()
        parts[name] = _receive_piece(line)
    return parts


def request_worker(
    path: str | Path, parts: MessageParts, patience: float | None = None
) -> MessageParts:
    """Send a message to the worker at a socket and return its answer; raises on a timeout."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(patience)
        line.connect(str(path))
        send(line, parts)
        return receive(line)


def _receive_piece(line: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_receive_exactly(line, _LENGTH.size))
    if length > LARGEST:
        raise ConnectionError(f"a part of {length} bytes is too large")
    return _receive_exactly(line, length)


def _receive_exactly(line: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    view = memoryview(data)
    got = 0
    while got < length:
        size = line.recv_into(view[got:])
        if not size:
            raise ConnectionError("the other side closed the connection")
        got += size
    return bytes(data)
