"""The terminal that everything is printed to."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """Return the terminal."""
    from rich.console import Console

    return Console(highlight=False)
