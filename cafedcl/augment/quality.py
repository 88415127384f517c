"""Quality of a generator's images of one class: realism, diversity and novelty."""

from dataclasses import dataclass

import torch
from torch import Tensor

COLLAPSED = 0.25
"""A generator with less diversity than this, relative to real images, has collapsed."""
MEMORISED = 0.25
"""Generated images nearer to training images than this, relative to real ones, are copies."""

# Verdicts. They are stored in run folders, so the numbers must stay.
NONE = 0
"""The class gets no synthetic images."""
STAND_IN = 1
"""No generator: copies of real images are used."""
FINE = 2
COLLAPSE = 3
"""The generator collapsed: copies of real images are used."""
COPIES = 4
"""The generator memorised its training images."""
MESSAGES = {
    STAND_IN: "no generator could be trained, so real images are drawn again",
    COLLAPSE: "the generator has collapsed, so real images are drawn again",
    COPIES: "the generator repeats its training images",
}


@dataclass(frozen=True)
class ImageQuality:
    """Quality of a generator's images of one class."""

    score: float
    """Mean discriminator score of generated images, in [0, 1]: the paper's conf^gen."""
    quality: float
    """conf^gen calibrated by held-out images, see :func:`measure_quality`."""
    diversity: float
    """Mean distance between generated images, divided by that between real ones."""
    nearest: float
    """Mean distance to the nearest training image, divided by that of real images."""

    @property
    def verdict(self) -> int:
        """FINE, COLLAPSE or COPIES."""
        # Written so that NaN counts as collapsed.
        if not self.diversity >= COLLAPSED:
            return COLLAPSE
        return COPIES if self.nearest < MEMORISED else FINE


def measure_quality(
    made: Tensor, made_logits: Tensor, real: Tensor, held_logits: Tensor
) -> ImageQuality:
    """Compare generated images of one class with training images and held-out images.

    ``quality`` is (1 − |2·AUC − 1|) · min(1, diversity) · min(1, nearest), where AUC is the chance
    that the discriminator scores a generated image higher than a held-out one. It is 1 for a
    perfect generator. It goes to 0 if generated images can be distinguished from real ones, if the
    discriminator memorised its training images and mistakes the generated ones for them, if all
    generated images are alike, or if they are copies of training images.
    """
    gap = made_logits[:, None] - held_logits[None]
    auc = float((gap > 0).double().mean() + 0.5 * (gap == 0).double().mean())
    made_pixels = made.flatten(1)
    real_pixels = real.flatten(1)
    number = len(real_pixels)
    between_real = torch.cdist(real_pixels, real_pixels)
    real_mean = float(between_real.sum() / max(1, number * (number - 1)))
    made_mean = float(torch.pdist(made_pixels).mean())
    # An infinite diagonal keeps an image from being its own nearest neighbour.
    infinite = torch.diag(torch.full_like(between_real[0], torch.inf))
    real_nearest = float((between_real + infinite).amin(1).mean())
    made_nearest = float(torch.cdist(made_pixels, real_pixels).amin(1).mean())
    diversity = made_mean / max(real_mean, 1e-12)
    nearest = made_nearest / max(real_nearest, 1e-12)
    return ImageQuality(
        score=float(made_logits.sigmoid().mean()),
        quality=(1 - abs(2 * auc - 1)) * min(1.0, diversity) * min(1.0, nearest),
        diversity=diversity,
        nearest=nearest,
    )
