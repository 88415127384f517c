"""Clients as people know them: by their name where they have one, else by their number."""

from collections.abc import Sequence

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.printable import printable

MANY_CLIENTS = 10_000
"""From this many clients on, values that only a few have are stored and counted sparsely."""


def client_title(names: Sequence[str], client: int) -> str:
    """Return how a client is displayed: by its name, or as ``client 2`` where it has none."""
    if 0 <= client < len(names):
        return printable(names[client])
    return f"client {client}"


def client_number(names: Sequence[str], clients: int, wanted: int | str) -> int:
    """Return the number of a client that is given by name or by number."""
    text = str(wanted)
    if text in names:
        return list(names).index(text)
    if text.isascii() and text.isdecimal() and int(text) < clients:
        return int(text)
    if names:
        raise CafedclError(f"client {text}: there is no such client; {nearest(text, [*names])}")
    raise CafedclError(
        f"client {text}: there is no such client; they are numbered 0 to {clients - 1}"
    )
