"""Training a client's generator: a step is captured once and replayed for every client, like local
training itself.
"""

from collections.abc import Callable
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.augment.base import pick, put
from cafedcl.augment.networks import NOISE, Discriminator, Generator, jitter
from cafedcl.core.rng import torch_stream
from cafedcl.core.tensors import Tensors
from cafedcl.device.lane import Lane
from cafedcl.functional.reply_check import all_finite

BATCH = 32
"""Real images per step, drawn with replacement, so that every client's step has the same shape."""
EMA = 0.99
"""How much of the averaged generator a step keeps."""
BETAS = (0.5, 0.99)
CAPTURING = Lock()
"""One capture at a time."""


class Trainer:
    """One pair of networks that every client's training starts from anew."""

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

    def fit(
        self, x: Tensor, y: npt.NDArray[np.int64], steps: int, draws: np.random.Generator
    ) -> bool:
        """Train on images in [−1, 1]; returns whether all went well, with nothing but finite
        numbers.

        Afterwards ``average`` is the generator, and ``critic`` the discriminator.
        """
        self.lane.follow()
        with self.lane.on():
            self._lay(x, plan(y, self.classes, steps, draws))
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

    def _lay(
        self, x: Tensor, tables: dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]
    ) -> None:
        """Copy a client's images and draws into the static tensors, which grow as they must."""
        steps = len(tables["rows"])
        if len(x) > len(self.images) or steps > len(self.tables.get("log", ())):
            room = 2 ** (len(x) - 1).bit_length()
            self.images = x.new_zeros(max(room, len(self.images)), *x.shape[1:])
            self.tables = {
                name: torch.zeros_like(put(table, self.device)) for name, table in tables.items()
            }
            self.tables["log"] = x.new_zeros(steps, 2)
            self.replay = None
        self.images[: len(x)].copy_(x)
        for name, table in tables.items():
            self.tables[name][:steps].copy_(put(table, self.device))

    @torch.no_grad()
    def _reset(self) -> None:
        """Go back to the beginning."""
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
        """Train the discriminator, then the generator: the non-saturating logistic loss."""
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
        told_apart = F.softplus(-logits[:BATCH]).mean() + F.softplus(logits[BATCH:]).mean()
        self._move(self.critic, told_apart)
        fake = self.generator(now["noise"][1], claimed)
        fooled = F.softplus(
            -self.critic.eval()(jitter(fake, now["jitter"][2 * BATCH :]), claimed)
        ).mean()
        self._move(self.generator, fooled)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.values()), list(self.generator.state_dict().values()), 1 - EMA
            )
            self.tables["log"].index_copy_(
                0, self.cursor, torch.stack([told_apart, fooled]).detach()[None]
            )
            self.cursor.add_(1)

    def _move(self, module: nn.Module, loss: Tensor) -> None:
        parameters = list(module.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        self.optimizers[module].step()

    @torch.no_grad()
    def sample(self, labels: Tensor, draws: np.random.Generator) -> Tensor:
        """Return images in [−1, 1] from the averaged generator."""
        noise = put(draws.standard_normal((len(labels), NOISE), np.float32), self.device)
        return functional_call(self.generator, self.average, (noise, labels))  # type: ignore[no-any-return]

    @torch.no_grad()
    def logits(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the discriminator's logits of images in [−1, 1]."""
        return self.critic(x, y)  # type: ignore[no-any-return]


def plan(
    y: npt.NDArray[np.int64], classes: int, steps: int, draws: np.random.Generator
) -> dict[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]:
    """Draw all that the steps need. A class's chance is the square root of its share: the tail is
    seen more often.
    """
    counts = np.bincount(y, minlength=classes)
    chances = np.sqrt(counts) / np.sqrt(counts).sum()
    labels, claimed = (draws.choice(classes, (steps, BATCH), p=chances) for _ in range(2))
    return {
        "rows": pick(y, labels, classes, draws),
        "labels": labels,
        "claimed": claimed,
        "noise": draws.standard_normal((steps, 2, BATCH, NOISE), np.float32),
        "jitter": draws.random((steps, 3 * BATCH, 6), np.float32),
    }
