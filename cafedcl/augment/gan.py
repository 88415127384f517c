"""A conditional generator per client, trained on the client's own images only, and never sent anywhere."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cafedcl.augment import judge as verdicts
from cafedcl.augment.base import Augmenter, Extra, Own, TailOptions
from cafedcl.augment.judge import Judgement, judge
from cafedcl.augment.trainer import Trainer
from cafedcl.options import option
from cafedcl.pack import Tensors, prefixed, under

JUDGED = 64
"""Generated images per class that the judgement is from."""
HELD, SHARE = 8, 5
"""A client with fewer held-out images keeps one in five of its training images from the generator, to judge it by."""
GENERATOR = "generator/"
TOLD = ("score", "quality", "diversity", "nearest", "verdict")
"""What is kept and told per class."""


@dataclass(frozen=True)
class GANOptions(TailOptions):
    """How a client's generator is trained, and when."""

    steps: int = option(500, "training steps, each of 32 real and 64 generated images", low=1, high=1_000_000)
    rate: float = option(1e-3, "learning rate of Adam, for both networks", above=0.0)
    width: int = option(
        0,
        "channels at full resolution, doubled at each halving up to 128; 0: as many as pixels, 8 to 32",
        low=0,
        high=512,
    )
    least: int = option(4, "images that a class must have; with fewer, its real images are drawn again", low=2)
    refresh: int = option(0, "rounds after which it is trained anew; 0: once, at the client's first visit", low=0)
    score: str = option(
        "calibrated",
        "conf_gen: calibrated by held-out images, or the discriminator's mean score as the paper has it",
        choices=("calibrated", "literal"),
    )


class GAN(Augmenter):
    """A conditional GAN: spectral normalisation, differentiable augmentation, an averaged generator."""

    name, Options = "gan", GANOptions

    def __init__(self, options: Any, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        super().__init__(options, classes, shape, seed)
        self.trainers: dict[torch.device, Trainer] = {}

    def make(self, own: Own) -> Extra:
        """Return generated images, and copies of real ones for the classes that a generator cannot be had for."""
        memory = own.memory if self._is_good(own) else self._fit(own)
        labels, verdict = own.labels(), memory["verdict"].numpy()
        made = np.isin(verdict, (verdicts.FINE, verdicts.COPIES))
        x = own.images(own.pick(labels))
        wanted = made[labels]
        if wanted.any():
            trainer = self._trainer(own.x.device)
            weights = {name: value.to(own.x.device) for name, value in under(GENERATOR, memory).items()}
            x[own.put(np.flatnonzero(wanted))] = pixels(trainer.sample(weights, own.put(labels[wanted]), own.draws))
        quality = memory["quality" if self.options.score == "calibrated" else "score"].numpy()
        signals = {"synthetic": own.wanted * made, "quality": np.where(made, quality, 0.0)}
        told = {f"generated_{name}": memory[name] for name in TOLD}
        told["generated_round"] = memory["fitted"]
        return Extra(
            x,
            own.put(labels),
            signals={name: own.put(value.astype(np.float32)) for name, value in signals.items()},
            notes=told,
            memory=memory,
        )

    def _is_good(self, own: Own) -> bool:
        """Return whether there is a generator, and not one that is too old."""
        if "fitted" not in own.memory:
            return False
        return not self.options.refresh or own.round - int(own.memory["fitted"]) < self.options.refresh

    def _trainer(self, device: torch.device) -> Trainer:
        if device not in self.trainers:
            width = self.options.width or min(32, max(8, *self.shape[1:]))
            self.trainers[device] = Trainer(self.shape, self.classes, width, self.options.rate, self.seed, device)
        return self.trainers[device]

    def _fit(self, own: Own) -> Tensors:
        """Train a generator and judge it; returns what the client keeps."""
        counts = np.bincount(own.known, minlength=self.classes)
        able = (own.wanted > 0) & (counts >= self.options.least)
        table = {name: np.full(self.classes, np.nan, np.float32) for name in TOLD}
        table["verdict"] = np.where(own.wanted > 0, verdicts.STAND_IN, verdicts.NONE).astype(np.float32)
        kept: Tensors = {}
        if able.any():
            trainer = self._trainer(own.x.device)
            train, held, held_y = parts(own)
            images = scaled(own.images(train))
            if trainer.fit(images, own.known[train], self.options.steps, own.draws):
                held_logits = trainer.logits(scaled(held), held_y)
                for label in np.flatnonzero(able).tolist():
                    mine = own.put(np.flatnonzero(own.known[train] == label))
                    found = self._judge(trainer, own, images[mine], label, held_logits)
                    for name in TOLD:
                        table[name][label] = getattr(found, name)
                kept = {name: value.clone() for name, value in trainer.average.items()}
        told = {name: torch.from_numpy(values) for name, values in table.items()}
        return {**prefixed(GENERATOR, kept), **told, "fitted": torch.tensor(own.round)}

    def _judge(self, trainer: Trainer, own: Own, real: Tensor, label: int, held_logits: Tensor) -> Judgement:
        labels = torch.full((JUDGED,), label, device=real.device)
        made = trainer.sample(trainer.average, labels, own.draws)
        return judge(made, trainer.logits(made, labels), real, held_logits)


def parts(own: Own) -> tuple[npt.NDArray[np.int64], Tensor, Tensor]:
    """Return which training images the generator sees, and the images and labels it is judged by."""
    rows = np.arange(len(own.known))
    if len(own.held_y) >= HELD:
        return rows, own.held_x, own.held_y
    order = own.draws.permutation(rows)
    order = order[np.argsort(own.known[order], kind="stable")]
    aside = order[SHARE - 1 :: SHARE]
    return np.setdiff1d(rows, aside), own.images(aside), own.put(own.known[aside])


def scaled(x: Tensor) -> Tensor:
    """Return uint8 images in [−1, 1]."""
    return x.float() / 127.5 - 1


def pixels(x: Tensor) -> Tensor:
    """Return images in [−1, 1] as uint8."""
    return ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
