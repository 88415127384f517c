"""Commands that use a trained model: `cafedcl predict` and `export`.

Nothing here imports PyTorch before a command needs it.
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from cafedcl.cli.options import RunPath
from cafedcl.cli.report import check_choice
from cafedcl.cli.session import load_torch, warn
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained, refuse_other_file, require_writable, write_atomically
from cafedcl.core.printable import printable
from cafedcl.terminal.console import console

if TYPE_CHECKING:
    from cafedcl.data.grey_values import Window
    from cafedcl.federation.predictions import Predictions
    from cafedcl.federation.result import Run
    from cafedcl.federation.served_model import ServedModel

COLUMNS = ("image", "class", "probability", "similarity", "unusual", "strangeness", "error")
"""The columns of a CSV file of predictions, before the probabilities of all classes."""
OWN_FILES = {"csv": re.compile(",".join(COLUMNS).encode()), "json": re.compile(rb'\{"image": ')}
"""The beginnings of prediction files."""
ClientModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|NUMBER", help="Use this client's own model instead of the server's."
    ),
]


SiteFolder = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a site of the deployment: use the site's own model, which only the "
        "site has."
    ),
]


Labelled = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        metavar="DATA",
        help="Fit the probabilities to labelled images: the path of your own data, or a data set's "
        "name. Only its test images are used, as the others may have been trained on.",
    ),
]
AllImages = Annotated[
    bool,
    typer.Option(
        "--all-images",
        help="With --calibrate: use all images of DATA. Only if the model was trained on none of "
        "them.",
    ),
]


def load_model(
    path: Path, site: Path | None, client: str | None, labelled: str | None, all_images: bool
) -> "tuple[Run, str | int | None]":
    """Return a run, with what a site keeps of it, and the client whose model is used.

    The model is calibrated on labelled images, if there are any.
    """
    from cafedcl import api

    if all_images and labelled is None:
        raise CafedclError("--all-images: of which data? add --calibrate DATA")
    run = api.load(path, warn)
    whose: str | int | None = client
    if site is not None:
        if client is not None:
            raise CafedclError("--site: it says which client it is; leave out --client")
        from cafedcl.deploy.site_memory import with_site

        run, whose = with_site(run, site)
    if labelled is not None:
        run = run.calibrated(labelled, whose, all_images=all_images)
    return run, whose


def predict(
    path: RunPath,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Image files, or folders of them.")
    ],
    client: ClientModel = None,
    site: SiteFolder = None,
    calibrate: Labelled = None,
    all_images: AllImages = False,
    top: Annotated[
        int, typer.Option(min=1, help="How many of the most probable classes to print.")
    ] = 1,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="table, csv or json (one object per line); by default from the name of --out, or "
            "table.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file, .csv or .json, instead of printing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    decide_by: Annotated[
        str,
        typer.Option(
            help="How the class is chosen: by the method's score, as in evaluation (score), or the "
            "most probable class, given how common the classes were in training (probability)."
        ),
    ] = "score",
) -> None:
    """Classify images with a run's model: the class of each image, and how probable it is.

    An image that is unlike those seen in training is marked as unusual. A file that cannot be read
    is reported, and the others are classified; the exit status is then 1.

    Some methods also know a mean training confidence of each class. It is printed once per class,
    because it says nothing about a single image.
    """
    load_torch()
    from cafedcl.federation.predictions import DecideBy
    from cafedcl.federation.run_folder import refuse_file_of_run

    check_choice("--format", form, ("table", "csv", "json"))
    check_choice("--decide-by", decide_by, get_args(DecideBy))
    by_name = out.suffix.lower().removeprefix(".") if out else "table"
    if as_json and form not in (None, "json"):
        raise CafedclError(f"--json, --format {form}: they say different things; give one of them")
    form = form or ("json" if as_json else by_name)
    if form not in ("table", "csv", "json"):
        raise CafedclError(f"--out {out}: .csv or .json is expected, or give --format")
    if form == "table" and out is not None:
        raise CafedclError(f"--out {out}: a table is only printed; use --format csv or json")
    if out is not None:
        refuse_file_of_run(out)
        refuse_other_file(out, OWN_FILES[form], "file of predictions")
        require_writable(out)
    loaded, whose = load_model(path, site, client, calibrate, all_images)
    found = loaded.predict(list(images), whose, cast(DecideBy, decide_by))
    for file, why in found.failed.items():
        warn(f"{file}: {why}; it is left out")
    if found.shallow:
        warn(shallow_words(found.shallow, loaded.window))
    if form == "table":
        print_table(loaded, found, loaded.served(whose), top)
    else:
        text = as_csv(found) if form == "csv" else as_json_lines(found, top)
        if out is None:
            print(printable(text), end="")
        else:
            with explained(out):
                write_atomically(out, printable(text).encode())
            print(printable(f"written: {out} ({len(found)} image{'s' * (len(found) != 1)})"))
    if found.failed:
        raise typer.Exit(1)


def as_json_lines(found: "Predictions", top: int) -> str:
    """Return one JSON object per image; files that could not be read have an error instead."""
    lines = []
    for index, row in enumerate(found.rows(top)):
        if "error" not in row:
            chances = found.probabilities[index].tolist()
            row["probabilities"] = dict(zip(found.classes, chances, strict=True))
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def as_csv(found: "Predictions") -> str:
    """Return CSV with a row per image, and a column for the probability of every class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = list(COLUMNS)
    writer.writerow([*head, *(f"p[{name}]" for name in found.classes)])
    for index, row in enumerate(found.rows()):
        unknown = [""] * len(found.classes)
        chances = unknown if "error" in row else found.probabilities[index].tolist()
        values = ["" if row.get(name) is None else row[name] for name in head]
        writer.writerow([*values, *chances])
    return text.getvalue()


def print_table(loaded: "Run", found: "Predictions", model: "ServedModel", top: int) -> None:
    """Print the predictions, and where their probabilities come from."""
    from rich.table import Table
    from rich.text import Text

    from cafedcl.functional.novelty import NOT_DETECTED

    table = Table(box=None, header_style="bold")
    table.add_column("image", overflow="fold")
    for head in ("class", "probability", "similarity"):
        table.add_column(head)
    if top > 1:
        table.add_column(f"top {top}")
    table.add_column("")
    for row in found.rows(top):
        if "error" in row:
            continue
        cells = [row["image"], row["class"], f"{row['probability']:.3f}"]
        cells.append(f"{row['similarity']:.3f}")
        if top > 1:
            cells.append(", ".join(f"{e['class']} {e['probability']:.3f}" for e in row["top"]))
        cells.append("unusual" if row["unusual"] else "")
        table.add_row(*map(Text, cells))
    screen = console()
    screen.print(table)
    if any(found.unusual):
        note = "unusual: unlike the training images, so the class says little"
        screen.print(note, style="yellow", soft_wrap=True)
    if found.improbable:
        screen.print(improbable_words(found), soft_wrap=True)
    screen.print(calibration_words(model), style="dim", soft_wrap=True)
    if not model.knows_limits:
        screen.print(NOT_DETECTED, style="dim", soft_wrap=True)
    if loaded.class_confidence is not None:
        known = zip(loaded.names, loaded.class_confidence.tolist(), strict=True)
        words = [f"{name} {value:.3f}" for name, value in known if name in found.names]
        screen.print(
            f"mean training confidence of these classes, not of the images: {', '.join(words)}",
            style="dim",
            soft_wrap=True,
        )


def shallow_words(files: list[Path], window: "Window") -> str:
    """Return why the grey values of some images may differ from those of training."""
    count = f"{len(files)} images have" if len(files) > 1 else "1 image has"
    low, high = window.limits
    return (
        f"{count} 8 bits per pixel, such as {files[0]}, and this run has a window for images with "
        f"more: {low:g} is black and {high:g} white; if these had more and were turned into 8 bits "
        "in another way, do not rely on the predictions: give the original files"
    )


def improbable_words(found: "Predictions") -> str:
    """Return why the class of some images is not the most probable one, and what to do."""
    one = found.improbable == 1
    which = "1 image has" if one else f"{found.improbable} images have"
    return (
        f"{which} another class than the most probable one: the class is that with the highest "
        "score, as in evaluation, and some methods weigh all classes the same, however rare they "
        "are; for the most probable class, give --decide-by probability"
    )


def calibration_words(model: "ServedModel") -> str:
    """Return where the probabilities come from, in a sentence."""
    if not model.is_calibrated:
        return (
            "probabilities are not calibrated, because the run has no validation images for this "
            "model, or is private, or is not finished; with labelled images of your own, add "
            "--calibrate DATA"
        )
    if model.calibrated_later:
        return (
            f"probabilities are calibrated on the {model.calibration_images} labelled images that "
            "you gave. They hold where classes are as common as there"
        )
    return (
        f"probabilities are calibrated on {model.calibration_images} validation images, which "
        "clients held out of their training images; no test image was used. They hold where "
        "classes are as common as there"
    )


def export(
    path: RunPath,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="onnx, torch (a program for torch.export) or safetensors; by default from the "
            "name of --out, or onnx.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; by default model.onnx, .pt2 or .safetensors in the run folder."
        ),
    ] = None,
    client: ClientModel = None,
    site: SiteFolder = None,
    calibrate: Labelled = None,
    all_images: AllImages = False,
    licence: Annotated[str, typer.Option(help="Who may use the model, for its card.")] = "",
) -> None:
    """Write a run's model into one file that takes images and gives probabilities.

    The file includes the normalisation of pixels, anchors, class names and the calibration of the
    probabilities. A model card is written beside it.
    """
    load_torch()
    from cafedcl import api
    from cafedcl.export.formats import ENDINGS

    check_choice("--to", to, tuple(ENDINGS))
    loaded, whose = load_model(path, site, client, calibrate, all_images)
    file = out or path / f"model{ENDINGS[to or 'onnx']}"
    card = api.export(loaded, file, to, whose, licence)
    size = file.stat().st_size / 1e6
    print(printable(f"written: {file} ({size:.1f} MB), {card}"))
    usual = file.with_suffix(".md")
    if card != usual:
        print(printable(f"{usual} was not replaced: it was edited, or is not a model card"))
