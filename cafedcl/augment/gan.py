"""A conditional generator per client, trained on the client's own images only, and never sent
anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.func import functional_call

from cafedcl.augment import judge as verdicts
from cafedcl.augment.base import Augmenter, ClientImages, SyntheticImages, TailOptions
from cafedcl.augment.judge import judge
from cafedcl.augment.networks import NOISE, Generator
from cafedcl.augment.trainer import Trainer
from cafedcl.config.options import option
from cafedcl.core.tensors import Tensors, prefixed, under

JUDGED = 64
"""Generated images per class that the judgement is from."""
HELD = 8
SHARE = 5
"""A client with fewer held-out images keeps one in five of its training images from the generator,
to judge it by.
"""
GENERATOR = "generator/"
SHOWN = 3
"""Examples of each kind of trouble that are named."""
TOLD = ("score", "quality", "diversity", "nearest", "verdict")
"""What is kept and told per class."""


@dataclass(frozen=True)
class GANOptions(TailOptions):
    """How a client's generator is trained, and when."""

    steps: int = option(
        1000, "training steps, each of 32 real and 64 generated images", low=1, high=1_000_000
    )
    rate: float = option(3e-4, "learning rate of Adam, for both networks", above=0.0)
    width: int = option(
        0,
        "channels at full resolution, doubled at each halving up to 128; 0: as many as pixels, 8 to 32",
        low=0,
        high=512,
    )
    least: int = option(
        4, "images that a class must have; with fewer, its real images are drawn again", low=2
    )
    refresh: int = option(
        0, "rounds after which it is trained anew; 0: once, at the client's first visit", low=0
    )
    score: str = option(
        "calibrated",
        "conf_gen: calibrated by held-out images, or the discriminator's mean score as the paper has it",
        choices=("calibrated", "literal"),
    )


class GAN(Augmenter):
    """A conditional GAN: spectral normalisation, differentiable augmentation, an averaged
    generator.
    """

    name = "gan"
    Options = GANOptions

    def __init__(self, options: Any, classes: int, shape: tuple[int, int, int], seed: int) -> None:
        super().__init__(options, classes, shape, seed)
        self.width = options.width or min(32, max(8, *shape[1:]))
        with torch.device("meta"):
            self.sampler = Generator(shape, classes, self.width)
        self.idle: list[Trainer] = []
        self.lock = Lock()

    def learn(self, own: ClientImages) -> Tensors:
        """Return a client's generator and what is known of it: the one it has, or a new one."""
        if "fitted" in own.memory:
            age = own.round - int(own.memory["fitted"])
            if not self.options.refresh or age < self.options.refresh:
                return own.memory
        counts = np.bincount(own.known, minlength=self.classes)
        able = (own.wanted > 0) & (counts >= self.options.least)
        table = {name: np.zeros(self.classes, np.float32) for name in TOLD}
        table["verdict"] = np.where(own.wanted > 0, verdicts.STAND_IN, verdicts.NONE).astype(
            np.float32
        )
        weights = self._fit(own, np.flatnonzero(able).tolist(), table) if able.any() else {}
        told = {name: torch.from_numpy(values) for name, values in table.items()}
        return {**prefixed(GENERATOR, weights), **told, "fitted": torch.tensor(own.round)}

    def make(self, own: ClientImages) -> SyntheticImages:
        """Return generated images, and copies of real ones for the classes that a generator cannot
        be had for.
        """
        memory = own.memory
        labels = own.labels()
        made = np.isin(memory["verdict"].numpy(), (verdicts.FINE, verdicts.COPIES))
        x = own.images(own.pick(labels))
        generated = made[labels]
        if generated.any():
            weights = {
                name: value.to(own.x.device) for name, value in under(GENERATOR, memory).items()
            }
            noise = own.draws.standard_normal((int(generated.sum()), NOISE), np.float32)
            with torch.no_grad():
                images = functional_call(
                    self.sampler, weights, (own.put(noise), own.put(labels[generated]))
                )
            x[own.put(np.flatnonzero(generated))] = pixels(images)
        quality = memory["quality" if self.options.score == "calibrated" else "score"].numpy()
        signals = {"synthetic": own.wanted * made, "quality": np.where(made, quality, 0.0)}
        judged = memory["verdict"] >= verdicts.FINE
        notes = {
            f"generated_{name}": memory[name].where(judged, torch.tensor(torch.nan))
            for name in TOLD
        }
        notes |= {
            "generated_verdict": memory["verdict"],
            "generated_round": memory["fitted"].float(),
        }
        return SyntheticImages(
            x,
            own.put(labels),
            signals={name: own.put(value.astype(np.float32)) for name, value in signals.items()},
            notes=notes,
        )

    def remarks(self, round: int, notes: Mapping[int, Tensors], names: Sequence[str]) -> list[str]:
        """Return a line per kind of trouble that generators trained in this round are in."""
        new = {
            client: told["generated_verdict"]
            for client, told in notes.items()
            if is_of(round, told)
        }
        lines = []
        for kind, words in verdicts.WORDS.items():
            found = [
                (client, int(c)) for client, told in new.items() for c in (told == kind).nonzero()
            ]
            if found:
                shown = ", ".join(f"client {client} {names[c]}" for client, c in found[:SHOWN])
                more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
                lines.append(f"{words}: {shown}{more}")
        return lines

    @contextmanager
    def _trainer(self, device: torch.device) -> Iterator[Trainer]:
        """Lend a trainer that nobody else uses."""
        with self.lock:
            trainer = self.idle.pop() if self.idle else None
            trainer = trainer or Trainer(
                self.shape, self.classes, self.width, self.options.rate, self.seed, device
            )
        try:
            yield trainer
        finally:
            self.idle.append(trainer)

    def _fit(
        self, own: ClientImages, labels: list[int], table: dict[str, npt.NDArray[np.float32]]
    ) -> Tensors:
        """Train a generator, note in the table what is thought of its images, and return its
        weights, if it has any.
        """
        train, held, held_y = parts(own)
        images = scaled(own.images(train))
        with self._trainer(own.x.device) as trainer:
            if not trainer.fit(images, own.known[train], self.options.steps, own.draws):
                return {}
            held_logits = trainer.logits(scaled(held), held_y)
            for label in labels:
                real = images[own.put(np.flatnonzero(own.known[train] == label))]
                y = torch.full((JUDGED,), label, device=real.device)
                made = trainer.sample(y, own.draws)
                found = judge(made, trainer.logits(made, y), real, held_logits)
                for name in TOLD:
                    table[name][label] = getattr(found, name)
            return {name: value.clone() for name, value in trainer.average.items()}


def is_of(round: int, notes: Tensors) -> bool:
    """Return whether a client's notes tell of a generator that was trained in this round."""
    return {"generated_round", "generated_verdict"} <= notes.keys() and float(
        notes["generated_round"]
    ) == round


def parts(own: ClientImages) -> tuple[npt.NDArray[np.int64], Tensor, Tensor]:
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
