"""A table for a terminal: as much side by side as fits, without ever cutting a number."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cafedcl.report.palette import series_style
from cafedcl.report.printed import (
    Fields,
    PlainTable,
    cell_of,
    class_tables,
    fields,
    paper_cell,
)
from cafedcl.report.table import TITLES, Column, ScoreTable

SettingPart = tuple[Column, Fields]
"""A setting with some of its columns."""
LONGEST_HEAD = 12
"""Letters of a class's name in one line of a heading."""


def as_rich(
    scores: ScoreTable, paper: bool = False, width: int = 120, full: bool = False
) -> RenderableType:
    """Return the table for a terminal, with as many settings side by side as fit."""
    label = max((len(row.label) for row in scores.rows), default=6) + 2
    blocks: list[list[SettingPart]] = []
    room = 0
    for column in scores.columns:
        for part in parted(column, fields(column, paper), width - label):
            needed = width_of(part[1])
            if not blocks or needed > room:
                blocks.append([])
                room = width - label
            blocks[-1].append(part)
            room -= needed
    parts: list[RenderableType] = [rich_block(scores, block) for block in blocks]
    parts.append(Text(scores.caption + "\n", style="dim"))
    parts += [rich_plain(table, width) for table in class_tables(scores, full)]
    alarming = ("damaged", "failed", "warning")
    parts += [
        Text(note, style="yellow" if note.startswith(alarming) else "dim") for note in scores.notes
    ]
    return Group(*parts)


def rich_plain(plain: PlainTable, width: int) -> RenderableType:
    """Return a table of texts for a terminal, in blocks of as many columns as fit."""
    label = max(len(row[0]) for row in (plain.heads, *plain.rows))
    blocks: list[list[int]] = [[]]
    room = width - label - 2
    for index in range(1, len(plain.heads)):
        longest = max(len(row[index]) for row in plain.rows)
        needed = max(longest, min(len(plain.heads[index]), LONGEST_HEAD)) + 2
        if blocks[-1] and needed > room:
            blocks.append([])
            room = width - label - 2
        blocks[-1].append(index)
        room -= needed
    parts: list[RenderableType] = [Text(plain.title, style="italic")]
    for block in blocks:
        table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0, 0, 1))
        table.add_column(plain.heads[0], no_wrap=True)
        for index in block:
            longest = max(len(row[index]) for row in plain.rows)
            table.add_column(
                Text(plain.heads[index], overflow="fold"),
                justify="right",
                max_width=max(longest, LONGEST_HEAD),
            )
        for row in plain.rows:
            name = Text(row[0], style=series_style(row[0]).colour)
            table.add_row(name, *(Text(row[index]) for index in block))
        parts.append(table)
    return Group(*parts)


def width_of(shown: Fields) -> int:
    """Return how many characters the columns of a setting need."""
    return sum(14 if source == "ours" else 9 for source, _ in shown)


def parted(column: Column, shown: Fields, room: int) -> list[SettingPart]:
    """Return a setting with its columns, in parts that fit into the room."""
    parts: list[SettingPart] = [(column, [])]
    for field in shown:
        if parts[-1][1] and width_of([*parts[-1][1], field]) > room:
            parts.append((column, []))
        parts[-1][1].append(field)
    return parts


def rich_block(scores: ScoreTable, parts: Sequence[SettingPart]) -> RenderableType:
    """Return some settings side by side; the best is bold, the second best underlined."""
    headings = " | ".join(dict.fromkeys(column.position.heading for column, _ in parts))
    # Narrow gaps: all scores of a setting fit into 80 columns.
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("\nmethod", no_wrap=True)
    for column, shown in parts:
        for index, (source, measure) in enumerate(shown):
            above = ""
            if index == 0:
                above = column.position.title
            elif source == "paper":
                above = "paper"
            table.add_column(f"{above}\n{TITLES[measure]}", justify="right")
    styles = {1: "bold", 2: "underline"}
    for row in scores.rows:
        if not any(row.label in column.cells for column, _ in parts):
            continue
        cells = [Text(row.label, style=series_style(row.label).colour)]
        for column, shown in parts:
            for source, measure in shown:
                if source == "paper":
                    cells.append(Text(paper_cell(column, row.label, measure), style="dim"))
                else:
                    cell = cell_of(column, row.label, measure)
                    cells.append(Text(cell.text, style=styles.get(cell.rank, "")))
        table.add_row(*cells)
    # A title of the table itself would wrap at the width of the table.
    return Group(Text(headings, style="italic"), table)
