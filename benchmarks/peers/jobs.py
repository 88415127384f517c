"""The jobs that every system runs, and their data: one .npz file that all read.

    python benchmarks/peers/jobs.py a b c d digits

writes the files into benchmarks/peers/.cache and prints where they are. Images are class-dependent
patterns under noise, made from a fixed seed (jobs a, b, c, d), or scikit-learn's handwritten
digits. A file holds uint8 images, labels, the client of every training image, the mean and standard
deviation to normalise with, and the initial weights of the network.
"""

import argparse
import hashlib
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

CACHE = Path(__file__).parent / ".cache"
SEED = 2026
CLASSES = 10
TEST_IMAGES = 1000
DIGITS_TEST = 359
ALPHA = 0.1
SCALES = ("full", "tiny")


class JobError(Exception):
    """A mistake that the user can fix; its text is one line."""


@dataclass(frozen=True)
class Job:
    """A FedAvg job: SGD, cross-entropy, models averaged by the clients' numbers of images."""

    name: str
    clients: int
    cohort: int
    """Clients per round."""
    images: int
    """Training images of all clients together."""
    epochs: int
    batch: int
    rounds: int
    """Default number of rounds."""
    shape: tuple[int, int, int] = (3, 32, 32)
    lr: float = 0.01
    model: str = "cnn"
    """cnn: a small CNN that fits the images; resnet: ResNet-18 with GroupNorm."""
    device: str = "cpu"
    """Default device: cpu or cuda."""

    def steps(self, samples: int) -> int:
        """Return the optimizer steps per round of a client with the given number of images."""
        return self.epochs * -(-samples // self.batch)


JOBS = {
    job.name: job
    for job in (
        Job("a", clients=20, cohort=20, images=20 * 250, epochs=5, batch=50, rounds=3),
        Job("b", clients=100, cohort=100, images=100 * 250, epochs=5, batch=50, rounds=2),
        Job("c", clients=1000, cohort=50, images=1000 * 50, epochs=1, batch=10, rounds=8),
        Job(
            "d",
            clients=20,
            cohort=20,
            images=20 * 500,
            epochs=5,
            batch=50,
            rounds=3,
            model="resnet",
            device="cuda",
        ),
        Job(
            "digits",
            clients=20,
            cohort=20,
            images=1797 - DIGITS_TEST,
            epochs=5,
            batch=8,
            rounds=20,
            shape=(1, 8, 8),
        ),
    )
}


def find_job(name: str, scale: str = "full") -> Job:
    """Return a job by name; ``tiny`` is the same job with 4 clients of 20 images, for tests."""
    if name not in JOBS:
        raise JobError(f"there is no job '{name}'; the jobs are {', '.join(JOBS)}")
    job = JOBS[name]
    if scale == "full":
        return job
    return replace(
        job, clients=4, cohort=4 if job.cohort == job.clients else 2, images=80, batch=8, rounds=2
    )


@dataclass(frozen=True)
class Data:
    """The content of a data file."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array
    owners: Array
    """The client of every training image."""
    mean: Array
    std: Array
    weights: dict[str, Array]
    """The initial weights, by PyTorch's names and in its layout."""

    @cached_property
    def sizes(self) -> list[int]:
        """Training images per client."""
        return np.bincount(self.owners).tolist()

    def client(self, index: int) -> tuple[Array, Array]:
        """Return a client's normalised images and labels."""
        mine = self.owners == index
        return self.images(self.train_x[mine]), self.train_y[mine]

    def images(self, x: Array) -> Array:
        """Return uint8 images as float32, normalised: the network's input."""
        return (x.astype(np.float32) / np.float32(255) - self.mean) / self.std


def make(job: Job) -> Data:
    """Make a job's data, always the same."""
    rng = np.random.default_rng([SEED, *job.name.encode()])
    if job.shape == (1, 8, 8):
        x, y, test_x, test_y = _digits(job.images, rng)
        owners = dirichlet(y, job.clients, rng)
    else:
        x, y = _patterns(job.images + TEST_IMAGES, job.shape, rng)
        test_x = x[job.images :]
        test_y = y[job.images :]
        x = x[: job.images]
        y = y[: job.images]
        owners = np.repeat(np.arange(job.clients), job.images // job.clients)
    pixels = [
        np.bincount(x[:, channel].ravel(), minlength=256) / x[:, channel].size
        for channel in range(job.shape[0])
    ]
    levels = np.arange(256) / 255
    mean = np.array([share @ levels for share in pixels])
    std = np.sqrt(
        [share @ (levels - middle) ** 2 for share, middle in zip(pixels, mean, strict=True)]
    )
    scale = [part.astype(np.float32).reshape(1, -1, 1, 1) for part in (mean, std)]
    return Data(
        x, y, test_x, test_y, owners, *scale, initial_weights(layers(job.shape, job.model), rng)
    )


def _patterns(
    number: int, shape: tuple[int, int, int], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return images: a coarse pattern per class, under noise that is stronger."""
    channels, height, width = shape
    coarse = rng.standard_normal((CLASSES, channels, height // 8, width // 8), dtype=np.float32)
    patterns = coarse.repeat(8, axis=2).repeat(8, axis=3)
    y = rng.integers(CLASSES, size=number)
    x = np.empty((number, *shape), dtype=np.uint8)
    for part in np.array_split(np.arange(number), -(-number // 1000)):
        noise = rng.standard_normal((len(part), *shape), dtype=np.float32)
        x[part] = np.clip(128 + 24 * patterns[y[part]] + 40 * noise, 0, 255)
    return x, y


def _digits(images: int, rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Return the handwritten digits as training and test images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise JobError(
            "the digits need scikit-learn, which is not installed here; make the file elsewhere"
        ) from None
    bunch = load_digits()
    order = rng.permutation(len(bunch.target))
    x = np.round(bunch.images[order] * (255 / 16)).astype(np.uint8)[:, None]
    y = bunch.target[order].astype(np.int64)
    held = slice(len(y) - DIGITS_TEST, None)
    return x[:images], y[:images], x[held], y[held]


def dirichlet(labels: Array, clients: int, rng: np.random.Generator) -> Array:
    """Split images over clients of equal size, with class proportions drawn from Dir(0.1)."""
    decks = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(CLASSES)]
    owners = np.empty(len(labels), dtype=np.int64)
    sizes = np.full(clients, len(labels) // clients)
    sizes[: len(labels) % clients] += 1
    for client, size in enumerate(sizes):
        mixture = rng.dirichlet(np.full(CLASSES, ALPHA)) + 1e-12
        for _ in range(size):
            chances = mixture * [bool(deck) for deck in decks]
            owners[decks[rng.choice(CLASSES, p=chances / chances.sum())].pop()] = client
    return owners


def layers(shape: tuple[int, int, int], model: str = "cnn") -> dict[str, tuple[int, ...]]:
    """Return the weights' shapes of ResNet-18, the 4-layer CNN, or a small CNN for 8×8 images."""
    channels, height, width = shape
    if model == "resnet":
        return _resnet(channels)
    if height < 16:
        return {
            "conv1": (16, channels, 3, 3),
            "conv2": (32, 16, 3, 3),
            "full": (64, 32 * (height // 4) * (width // 4)),
            "head": (CLASSES, 64),
        }
    return {
        "conv1": (32, channels, 5, 5),
        "conv2": (64, 32, 5, 5),
        "full": (512, 64 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)),
        "head": (CLASSES, 512),
    }


def _resnet(channels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of ResNet-18's weights; those of its GroupNorms have one dimension."""
    shapes: dict[str, tuple[int, ...]] = {"conv": (64, channels, 3, 3), "norm": (64,)}
    inputs = 64
    for index, outputs in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        block = f"blocks.{index}"
        for number, width in ((1, inputs), (2, outputs)):
            shapes[f"{block}.conv{number}"] = (outputs, width, 3, 3)
            shapes[f"{block}.norm{number}"] = (outputs,)
        if inputs != outputs:
            shapes[f"{block}.shortcut.conv"] = (outputs, inputs, 1, 1)
            shapes[f"{block}.shortcut.norm"] = (outputs,)
        inputs = outputs
    return {**shapes, "head": (CLASSES, inputs)}


def initial_weights(
    shapes: dict[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, Array]:
    """Return initial weights, uniform within ±1/√(inputs of a unit).

    GroupNorms start with ones and zeros. Convolutions before them have no bias.
    """
    normed = "norm" in shapes
    weights: dict[str, Array] = {}
    for name, form in shapes.items():
        if len(form) == 1:
            weights[f"{name}.weight"] = np.ones(form, np.float32)
            weights[f"{name}.bias"] = np.zeros(form, np.float32)
            continue
        bound = 1 / np.sqrt(np.prod(form[1:]))
        weights[f"{name}.weight"] = rng.uniform(-bound, bound, form).astype(np.float32)
        if len(form) == 2 or not normed:
            weights[f"{name}.bias"] = rng.uniform(-bound, bound, form[0]).astype(np.float32)
    return weights


def data_file(name: str, scale: str) -> Path:
    """Return the path of a job's data; it changes with the job and with this script."""
    made = f"{find_job(name, scale)}\n{Path(__file__).read_text(encoding='utf-8')}"
    return CACHE / f"{name}-{scale}-{hashlib.sha256(made.encode()).hexdigest()[:12]}.npz"


def save(data: Data, path: Path) -> None:
    """Write a data file; it appears under its name only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {name: value for name, value in vars(data).items() if isinstance(value, np.ndarray)}
    weights = {f"weights/{name}": value for name, value in data.weights.items()}
    unfinished = path.with_suffix(".part.npz")
    np.savez(unfinished, **parts, **weights)
    unfinished.replace(path)


def load(path: Path) -> Data:
    """Read a data file."""
    try:
        with np.load(path) as file:
            parts = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise JobError(
            f"{path}: no such file; make it with `python benchmarks/peers/jobs.py`"
        ) from None
    except (OSError, ValueError) as error:
        raise JobError(f"{path}: not a data file: {error}") from None
    weights = {
        name.removeprefix("weights/"): parts.pop(name)
        for name in list(parts)
        if name.startswith("weights/")
    }
    try:
        return Data(**parts, weights=weights)
    except TypeError:
        raise JobError(f"{path}: not a data file of these benchmarks") from None


def main() -> None:
    """Make the data of the named jobs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=f"one or more of {', '.join(JOBS)}")
    parser.add_argument("--scale", choices=SCALES, default="full")
    arguments = parser.parse_args()
    try:
        for name in arguments.jobs:
            path = data_file(name, arguments.scale)
            save(make(find_job(name, arguments.scale)), path)
            print(path)
    except JobError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
