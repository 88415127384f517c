"""Contact sheets: what a client's tail classes look like, and what it was given besides."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import TICKET, Down, Job
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained
from cafedcl.core.tensors import AUGMENT, Tensors
from cafedcl.federation.rounds import Federation
from cafedcl.federation.watcher import Record, Watcher

ACROSS = 8
ROWS = 12
CLIENTS = 20
"""Images of each kind in a row, classes on a sheet, and clients that have sheets."""
TILE = 40
GAP = 2
HEAD = 22
MARGIN = 190
"""Pixels of an image, between images, of the heading, and of the text at the left."""
PAPER = (255, 255, 255)
INK = (20, 20, 20)
FAINT = (120, 120, 120)


class Sheets(Watcher):
    """Writes a sheet when a client is first given images, and when it has learned anew: exactly
    what it trained on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[int] = set()

    def round_done(self, federation: Federation, record: Record) -> None:
        """Draw the sheets of the clients that have something new."""
        task = federation.task
        failed = {entry["client"] for entry in record.failed}
        if task.tail.augmenter.shifts or task.clients.remote or not task.tail.synthetic_counts.any():
            return
        for client in [
            k for k in record.participants if k not in {*record.dropped, *failed} and k < CLIENTS
        ]:
            memory = federation.memories.get(client, {})
            if TICKET in memory:
                continue
            learned = memory.get(f"{AUGMENT}fitted")
            new = client not in self.seen if learned is None else int(learned) == record.round
            if new and task.tail.synthetic_counts[client].any():
                self.seen.add(client)
                extra = task.tail.synthetic_images(
                    Job(client, Down(record.round, {}), memory, False), no_features
                )
                own = task.clients.shards.train[client]
                sheet = draw(
                    task.clients.data.train_x[own].cpu(),
                    task.clients.data.train_y[own].cpu(),
                    extra,
                    task.clients.data.names,
                )
                with explained(self.folder):
                    self.folder.mkdir(exist_ok=True)
                    sheet.save(self.folder / f"round-{record.round:04d}-client-{client:02d}.png")


def no_features() -> Tensor:
    """Refuse."""
    raise CafedclError("a sheet shows images, not features")


def draw(x: Tensor, y: Tensor, extra: SyntheticImages, names: tuple[str, ...]) -> Image.Image:
    """Return a sheet: a row per tail class, real images at the left, synthetic ones at the right."""
    made_x = extra.x.cpu()
    made_y = extra.y.cpu()
    told = extra.notes
    classes = made_y.unique().tolist()[:ROWS]
    half = ACROSS * (TILE + GAP)
    sheet = Image.new(
        "RGB", (MARGIN + 2 * half + 3 * GAP + 12, HEAD + len(classes) * (TILE + GAP) + GAP), PAPER
    )
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, 5), "real", INK)
    pen.text((MARGIN + half + 12, 5), "synthetic", INK)
    for row, label in enumerate(classes):
        top = HEAD + row * (TILE + GAP)
        real = x[y == label]
        made = made_x[made_y == label]
        pen.text((6, top + 5), names[label][:28], INK)
        pen.text((6, top + 21), f"{len(real)} real, {len(made)} more{quality(told, label)}", FAINT)
        for images, left in ((real, MARGIN), (made, MARGIN + half + 12)):
            for column, image in enumerate(images[:ACROSS]):
                sheet.paste(tile(image), (left + column * (TILE + GAP), top))
    return sheet


def quality(told: Tensors, label: int) -> str:
    """Return the words for what is thought of a class's images, if anything."""
    found = float(told["generated_quality"][label]) if "generated_quality" in told else float("nan")
    return f", quality {found:.2f}" if np.isfinite(found) else ""


def tile(image: Tensor) -> Image.Image:
    """Return an image as it is pasted."""
    pixels = image.permute(1, 2, 0).numpy()
    pixels = pixels if pixels.shape[2] == 3 else np.repeat(pixels[:, :, :1], 3, 2)
    return Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
