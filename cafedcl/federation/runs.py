"""Runs: started, resumed, loaded from their folder, and used to predict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import TICKET, Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, moved, under
from cafedcl.federation.contact_sheets import ContactSheets
from cafedcl.federation.recorder import Recorder
from cafedcl.federation.rounds import Federation, memories_of
from cafedcl.federation.run_folder import RunFolder
from cafedcl.federation.watcher import Record, Watcher
from cafedcl.methods.base import Method
from cafedcl.models import Network
from cafedcl.task.build import build

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Predictions:
    """Predicted classes of images, by number and by name, with their scores."""

    labels: Tensor
    names: list[str]
    similarity: Tensor
    """The score of the predicted class: a cosine similarity or a probability, by the method."""
    confidence: Tensor | None
    """The average training confidence for the predicted class, where the method has one."""


@dataclass(frozen=True)
class Run:
    """A finished or loaded run."""

    config: Config
    records: list[dict[str, Any]]
    state: Tensors
    memories: dict[int, Tensors]
    counts: Tensor
    names: tuple[str, ...]
    shape: Shape
    mean: Tensor
    std: Tensor
    path: Path | None = None

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rounds as a table, with columns such as ``server.accuracy``."""
        import pandas as pd

        lists = ("participants", "dropped", "failed")
        frame = pd.json_normalize(
            [{k: v for k, v in line.items() if k not in lists} for line in self.records]
        )
        return frame.set_index("round") if len(frame) else frame

    @property
    def prototypes(self) -> Tensor | None:
        """The server's prototypes, one row per class; None for a method without any."""
        return self.state.get(ANCHORS + "prototypes")

    @property
    def model(self) -> Network:
        """The server's model."""
        return self.network(None)

    def network(self, client: int | None) -> Network:
        """Return the server's model, or the model a client had after its last visit."""
        return self._built(client)[1]

    def _built(self, client: int | None) -> tuple[Method, Network]:
        method, network, _ = build(self.config, self.shape, len(self.names))
        weights = under(MODEL, self.state)
        if client is not None:
            if client not in self.memories:
                raise CafedclError(f"client {client}: this method stores no per-client models")
            weights |= under(MODEL, self.memories[client])
            if weights.keys() < network.state_dict().keys() and TICKET in self.memories[client]:
                raise CafedclError(
                    f"client {client}: its model is stored at its site, and never leaves it"
                )
        missing = network.state_dict().keys() - weights.keys()
        if missing:
            raise CafedclError(
                f"{method.name} has no server model; choose a client's model with --client"
            )
        network.load_state_dict(weights)
        return method, network.eval()

    @torch.no_grad()
    def predict(self, x: "Tensor | np.ndarray[Any, Any]", client: int | None = None) -> Predictions:
        """Return the classes of images: uint8, or floats in [0, 1].

        There may be one or many; channels may come first, last, or be missing for grey images.
        """
        method, network = self._built(client)
        images = (as_images(x, self.shape).float() / 255 - self.mean) / self.std
        memory = {} if client is None else self.memories.get(client, {})
        scores = method.scores(network, images, under(ANCHORS, self.state), memory)
        best, labels = method.similarity(scores).max(1)
        trust = self.state.get("server/confidence")
        names = [self.names[int(label)] for label in labels]
        return Predictions(labels, names, best, None if trust is None else trust[labels])


def as_images(x: "Tensor | np.ndarray[Any, Any]", shape: Shape) -> Tensor:
    """Return images as uint8 (N, channels, height, width); raise if they do not fit."""
    images = torch.as_tensor(np.asarray(x))
    if images.is_floating_point():
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):
            raise CafedclError("images as floats must lie in [0, 1]; give uint8 for 0 to 255")
        images = (images * 255).round().to(torch.uint8)
    elif images.dtype != torch.uint8:
        raise CafedclError(f"images must be uint8 or floats in [0, 1], not {images.dtype}")
    channels, height, width = shape
    single = {(height, width), shape, (height, width, channels)}
    if tuple(images.shape) in single:
        images = images[None]
    if channels == 1 and tuple(images.shape[1:]) == (height, width):
        images = images[:, None]
    if tuple(images.shape[1:]) == (height, width, channels):
        images = images.permute(0, 3, 1, 2)
    if tuple(images.shape[1:]) != shape:
        raise CafedclError(
            f"images have shape {tuple(images.shape)}; "
            f"this run expects (N, {channels}, {height}, {width})"
        )
    return images


FederationFactory = Callable[[Config, Sequence[Watcher], RunFolder | None], Federation]
"""Makes the federation of a config; for a run that is resumed, it also gets the run folder."""


def here(config: Config, watchers: Sequence[Watcher], _: RunFolder | None) -> Federation:
    """Make a federation whose clients are on this machine."""
    return Federation(config, watchers)


def start(
    config: Config,
    out: str | Path | None,
    watchers: Sequence[Watcher],
    command: Sequence[str] = (),
    host: FederationFactory = here,
) -> Run:
    """Run a resolved config from its first round."""
    if out is None:
        with host(config, watchers, None) as federation:
            federation.run()
            return _result(federation, None)
    federation = host(config, watchers, None)
    folder = RunFolder.create(out)
    try:
        Recorder(folder).begin(federation, list(command))
        return _run_to_end(federation, folder)
    finally:
        folder.unlock()


def resume(
    path: str | Path,
    watchers: Sequence[Watcher] = (),
    warn: Callable[[str], None] = print,
    host: FederationFactory = here,
) -> Run:
    """Resume a run from its newest intact checkpoint, as if it had never stopped."""
    folder = RunFolder.open(path)
    config = folder.config()
    with folder.held():
        federation = host(config, watchers, folder)
        made_with = folder.environment().get("packages", {}).get("torch")
        if made_with not in (None, version("torch")):
            warn(
                f"{path}: made with torch {made_with}, this is {version('torch')}: "
                "later rounds may differ in the last bits"
            )
        saved = folder.newest(warn)
        if saved:
            federation.restore(*saved)
        federation.history = [Record(**line) for line in folder.rewind(federation.round)]
        return _run_to_end(federation, folder)


def _run_to_end(federation: Federation, folder: RunFolder) -> Run:
    """Run to the end; on an interrupt, save what is done and let the interrupt through."""
    recorder = Recorder(folder)
    with federation:
        federation.watchers[:0] = [recorder, ContactSheets(folder.path / "samples")]
        try:
            federation.run()
        except KeyboardInterrupt:
            recorder.checkpoint(federation)
            raise
        if not federation.finished:
            # A watcher has stopped the run early.
            recorder.checkpoint(federation)
        return _result(federation, folder.path)


def _result(federation: Federation, path: Path | None) -> Run:
    data = federation.task.clients.data
    return Run(
        config=federation.config,
        records=[record.line() for record in federation.history],
        state=moved(federation.state, "cpu"),
        memories={client: moved(memory, "cpu") for client, memory in federation.memories.items()},
        counts=federation.counts,
        names=data.names,
        shape=data.shape,
        mean=data.mean.cpu(),
        std=data.std.cpu(),
        path=path,
    )


def load(path: str | Path, warn: Callable[[str], None] = print) -> Run:
    """Load a run folder, finished or not, without its data set."""
    folder = RunFolder.open(path)
    saved = folder.newest(warn)
    if saved is None:
        raise CafedclError(f"{path}: there is no checkpoint yet")
    tensors, header = saved
    known, about = folder.data()
    channels, height, width = about["shape"]
    return Run(
        config=folder.config(),
        records=folder.metrics()[: header["round"]],
        state=under("state/", tensors),
        memories=memories_of(tensors),
        counts=torch.from_numpy(known["counts"]),
        names=tuple(about["names"]),
        shape=(channels, height, width),
        mean=torch.from_numpy(known["mean"]),
        std=torch.from_numpy(known["std"]),
        path=folder.path,
    )
