"""The console that all commands print to. It prints every text as it is: no markup, no emoji codes,
and no control characters.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console() -> "Console":
    """Return a console for standard output."""
    from cafedcl.terminal.printable_console import PrintableConsole

    return PrintableConsole(highlight=False, markup=False, emoji=False)


def headed(name: str, rest: str, style: str = "") -> "Text":
    """Return a line that starts with a name in bold, followed by two spaces and the rest."""
    from rich.text import Text

    return Text.assemble((name, "bold"), "  ", (rest, style))
