"""A conditional GAN per client, trained on the client's images only and never sent."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from cafedcl.augment import quality as verdicts
from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages, TailOptions
from cafedcl.augment.networks import NOISE, Generator
from cafedcl.augment.quality import measure_quality
from cafedcl.augment.trainer import Trainer
from cafedcl.config.options import option
from cafedcl.core.arrays import Array, Ints
from cafedcl.core.tensors import Tensors, prefixed, under

MEASURED = 64
"""Generated images per class on which the quality is measured."""
LEAST_HELD_OUT = 8
"""A client with fewer held-out images holds out some training images from the generator."""
HELD_OUT_SHARE = 5
"""Then one in this number of training images is held out."""
GENERATOR = "generator/"
SHOWN = 3
"""How many examples of each problem a message names."""
MEASURES = ("score", "quality", "diversity", "nearest", "verdict")
"""Values per class that are stored and reported."""


@dataclass(frozen=True)
class GANOptions(TailOptions):
    """How a client's generator is trained, and when."""

    steps: int = option(
        1000, "training steps; each uses 32 real and 64 generated images", low=1, high=1_000_000
    )
    rate: float = option(3e-4, "learning rate of Adam for both networks", above=0.0)
    width: int = option(
        0,
        "channels at full resolution, which double at each halving up to 128; "
        "0: the image size, limited to 8 to 32",
        low=0,
        high=512,
    )
    least: int = option(
        4, "images a class needs for a generator; with fewer, its real images are repeated", low=2
    )
    refresh: int = option(
        0, "rounds after which the generator is retrained; 0: train it only once", low=0
    )
    score: str = option(
        "calibrated",
        "conf_gen: calibrated by held-out images, or the discriminator's mean score as in the "
        "paper (literal)",
        choices=("calibrated", "literal"),
    )


class GAN(Augmenter):
    """A conditional GAN with spectral normalisation and differentiable augmentation.

    Images are sampled from a moving average of the generator.
    """

    name = "gan"
    Options = GANOptions

    def __init__(self, options: Any, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        super().__init__(options, classes, shape, seed)
        self.width = options.width or min(32, max(8, *shape[1:]))
        # Only its structure is used, with each client's weights.
        with torch.device("meta"):
            self.sampler = Generator(shape, classes, self.width)
        self.idle: list[Trainer] = []
        self.lock = Lock()

    def new_samples(self, counts: Tensor) -> Tensor:
        """Return the images of classes that have enough for a generator."""
        enough: Tensor = counts >= self.options.least
        return self.synthetic_counts(counts) * enough

    def learn(self, client: ClientImages) -> Tensors:
        """Return a client's generator and its measures: the stored ones, or newly trained ones."""
        if "fitted" in client.memory:
            age = client.round - int(client.memory["fitted"])
            if not self.options.refresh or age < self.options.refresh:
                return client.memory
        counts = np.bincount(client.host_y, minlength=self.classes)
        trainable = (client.synthetic_counts > 0) & (counts >= self.options.least)
        table = {name: np.zeros(self.classes, np.float32) for name in MEASURES}
        untrained = np.where(client.synthetic_counts > 0, verdicts.STAND_IN, verdicts.NONE)
        table["verdict"] = untrained.astype(np.float32)
        weights: Tensors = {}
        if trainable.any():
            weights = self._fit(client, np.flatnonzero(trainable).tolist(), table)
        measures = {name: torch.from_numpy(values) for name, values in table.items()}
        return {**prefixed(GENERATOR, weights), **measures, "fitted": torch.tensor(client.round)}

    def make(self, client: ClientImages) -> SyntheticImages:
        """Return generated images, and copies of real ones for classes without a good generator."""
        memory = client.memory
        labels = client.synthetic_labels()
        made = np.isin(memory["verdict"].numpy(), (verdicts.FINE, verdicts.COPIES))
        x = client.images(client.draw_same_class(labels))
        generated = made[labels]
        if generated.any():
            weights = {
                name: value.to(client.x.device) for name, value in under(GENERATOR, memory).items()
            }
            noise = client.draws.standard_normal((int(generated.sum()), NOISE), np.float32)
            with torch.no_grad():
                images = functional_call(
                    self.sampler,
                    weights,
                    (client.to_device(noise), client.to_device(labels[generated])),
                )
            x[client.to_device(np.flatnonzero(generated))] = unscale_images(images)
        measure = "quality" if self.options.score == "calibrated" else "score"
        quality = memory[measure].numpy()
        signals = {
            "synthetic": client.synthetic_counts * made,
            "quality": np.where(made, quality, 0.0),
        }
        measured = memory["verdict"] >= verdicts.FINE
        notes = {
            f"generated_{name}": memory[name].where(measured, torch.tensor(torch.nan))
            for name in MEASURES
        }
        notes["generated_verdict"] = memory["verdict"]
        notes["generated_round"] = memory["fitted"].float()
        return SyntheticImages(
            x,
            client.to_device(labels),
            signals={
                name: client.to_device(value.astype(np.float32)) for name, value in signals.items()
            },
            notes=notes,
        )

    def remarks(
        self,
        round: int,
        notes: Mapping[int, Tensors],
        names: Sequence[str],
        client_title: Callable[[int], str],
    ) -> list[str]:
        """Return a line per kind of problem with generators that were trained in this round."""
        new = {
            client: noted["generated_verdict"]
            for client, noted in notes.items()
            if trained_in(round, noted)
        }
        lines = []
        for kind, words in verdicts.MESSAGES.items():
            found = [
                (client, int(c))
                for client, by_class in new.items()
                for c in (by_class == kind).nonzero()
            ]
            if found:
                shown = ", ".join(
                    f"{client_title(client)} ({names[c]})" for client, c in found[:SHOWN]
                )
                more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
                lines.append(f"{words}: {shown}{more}")
        return lines

    @contextmanager
    def _trainer(self, device: torch.device) -> Iterator[Trainer]:
        """Lend a trainer that no other thread uses."""
        with self.lock:
            if self.idle:
                trainer = self.idle.pop()
            else:
                trainer = Trainer(
                    self.shape, self.classes, self.width, self.options.rate, self.seed, device
                )
        try:
            yield trainer
        finally:
            self.idle.append(trainer)

    def _fit(self, client: ClientImages, labels: list[int], table: dict[str, Array]) -> Tensors:
        """Train a generator, write its measures into the table, and return its weights.

        If training fails (NaN), there are no weights.
        """
        train, held, held_y = held_out_images(client)
        images = scale_images(client.images(train))
        with self._trainer(client.x.device) as trainer:
            if not trainer.fit(images, client.host_y[train], self.options.steps, client.draws):
                return {}
            held_logits = trainer.logits(scale_images(held), held_y)
            for label in labels:
                real = images[client.to_device(np.flatnonzero(client.host_y[train] == label))]
                y = torch.full((MEASURED,), label, device=real.device)
                made = trainer.sample(y, client.draws)
                found = measure_quality(made, trainer.logits(made, y), real, held_logits)
                for name in MEASURES:
                    table[name][label] = getattr(found, name)
            return {name: value.clone() for name, value in trainer.average.items()}


def trained_in(round: int, notes: Tensors) -> bool:
    """Return whether a client's notes are about a generator that was trained in this round."""
    if not {"generated_round", "generated_verdict"} <= notes.keys():
        return False
    return float(notes["generated_round"]) == round


def held_out_images(client: ClientImages) -> tuple[Ints, Tensor, Tensor]:
    """Return the generator's training rows, and held-out images and labels to measure it on."""
    rows = np.arange(len(client.host_y))
    if len(client.held_y) >= LEAST_HELD_OUT:
        return rows, client.held_x, client.held_y
    # Sorted by class, shuffled within, every fifth image: stratified by class.
    order = client.draws.permutation(rows)
    order = order[np.argsort(client.host_y[order], kind="stable")]
    aside = order[HELD_OUT_SHARE - 1 :: HELD_OUT_SHARE]
    return np.setdiff1d(rows, aside), client.images(aside), client.to_device(client.host_y[aside])


def scale_images(x: Tensor) -> Tensor:
    """Return uint8 images as floats in [−1, 1]."""
    return x.float() / 127.5 - 1


def unscale_images(x: Tensor) -> Tensor:
    """Return images in [−1, 1] as uint8."""
    return ((x.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
