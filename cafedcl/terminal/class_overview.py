"""Scores per class in a terminal: recalls, warnings, and the scores of the last round."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.report.class_scores import ClassScores, skew_words
from cafedcl.report.printed import MOST_CLASSES, WORST_CLASSES, recall_table
from cafedcl.report.printed_rich import rich_plain
from cafedcl.report.table import RowClasses, mean_classes

FULL_SCORES = {
    "macro_f1": "macro-F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "sensitivity": "sensitivity",
    "ece": "calibration error",
    "calibrated_ece": "calibrated",
    "probable_accuracy": "accuracy of the most probable class",
}
"""Scores that only the last round has: their names in metrics.jsonl, and in words."""


def class_lines(classes: ClassScores | None, part: str) -> list[Text]:
    """Return a run's recall per class, a note about skewed labels, and a warning.

    ``part`` is ``server`` or ``own``.
    """
    if classes is None:
        return []
    lines = []
    recall = classes.recall.get(part)
    if recall is not None:
        known = [
            (name, 100 * float(value))
            for name, value in zip(classes.names, recall, strict=True)
            if value == value  # NaN, for a class without test images, differs from itself
        ]
        what = "recall per class"
        if len(known) > MOST_CLASSES:
            what = "worst classes, recall"
            known = sorted(known, key=lambda pair: pair[1])[:WORST_CLASSES]
        words = ", ".join(f"{name} {value:.1f}" for name, value in known)
        lines.append(Text.assemble((f"{what}: ", "bold"), words))
    lines += [Text(f"warning: {gap}", style="bold yellow") for gap in classes.gaps]
    if classes.skewed:
        words = f"{skew_words(classes.imbalance)}: look at balanced accuracy"
        lines.append(Text(words, style="yellow"))
    if part in classes.one_class:
        lines.append(Text(f"warning: {classes.one_class[part]}", style="bold yellow"))
    return lines


def full_scores(line: MetricsLine | None, part: str) -> list[Text]:
    """Return the scores that only the last round has, in one line; none if there are none."""
    scores = (line or {}).get(part) or {}
    words = [
        f"{title} {100 * scores[name]:.1f}"
        for name, title in FULL_SCORES.items()
        if scores.get(name) is not None
    ]
    if "auroc" not in scores:
        return []
    return [Text.assemble(("one class against the rest: ", "bold"), "  ".join(words))]


def compared_classes(
    names: Sequence[str], classes: Sequence[ClassScores | None], part: str, width: int
) -> list[RenderableType]:
    """Return the recall per class of several runs, with warnings."""
    found: list[tuple[str, RowClasses]] = []
    for name, each in zip(names, classes, strict=True):
        row = mean_classes([each] if each else [], part)
        if row is not None:
            found.append((name, row))
    if not found:
        return []
    whose = "the server's model" if part == "server" else "clients' own models"
    parts: list[RenderableType] = [rich_plain(recall_table(whose, found), width)]
    gaps = next((each.gaps for each in classes if each is not None and each.gaps), [])
    parts += [Text(f"warning: {gap}", style="bold yellow") for gap in gaps]
    imbalance = max(each.imbalance for each in classes if each is not None)
    if any(each.skewed for each in classes if each is not None):
        words = f"{skew_words(imbalance)}: compare methods by balanced accuracy"
        parts.append(Text(words, style="yellow"))
    parts += [
        Text(f"warning: {name}: {row.warning}", style="bold yellow")
        for name, row in found
        if row.warning
    ]
    return parts
