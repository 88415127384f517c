"""What leaves a site, as a table in a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def disclosed_table(rows: Sequence[Sequence[str]]) -> Table:
    """Return the rows of `deploy.disclosure.as_table` as a table with a section per occasion."""
    table = Table("what", "shape")
    table.add_column("bytes", justify="right")
    table.add_column("what it tells")
    occasion = ""
    for when, name, shape, size, tells in rows:
        if when != occasion:
            table.add_section()
            table.add_row(Text(when, style="bold"))
            occasion = when
        table.add_row(Text(f"  {name}"), shape, size, tells)
    return table
