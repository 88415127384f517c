"""A run whose training images lie at sites: what the server knows of them, and what a site is told
of the others.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cafedcl.config.sections import Config, SplitOptions
from cafedcl.core.contract import Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Header, Tensors
from cafedcl.data import Dataset, load_dataset
from cafedcl.data.dataset import moments, scale
from cafedcl.data.own.items import sort_names
from cafedcl.data.shards import Shards
from cafedcl.data.splits import split
from cafedcl.task.build import SITES, Setup, assemble, choose_device, settle
from cafedcl.task.task import Task

NOBODY = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Enrolled:
    """What a site tells of its data when it enrols: numbers per class and of the pixels, never an
    image or a label.
    """

    site: str
    names: tuple[str, ...]
    shape: Shape
    counts: Tensor
    """Training images per class, without the validation part."""
    tested: Tensor
    mean: Tensor
    square: Tensor
    """The mean of the pixels and of their squares, per channel."""

    def packed(self) -> tuple[Tensors, Header]:
        """Return it as tensors and header."""
        tensors = {
            "counts": self.counts,
            "tested": self.tested,
            "mean": self.mean,
            "square": self.square,
        }
        return tensors, {"site": self.site, "names": list(self.names), "shape": list(self.shape)}

    @classmethod
    def unpacked(cls, tensors: Tensors, header: Header) -> "Enrolled":
        """Return what a site sent; raises ValueError for what cannot be."""
        site = header["site"]
        names = header["names"]
        shape = header["shape"]
        if not isinstance(site, str) or not all(isinstance(name, str) for name in names):
            raise ValueError("names are not text")
        if len(shape) != 3 or not all(
            isinstance(size, int) and 0 < size <= 65536 for size in shape
        ):
            raise ValueError(f"{shape} is not an image's shape")
        counts, tested, mean, square = (
            tensors[name] for name in ("counts", "tested", "mean", "square")
        )
        for numbers in (counts, tested):
            if (
                numbers.dtype != torch.int64
                or tuple(numbers.shape) != (len(names),)
                or (numbers < 0).any()
            ):
                raise ValueError("its counts are not a number per class")
        for numbers in (mean, square):
            if tuple(numbers.shape) != (shape[0],) or not ((numbers >= 0) & (numbers <= 1)).all():
                raise ValueError("its pixels' moments do not lie in [0, 1]")
        if not counts.sum():
            raise ValueError("it has no training images")
        return cls(site, tuple(names), (shape[0], shape[1], shape[2]), counts, tested, mean, square)


@dataclass(frozen=True)
class Population:
    """All sites of a run together, in the order of their names, as the server knows them."""

    sites: tuple[str, ...]
    names: tuple[str, ...]
    shape: Shape
    counts: Tensor
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, sites: list[Enrolled]) -> "Population":
        """Put the sites together: every class that any of them has, and the pixels' mean over all
        their images.
        """
        sites = sorted(sites, key=lambda site: site.site)
        for one, other in pairwise(sites):
            if one.site == other.site:
                raise CafedclError(
                    f"two sites call themselves '{one.site}'; give each its own name in its site.toml"
                )
        for site in sites[1:]:
            if site.shape != sites[0].shape:
                raise CafedclError(
                    f"site {site.site}: its images are {site.shape}, those of {sites[0].site} {sites[0].shape}; "
                    "set data.size, so that all are resized alike"
                )
        names = tuple(sort_names({name for site in sites for name in site.names}))
        counts = torch.stack([spread(site.counts, site.names, names) for site in sites])
        share = counts.sum(1, keepdim=True).double() / counts.sum()
        mean, square = (
            (share * torch.stack([getattr(site, moment) for site in sites])).sum(0)
            for moment in ("mean", "square")
        )
        return cls(
            tuple(site.site for site in sites), names, sites[0].shape, counts, *scale(mean, square)
        )

    def place(self, site: str) -> "SiteAssignment":
        """Return what a site is told."""
        return SiteAssignment(
            self.sites.index(site),
            len(self.sites),
            self.names,
            *(tuple(values.flatten().tolist()) for values in (self.mean, self.std)),
            *(tuple(values.tolist()) for values in (self.counts.amax(0), self.counts.sum(0))),
        )


@dataclass(frozen=True)
class SiteAssignment:
    """A site's place in a run: its number, the classes, how images are standardised, and the
    census.
    """

    client: int
    clients: int
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    most: tuple[int, ...]
    total: tuple[int, ...]


def spread(numbers: Tensor, names: tuple[str, ...], all_names: tuple[str, ...]) -> Tensor:
    """Return numbers per class in the order of all classes."""
    spread_out = torch.zeros(len(all_names), dtype=numbers.dtype)
    spread_out[[all_names.index(name) for name in names]] = numbers
    return spread_out


def relabelled(data: Dataset, names: tuple[str, ...], whose: str) -> Dataset:
    """Return a data set with its classes numbered as in ``names``."""
    unknown = [name for name in data.names if name not in names]
    if unknown:
        raise CafedclError(
            f"{whose}: the class '{unknown[0]}' is not one of this run's: {', '.join(names)}"
        )
    order = torch.tensor([names.index(name) for name in data.names])
    return replace(data, names=names, train_y=order[data.train_y], test_y=order[data.test_y])


def own_shards(config: Config, data: Dataset) -> Shards:
    """Return all images of a site as its one shard, with a validation part held out."""
    options = SplitOptions(kind="natural", validation=config.split.validation)
    return split(
        data.train_y, torch.zeros_like(data.train_y), data.classes, 1, options, config.run.seed, 0.0
    )


def enrol(config: Config, data: Dataset, site: str) -> Enrolled:
    """Return what a site tells of its data."""
    counts = own_shards(config, data).counts[0]
    tested = torch.bincount(data.test_y, minlength=data.classes)
    return Enrolled(site, data.names, data.shape, counts, tested, *moments(data.train_x))


def prepare_server(config: Config, population: Population) -> Setup:
    """Build the server's side of a run whose training images lie at the sites."""
    if config.evaluate.protocol != "complete":
        raise CafedclError(
            "evaluate.protocol: sites with their own data test on their own part; leave it at complete"
        )
    device = choose_device(config.engine.device)
    empty = torch.zeros(0, *population.shape, dtype=torch.uint8)
    data = Dataset(
        empty, NOBODY, empty, NOBODY, population.names, population.mean, population.std, NOBODY
    )
    config = settle(config, data, device)
    if config.data.test:
        ours = load_dataset(replace(config.data, name=config.data.test))
        if ours.shape != population.shape:
            raise CafedclError(
                f"data.test: its images are {ours.shape}, those of the sites {population.shape}"
            )
        ours = relabelled(ours, population.names, "data.test")
        data = replace(data, test_x=ours.test_x, test_y=ours.test_y)
    clients = len(population.sites)
    config = replace(config, federation=replace(config.federation, clients=clients))
    setup = assemble(
        config,
        data,
        Shards((NOBODY,) * clients, (NOBODY,) * clients, (), population.counts),
        device,
    )
    if setup.task.method.pooled:
        raise CafedclError(
            f"method {config.method.name}: it pools all data in one place, which sites do not give away"
        )
    return setup


def prepare_site(config: Config, data: Dataset, place: SiteAssignment, site: str) -> Task:
    """Build a site's bench: it is one client among others, of whom it knows the census only."""
    device = choose_device(config.engine.device)
    alone = own_shards(config, data)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (place.mean, place.std))
    data = replace(relabelled(data, place.names, f"site {site}"), mean=mean, std=std)
    counts = torch.zeros(place.clients, len(place.names), dtype=torch.int64)
    counts[place.client] = torch.bincount(data.train_y[alone.train[0]], minlength=len(place.names))
    shards = Shards(_only(alone.train[0], place), _only(alone.validation[0], place), (), counts)
    return assemble(
        config, data, shards, device, (torch.tensor(place.most), torch.tensor(place.total))
    ).task


def _only(mine: Tensor, place: SiteAssignment) -> tuple[Tensor, ...]:
    return tuple(mine if client == place.client else NOBODY for client in range(place.clients))


def is_remote(config: Config) -> bool:
    """Return whether a config's training images lie at sites."""
    return config.data.name == SITES
