"""Texts as parts of file and folder names."""

import re


def slug(text: str, keep: str = ".,=+-") -> str:
    """Return a text as part of a file name: letters, digits, ``_`` and the characters in ``keep``.

    Everything else becomes a dash. A name never begins or ends with a dot or a dash, because a
    leading dot hides a file.
    """
    return re.sub(rf"[^\w{re.escape(keep)}]+", "-", text).strip("-.") or "-"
