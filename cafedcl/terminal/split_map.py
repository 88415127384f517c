"""A split in a terminal: its map of clients and classes, and its statistics."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cafedcl.core.printable import printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from cafedcl.terminal.split_statistics import Statistics

WIDEST_NAME = 24
"""The most letters of a client's name in a map."""
SHADES = ("#1b1b2f", "#2b2d6e", "#3a4fa8", "#3f7fc1", "#46a9c4", "#6cc9a4", "#b5dd6b", "#f2e85c")


def split_map(
    counts: "Tensor | NDArray[np.int64]",
    names: Sequence[str],
    clients: Sequence[str] = (),
    most: int = 30,
) -> RenderableType:
    """Return the clients × classes map: the training images of each class at each client.

    ``clients`` are the clients' names; without names they are numbered.
    """
    table = Table(box=None, padding=(0, 0), pad_edge=False, show_header=True, header_style="dim")
    table.add_column("client ", style="dim")
    # Four letters and a space, or full columns would run together.
    heads = [printable(name)[:4] for name in names[:40]]
    legend = ""
    if len(set(heads)) < len(heads):
        heads = [str(number) for number in range(1, len(heads) + 1)]
        known = zip(heads, names, strict=False)
        legend = ", ".join(f"{number} {printable(name)}" for number, name in known)
    for head in heads:
        table.add_column(f"{head:^4} ", justify="center")
    table.add_column("  images", justify="right", style="dim")
    peak = max(int(counts.max()), 1)
    for client, row in enumerate(counts[:most].tolist()):
        cells = [count_cell(count, peak) for count in row[:40]]
        who = printable(clients[client])[:WIDEST_NAME] if clients else f"{client:>6}"
        table.add_row(Text(f"{who} "), *cells, f"  {sum(row)}")
    parts: list[RenderableType] = [table]
    if len(counts) > most:
        parts.append(Text(f"… and {len(counts) - most} more clients", style="dim"))
    if legend:
        parts.append(Text(f"classes: {legend}", style="dim"))
    return Group(*parts)


def count_cell(count: int, peak: int) -> Text:
    """Return a number of images on a background that gets lighter as the number grows."""
    if not count:
        return Text("     ", style=f"#ffffff on {SHADES[0]}")
    # The square root keeps small numbers distinct; one large client would make them all dark.
    level = int((len(SHADES) - 1.001) * (count / peak) ** 0.5)
    shade = SHADES[1 + min(len(SHADES) - 2, level)]
    ink = "#000000" if count > peak / 3 else "#ffffff"
    return Text(f"{count:^5}", style=f"{ink} on {shade}")


def split_numbers(numbers: "Statistics") -> RenderableType:
    """Return the statistics of a split as a table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    ratio = "undefined: a class has no images"
    if numbers.imbalance_ratio is not None:
        ratio = f"{numbers.imbalance_ratio:.1f}"
    sizes = f"{numbers.smallest} to {numbers.largest}, {numbers.mean_size:.1f} on average"
    classes = (
        f"{numbers.fewest_classes} to {numbers.most_classes}, {numbers.mean_classes:.1f} on average"
    )
    table.add_row("clients", f"{numbers.clients}, with {numbers.images} training images")
    table.add_row("images per client", sizes)
    table.add_row("classes per client", classes)
    table.add_row("largest / smallest class", ratio)
    table.add_row(
        "label divergence",
        f"{numbers.divergence:.3f} between clients (0: same, 1: disjoint)",
    )
    return table
