"""Random transforms of training batches: drawing random numbers, and applying them to images.

Numbers are drawn on the host by PyTorch's CPU generator, so that every device and engine gets the
same ones. Applying them only reads tensors, so that it can be captured with a training step.
"""

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cafedcl.config.train_options import TrainOptions
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError, place_of
from cafedcl.core.imports import check_steps, explained_failure, import_path
from cafedcl.core.tensors import Tensors, prefixed, under

LUMINANCE = (0.299, 0.587, 0.114)
"""The weights of red, green and blue in the grey value of a pixel."""
STRONGEST = 30
"""The largest magnitude of RandAugment."""
OPERATIONS = (
    "identity",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "brightness",
    "contrast",
    "saturation",
)
"""RandAugment's operations that one affine map and three factors can express."""
LARGEST_ANGLE = math.radians(30)
LARGEST_SHEAR = 0.3
LARGEST_SHIFT = 0.45
"""The largest shift, as a fraction of the image's size."""
LARGEST_FACTOR = 0.9
"""How far a factor of brightness, contrast or saturation may be from 1."""


class Transform:
    """A random change of training images. Subclass it to add your own (`train.transform`)."""

    name = "own"

    def draw(self, images: int) -> Tensors:
        """Draw the random numbers of a batch: tensors with one row for every image."""
        raise NotImplementedError

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        """Return normalised images (N, C, H, W), changed by the draws."""
        raise NotImplementedError


class Flip(Transform):
    """Flips half of the images horizontally."""

    name = "flip"

    def draw(self, images: int) -> Tensors:
        return {"flipped": torch.rand(images) < 0.5}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        return torch.where(draws["flipped"][:, None, None, None], x.flip(3), x)


class Crop(Transform):
    """Crops every image from a copy that is padded with zero, the mean of normalised images."""

    name = "crop"

    def __init__(self, padding: int) -> None:
        self.padding = padding

    def draw(self, images: int) -> Tensors:
        return {"place": torch.randint(0, 2 * self.padding + 1, (2, images)).T}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        height, width = x.shape[2:]
        padded = F.pad(x, [self.padding] * 4)
        down = draws["place"][:, :1]
        right = draws["place"][:, 1:]
        # One gather crops every image at its own place.
        rows = (down + torch.arange(height, device=x.device))[:, None, :, None]
        columns = (right + torch.arange(width, device=x.device))[:, None, None, :]
        image = torch.arange(len(x), device=x.device)[:, None, None, None]
        channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        return padded[image, channel, rows, columns]


class Rotate(Transform):
    """Rotates every image by a random angle, and fills the corners with zero."""

    name = "rotate"

    def __init__(self, degrees: float, shape: Shape) -> None:
        self.largest = math.radians(degrees)
        self.shape = shape

    def draw(self, images: int) -> Tensors:
        angles = self.largest * (2 * torch.rand(images) - 1)
        return {"map": in_unit_square(rotations(angles), self.shape)}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        return warp(x, draws["map"])


class Jitter(Transform):
    """Multiplies brightness, contrast and saturation by random factors around 1."""

    name = "jitter"

    def __init__(self, strength: float, mean: Tensor, std: Tensor) -> None:
        self.strength = strength
        self.mean = mean
        self.std = std

    def draw(self, images: int) -> Tensors:
        return {"factors": 1 + self.strength * (2 * torch.rand(images, 3) - 1)}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        return recolour(x, draws["factors"], self.mean, self.std)


class RandAugment(Transform):
    """A few random operations on every image (Cubuk et al. 2020), of one strength.

    The operations of an image are drawn with replacement, as in the paper. Those on the geometry
    become one affine map, and those on colours three factors; so posterizing, solarizing,
    sharpening and equalizing are left out.
    """

    name = "randaugment"

    def __init__(
        self, operations: int, magnitude: int, shape: Shape, mean: Tensor, std: Tensor
    ) -> None:
        self.operations = operations
        self.strength = magnitude / STRONGEST
        self.shape = shape
        self.mean = mean
        self.std = std

    def draw(self, images: int) -> Tensors:
        maps = torch.eye(3).repeat(images, 1, 1)
        factors = torch.ones(images, 3)
        for _ in range(self.operations):
            kind = torch.randint(0, len(OPERATIONS), (images,))
            amount = self.strength * (2 * torch.randint(0, 2, (images,)) - 1)
            drawn = {name: amount * (kind == index) for index, name in enumerate(OPERATIONS)}
            step = rotations(LARGEST_ANGLE * drawn["rotate"])
            step[:, 0, 1] += LARGEST_SHEAR * drawn["shear_x"]
            step[:, 1, 0] += LARGEST_SHEAR * drawn["shear_y"]
            step[:, 0, 2] = LARGEST_SHIFT * self.shape[2] * drawn["translate_x"]
            step[:, 1, 2] = LARGEST_SHIFT * self.shape[1] * drawn["translate_y"]
            maps = maps @ step
            names = ("brightness", "contrast", "saturation")
            factors *= 1 + LARGEST_FACTOR * torch.stack([drawn[name] for name in names], 1)
        return {"map": in_unit_square(maps, self.shape), "factors": factors}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        return recolour(warp(x, draws["map"]), draws["factors"], self.mean, self.std)


class Cutout(Transform):
    """Sets a square at a random place of every image to zero (DeVries and Taylor 2017)."""

    name = "cutout"

    def __init__(self, side: int, shape: Shape) -> None:
        self.side = side
        self.shape = shape

    def draw(self, images: int) -> Tensors:
        rows = torch.randint(0, self.shape[1], (images,))
        columns = torch.randint(0, self.shape[2], (images,))
        return {"centre": torch.stack([rows, columns], 1)}

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        # The centre may be near the border, which then cuts the square off, as in the paper.
        first = draws["centre"] - self.side // 2
        covered = []
        for axis in (0, 1):
            places = torch.arange(self.shape[axis + 1], device=x.device)
            start = first[:, axis : axis + 1]
            covered.append((places >= start) & (places < start + self.side))
        inside = covered[0][:, None, :, None] & covered[1][:, None, None, :]
        return x.masked_fill(inside, 0)


class TransformChain(Transform):
    """All transforms of a run, one after another."""

    name = "chain"

    def __init__(self, transforms: list[Transform]) -> None:
        self.transforms = transforms

    def __bool__(self) -> bool:
        return bool(self.transforms)

    def draw(self, images: int) -> Tensors:
        draws: Tensors = {}
        for transform in self.transforms:
            drawn: object = transform.draw(images)
            if not isinstance(drawn, dict):
                expected = "a dict of tensors is expected"
                raise wrong_step(transform.draw, f"returns {type(drawn).__name__}; {expected}")
            for name, value in drawn.items():
                if not isinstance(value, Tensor):
                    what = f"returns {type(value).__name__} as '{name}'; a tensor is expected"
                    raise wrong_step(transform.draw, what)
                if len(value) != images:
                    what = f"for {images} images returns {len(value)} rows as '{name}'"
                    raise wrong_step(transform.draw, f"{what}; one per image is expected")
            draws |= prefixed(f"{transform.name}/", drawn)
        return draws

    def apply(self, x: Tensor, draws: Tensors) -> Tensor:
        kind = (x.shape, x.dtype)
        for transform in self.transforms:
            changed: object = transform.apply(x, under(f"{transform.name}/", draws))
            if not isinstance(changed, Tensor) or (changed.shape, changed.dtype) != kind:
                expected = f"{described(x)} is expected, as it was given"
                raise wrong_step(transform.apply, f"returns {described(changed)}; {expected}")
            x = changed
        return x


def wrong_step(step: Any, what: str) -> CafedclError:
    """Return the error for a transform whose ``draw`` or ``apply`` returns something else."""
    owner = type(step.__self__).__name__
    return CafedclError(f"train.transform: {step.__name__} of {owner} {what}{place_of(step)}")


def described(value: object) -> str:
    """Return the type and shape of what a transform returns."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def make_transforms(
    options: TrainOptions, shape: Shape, mean: Tensor, std: Tensor
) -> TransformChain:
    """Return the transforms that the options ask for."""
    chosen: list[Transform] = []
    if options.flip:
        chosen.append(Flip())
    if options.crop:
        chosen.append(Crop(options.crop))
    if options.rotate:
        chosen.append(Rotate(options.rotate, shape))
    if options.jitter:
        chosen.append(Jitter(options.jitter, mean, std))
    if options.randaugment:
        chosen.append(RandAugment(options.randaugment, options.magnitude, shape, mean, std))
    if options.cutout:
        chosen.append(Cutout(options.cutout, shape))
    if options.transform:
        chosen.append(own_transform(options.transform))
    return TransformChain(chosen)


def own_transform(path: str) -> Transform:
    """Return the user's own transform that ``package.module:Class`` names."""
    found = import_path(path, "train.transform")
    if not (inspect.isclass(found) and issubclass(found, Transform)):
        raise CafedclError(
            f"train.transform '{path}': it is not a class derived from cafedcl.extend.Transform"
        )
    check_steps(found, Transform, f"train.transform '{path}'", "draw", "apply")
    with explained_failure(f"train.transform '{path}': cannot be made"):
        return found()


def rotations(angles: Tensor) -> Tensor:
    """Return the maps (N, 3, 3) of pixels around the centre that rotate images by angles."""
    cosine = angles.cos()
    sine = angles.sin()
    maps = torch.eye(3).repeat(len(angles), 1, 1)
    maps[:, 0, 0] = cosine
    maps[:, 0, 1] = -sine
    maps[:, 1, 0] = sine
    maps[:, 1, 1] = cosine
    return maps


def in_unit_square(maps: Tensor, shape: Shape) -> Tensor:
    """Return maps of pixels (N, 3, 3) in PyTorch's units (N, 2, 3).

    There an image extends from −1 to 1. So a rotation keeps its angle in an image that is not
    square.
    """
    size = torch.tensor([shape[2], shape[1], 2.0])
    return maps[:, :2] * size[None, None, :] / size[:2][None, :, None]


def warp(x: Tensor, maps: Tensor) -> Tensor:
    """Return images whose pixels are taken from mapped positions; zero outside the image.

    ``maps`` are (N, 2, 3), in PyTorch's units.
    """
    grid = F.affine_grid(maps, list(x.shape), align_corners=False)
    return F.grid_sample(x.float(), grid, align_corners=False).to(x.dtype)


def recolour(x: Tensor, factors: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return normalised images with other brightness, contrast and saturation, by factors (N, 3).

    Pixels stay between black and white. Grey images have no saturation.
    """
    brightness, contrast, saturation = (part.view(-1, 1, 1, 1) for part in factors.T)
    pixels = (x.float() * std + mean) * brightness
    grey = luminance(pixels)
    average = grey.mean((2, 3), keepdim=True)
    pixels = average + contrast * (pixels - average)
    grey = average + contrast * (grey - average)
    pixels = (grey + saturation * (pixels - grey)).clamp(0, 1)
    normalised: Tensor = (pixels - mean) / std
    return normalised.to(x.dtype)


def luminance(pixels: Tensor) -> Tensor:
    """Return the grey values (N, 1, H, W) of images."""
    if pixels.shape[1] != len(LUMINANCE):
        return pixels.mean(1, keepdim=True)
    red, green, blue = pixels.split(1, 1)
    grey: Tensor = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return grey
