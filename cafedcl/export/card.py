"""The model card: what a model was trained on, how it performs, and what is not stated yet."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from cafedcl.config.privacy_options import PrivacyOptions, shown_epsilon
from cafedcl.config.sections import Config
from cafedcl.config.trust_options import short_attack, short_defence
from cafedcl.core.client_names import client_title
from cafedcl.core.files import write_atomically
from cafedcl.core.printable import printable
from cafedcl.data.grey_values import Window
from cafedcl.federation.result import Run
from cafedcl.federation.run_html import rounds_done
from cafedcl.federation.served_model import ServedModel
from cafedcl.functional.novelty import NOT_DETECTED
from cafedcl.report.class_scores import ClassScores, skew_words
from cafedcl.report.printed import escape_markdown, markdown_lines
from cafedcl.report.run_summary import RunSummary, read_run

SCORES = {
    "accuracy": "accuracy",
    "balanced": "balanced accuracy (mean recall of the classes)",
    "worst_class": "recall of the worst class",
    "macro_f1": "macro-F1",
    "auroc": "AUROC, one class against the rest",
    "auprc": "AUPRC, one class against the rest",
    "sensitivity": "sensitivity, one class against the rest",
    "ece": "expected calibration error, before calibration",
    "calibrated_ece": "expected calibration error of the probabilities",
    "probable_accuracy": "accuracy, if the most probable class is taken",
    "probable_balanced": "balanced accuracy, if the most probable class is taken",
}
OWN_SCORES = {
    "client_mean": "accuracy, weighted by the class frequencies of each client",
    "client_balanced": "balanced accuracy (mean recall of the classes that a client has)",
    "macro_f1": SCORES["macro_f1"],
    "auroc": SCORES["auroc"],
    "auprc": SCORES["auprc"],
    "sensitivity": SCORES["sensitivity"],
    "ece": SCORES["ece"],
}
"""Scores of clients' own models, which know only the classes of their client."""
NOT_SCORED = "This model was not scored."


def write_card(
    run: Run, model: ServedModel, file: Path, client: int | str | None = None, licence: str = ""
) -> Path:
    """Write the model card beside an exported file, and return its path.

    A user's text is kept: if a file of that name was edited, or is not a card at all, the new card
    is called ``NAME.new.md``.
    """
    text = model_card(run, model, file.name, client, licence)
    card = file.with_suffix(".md")
    if card.exists() and not is_unchanged(card.read_bytes()):
        card = file.with_suffix(".new.md")
    write_atomically(card, f"{text}\n{mark(text.encode())}\n".encode())
    return card


def mark(text: bytes) -> str:
    """Return the last line of a card, which shows whether it was changed since it was written."""
    return f"<!-- written by cafedcl, {hashlib.sha256(text).hexdigest()[:16]} -->"


def is_unchanged(content: bytes) -> bool:
    """Return whether a file is a card as it was written."""
    # An editor or a version control system may have changed the line endings.
    text, _, last = content.replace(b"\r\n", b"\n").rstrip(b"\n").rpartition(b"\n\n")
    return last == mark(text + b"\n").encode()


def model_card(
    run: Run, model: ServedModel, name: str, client: int | str | None, licence: str
) -> str:
    """Return the model card as Markdown."""
    summary = None if run.path is None else read_run(run.path)
    scored = scores(run, summary, client)
    tested = "This model was tested on the images named above only."
    if scored == NOT_SCORED:
        tested = "There are no results of this model on any test images."
    parts = [
        f"# {escape_markdown(name)}",
        intended_use(run, model, client),
        "## Training",
        training(run, summary),
        "## Scores",
        scored,
        "## Probabilities",
        probabilities(model),
        "## Privacy",
        privacy(run),
        "## Licence",
        "\n".join(map(escape_markdown, licence.splitlines()))
        or "Not stated. Say here who may use this model, and for what.",
        "## Limits",
        f"{tested} Nobody has checked it for any other use, such as a medical decision; images "
        "from other devices or patients can look different.",
    ]
    return printable("\n\n".join(parts)) + "\n"


def intended_use(run: Run, model: ServedModel, client: int | str | None) -> str:
    """Return what the model does, and what input its file takes."""
    whose = "the server's model"
    if client is not None:
        number = run.number_of(client)
        whose = f"the own model of {client_title(run.client_names, number)}"
    channels, height, width = model.shape
    colour = "grey" if channels == 1 else "RGB"
    names = ", ".join(model.classes)
    return escape_markdown(
        f"An image classifier for {len(model.classes)} classes ({names}): {whose} of a federated "
        f"run of {run.config.label}. It takes {colour} images as uint8, (N, {channels}, {height}, "
        f"{width}), and gives the probability of every class, in this order. Pixels are normalised "
        f"inside.{grey_levels(run.window)}"
    )


def grey_levels(window: Window) -> str:
    """Return how grey values of more than 8 bits became bytes in training, if there were any."""
    if not window.limits:
        return ""
    low, high = window.limits
    first = " A DICOM file's own window comes first." if window.prefers_own else ""
    return (
        " Grey values of more than 8 bits must be turned into bytes before, as in training: "
        f"{low:g} and below is 0, {high:g} and above is 255, with equal steps between.{first}"
    )


def training(run: Run, summary: RunSummary | None) -> str:
    """Return data, split, clients and rounds as a table."""
    config = run.config
    setting = None if summary is None or not summary.settings else summary.setting
    images = int(run.counts.sum())
    rows = [
        ["method", config.label],
        ["data", Path(config.data.name).name],
        ["split", config.split.kind if setting is None else setting.split],
        ["clients", str(len(run.counts))],
        ["training images", f"{images} ({counted(config)})"],
        ["rounds", f"{rounds_done(run.records)} of {config.federation.rounds}"],
        ["encoder", config.model.name],
        ["seed", str(config.run.seed)],
    ]
    if config.attack.kind != "none":
        lied = f"{short_attack(asdict(config.attack))}: clients lied, as an experiment"
        rows.append(["attack", lied])
    if config.defence.kind != "none":
        rows.append(["defence", short_defence(asdict(config.defence))])
    per_class = run.counts.sum(0).tolist()
    rows += [
        [f"images of {name}", str(number)]
        for name, number in zip(run.names, per_class, strict=True)
    ]
    return table(["", ""], rows)


def counted(config: Config) -> str:
    """Return what is not in the numbers of training images, and how exact they are."""
    words = ["without validation images"]
    if not config.at_sites:
        # A simulation stores exact numbers, whatever its clients report.
        return words[0]
    told = config.release.settled(own_data=True)
    if told.counts == "rounded":
        words.append(f"each site's rounded to multiples of {told.grid}")
    if told.counts == "withheld":
        words.append("sites withheld the numbers, so these are not counts")
    if told.fewest > 1:
        words.append(f"without classes of which a site has fewer than {told.fewest}")
    return "; ".join(words)


def scores(run: Run, summary: RunSummary | None, client: int | str | None) -> str:
    """Return the scores on test images, and those of each class."""
    part = "server" if client is None else "own"
    lines = [line for line in run.records if line.get(part)]
    found = shown_scores(lines[-1][part], SCORES if client is None else OWN_SCORES) if lines else []
    if not found:
        return NOT_SCORED
    words = "Scores of the server's model on the test images, in %."
    if client is not None:
        words = (
            "Scores of all clients' own models on test images, in %: means over clients. The "
            "recall of a class is the mean over the clients that have it."
        )
    parts = [words, table(["score", "%"], found)]
    # Of the round whose model this is: an interrupted run may have scored later ones.
    classes = None if summary is None else summary.classes(lines[-1])
    if classes is not None and part in classes.recall:
        parts += class_parts(classes, part)
    return "\n\n".join(parts)


def shown_scores(values: Mapping[str, float | None], titles: Mapping[str, str]) -> list[list[str]]:
    """Return the rows of the scores that were measured."""
    known = {name: value for name, value in values.items() if value is not None}
    return [
        [title, f"{100 * known[name]:.1f}"]
        for name, title in titles.items()
        if math.isfinite(known.get(name, math.nan))
    ]


def class_parts(classes: ClassScores, part: str) -> list[str]:
    """Return the table of recalls, with warnings."""
    rows = []
    for index, name in enumerate(classes.names):
        value = float(classes.recall[part][index])
        tested = "–" if classes.tested is None else str(int(classes.tested[index]))
        rows.append([name, tested, "–" if math.isnan(value) else f"{100 * value:.1f}"])
    parts = [table(["class", "test images", "recall, %"], rows)]
    parts += [escape_markdown(f"Warning: {gap}.") for gap in classes.gaps]
    if classes.skewed:
        parts.append(f"Note: {skew_words(classes.imbalance)}; look at balanced accuracy.")
    if part in classes.one_class:
        parts.append(escape_markdown(f"Warning: {classes.one_class[part]}."))
    return parts


def probabilities(model: ServedModel) -> str:
    """Return where the probabilities come from, and what counts as unusual."""
    words = [
        "They are not calibrated: the run had no validation images for this model, or is private, "
        "or is not finished, or its images are at sites."
    ]
    if model.calibrated_later:
        words = [
            f"They are calibrated on {model.calibration_images} labelled images that were given "
            f"after training: by a temperature of {float(model.temperature):.3f}, and by how "
            "common the classes were there. Where classes are more or less common, they do not "
            "hold."
        ]
    elif model.is_calibrated:
        words = [
            f"They are calibrated on {model.calibration_images} validation images that clients "
            f"held out of their training images: by a temperature of {float(model.temperature):.3f}"
            ", and by how common the classes were there. No test image was used. Where classes are "
            "more or less common, they do not hold."
        ]
    words.append(
        "The second result, `predicted`, is the number of the class with the highest score, which "
        "is what was scored above. Of a method that weighs all classes the same, it may be a rare "
        "class although a common one is more probable."
    )
    if model.knows_limits:
        words.append(
            "The third result, `strangeness`, is above 1 for images that are unlike those seen in "
            "training, by their features or by their pixels; each limit is one that 99.5 % of the "
            "validation images keep to."
        )
    else:
        words.append(f"{NOT_DETECTED.capitalize()}.")
    return " ".join(words)


def privacy(run: Run) -> str:
    """Return what is known about what the model reveals."""
    where = "in a simulation on one machine"
    if run.config.engine.name == "flower":
        where = "at sites that kept their images"
    spent = run.records[-1].get("privacy", {}) if run.records else {}
    if spent:
        return bounded_privacy(where, spent, run.config.privacy)
    return (
        f"Clients trained {where} and sent model updates, not images. No differential privacy was "
        "used: no noise was added, so there is no bound (ε is infinite) on what the model may give "
        "away about single images."
    )


def bounded_privacy(where: str, spent: Mapping[str, float], options: PrivacyOptions) -> str:
    """Return the bound on what the server's model reveals about a client or an image."""
    level = "client-level"
    neighbours = "neighbours differ in one whole client"
    besides = "class counts, pixel statistics, the scores above, or a client's own model"
    if options.protects_records:
        level = "record-level"
        neighbours = "neighbours differ in one image; ε is the largest of any client"
        besides = "class counts, pixel statistics or the scores above"
    return (
        f"Clients trained {where} and sent model updates, not images. The server's model has "
        f"{level} differential privacy: {shown_epsilon(spent)} at δ = {spent['delta']:g} (noise "
        f"multiplier {options.noise:g}, {spent['releases']:.0f} rounds, {neighbours}). The bound "
        f"is for the server's model only. It does not cover {besides}."
    )


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    body = [[escape_markdown(cell) for cell in row] for row in rows]
    rules = ["---", *("---:" for _ in heads[1:])]
    return markdown_lines([heads, rules, *body])
