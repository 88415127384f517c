"""What leaves a site in a run: every tensor and number, and what it reveals.

The list comes from real messages: a site with a few made-up images enrols, trains for a round and
scores a model, and its messages are read. So the list cannot differ from what is sent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from cafedcl.config.sections import SITES, Config
from cafedcl.core.contract import Down, Failure, Job, Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.imports import optional
from cafedcl.core.tensors import Tensors
from cafedcl.data.dataset import Dataset
from cafedcl.deploy.population import Population, enrol, prepare_server, prepare_site
from cafedcl.engine.cpu.messages import result_message
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.contributions import ContributionBounds
from cafedcl.federation.privacy import check_privacy
from cafedcl.functional.metrics import count_correct
from cafedcl.methods import checked, find_method

IMAGES_PER_CLASS = 10
"""Made-up images of every class that the site has."""
FEWEST = 2
"""A made-up site reports classes from this many images on, or fewer: it has few images."""
ENROLMENT = "once, before the first round"
ROUND = "every round"
SCORING = "whenever the server's model is scored"

TELLS = {
    "site": "the site's name",
    "names": "the names of its classes, also of those that it has few images of",
    "shape": "the size of its images",
    "counts": "how many training images of each class it has",
    "tested": "how many test images of each class it has",
    "mean": "the mean of all its training pixels, per channel",
    "square": "the mean of all its squared training pixels, per channel",
    "client": "its number in the run",
    "samples": "how many training images it has, as far as it reports them",
    "losses": "its mean training loss in the last epoch, per term",
    "seconds": "how long it trained",
    "model": "its weights after training; they can give away training images",
    "up/classes": "which classes it reports",
    "up/prototypes": "a mean feature vector per class; of few images, it identifies them",
    "up/confidence": "how good it believes its prototype of a class to be",
    "up/gram": "second moments of its features; of few images, they identify them",
    "up/targets": "sums of its features per class; of few images, they identify them",
    "up/counts": "how many training images of each class it has",
    "up": "what the method needs besides the weights",
    "notes": "for people to read; no method uses it",
    "memory": "which round its memory is of; the memory itself stays at the site",
    "correct": "correct predictions of its own model on its test images, per class",
    "correct/tested": "how many test images of each class it has, told like its counts",
    "masked": "its contribution under masks: random numbers, of which only the sum makes sense",
    "keys": "two public keys, made for this sum",
    "shares": "encrypted shares of its secrets for each of the others (here two), then some of "
    "theirs, in the open",
    "all": "correct predictions of the server's model on its test images, per class",
}
"""What an entry reveals, by its name or the beginning of its name."""


@dataclass(frozen=True)
class Disclosed:
    """One entry of a message."""

    when: str
    name: str
    shape: tuple[int, ...]
    bytes: int
    tells: str


def made_up(shape: Shape, classes: int) -> Dataset:
    """Return a site's data set of random images; every class has training and test images."""
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat(IMAGES_PER_CLASS)
    x = torch.randint(0, 256, (len(y), *shape), dtype=torch.uint8, generator=draws)
    nobody = torch.zeros(0, dtype=torch.int64)
    names = tuple(f"class {number}" for number in range(classes))
    flat = torch.full((1, shape[0], 1, 1), 0.5)
    return Dataset(x, y, x, y, names, flat, flat, nobody)


def disclosed(config: Config, shape: Shape, classes: int) -> list[Disclosed]:
    """Return what one site of a deployment sends, for images of a shape and a number of classes."""
    data = replace(config.data, name=SITES, test="")
    federation = replace(config.federation, clients=1, min_replies=1, drop=())
    engine = replace(config.engine, device="cpu", name="flower", precision="fp32")
    # One step is enough to see what is sent.
    train = replace(config.train, epochs=1, iterations=1, batch_size=0)
    release = config.release.settled(own_data=True)
    release = replace(release, fewest=min(release.fewest, FEWEST))
    config = replace(
        config, data=data, federation=federation, engine=engine, train=train, release=release
    )
    own = made_up(shape, classes)
    enrolled = enrol(config, own, "a site")
    setup = prepare_server(config, Population.of([enrolled]))
    # A list for a run that cannot start would only mislead.
    check_privacy(setup.config, setup.task)
    assigned = Population.of([enrolled]).assignment("a site", setup.task.clients.census)
    task = prepare_site(setup.config, own, assigned, "a site")
    site = ReferenceEngine(task)
    state = setup.start()
    result = site.attempt(Job(0, Down(0, checked.broadcast(task.method, state)), {}, evaluate=True))
    if isinstance(result, Failure):
        raise CafedclError(f"a made-up site cannot train: {result.reason}")
    if result.memory:
        # A site keeps its memory, and sends the number of the round instead.
        result = replace(result, memory={"kept in round": torch.tensor(0)})
    found = list(_entries(ENROLMENT, *enrolled.packed()))
    if config.privacy.secure:
        size = ContributionBounds(config.privacy, task).contributions(state).size
        masked = {"masked": torch.zeros(size, dtype=torch.int32)}
        found += _entries(ROUND, masked, _secure_parts())
    else:
        found += _entries(ROUND, *result_message(result))
    if task.has_server_model:
        predicted = site.predict(state)()
        counted = count_correct({"all": predicted}, own.test_y, classes)
        found += _entries(SCORING, task.release.tested(counted), {})
    return found


def _secure_parts() -> dict[str, Any]:
    """Return what one of the fewest sites sends for a secure sum besides its masked vector."""
    optional("flwr", "flower", "privacy.secure")
    from cafedcl.deploy.flower.secure_sum import FEWEST, SecureMember

    members = [SecureMember(client) for client in range(FEWEST)]
    keys = {member.client: member.public for member in members}
    first = members[0]
    return {"client": 0, "keys": list(first.public), "shares": first.shares(keys)}


def _entries(when: str, tensors: Tensors, header: Mapping[str, Any]) -> Iterator[Disclosed]:
    """Yield the entries of a message; the weights of the model are one entry."""
    weights = {name: value for name, value in tensors.items() if name.startswith("model/")}
    others = {name: value for name, value in tensors.items() if name not in weights}
    for name, value in header.items():
        tells = _tells(name)
        if name == "seconds" and not value:
            tells = "always 0, since no notes are sent"
        yield Disclosed(when, name, _shape(value), len(str(value)), tells)
    if weights:
        numbers = sum(value.numel() for value in weights.values())
        yield Disclosed(when, "model", (numbers,), _bytes(weights.values()), _tells("model"))
    for name, value in others.items():
        yield Disclosed(when, name, tuple(value.shape), _bytes([value]), _tells(name))


def _bytes(values: Any) -> int:
    return sum(value.numel() * value.element_size() for value in values)


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value),) if isinstance(value, list | dict) else ()


def _tells(name: str) -> str:
    """Return what an entry reveals, by the longest known part of its name."""
    known = [key for key in TELLS if name == key or name.startswith(f"{key}/")]
    return TELLS[max(known, key=len)] if known else "not described"


def as_table(entries: list[Disclosed]) -> list[list[str]]:
    """Return the entries as rows of text: when, name, shape, bytes, what each reveals."""
    rows = []
    for entry in entries:
        shape = " × ".join(str(size) for size in entry.shape) or "one value"
        rows.append([entry.when, entry.name, shape, f"{entry.bytes:,}", entry.tells])
    return rows


def limits(config: Config) -> list[str]:
    """Return in words how a config limits what sites report."""
    release = config.release.settled(own_data=True)
    counts = {
        "exact": "class counts are exact",
        "rounded": f"class counts are rounded to multiples of {release.grid}",
        "withheld": "class counts are withheld",
    }
    lines = [
        f"classes with fewer than {release.fewest} images are not reported; "
        f"{counts[release.counts]}; "
        + ("prototypes have length 1; " if release.prototypes == "unit" else "")
        + ("no notes are sent" if release.notes == "off" else "notes are sent")
        + " ([release])"
    ]
    if release.is_plain:
        lines.append(
            "this [release] is that of a simulation, as the config of its run has it; sites refuse "
            "it by default. Without [release] you see what sites send by default"
        )
    reveals = find_method(config.method.name)[0].reveals
    if reveals:
        lines.append(
            f"method {config.method.name}: clients send {reveals}; sites refuse it unless they set "
            "details = true"
        )
    if config.privacy.kind == "none":
        lines.append(
            "there is no differential privacy: nothing bounds what the model tells ([privacy])"
        )
    else:
        lines.append(
            f"differential privacy of {config.privacy.kind}: the model has a bound ε, which grows "
            "with every round ([privacy]); the server itself sees what is listed above"
        )
    if config.privacy.secure:
        lines.append("the server learns the sum of the sites' contributions, and no single one")
    return lines
