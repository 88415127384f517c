"""The scores that need all probabilities, not only predictions: they are computed once, in the last
round, so that no other round gets slower.

All models are run here in plain PyTorch, whatever the engine, each on test images for its scores
and on validation images for its calibration: what turns its scores into probabilities, and the
limits beyond which an image is unlike those seen in training. Test images are never used for
calibration.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.contract import TICKET, Down, Reply
from cafedcl.core.tensors import (
    ANCHORS,
    MODEL,
    Header,
    Tensors,
    method_memory,
    moved,
    prefixed,
    spaced_rows,
    under,
)
from cafedcl.data.thumbnails import thumbnails
from cafedcl.federation.metrics_file import MetricsLine
from cafedcl.functional.calibration import (
    BINS,
    calibration_error,
    fitted_calibration,
    probabilities,
    reliability,
)
from cafedcl.functional.metrics import Scores, confusion, recalls
from cafedcl.functional.novelty import fit_limits, pixel_statistics
from cafedcl.functional.ranking import RANKED, f1_scores, one_against_rest
from cafedcl.models.base import Runner
from cafedcl.task.task import Task, arithmetic

OWN_IMAGES = 10_000
"""Test images that all clients' own models are run on in total: there can be many clients."""
FEWEST_OWN = 200
MOST_OWN = 2000
"""Test images that each client's own model is run on, at least and at most."""
MOST_DESCRIBED = 5000
"""Training images that limits are fitted on, at most."""
WRONG_IMAGES = 24
"""Number of stored test images that the model is most wrong about."""
CALIBRATION = "calibration/"
"""The prefix of tables about how to read a model's scores."""
SERVER = "server/"
OWN = "own/{}/"


@dataclass(frozen=True)
class Model:
    """A model that is ready to predict: its weights are loaded into the network."""

    scores: Callable[[Tensor], Tensor]
    """Scores of images as the network takes them."""
    describe: Callable[[Tensor], Tensors]
    """Descriptions of rows of the training images, for the limits of what is usual."""


@dataclass
class FinalScores:
    """Scores and calibrations of the last round."""

    task: Task
    config: Config
    counts: Tensor
    """Training images per client and class, before any pooling, by their true labels."""
    liars: frozenset[int]
    """Clients that do not send the model that they trained."""
    due: bool
    """Whether this is the last round and these scores are wanted; otherwise nothing is done."""
    own: dict[int, Tensors] = field(default_factory=dict)
    """Scores of clients' own models."""
    calibrations: Tensors = field(default_factory=dict)
    undefined: bool = False
    """Whether an image had NaN among its scores: it then counts as predicted to be class 0."""

    def __post_init__(self) -> None:
        if not self.due:
            return
        self.network = deepcopy(self.task.network).eval()
        # The engine may have put a faster one in its place, which works on its own weights.
        self.network.runner = Runner()

    def add_own(self, reply: Reply, down: Down) -> None:
        """Score the model of a client that has just been trained.

        The model consists of the weights that the client sends and those that it keeps. A remote
        client scores its model itself.
        """
        client = reply.up.client
        elsewhere = TICKET in reply.memory or self.task.clients.remote
        if not self.due or not reply.correct or elsewhere or client in self.liars:
            return
        weights = {**self.task.initial, **reply.up.model, **under(MODEL, reply.memory)}
        kept = method_memory(reply.memory)
        model = self._model(weights, under(ANCHORS, down.tensors), kept)
        x, y = self.task.clients.test_set(client)
        clients = self.config.federation.participants(len(self.counts))
        rows = spaced_rows(len(y), images_each(clients)).to(x.device)
        p = model.scores(x[rows]).double().softmax(1)
        y = y[rows].cpu()
        predicted = confusion(p.argmax(1), y, self.task.method.classes)
        self.own[client] = {
            **one_against_rest(p, y, self.config.evaluate.specificity),
            "f1": f1_scores(predicted).float(),
            "bins": reliability(p, y).float(),
        }
        if self.task.personal or self.config.store.own:
            # Only a client whose own weights are stored has a model to predict with later.
            shards = self.task.clients.shards
            train, validation = shards.train[client], shards.validation[client]
            fitted = self._calibrate(model, train, validation, shards.counts[client])
            self.calibrations |= prefixed(OWN.format(client), fitted)

    def finish(self, state: Tensors, server: Scores | None, own: Scores | None) -> Tensors:
        """Add the scores to those of the round, as far as it was scored; return their tables."""
        tables: Tensors = {}
        if not self.due:
            return tables
        _, y = self.task.clients.test_set(None)
        if len(y):
            tables["scores/tested"] = torch.bincount(y, minlength=self.task.method.classes).int()
        if server is not None:
            found, behind = self.server(state)
            server |= found
            tables |= behind
        if own is not None:
            found, behind = self.clients()
            own |= found
            tables |= behind
        return moved({**tables, **prefixed(CALIBRATION, self.calibrations)}, "cpu")

    def remarks(self) -> Iterator[str]:
        """Yield what is wrong with the scores."""
        if self.undefined:
            first = self.task.clients.data.names[0]
            yield (
                "some images have NaN among their scores, so they are assigned to the class "
                f"'{first}'; look at `scores` of the method {self.task.method.name}"
            )

    def server(self, state: Tensors) -> tuple[Scores, Tensors]:
        """Return the scores of the server's model, and its tables."""
        task = self.task
        with arithmetic(task):
            weights = {**task.initial, **under(MODEL, state)}
            model = self._model(weights, under(ANCHORS, state), {})
            # A private model must not come with noiseless statistics of its clients' images.
            if not task.clients.remote and self.config.privacy.kind == "none":
                shards = task.clients.shards
                rows = (shards.train.indices, shards.validation.indices)
                fitted = self._calibrate(model, *rows, shards.counts.sum(0))
                self.calibrations |= prefixed(SERVER, fitted)
            x, y = task.clients.test_set(None)
            if not len(y):
                return {}, {}
            values = model.scores(x).double()
            p = values.softmax(1)
        y = y.cpu()
        ranked = one_against_rest(p, y, self.config.evaluate.specificity)
        bins = reliability(p, y)
        scores: Scores = {name: mean_known(value) for name, value in ranked.items()}
        scores["ece"] = calibration_error(bins)
        if SERVER + "temperature" in self.calibrations:
            scores |= self._calibrated(values, y)
        tables = prefixed("scores/server/", {**ranked, "bins": bins.float()})
        if self.config.store.shows_images(self.config.data.name):
            tables |= prefixed("wrong/", self._most_wrong(y, p))
        return scores, tables

    def clients(self) -> tuple[Scores, Tensors]:
        """Return the mean scores of the clients' own models, and their tables.

        For each client, only the classes that it holds count. Clients that did not take part have
        NaN.
        """
        if not self.own:
            return {}, {}
        clients, classes = self.counts.shape
        tables = {name: torch.full((clients, classes), torch.nan) for name in (*RANKED, "f1")}
        tables["bins"] = torch.full((clients, BINS, 3), torch.nan)
        for client, found in self.own.items():
            for name, value in found.items():
                tables[name][client] = value
        lacking = self.counts <= 0
        names = {name: name for name in RANKED} | {"macro_f1": "f1"}
        scores = {
            score: mean_known(tables[name].masked_fill(lacking, torch.nan).nanmean(1))
            for score, name in names.items()
        }
        errors = [calibration_error(found["bins"].double()) for found in self.own.values()]
        known = [error for error in errors if error is not None]
        scores["ece"] = sum(known) / len(known) if known else None
        return scores, prefixed("scores/own/", tables)

    def _model(self, weights: Tensors, anchors: Tensors, memory: Tensors) -> Model:
        device = self.task.device
        self.network.load_state_dict(weights)
        anchors = moved(anchors, device)
        memory = moved(memory, device)
        method = self.task.method

        @torch.no_grad()
        def in_batches(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
            images = self.task.clients.inputs.images
            batches = x.split(self.task.eval_batch)
            # On the host: some devices have no float64, and many small steps follow.
            return torch.cat([function(images(batch)).cpu() for batch in batches])

        def scores(x: Tensor) -> Tensor:
            values = in_batches(x, lambda z: method.scores(self.network, z, anchors, memory))
            self.undefined |= bool(values.isnan().any())
            return values

        def describe(rows: Tensor) -> Tensors:
            clients = self.task.clients
            images = clients.data.train_x[rows].split(self.task.eval_batch)
            pixels = [pixel_statistics(clients.data.images(batch)).cpu() for batch in images]
            return {
                "features": in_batches(clients.inputs.train_x[rows], self.network.features),
                "pixels": torch.cat(pixels),
            }

        return Model(scores, describe)

    def _calibrated(self, values: Tensor, y: Tensor) -> Scores:
        """Return scores of the server's calibrated probabilities, from its scores of test images.

        If the method weighs all classes the same and the classes are not equally common, the most
        probable class often differs from the one with the highest score.
        """
        fitted = under(SERVER, self.calibrations)
        p = probabilities(values, fitted["temperature"], fitted["prior"])
        recall = recalls(confusion(p.argmax(1), y, self.task.method.classes))
        return {
            "calibrated_ece": calibration_error(reliability(p, y)),
            "probable_accuracy": float((p.argmax(1) == y).double().mean()),
            "probable_balanced": mean_known(recall),
        }

    def _calibrate(
        self, model: Model, train: Tensor, validation: Tensor, counts: Tensor
    ) -> Tensors:
        """Return how scores become probabilities, and the limits of what is usual, as far as both
        can be fitted.

        ``train`` and ``validation`` are rows of the training images, ``counts`` the images of each
        class.
        """
        data = self.task.clients.inputs
        if not len(validation):
            return {}
        x = data.train_x[validation]
        fitted = fitted_calibration(model.scores(x), data.train_y[validation].cpu(), counts)
        rows = train[spaced_rows(len(train), MOST_DESCRIBED).to(train.device)]
        limits = fit_limits(
            model.describe(rows),
            data.train_y[rows].cpu(),
            model.describe(validation),
            self.task.method.classes,
        )
        return {**fitted, **limits}

    def _most_wrong(self, y: Tensor, p: Tensor) -> Tensors:
        """Return the test images whose own class has the smallest probability, the worst first."""
        wrong = (p.argmax(1) != y).nonzero().flatten()
        right_class = p[wrong, y[wrong]]
        order = right_class.argsort(stable=True)[:WRONG_IMAGES]
        worst = wrong[order]
        if not len(worst):
            return {}
        chance, predicted = p[worst].max(1)
        return {
            "images": thumbnails(self.task.clients.test_images(worst.to(self.task.device)).cpu()),
            "rows": worst,
            "labels": y[worst],
            "predicted": predicted,
            "probability": chance.float(),
        }


def images_each(clients: int) -> int:
    """Return how many test images each of the clients' own models is run on."""
    return min(MOST_OWN, max(FEWEST_OWN, OWN_IMAGES // clients))


def mean_known(values: Tensor) -> float | None:
    """Return the mean of the values that are not NaN; None if there is none."""
    known = values[~values.isnan()].double()
    return float(known.mean()) if len(known) else None


def check_calibrations(tables: Tensors, header: Header, line: MetricsLine) -> None:
    """Raise ValueError unless a file's tables are of this round and its calibrations are usable."""
    if header.get("round") != line["round"]:
        raise ValueError(f"it is of round {header.get('round')}, not {line['round']}")
    for part, needed in (("server", "server/clients"), ("own", "own/all/score")):
        if line[part] is not None and needed not in tables:
            raise ValueError(f"{needed} is missing")
    for name, value in under(CALIBRATION, tables).items():
        what = name.rpartition("/")[2]
        vector = what in ("temperature", "limit", "images")
        if value.dim() != (2 if what == "centres" else 1) or (vector and len(value) != 1):
            raise ValueError(f"{CALIBRATION}{name} has the shape {tuple(value.shape)}")
        if not value.numel() or not value.isfinite().all():
            raise ValueError(f"{CALIBRATION}{name} has no number, or not only numbers")
        if what not in ("centres", "prior") and not (value > 0).all():
            raise ValueError(f"{CALIBRATION}{name} is not above 0")
