"""The console that all commands print to."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """Return a console for standard output."""
    from rich.console import Console

    return Console(highlight=False)
