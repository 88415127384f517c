"""Clients as people know them: by their name where they have one, else by their number."""

from collections.abc import Sequence

from cafedcl.core.errors import CafedclError, nearest
from cafedcl.core.printable import printable

MANY_CLIENTS = 10_000
"""From this many clients on, what few of them have is stored and counted without the others."""


def client_title(names: Sequence[str], client: int) -> str:
    """Return what a person reads for a client: its name, or ``client 2`` where it has none."""
    if 0 <= client < len(names):
        return printable(names[client])
    return f"client {client}"


def client_number(names: Sequence[str], clients: int, wanted: int | str) -> int:
    """Return the number of the client that a person names, by its name or its number."""
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
