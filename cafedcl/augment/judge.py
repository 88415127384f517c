"""How good a generator's images of one class are: as real as held-out images, as different, and not
copies.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

COLLAPSED = 0.25
MEMORISED = 0.25
"""Below these shares of real images' diversity, and of their distance to their neighbours,
something is wrong.
"""
NONE, STAND_IN, FINE, COLLAPSE, COPIES = range(5)
"""Verdicts: nothing was wanted; copies of real images stand in; all is well; collapsed; the
training data by heart.
"""
WORDS = {
    STAND_IN: "no generator could be trained, so real images are drawn again",
    COLLAPSE: "the generator has collapsed, so real images are drawn again",
    COPIES: "the generator repeats its training images",
}


@dataclass(frozen=True)
class Judgement:
    """What is known of a generator's images of one class."""

    score: float
    """Mean discriminator score in [0, 1] on generated images: the paper's conf^gen."""
    quality: float
    """The same, calibrated on held-out images."""
    diversity: float
    """Mean distance between generated images over that between real ones."""
    nearest: float
    """Mean distance of generated images to the nearest training image over that of real ones to
    theirs.
    """

    @property
    def verdict(self) -> int:
        """What to tell people."""
        if not self.diversity >= COLLAPSED:
            return COLLAPSE
        return COPIES if self.nearest < MEMORISED else FINE


def judge(made: Tensor, made_logits: Tensor, real: Tensor, held_logits: Tensor) -> Judgement:
    """Judge generated images of one class by the real training images and by the logits of held-out
    real images.

    ``quality`` is (1 − |2·AUC − 1|) · min(1, diversity) · min(1, nearest), where AUC is the chance
    that the discriminator finds a generated image more real than a held-out one. It is 1 for a
    perfect generator. It goes to 0 if generated images are told from real ones, if the
    discriminator knows its training images by heart and takes the generated ones for them, if all
    generated images are alike, and if they are copies of training images.
    """
    gap = made_logits[:, None] - held_logits[None]
    auc = float((gap > 0).double().mean() + 0.5 * (gap == 0).double().mean())
    pixels = made.flatten(1)
    known = real.flatten(1)
    apart = torch.cdist(known, known)
    alone = float(apart.sum() / max(1, len(known) * (len(known) - 1)))
    spread = float(torch.pdist(pixels).mean())
    neighbours = float((apart + torch.diag(torch.full_like(apart[0], torch.inf))).amin(1).mean())
    closest = float(torch.cdist(pixels, known).amin(1).mean())
    diversity = spread / max(alone, 1e-12)
    nearest = closest / max(neighbours, 1e-12)
    return Judgement(
        score=float(made_logits.sigmoid().mean()),
        quality=(1 - abs(2 * auc - 1)) * min(1.0, diversity) * min(1.0, nearest),
        diversity=diversity,
        nearest=nearest,
    )
