"""Text from elsewhere, such as the names in a data set, made safe to print."""

CONTROL_PICTURES = 0x2400
"""Unicode has a visible picture of each of the first 32 control characters, from here on."""
REPLACEMENT = "\ufffd"

_VISIBLE: dict[int, int | str] = {code: CONTROL_PICTURES + code for code in range(32)}
# Line ends and tabs lay a text out, and do no harm.
del _VISIBLE[ord("\n")]
del _VISIBLE[ord("\t")]
_VISIBLE[0x7F] = "\u2421"
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), REPLACEMENT)
# Overrides of the writing direction, which can make one name look like another.
_VISIBLE |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), REPLACEMENT)
# Python reads bytes of a path that are not UTF-8 as lone surrogates, which cannot be written.
_VISIBLE |= dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)


def printable(text: str) -> str:
    """Return a text in which control characters are visible instead of acting on the terminal."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_VISIBLE)
