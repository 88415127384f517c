"""A table as text: as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from cafedcl.report.table import (
    FULL_MEASURES,
    TABLE_MEASURES,
    TITLES,
    Cell,
    Column,
    RowClasses,
    ScoreTable,
)

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "±": r"$\pm$", "α": r"$\alpha$", "–": "--",
}  # fmt: skip
PAPER_MEASURES = ("accuracy", "std")
"""The scores that the paper's tables have."""
MOST_CLASSES = 12
"""Up to this many classes have their own column; of more, only the worst are named."""
WORST_CLASSES = 5
"""Classes of a method that are named if there are too many for columns."""


Fields = list[tuple[str, str]]
"""Columns of a setting: the source, which is ours or the paper, and the score."""


@dataclass(frozen=True)
class PlainTable:
    """A table of texts below the main one: a heading, and rows that start with a method."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def class_tables(scores: ScoreTable, full: bool = False) -> list[PlainTable]:
    """Return the tables below the main one: recall per class, and with ``full`` further scores."""
    tables = []
    for column in scores.columns:
        title = column.group.setting.title
        if column.classes:
            tables.append(recall_table(title, list(column.classes.items())))
        if full:
            heads = ["method", *(TITLES[measure] for measure in FULL_MEASURES)]
            rows = [
                [row.label, *(column.cells[row.label][m].text for m in FULL_MEASURES)]
                for row in column.group.rows
            ]
            note = (
                "Further scores, mean over classes, one against the rest; Sens.: sensitivity at "
                "the specificity of evaluate.specificity; Cal. ECE: of calibrated probabilities; "
                "Prob. acc.: accuracy of the most probable class"
            )
            tables.append(PlainTable(f"{note}: {title}", heads, rows))
    return tables


def recall_table(title: str, methods: Sequence[tuple[str, RowClasses]]) -> PlainTable:
    """Return the recall per class in %: of every class, or of the worst ones if there are many."""
    names = list(dict.fromkeys(name for _, each in methods for name in each.names))
    rows = []
    if len(names) <= MOST_CLASSES:
        for label, each in methods:
            rows.append([label, *(one_decimal(each.by_name.get(name)) for name in names)])
        return PlainTable(f"Recall per class in %: {title}", ["method", *names], rows)
    for label, each in methods:
        known = sorted((v, name) for name, v in each.by_name.items() if v is not None)
        rows.append([label, ", ".join(f"{name} {v:.1f}" for v, name in known[:WORST_CLASSES])])
    return PlainTable(f"Worst classes, recall in %: {title}", ["method", "worst classes"], rows)


def one_decimal(value: float | None) -> str:
    """Return a number with one decimal, or a dash."""
    return "–" if value is None else f"{value:.1f}"


def escape_latex(text: str) -> str:
    """Return a text in one line with all special characters of LaTeX escaped."""
    return "".join(SPECIAL.get(letter, letter) for letter in in_one_line(text))


def in_one_line(text: str) -> str:
    """Return a text without line breaks, such as in the name of a class: a row is one line."""
    return " ".join(text.splitlines())


def escape_markdown(text: str) -> str:
    """Return a text in one line with the special characters of Markdown escaped."""
    text = in_one_line(text)
    for letter in "\\|*_`<[":
        text = text.replace(letter, "\\" + letter)
    return text


def paper_cell(column: Column, method: str, measure: str) -> str:
    """Return the paper's number for a cell."""
    figures = column.position.figures.get(method)
    if figures is None or measure not in PAPER_MEASURES:
        return "–"
    return f"{figures[PAPER_MEASURES.index(measure)]:.2f}"


def cell_of(column: Column, label: str, measure: str) -> Cell:
    """Return a cell; an empty one if the method did not run in this setting."""
    return column.cells.get(label, {}).get(measure, Cell(()))


def fields(column: Column, paper: bool) -> Fields:
    """Return a setting's columns as (source, measure): ours, and with ``paper`` the paper's."""
    shown = [("ours", measure) for measure in TABLE_MEASURES]
    if paper and column.position.figures:
        shown += [("paper", measure) for measure in PAPER_MEASURES]
    return shown


def title_of(source: str, measure: str) -> str:
    """Return the heading of one column."""
    return TITLES[measure] if source == "ours" else f"paper {TITLES[measure]}"


def as_markdown(scores: ScoreTable, paper: bool = False, full: bool = False) -> str:
    """Return the table as Markdown; the best is bold, the second best underlined."""
    heads = ["method"]
    rules = ["---"]
    for column in scores.columns:
        for source, measure in fields(column, paper):
            name = escape_markdown(f"{column.position.title} ({column.position.heading})")
            heads.append(f"{name}<br>{title_of(source, measure)}")
            rules.append("---:")
    lines = [heads, rules]
    marks = {1: "**{}**", 2: "<u>{}</u>"}
    for row in scores.rows:
        cells = [escape_markdown(row.label)]
        for column in scores.columns:
            for source, measure in fields(column, paper):
                if source == "paper":
                    cells.append(paper_cell(column, row.label, measure))
                else:
                    cell = cell_of(column, row.label, measure)
                    cells.append(marks.get(cell.rank, "{}").format(cell.text))
        lines.append(cells)
    parts = [markdown_lines(lines), scores.caption]
    for table in class_tables(scores, full):
        body = [[escape_markdown(cell) for cell in row] for row in (table.heads, *table.rows)]
        rules = ["---", *("---:" for _ in table.heads[1:])]
        parts += [f"{escape_markdown(table.title)}:", markdown_lines([body[0], rules, *body[1:]])]
    if scores.notes:
        parts.append("\n".join(f"- {escape_markdown(note)}" for note in scores.notes))
    return "\n\n".join(parts) + "\n"


def markdown_lines(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as the lines of a table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_latex(scores: ScoreTable, paper: bool = False, full: bool = False) -> str:
    """Return LaTeX tables in the layout of the paper's Tables 1 and 2, with our numbers."""
    parts = ["% \\usepackage{booktabs,multirow,graphicx}"]
    by_table = groupby(scores.columns, key=lambda column: column.position.table)
    tables = [(number, list(columns)) for number, columns in by_table]
    for number, columns in tables:
        titles = "; ".join(column.group.setting.title for column in columns)
        # A single table is the whole comparison. If there are several, each states its part.
        caption = scores.caption if len(tables) == 1 else f"{titles}. {scores.caption}"
        parts.append(latex_table(scores, columns, number, caption, paper))
    parts += [plain_latex(table) for table in class_tables(scores, full)]
    parts += [f"% {in_one_line(note)}" for note in scores.notes]
    return "\n".join(parts) + "\n"


def latex_table(
    scores: ScoreTable, columns: Sequence[Column], number: int, caption: str, paper: bool
) -> str:
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
        rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{{label}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
    ]
    return "\n".join([*head, *lines, r"\bottomrule", r"\end{tabular}}", r"\end{table*}"])


def plain_latex(table: PlainTable) -> str:
    """Return a table of texts as one `table*`."""
    lines = [" & ".join(map(escape_latex, row)) + r" \\" for row in (table.heads, *table.rows)]
    return "\n".join(
        [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{escape_latex(table.title)}}}",
            rf"\begin{{tabular}}{{l{'c' * (len(table.heads) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
        ]
    )


def latex_cell(cell: Cell) -> str:
    """Return a cell in LaTeX, bold or underlined by its rank."""
    text = escape_latex(cell.text)
    return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(cell.rank, text)


def as_csv(scores: ScoreTable, paper: bool = False) -> str:
    """Return CSV with a row per method and setting; numbers are in %, with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    measures = (*TABLE_MEASURES, *FULL_MEASURES)
    ours = [f"{measure}_{what}" for measure in measures for what in ("mean", "std", "rank")]
    theirs = ["paper_accuracy", "paper_std"] if paper else []
    known = [each for column in scores.columns for each in column.classes.values()]
    classes = list(dict.fromkeys(name for each in known for name in each.names))
    recalls = [f"recall[{name}]" for name in classes]
    head = ["data", "split", "clients", "options", "attack_defence_privacy", "privacy_spent"]
    head += ["method", "protocol", "round", "seeds", "ranked_by"]
    writer.writerow([*head, *ours, "worst_class_name", "warning", *theirs, *recalls])
    for column in scores.columns:
        setting = column.group.setting
        for row in column.group.rows:
            cells = column.cells[row.label]
            numbers = [
                value
                for m in measures
                for value in (cells[m].mean, cells[m].std, cells[m].rank or None)
            ]
            figures = list(column.position.figures.get(row.label, (None, None))) if paper else []
            of_classes = column.classes.get(row.label, RowClasses([], []))
            values = [
                setting.data,
                setting.split,
                setting.clients,
                setting.others,
                row.runs[0].trust,
                row.spent,
                row.label,
                scores.protocol,
                scores.which,
                len(cells["accuracy"].values),
                column.ranked_by,
                *numbers,
                of_classes.worst,
                "; ".join(filter(None, [of_classes.warning, row.caveats])),
                *figures,
                *(of_classes.by_name.get(name) for name in classes),
            ]
            writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()
