"""A run whose training images are at sites: what the server and each site know of all sites."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.config.split_options import SplitOptions
from cafedcl.core.contract import Census, Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import Header, Tensors
from cafedcl.data import Dataset, load_dataset
from cafedcl.data.alike import alike_classes
from cafedcl.data.dataset import mean_and_std, pixel_moments
from cafedcl.data.own.items import sort_names
from cafedcl.data.shards import NO_ROWS, ClientRows, Shards
from cafedcl.data.splits import split
from cafedcl.deploy.rules import RefusalError
from cafedcl.device.choose import choose_device
from cafedcl.task.build import Setup, assemble, settle
from cafedcl.task.release import Release
from cafedcl.task.task import Task

NO_INDICES = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Enrolled:
    """A site's enrolment: counts per class and pixel statistics, never an image or a label."""

    site: str
    names: tuple[str, ...]
    shape: Shape
    counts: Tensor
    """Training images per class, without the validation part."""
    tested: Tensor
    """Test images per class."""
    mean: Tensor
    square: Tensor
    """Means of the pixels and of the squared pixels, per channel."""

    def packed(self) -> tuple[Tensors, Header]:
        """Return the enrolment as tensors and header."""
        tensors = {
            "counts": self.counts,
            "tested": self.tested,
            "mean": self.mean,
            "square": self.square,
        }
        return tensors, {"site": self.site, "names": list(self.names), "shape": list(self.shape)}

    @classmethod
    def unpacked(cls, tensors: Tensors, header: Header) -> "Enrolled":
        """Return a site's enrolment; raises ValueError for impossible values."""
        site = header["site"]
        names = header["names"]
        shape = header["shape"]
        if not isinstance(site, str) or not all(isinstance(name, str) for name in names):
            raise ValueError("names are not text")
        if len(shape) != 3 or not all(
            isinstance(size, int) and 0 < size <= 65536 for size in shape
        ):
            raise ValueError(f"{shape} is not an image's shape")
        counts = tensors["counts"]
        tested = tensors["tested"]
        mean = tensors["mean"]
        square = tensors["square"]
        for numbers in (counts, tested):
            if (
                numbers.dtype != torch.int64
                or tuple(numbers.shape) != (len(names),)
                or (numbers < 0).any()
            ):
                raise ValueError("its counts are not one number per class")
        for numbers in (mean, square):
            if tuple(numbers.shape) != (shape[0],) or not ((numbers >= 0) & (numbers <= 1)).all():
                raise ValueError("its pixel moments are not in [0, 1]")
        if not counts.sum():
            raise ValueError("it has no training images")
        return cls(site, tuple(names), (shape[0], shape[1], shape[2]), counts, tested, mean, square)


@dataclass(frozen=True)
class EnrolmentLimits:
    """What the deployment lets a site enrol with, so that no site can claim whatever it likes."""

    classes: tuple[str, ...] = ()
    """The names of all classes; empty: those that sites have."""
    images_per_class: int = 0
    """The most images of one class; 0: no limit."""

    def read(self, tensors: Tensors, header: Header) -> Enrolled:
        """Return a site's enrolment; raises ValueError if it is impossible or beyond the limits."""
        enrolled = Enrolled.unpacked(tensors, header)
        if self.classes:
            for name in enrolled.names:
                if name not in self.classes:
                    raise ValueError(
                        f"it has the class '{name}', which is not among the deployment's classes: "
                        f"{', '.join(self.classes)}"
                    )
        largest = int(torch.maximum(enrolled.counts, enrolled.tested).max())
        if self.images_per_class and largest > self.images_per_class:
            raise ValueError(
                f"it claims {largest} images of a class, and the deployment's images_per_class is "
                f"{self.images_per_class}"
            )
        return enrolled


@dataclass(frozen=True)
class Population:
    """All sites of a run, sorted by name, as the server knows them."""

    sites: tuple[str, ...]
    names: tuple[str, ...]
    shape: Shape
    counts: Tensor
    mean: Tensor
    std: Tensor
    tested: Tensor | None
    """Test images per site and class; None in a run of an earlier version."""
    remarks: tuple[str, ...] = ()
    """What may be wrong with the enrolments of the sites."""

    @classmethod
    def of(cls, sites: list[Enrolled], classes: tuple[str, ...] = ()) -> "Population":
        """Combine the sites: the classes, and the pixel statistics of all images.

        Without ``classes``, they are all that any site has.
        """
        sites = sorted(sites, key=lambda site: site.site)
        for one, other in pairwise(sites):
            if one.site == other.site:
                raise CafedclError(
                    f"two sites are named '{one.site}'; give each its own name in its site.toml"
                )
        for site in sites[1:]:
            if site.shape != sites[0].shape:
                advice = same_shape_advice(site.shape, sites[0].shape)
                raise CafedclError(
                    f"site {site.site}: its images are {site.shape}, but those of "
                    f"{sites[0].site} are {sites[0].shape}; {advice}"
                )
        names = classes or tuple(sort_names({name for site in sites for name in site.names}))
        counts = torch.stack([align_counts(site.counts, site.names, names) for site in sites])
        tested = torch.stack([align_counts(site.tested, site.names, names) for site in sites])
        share = counts.sum(1, keepdim=True).double() / counts.sum()
        mean = (share * torch.stack([site.mean for site in sites])).sum(0)
        square = (share * torch.stack([site.square for site in sites])).sum(0)
        mean, std = mean_and_std(mean, square)
        titles = tuple(site.site for site in sites)
        holders = {name: {site.site for site in sites if name in site.names} for name in names}
        remarks = tuple(alike_classes("the sites", holders))
        return cls(titles, names, sites[0].shape, counts, mean, std, tested, remarks)

    def check(self, site: Enrolled) -> None:
        """Raise ValueError if a site of this population does not have the images it had."""
        if site.site not in self.sites:
            return
        row = self.sites.index(site.site)
        before = {"training": self.counts, "test": self.tested}
        now = {"training": site.counts, "test": site.tested}
        for kind, table in before.items():
            if table is None:
                continue
            had = dict(zip(self.names, table[row].tolist(), strict=True))
            has = dict(zip(site.names, now[kind].tolist(), strict=True))
            for name in {**had, **has}:
                if had.get(name, 0) != has.get(name, 0):
                    raise ValueError(
                        f"its images have changed since the run began ({kind} images of {name}: "
                        f"{had.get(name, 0)} then, {has.get(name, 0)} now); restore them there, or "
                        "start a new run"
                    )

    @property
    def unreported(self) -> list[str]:
        """The classes for which no site reports training images."""
        known = self.counts.sum(0) > 0
        return [name for name, there in zip(self.names, known.tolist(), strict=True) if not there]

    def assignment(self, site: str, census: Census) -> "SiteAssignment":
        """Return a site's assignment; ``census`` is that of all clients, from the server's task."""
        return SiteAssignment(
            client=self.sites.index(site),
            clients=len(self.sites),
            names=self.names,
            mean=tuple(self.mean.flatten().tolist()),
            std=tuple(self.std.flatten().tolist()),
            **{name: tuple(value.tolist()) for name, value in census._asdict().items()},
        )


def same_shape_advice(one: Shape, other: Shape) -> str:
    """Return advice for images of two places that differ in shape."""
    if one[0] == other[0]:
        return "set data.size to resize all of them"
    return (
        "the first number is the channels, 1 for grey and 3 for RGB; set data.colours = grey or "
        "rgb to convert all of them"
    )


@dataclass(frozen=True)
class SiteAssignment:
    """What a site learns about a run: its number, the classes, mean and std, and class counts.

    ``most``, ``total`` and ``images`` are what it learns about all sites (see `Census`).
    """

    client: int
    clients: int
    names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    most: tuple[float, ...]
    total: tuple[float, ...]
    images: tuple[float, ...]


def align_counts(counts: Tensor, names: tuple[str, ...], all_names: tuple[str, ...]) -> Tensor:
    """Return counts per class in the order of all classes, 0 where there is none."""
    aligned = torch.zeros(len(all_names), dtype=counts.dtype)
    aligned[[all_names.index(name) for name in names]] = counts
    return aligned


def site_shards(config: Config, data: Dataset) -> Shards:
    """Return all images of a site as one shard, with validation images held out."""
    options = SplitOptions(kind="natural", validation=config.split.validation)
    alone = torch.zeros_like(data.train_y)
    seed = config.run.seed
    return split(data.train_y, alone, data.classes, 1, options, seed, 0.0, data.groups)


def enrol(config: Config, data: Dataset, site: str) -> Enrolled:
    """Return a site's enrolment: what it may report of its counts, and no more."""
    if data.window and not config.data.limits:
        raise RefusalError(
            "its images have more than 8 bits per pixel, and every site would choose other grey "
            "values as black and white; start the run with --set data.window=LOW,HIGH"
        )
    release = Release(config.release.settled(own_data=config.at_sites))
    counts = release.counts(site_shards(config, data).counts[0])
    if not counts.any():
        raise RefusalError(
            f"no class has {release.options.fewest} training images, which is the smallest number "
            "that this run lets a site report (release.fewest)"
        )
    tested = release.counts(torch.bincount(data.test_y, minlength=data.classes))
    mean, square = (release.moments(value) for value in pixel_moments(data.train_x))
    return Enrolled(site, data.names, data.shape, counts, tested, mean, square)


def prepare_server(config: Config, population: Population) -> Setup:
    """Build the server's side of a run whose training images are at the sites."""
    if config.evaluate.protocol != "complete":
        raise CafedclError(
            "evaluate.protocol: sites with their own data use their own test images; set complete"
        )
    device = choose_device(config.engine.device)
    empty = torch.zeros(0, *population.shape, dtype=torch.uint8)
    data = Dataset(
        empty,
        NO_INDICES,
        empty,
        NO_INDICES,
        population.names,
        population.mean,
        population.std,
        NO_INDICES,
        window=config.data.limits,
    )
    config = settle(config, data, device)
    if config.data.test:
        test = load_dataset(replace(config.data, name=config.data.test))
        if test.shape != population.shape:
            raise CafedclError(
                f"data.test: its images are {test.shape}, but those of the sites are "
                f"{population.shape}; {same_shape_advice(test.shape, population.shape)}"
            )
        test = test.relabelled(population.names, "data.test")
        data = replace(data, test_x=test.test_x, test_y=test.test_y)
    clients = len(population.sites)
    nothing = ClientRows.of([NO_INDICES] * clients)
    config = replace(config, federation=replace(config.federation, clients=clients))
    setup = assemble(
        config,
        data,
        Shards(
            nothing,
            nothing,
            NO_ROWS,
            population.counts,
            population.sites,
        ),
        device,
    )
    if setup.task.method.pooled:
        raise CafedclError(
            f"method {config.method.name}: it needs all data in one place, but sites keep theirs"
        )
    return replace(setup, task=replace(setup.task, tested=population.tested))


def prepare_site(config: Config, data: Dataset, assigned: SiteAssignment, site: str) -> Task:
    """Build a site's task. The site is one client; of the others it knows only class counts."""
    device = choose_device(config.engine.device)
    alone = site_shards(config, data)
    classes = len(assigned.names)
    data = replace(
        data.relabelled(assigned.names, f"site {site}"),
        mean=torch.tensor(assigned.mean).view(1, -1, 1, 1),
        std=torch.tensor(assigned.std).view(1, -1, 1, 1),
    )
    counts = torch.zeros(assigned.clients, classes, dtype=torch.int64)
    counts[assigned.client] = torch.bincount(data.train_y[alone.train[0]], minlength=classes)
    shards = Shards(
        _one_shard(alone.train[0], assigned),
        _one_shard(alone.validation[0], assigned),
        NO_ROWS,
        counts,
    )
    census = Census(*map(torch.tensor, (assigned.most, assigned.total, assigned.images)))
    return assemble(config, data, shards, device, census).task


def _one_shard(indices: Tensor, assigned: SiteAssignment) -> ClientRows:
    """Return shards of all clients, all empty except this site's."""
    shards = [NO_INDICES] * assigned.clients
    shards[assigned.client] = indices
    return ClientRows.of(shards)
