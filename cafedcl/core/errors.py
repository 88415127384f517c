"""The one exception that users see."""

from cafedcl.core.printable import printable


class CafedclError(Exception):
    """A mistake that the user can correct: one line that says what, where and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def nearest(word: str, known: "list[str]") -> str:
    """Return «did you mean …?» for a misspelt name, or the list of all names."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"available: {', '.join(sorted(known))}"
