"""Training a client's generator: one step is captured and then replayed for every client."""

from collections.abc import Callable
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.augment.base import draw_same_class, to_device
from cafedcl.augment.networks import NOISE, Discriminator, Generator, jitter
from cafedcl.core.arrays import Array, Ints
from cafedcl.core.rng import torch_stream
from cafedcl.core.sizes import power_of_two
from cafedcl.core.tensors import Tensors
from cafedcl.device.lane import Lane
from cafedcl.functional.reply_check import all_finite

BATCH = 32
"""Real images per step, drawn with replacement, so that all clients' steps have one shape."""
EMA = 0.99
"""Decay of the generator's moving average per step."""
BETAS = (0.5, 0.99)
CAPTURING = Lock()
"""Held while a step is captured: CUDA allows one capture at a time."""


class Trainer:
    """A generator and a discriminator, which are reset for every client."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        width: int,
        rate: float,
        seed: int,
        device: torch.device,
    ) -> None:
        self.classes = classes
        self.device = device
        self.lane = Lane(device)
        with torch_stream(seed, "augment"):
            self.generator = Generator(shape, classes, width).to(device)
            self.critic = Discriminator(shape, classes, width).to(device)
        self.first: dict[nn.Module, Tensors] = {
            module: {name: value.detach().clone() for name, value in module.state_dict().items()}
            for module in (self.generator, self.critic)
        }
        self.average = {name: value.clone() for name, value in self.first[self.generator].items()}
        self.optimizers: dict[nn.Module, torch.optim.Adam] = {
            module: torch.optim.Adam(
                module.parameters(), rate, BETAS, fused=True, capturable=device.type == "cuda"
            )
            for module in (self.generator, self.critic)
        }
        self.images = torch.zeros(0, *shape, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.tables: Tensors = {}
        self.replay: Callable[[], None] | None = None

    def fit(self, x: Tensor, y: Ints, steps: int, draws: np.random.Generator) -> bool:
        """Train on images in [−1, 1]; return whether all weights and losses are finite.

        Afterwards ``average`` is the generator, and ``critic`` the discriminator.
        """
        self.lane.follow()
        with self.lane.on():
            self._copy_in(x, draw_plan(y, self.classes, steps, draws))
            if self.replay is None:
                with CAPTURING:
                    self.replay = self.lane.capture(self._step, self.cursor.zero_)
            self._reset()
            for _ in range(steps):
                self.replay()
            self.critic.eval()
            weights = (*self.average.values(), *self.critic.state_dict().values())
            fine = all_finite([self.tables["log"][:steps], *weights])
        if self.lane.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.lane.stream)
        return fine

    def _copy_in(self, x: Tensor, tables: dict[str, Array]) -> None:
        """Copy a client's images and random draws into the static tensors, which grow if needed."""
        steps = len(tables["rows"])
        if len(x) > len(self.images) or steps > len(self.tables.get("log", ())):
            # Rounded up, so that few clients need a new capture.
            room = power_of_two(len(x))
            self.images = x.new_zeros(max(room, len(self.images)), *x.shape[1:])
            self.tables = {
                name: torch.zeros_like(to_device(table, self.device))
                for name, table in tables.items()
            }
            self.tables["log"] = x.new_zeros(steps, 2)
            self.replay = None
        self.images[: len(x)].copy_(x)
        for name, table in tables.items():
            self.tables[name][:steps].copy_(to_device(table, self.device))

    @torch.no_grad()
    def _reset(self) -> None:
        """Restore the initial weights and optimizer states, in place as captures need."""
        self.cursor.zero_()
        for module in (self.generator, self.critic):
            for name, value in module.state_dict().items():
                value.copy_(self.first[module][name])
            for state in self.optimizers[module].state.values():
                for value in state.values():
                    value.zero_()
        for name, value in self.average.items():
            value.copy_(self.first[self.generator][name])

    def _step(self) -> None:
        """Train the discriminator, then the generator, with the non-saturating logistic loss."""
        now = {
            name: table.index_select(0, self.cursor)[0]
            for name, table in self.tables.items()
            if name != "log"
        }
        real = self.images[now["rows"]]
        y = now["labels"]
        claimed = now["claimed"]
        with torch.no_grad():
            fake = self.generator(now["noise"][0], claimed)
            seen = jitter(torch.cat([real, fake]), now["jitter"][: 2 * BATCH])
        logits = self.critic.train()(seen, torch.cat([y, claimed]))
        critic_loss = F.softplus(-logits[:BATCH]).mean() + F.softplus(logits[BATCH:]).mean()
        self._update(self.critic, critic_loss)
        fake = self.generator(now["noise"][1], claimed)
        # In evaluation mode, spectral normalisation does not update its estimates.
        fake_logits = self.critic.eval()(jitter(fake, now["jitter"][2 * BATCH :]), claimed)
        generator_loss = F.softplus(-fake_logits).mean()
        self._update(self.generator, generator_loss)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.values()), list(self.generator.state_dict().values()), 1 - EMA
            )
            losses = torch.stack([critic_loss, generator_loss])
            self.tables["log"].index_copy_(0, self.cursor, losses[None])
            self.cursor.add_(1)

    def _update(self, module: nn.Module, loss: Tensor) -> None:
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizers[module].step()

    @torch.no_grad()
    def sample(self, labels: Tensor, draws: np.random.Generator) -> Tensor:
        """Return images in [−1, 1] from the generator's moving average."""
        noise = to_device(draws.standard_normal((len(labels), NOISE), np.float32), self.device)
        images: Tensor = functional_call(self.generator, self.average, (noise, labels))
        return images

    @torch.no_grad()
    def logits(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the discriminator's logits of images in [−1, 1]."""
        return self.critic(x, y)  # type: ignore[no-any-return]


def draw_plan(y: Ints, classes: int, steps: int, draws: np.random.Generator) -> dict[str, Array]:
    """Draw all random numbers of the steps.

    A class is drawn in proportion to the square root of its number of images, so that tail classes
    come more often.
    """
    counts = np.bincount(y, minlength=classes)
    chances = np.sqrt(counts) / np.sqrt(counts).sum()
    labels = draws.choice(classes, (steps, BATCH), p=chances)
    claimed = draws.choice(classes, (steps, BATCH), p=chances)
    return {
        "rows": draw_same_class(y, labels, classes, draws),
        "labels": labels,
        "claimed": claimed,
        "noise": draws.standard_normal((steps, 2, BATCH, NOISE), np.float32),
        "jitter": draws.random((steps, 3 * BATCH, 6), np.float32),
    }
