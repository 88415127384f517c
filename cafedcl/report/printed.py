"""A table as text: for a terminal, and as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cafedcl.report.palette import series_style
from cafedcl.report.table import TABLE_MEASURES, TITLES, Cell, Column, ScoreTable

if TYPE_CHECKING:
    from rich.console import RenderableType

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "α": r"$\alpha$", "–": "--",
}  # fmt: skip


def escape_latex(text: str) -> str:
    """Return a text with all special characters of LaTeX escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def escape_markdown(text: str) -> str:
    """Return a text with the special characters of Markdown escaped."""
    for letter in "\\|*_`<[":
        text = text.replace(letter, "\\" + letter)
    return text


def paper_cell(column: Column, method: str, measure: str) -> str:
    """Return the paper's number for a cell."""
    figures = column.position.figures.get(method)
    if figures is None or measure == "worst":
        return "–"
    return f"{figures[0 if measure == 'accuracy' else 1]:.2f}"


def cell_of(column: Column, label: str, measure: str) -> Cell:
    """Return a cell; an empty one if the method did not run in this setting."""
    return column.cells.get(label, {}).get(measure, Cell(()))


def fields(column: Column, paper: bool) -> list[tuple[str, str]]:
    """Return the columns of a setting as (source, measure): ours, and the paper's if asked for."""
    shown = [("ours", measure) for measure in TABLE_MEASURES]
    if paper and column.position.figures:
        shown += [("paper", "accuracy"), ("paper", "std")]
    return shown


def title_of(source: str, measure: str) -> str:
    """Return the heading of one column."""
    return TITLES[measure] if source == "ours" else f"paper {TITLES[measure]}"


def as_markdown(scores: ScoreTable, paper: bool = False) -> str:
    """Return the table as Markdown; the best is bold, the second best underlined."""
    heads = ["method"]
    rules = ["---"]
    for column in scores.columns:
        for source, measure in fields(column, paper):
            name = escape_markdown(f"{column.position.title} ({column.position.heading})")
            heads.append(f"{name}<br>{title_of(source, measure)}")
            rules.append("---:")
    lines = [heads, rules]
    marks = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    for row in scores.rows:
        cells = [escape_markdown(row.label)]
        for column in scores.columns:
            for source, measure in fields(column, paper):
                if source == "paper":
                    cells.append(paper_cell(column, row.label, measure))
                else:
                    cell = cell_of(column, row.label, measure)
                    cells.append(marks[cell.rank].format(cell.text))
        lines.append(cells)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {escape_markdown(note)}" for note in scores.notes)
    return f"{table}\n\n{scores.caption}\n" + (f"\n{notes}\n" if notes else "")


def as_latex(scores: ScoreTable, paper: bool = False) -> str:
    """Return LaTeX tables in the layout of the paper's Tables 1 and 2, with our numbers."""
    parts = ["% \\usepackage{booktabs,multirow,graphicx}"]
    for number, columns in groupby(scores.columns, key=lambda column: column.position.table):
        parts.append(latex_table(scores, list(columns), number, paper))
    parts += [f"% {note}" for note in scores.notes]
    return "\n".join(parts) + "\n"


def latex_table(scores: ScoreTable, columns: Sequence[Column], number: int, paper: bool) -> str:
    """Return one `table*` with some settings."""
    spans = [len(fields(column, paper)) for column in columns]
    first = [""]
    top = [""]
    top_rules = []
    at = 2
    for heading, block in groupby(
        zip(columns, spans, strict=True), key=lambda pair: pair[0].position.heading
    ):
        width = sum(span for _, span in block)
        top.append(rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(heading)}}}")
        top_rules.append(rf"\cmidrule(lr){{{at}-{at + width - 1}}}")
        at += width
    names = [r"Method"]
    rules = []
    at = 2
    for column, span in zip(columns, spans, strict=True):
        names.append(rf"\multicolumn{{{span}}}{{c}}{{{escape_latex(column.position.title)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
        at += span
        first += [escape_latex(title_of(*field)) for field in fields(column, paper)]
    lines = [
        " & ".join(top) + r" \\",
        "".join(top_rules),
        " & ".join(names) + r" \\",
        "".join(rules),
    ]
    lines += [" & ".join(first) + r" \\", r"\midrule"]
    rows = [row for row in scores.rows if any(row.label in column.cells for column in columns)]
    for index, row in enumerate(rows):
        if row.base == "cafedcl" and index and rows[index - 1].base != "cafedcl":
            lines.append(r"\midrule")
        cells = [escape_latex(row.label)]
        for column in columns:
            for source, measure in fields(column, paper):
                if source == "paper":
                    cells.append(escape_latex(paper_cell(column, row.label, measure)))
                else:
                    cells.append(latex_cell(cell_of(column, row.label, measure)))
        lines.append(" & ".join(cells) + r" \\")
    layout = "l|" + "|".join("c" * span for span in spans)
    label = {1: "tab:settings", 2: "tab:robustness"}.get(number, "tab:others")
    head = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escape_latex(scores.caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
    ]
    return "\n".join([*head, *lines, r"\bottomrule", r"\end{tabular}}", r"\end{table*}"])


def latex_cell(cell: Cell) -> str:
    """Return a cell in LaTeX, bold or underlined by its rank."""
    text = escape_latex(cell.text)
    return {0: text, 1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}[cell.rank]


def as_csv(scores: ScoreTable, paper: bool = False) -> str:
    """Return CSV with a row per method and setting; numbers are in %, with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ours = [f"{measure}_{what}" for measure in TABLE_MEASURES for what in ("mean", "std", "rank")]
    theirs = ["paper_accuracy", "paper_std"] if paper else []
    writer.writerow(
        ["data", "split", "clients", "method", "protocol", "round", "seeds", *ours, *theirs]
    )
    for column in scores.columns:
        setting = column.group.setting
        for row in column.group.rows:
            cells = column.cells[row.label]
            numbers = [
                value
                for m in TABLE_MEASURES
                for value in (cells[m].mean, cells[m].std, cells[m].rank or None)
            ]
            figures = list(column.position.figures.get(row.label, (None, None))) if paper else []
            head = [
                setting.data,
                setting.split,
                setting.clients,
                row.label,
                scores.protocol,
                scores.which,
            ]
            values = [*head, len(cells["accuracy"].values), *numbers, *figures]
            writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def as_rich(scores: ScoreTable, paper: bool = False, width: int = 120) -> "RenderableType":
    """Return the table for a terminal, with as many settings side by side as fit."""
    from rich.console import Group
    from rich.text import Text

    label = max((len(row.label) for row in scores.rows), default=6) + 2
    blocks: list[list[Column]] = []
    room = 0
    for column in scores.columns:
        needed = sum(15 if source == "ours" else 9 for source, _ in fields(column, paper))
        if not blocks or needed > room:
            blocks.append([])
            room = width - label
        blocks[-1].append(column)
        room -= needed
    parts: list[RenderableType] = [rich_block(scores, block, paper) for block in blocks]
    parts.append(Text(scores.caption, style="dim"))
    parts += [
        Text(note, style="yellow" if note.startswith(("damaged", "failed")) else "dim")
        for note in scores.notes
    ]
    return Group(*parts)


def rich_block(scores: ScoreTable, columns: Sequence[Column], paper: bool) -> "RenderableType":
    """Return some settings side by side; the best is bold, the second best underlined."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headings = " | ".join(dict.fromkeys(column.position.heading for column in columns))
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("\nmethod", no_wrap=True)
    for column in columns:
        for index, (source, measure) in enumerate(fields(column, paper)):
            above = ""
            if index == 0:
                above = column.position.title
            elif source == "paper":
                above = "paper"
            table.add_column(f"{above}\n{TITLES[measure]}", justify="right")
    styles = {0: "", 1: "bold", 2: "underline"}
    for row in scores.rows:
        if not any(row.label in column.cells for column in columns):
            continue
        cells = [Text(row.label, style=series_style(row.label).colour)]
        for column in columns:
            for source, measure in fields(column, paper):
                if source == "paper":
                    cells.append(Text(paper_cell(column, row.label, measure), style="dim"))
                else:
                    cell = cell_of(column, row.label, measure)
                    cells.append(Text(cell.text, style=styles[cell.rank]))
        table.add_row(*cells)
    # A title of the table itself would wrap at the width of the table.
    return Group(Text(headings, style="italic"), table)
