"""Contact sheets: a client's tail classes, real images beside synthetic ones."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from cafedcl.augment.base import SyntheticImages
from cafedcl.core.contract import TICKET, Down, Job
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained
from cafedcl.core.tensors import AUGMENT, Tensors
from cafedcl.federation.callback import Callback, Record
from cafedcl.federation.rounds import Federation

IMAGES_PER_ROW = 8
MOST_CLASSES = 12
MOST_CLIENTS = 20
"""Limits of a sheet, and of how many clients get one."""
TILE = 40
GAP = 2
HEAD = 22
MARGIN = 190
"""Pixels: of an image, between images, of the heading, and of the text at the left."""
PAPER = (255, 255, 255)
INK = (20, 20, 20)
FAINT = (120, 120, 120)


class ContactSheets(Callback):
    """Writes a sheet when a client first gets synthetic images, and when its generator changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[int] = set()

    def round_done(self, federation: Federation, record: Record) -> None:
        """Draw the sheets of clients with new synthetic images."""
        task = federation.task
        failed = {entry["client"] for entry in record.failed}
        if (
            task.tail.augmenter.shifts
            or task.clients.remote
            or not task.tail.synthetic_counts.any()
        ):
            return
        absent = {*record.dropped, *failed}
        for client in record.participants:
            if client in absent or client >= MOST_CLIENTS:
                continue
            memory = federation.memories.get(client, {})
            if TICKET in memory or not self._has_news(client, memory, record.round):
                continue
            if not task.tail.synthetic_counts[client].any():
                continue
            self.seen.add(client)
            # The same job makes the same images again: the sheet shows what was trained on.
            job = Job(client, Down(record.round, {}), memory, False)
            synthetic = task.tail.synthetic_images(job, no_features)
            rows = task.clients.shards.train[client]
            data = task.clients.data
            x = data.train_x[rows].cpu()
            y = data.train_y[rows].cpu()
            sheet = draw_sheet(x, y, synthetic, data.names)
            with explained(self.folder):
                self.folder.mkdir(exist_ok=True)
                sheet.save(self.folder / f"round-{record.round:04d}-client-{client:02d}.png")

    def _has_news(self, client: int, memory: Tensors, round: int) -> bool:
        """Return whether a client's synthetic images are of a new kind in this round."""
        fitted = memory.get(f"{AUGMENT}fitted")
        if fitted is None:
            return client not in self.seen
        return int(fitted) == round


def no_features() -> Tensor:
    """Refuse to compute features: a sheet shows images."""
    raise CafedclError("a sheet shows images, not features")


def draw_sheet(
    x: Tensor, y: Tensor, synthetic: SyntheticImages, names: tuple[str, ...]
) -> Image.Image:
    """Return a sheet: one row per tail class, real images at the left, synthetic at the right."""
    made_x = synthetic.x.cpu()
    made_y = synthetic.y.cpu()
    classes = made_y.unique().tolist()[:MOST_CLASSES]
    half = IMAGES_PER_ROW * (TILE + GAP)
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
        pen.text(
            (6, top + 21),
            f"{len(real)} real, {len(made)} synthetic{quality_words(synthetic.notes, label)}",
            FAINT,
        )
        for images, left in ((real, MARGIN), (made, MARGIN + half + 12)):
            for column, image in enumerate(images[:IMAGES_PER_ROW]):
                sheet.paste(tile(image), (left + column * (TILE + GAP), top))
    return sheet


def quality_words(notes: Tensors, label: int) -> str:
    """Return words for the measured quality of a class's synthetic images, if there is one."""
    if "generated_quality" not in notes:
        return ""
    found = float(notes["generated_quality"][label])
    return f", quality {found:.2f}" if np.isfinite(found) else ""


def tile(image: Tensor) -> Image.Image:
    """Return an image in colour and in the size of the sheet."""
    pixels = image.permute(1, 2, 0).numpy()
    if pixels.shape[2] != 3:
        pixels = np.repeat(pixels[:, :, :1], 3, 2)
    return Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
