"""A trained model in use: raw images go in, and probabilities come out.

Everything that a prediction needs is inside: the normalisation of the pixels, what the method
broadcasts or a client keeps (anchors, prototypes, a prior), and what turns scores into
probabilities. So one module can be called, exported and stored, whatever the method.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Shape
from cafedcl.core.tensors import Tensors
from cafedcl.functional.calibration import probabilities
from cafedcl.functional.novelty import pixel_statistics, strangeness
from cafedcl.methods.base import Method
from cafedcl.models.base import Network

GIVEN = "given"
"""The entry that marks a calibration made later, on a user's images."""


class BufferDict(nn.Module):
    """Tensors by name that belong to a module, but are not trained."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        # A module's names must have no dots, and a file's names should have no slashes.
        self.names = {name.replace("/", "_").replace(".", "_"): name for name in tensors}
        for safe, name in self.names.items():
            self.register_buffer(safe, tensors[name].detach().clone())

    def tensors(self) -> Tensors:
        """Return the tensors by their own names."""
        return {name: getattr(self, safe) for safe, name in self.names.items()}


class ServedModel(nn.Module):
    """Maps images, uint8 or floats in [0, 1], (N, channels, height, width), to probabilities.

    ``calibration`` may have a temperature, a prior of the classes, and the limits of what was seen
    in training.
    """

    mean: Tensor
    std: Tensor
    temperature: Tensor
    prior: Tensor

    def __init__(
        self,
        method: Method,
        network: Network,
        anchors: Tensors,
        memory: Tensors,
        normalisation: tuple[Tensor, Tensor],
        calibration: Tensors,
        names: Sequence[str],
        shape: Shape,
    ) -> None:
        super().__init__()
        self.method = method
        self.classes = tuple(names)
        self.shape = shape
        self.calibration_images = int(calibration.get("images", torch.zeros(1)))
        self.calibrated_later = GIVEN in calibration
        """Whether it was calibrated on a user's images instead of clients' images."""
        self.network = network
        self.anchors = BufferDict(anchors)
        self.memory = BufferDict(memory)
        mean, std = normalisation
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())
        temperature = calibration.get("temperature", torch.ones(1))
        self.register_buffer("temperature", temperature.detach().float().clone())
        prior = calibration.get("prior", torch.zeros(len(names)))
        self.register_buffer("prior", prior.detach().float().clone())
        limits = {name: value for name, value in calibration.items() if "/" in name}
        self.limits = BufferDict(limits)
        # It predicts and is not trained, so its results can be used as plain numbers.
        self.requires_grad_(requires_grad=False)
        self.eval()

    @property
    def is_calibrated(self) -> bool:
        """Whether probabilities were calibrated on validation images."""
        return self.calibration_images > 0

    @property
    def knows_limits(self) -> bool:
        """Whether it can tell images that are unlike those seen in training."""
        return bool(self.limits.names)

    def forward(self, x: Tensor) -> Tensor:
        """Return the probability of every class."""
        return self.probabilities(self.scores(x))

    def judge(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities, predicted classes and, if the model knows its limits, strangeness.

        The predicted class is the one with the highest score, as in training and evaluation. It
        need not be the most probable one. Images with a strangeness above 1 are unlike all those
        seen in training.
        """
        scores = self.scores(x)
        said = (self.probabilities(scores), scores.argmax(-1))
        return (*said, self.strangeness(x)) if self.knows_limits else said

    def scores(self, x: Tensor) -> Tensor:
        """Return the method's scores, the largest of which is the prediction."""
        normalised = self.normalised(x)
        return self.method.scores(
            self.network, normalised, self.anchors.tensors(), self.memory.tensors()
        )

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities of scores, calibrated if the model has a calibration."""
        return probabilities(scores, self.temperature, self.prior)

    def strangeness(self, x: Tensor) -> Tensor:
        """Return how strange each image is; only for a model that knows its limits."""
        return strangeness(self.described(x), self.limits.tensors())

    def described(self, x: Tensor) -> Tensors:
        """Return the two descriptions of each image that its strangeness is computed from."""
        normalised = self.normalised(x)
        return {
            "features": self.network.features(normalised),
            "pixels": pixel_statistics(normalised),
        }

    def normalised(self, x: Tensor) -> Tensor:
        """Return images as the network was trained on them."""
        scaled = x if x.is_floating_point() else x.float() / 255
        return (scaled - self.mean) / self.std
