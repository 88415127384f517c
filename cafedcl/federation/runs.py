"""Runs: started, resumed, loaded from their folder, and used to predict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cafedcl.config.sections import Config, assign
from cafedcl.core.client_names import client_number, client_title
from cafedcl.core.contract import TICKET, Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.files import explained
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, moved, under
from cafedcl.data.grey_values import WHOLE_16_BITS, Window
from cafedcl.federation.checkpoint import Checkpoint, memories_of
from cafedcl.federation.contact_sheets import ContactSheets
from cafedcl.federation.metrics_file import MetricsRead
from cafedcl.federation.recorder import Recorder
from cafedcl.federation.rounds import Federation
from cafedcl.federation.run_folder import RunFolder, any_round_counted
from cafedcl.federation.watcher import Record, Watcher
from cafedcl.methods.base import Method
from cafedcl.models import Network
from cafedcl.task.build import build
from cafedcl.task.resolve import resolve

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Predictions:
    """Predicted classes of images, by number and by name, with their scores."""

    labels: Tensor
    names: list[str]
    similarity: Tensor
    """The score of the predicted class: a cosine similarity or a probability, by the method."""


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
    client_names: tuple[str, ...] = ()
    """The clients' names; empty if they have numbers only."""
    window: Window = WHOLE_16_BITS
    """How images with more than 8 bits are read."""

    @property
    def metrics(self) -> "pd.DataFrame":
        """The rounds as a table, with columns such as ``server.accuracy``."""
        import pandas as pd

        lists = ("participants", "dropped", "failed", "left_out")
        frame = pd.json_normalize(
            [{k: v for k, v in line.items() if k not in lists} for line in self.records]
        )
        return frame.set_index("round") if len(frame) else frame

    @property
    def prototypes(self) -> Tensor | None:
        """The server's prototypes, one row per class; None for a method without any."""
        return self.state.get(ANCHORS + "prototypes")

    @property
    def class_confidence(self) -> Tensor | None:
        """The mean training confidence of every class; None for a method without any.

        It says how well the clients know a class, and nothing about a single image.
        """
        return self.state.get("server/confidence")

    @property
    def model(self) -> Network:
        """The server's model."""
        return self.network(None)

    def network(self, client: int | str | None) -> Network:
        """Return the server's model, or the model a client had after its last visit.

        A client is given by its number or its name.
        """
        return self._built(self._number(client))[1]

    def _number(self, client: int | str | None) -> int | None:
        if client is None:
            return None
        return client_number(self.client_names, len(self.counts), client)

    def _built(self, client: int | None) -> tuple[Method, Network]:
        method, network, _ = build(self.config, self.shape, len(self.names))
        weights = under(MODEL, self.state)
        if client is not None:
            who = client_title(self.client_names, client)
            if client not in self.memories:
                raise CafedclError(f"{who}: this method stores no per-client models")
            weights |= under(MODEL, self.memories[client])
            if weights.keys() < network.state_dict().keys() and TICKET in self.memories[client]:
                raise CafedclError(f"{who}: its model is stored at its site, and never leaves it")
        if client is None and method.serves:
            # Personal weights stay as they were made: the server's model does not use them.
            weights = {**network.state_dict(), **weights}
        missing = network.state_dict().keys() - weights.keys()
        if missing:
            raise CafedclError(
                f"{self.path or 'this run'}: {method.name} has no server model; "
                "choose a client's model with --client"
            )
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            # PyTorch lists every tensor that does not fit; the first one says enough.
            said = str(error).splitlines()[1:2] or [str(error)]
            raise CafedclError(
                f"{self.path}: the saved model does not fit {self.config.model.name}: {said[0]}"
            ) from None
        return method, network.eval()

    @torch.no_grad()
    def predict(
        self, x: "Tensor | np.ndarray[Any, Any]", client: int | str | None = None
    ) -> Predictions:
        """Return the classes of images: uint8, or floats in [0, 1].

        There may be one or many; channels may come first, last, or be missing for grey images.
        """
        if not any_round_counted(self.records):
            raise CafedclError(
                f"{self.path or 'this run'}: no round was aggregated, "
                "so the model has not learned anything; train it before it predicts"
            )
        client = self._number(client)
        method, network = self._built(client)
        images = (as_images(x, self.shape).float() / 255 - self.mean) / self.std
        memory = {} if client is None else self.memories.get(client, {})
        scores = method.scores(network, images, under(ANCHORS, self.state), memory)
        best, labels = method.similarity(scores).max(1)
        names = [self.names[int(label)] for label in labels]
        return Predictions(labels, names, best)


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
        recorder = Recorder(folder)
        recorder.begin(federation, list(command))
        return _run_to_end(federation, recorder)
    finally:
        folder.unlock()


def resume(
    path: str | Path,
    watchers: Sequence[Watcher] = (),
    warn: Callable[[str], None] = print,
    host: FederationFactory = here,
) -> Run:
    """Resume a run from its newest whole checkpoint, as if it had never stopped."""
    folder = RunFolder.open(path)
    with folder.held():
        config = folder.config()
        metrics = folder.metrics_file.read()
        saved = folder.newest(warn, lambda checkpoint: _covered(checkpoint, metrics))
        if saved is None:
            _check_restart(folder, metrics, config, warn)
        else:
            saved.check_config(config, folder.path)
            saved.check_version(config, folder.path)
            if metrics.problem:
                warn(f"{metrics.problem}; the rounds after round {saved.round} are trained again")
        federation = host(config, watchers, folder)
        made_with = folder.environment().get("packages", {}).get("torch")
        if made_with not in (None, version("torch")):
            warn(
                f"{path}: made with torch {made_with}, this is {version('torch')}: "
                "later rounds may differ in the last bits"
            )
        recorder = Recorder(folder)
        if saved is None:
            recorder.begin(federation, folder.environment().get("command", []))
        else:
            _restore(federation, folder, metrics, saved)
            recorder.go_on(federation)
        return _run_to_end(federation, recorder)


def change_config(folder: RunFolder, settings: Sequence[str]) -> None:
    """Write settings such as ``federation.rounds=200`` into the config of a run.

    `Checkpoint.check_config` says what may change.
    """
    with folder.held():
        tables = folder.tables()
        for setting in settings:
            assign(tables, setting)
        config = resolve(tables)
        saved = folder.newest(lambda _: None)
        if saved is not None:
            saved.check_config(config, folder.path)
        Recorder(folder).write_config(config)


def _covered(checkpoint: Checkpoint, metrics: MetricsRead) -> bool:
    """Return whether the metrics have all rounds of a checkpoint, or lack only what it has."""
    rounds = len(metrics.lines)
    has_last = checkpoint.record is not None
    return checkpoint.round <= rounds or (has_last and checkpoint.round == rounds + 1)


def _check_restart(
    folder: RunFolder, metrics: MetricsRead, config: Config, warn: Callable[[str], None]
) -> None:
    """Raise CafedclError unless a run without a checkpoint may begin again with its first round.

    It may if no checkpoint was due so far, or if those that are there are damaged: its rounds are
    trained again to the same bits, provided that its config has not changed.
    """
    done = len(metrics.lines)
    files = [file for file in folder.checkpoints() if int(file.stem)]
    first_due = min(config.store.checkpoint_every, config.federation.rounds)
    all_damaged = bool(files) and folder.newest(lambda _: None) is None
    if not metrics.problem and (all_damaged or (not files and done < first_due)):
        if done:
            _, started = folder.data()
            Checkpoint(0, {}, started.get("config", {})).check_config(config, folder.path)
            why = "no checkpoint is whole" if files else "no checkpoint yet"
            warn(f"{folder.path}: {why}; its {done} rounds are trained again")
        return
    what = metrics.problem or f"{folder.path / 'checkpoints'}: there is no checkpoint any more"
    if files and not metrics.problem:
        what = f"{folder.metrics_file.path}: only {done} rounds, fewer than any checkpoint has"
    raise CafedclError(
        f"{what}; the run cannot be resumed, and nothing in it was changed. Restore the file from "
        f"a backup, or train again in a new folder: cafedcl run {folder.path}/config.toml --out NEW"
    )


def _restore(
    federation: Federation, folder: RunFolder, metrics: MetricsRead, saved: Checkpoint
) -> None:
    """Go back to a checkpoint, whose data must be those of the federation."""
    _check_data(federation, folder)
    try:
        federation.restore(saved.tensors, {"round": saved.round})
    except ValueError as error:
        raise CafedclError(
            f"{folder.checkpoint_file(saved.round)}: not a checkpoint of this run: {error}"
        ) from None
    lines = metrics.lines[: saved.round]
    if saved.record is not None and len(lines) < saved.round:
        lines.append(saved.record)
        with explained(folder.path):
            folder.metrics_file.write(lines)
    federation.history = [Record(**line) for line in lines]


def _check_data(federation: Federation, folder: RunFolder) -> None:
    """Raise CafedclError if the data are not those that the run started with."""
    arrays, header = folder.data()
    data = federation.task.clients.data
    same = (
        list(data.names) == header["names"]
        and list(data.shape) == header["shape"]
        and np.array_equal(federation.counts.numpy(), arrays["counts"])
        and np.allclose(data.mean.cpu().numpy(), arrays["mean"], atol=1e-5)
        and np.allclose(data.std.cpu().numpy(), arrays["std"], atol=1e-5)
    )
    if not same:
        raise CafedclError(
            f"{folder.path}: the data set '{federation.config.data.name}' is not the one that the "
            "run started with (classes, counts or pixels differ); restore it, or start a new run"
        )


def _run_to_end(federation: Federation, recorder: Recorder) -> Run:
    """Run to the end; on an interrupt, save what is done and let the interrupt through."""
    with federation:
        federation.watchers[:0] = [recorder, ContactSheets(recorder.path / "samples")]
        try:
            federation.run()
        except KeyboardInterrupt:
            recorder.save(federation)
            raise
        if not federation.finished:
            # A watcher has stopped the run early.
            recorder.save(federation)
        return _result(federation, recorder.path)


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
        client_names=federation.client_names,
        window=Window.of(data.window, federation.config.data.window),
    )


def load(path: str | Path, warn: Callable[[str], None] = print) -> Run:
    """Load a run folder, finished or not, without its data set."""
    folder = RunFolder.open(path)
    saved = folder.newest(warn)
    if saved is None:
        raise CafedclError(f"{path}: there is no checkpoint yet")
    config = folder.config()
    saved.check_config(config, folder.path)
    lines = folder.metrics_file.read().lines
    if saved.round < len(lines):
        warn(
            f"{path}: this is the model after round {saved.round} of {len(lines)}: the last rounds "
            f"have no whole checkpoint; `cafedcl resume {path}` makes it"
        )
    known, about = folder.data()
    channels, height, width = about["shape"]
    return Run(
        config=config,
        records=lines[: saved.round],
        state=under("state/", saved.tensors),
        memories=memories_of(saved.tensors),
        counts=torch.from_numpy(known["counts"]),
        names=tuple(about["names"]),
        shape=(channels, height, width),
        mean=torch.from_numpy(known["mean"]),
        std=torch.from_numpy(known["std"]),
        path=folder.path,
        client_names=tuple(about.get("clients", ())),
        window=Window.of(about.get("window", WHOLE_16_BITS.limits), config.data.window),
    )
