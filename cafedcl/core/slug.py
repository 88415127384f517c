"""Texts as parts of file and folder names."""

import hashlib
import re

MOST_BYTES = 200
"""File systems allow 255 bytes for a name, and suffixes are added to it."""
DIGEST = 10
"""Hexadecimal digits that tell apart names that begin alike."""


def slug(text: str, keep: str = ".,=+-") -> str:
    """Return a text as part of a file name: letters, digits, ``_`` and the characters in ``keep``.

    Everything else becomes a dash. A name never begins or ends with a dot or a dash, because a
    leading dot hides a file. A long name is cut, and ends with a digest of the whole.
    """
    name = re.sub(rf"[^\w{re.escape(keep)}]+", "-", text).strip("-.") or "-"
    content = name.encode()
    if len(content) <= MOST_BYTES:
        return name
    digest = hashlib.sha256(content).hexdigest()[:DIGEST]
    # A character that the cut divides is dropped.
    start = content[: MOST_BYTES - DIGEST - 1].decode(errors="ignore")
    return f"{start}-{digest}"
