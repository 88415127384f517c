"""Statistics of a split, and its figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cafedcl.core.errors import CafedclError
from cafedcl.core.fonts import save_figure
from cafedcl.core.printable import printable

PAIRS = 1000
"""The label divergence is averaged over the pairs of at most this many clients, the first ones."""


@dataclass(frozen=True)
class Statistics:
    """Sizes, classes per client, imbalance and divergence of a split."""

    clients: int
    images: int
    smallest: int
    mean_size: float
    largest: int
    fewest_classes: int
    mean_classes: float
    most_classes: int
    imbalance_ratio: float | None
    """Largest over smallest class of the global training set; None if a class is empty."""
    divergence: float
    """Mean total-variation distance between the label distributions of two clients.

    It is 0 if all clients have the same distribution, and 1 if no two share a class.
    """


def statistics(counts: Tensor) -> Statistics:
    """Return the statistics of a split from its training images per client and class."""
    sizes = counts.sum(1)
    held = (counts > 0).sum(1)
    classes = counts.sum(0)
    return Statistics(
        clients=len(counts),
        images=int(sizes.sum()),
        smallest=int(sizes.min()),
        mean_size=float(sizes.double().mean()),
        largest=int(sizes.max()),
        fewest_classes=int(held.min()),
        mean_classes=float(held.double().mean()),
        most_classes=int(held.max()),
        imbalance_ratio=float(classes.max() / classes.min()) if classes.min() > 0 else None,
        divergence=label_divergence(counts),
    )


def label_divergence(counts: Tensor) -> float:
    """Return the mean total-variation distance between two clients' label distributions."""
    share = counts[:PAIRS].double()
    share = share / share.sum(1, keepdim=True)
    if len(share) < 2:
        return 0.0
    return float(torch.pdist(share, p=1).mean() / 2)


@dataclass(frozen=True)
class DrawnSplit:
    """A split to draw: the data set's name, images per client and class, classes and clients."""

    title: str
    counts: Tensor
    classes: Sequence[str]
    clients: Sequence[str] = ()


def draw_splits(splits: Sequence[DrawnSplit], path: Path) -> None:
    """Draw splits side by side, as in the paper: a disc per client and class."""
    import matplotlib as mpl

    # A dollar sign in a name is a dollar sign, and not the start of a formula.
    with mpl.rc_context({"text.parse_math": False}):
        _draw_splits(splits, path)


def _draw_splits(splits: Sequence[DrawnSplit], path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    width = sum(max(3.0, 0.28 * len(split.counts)) for split in splits) + 1.0
    height = max(2.8, 0.26 * max(len(split.classes) for split in splits) + 1.0)
    figure = Figure(figsize=(min(width, 40), min(height, 40)), layout="constrained")
    axes = figure.subplots(1, len(splits), squeeze=False)[0]
    for ax, split in zip(axes, splits, strict=True):
        counts = split.counts
        names = split.classes
        client, label = counts.nonzero(as_tuple=True)
        number = counts[client, label].double()
        area = 180 * number / number.max()
        ax.scatter(client, label, s=area, c=number, cmap="viridis_r", linewidths=0)
        ax.set(
            title=printable(split.title),
            xlabel="client",
            ylabel="class",
            xlim=(-0.7, len(counts) - 0.3),
            ylim=(-0.7, len(names) - 0.3),
        )
        if len(names) <= 50:
            ax.set_yticks(range(len(names)), [printable(name[:18]) for name in names])
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if 0 < len(split.clients) <= 50:
            shown = [printable(name[:18]) for name in split.clients]
            ax.set_xticks(range(len(shown)), shown, rotation=90)
        ax.grid(alpha=0.2)
        ax.set_axisbelow(True)
    try:
        save_figure(figure, path, dpi=160)
    except OSError as error:
        raise CafedclError(f"{path}: the figure cannot be written: {error.strerror}") from None
    except ValueError as error:
        # Matplotlib does not know the file's suffix.
        raise CafedclError(f"{path}: the figure cannot be written: {error}") from None
