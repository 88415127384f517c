"""The result of a run: its scores, its models, and what they predict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from cafedcl.config.sections import Config
from cafedcl.core.client_names import client_number, client_title
from cafedcl.core.contract import TICKET, Shape
from cafedcl.core.errors import CafedclError
from cafedcl.core.steps import step
from cafedcl.core.tensors import ANCHORS, MODEL, OWN_MODEL, Tensors, method_memory, under
from cafedcl.data.grey_values import WHOLE_16_BITS, Window
from cafedcl.federation.final_scores import CALIBRATION, OWN, SERVER
from cafedcl.federation.own_calibration import calibration_on, load_labelled, recalibrated
from cafedcl.federation.predictions import (
    DecideBy,
    Paths,
    Pixels,
    Predictions,
    ReadImages,
    as_images,
    find_images,
    given_paths,
    read_each,
)
from cafedcl.federation.run_folder import ENCODER_FOLDER, check_learned
from cafedcl.federation.run_html import html, rounds_done, short_text
from cafedcl.federation.served_model import ServedModel
from cafedcl.functional.metrics import recalls
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.models import Network
from cafedcl.task.build import build

if TYPE_CHECKING:
    import pandas as pd

    from cafedcl.federation.run_plots import NotebookFigure


@dataclass(frozen=True, repr=False)
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
    tables: Tensors = field(default_factory=dict, repr=False)
    """Results per client and class of the last round, and how to read its models' scores."""
    frozen: Tensors = field(default_factory=dict, repr=False)
    """The frozen weights, which are not in ``state``."""

    def __repr__(self) -> str:
        config = self.config
        data = Path(config.data.name).name
        words = short_text(config.label, data, self.records, config.federation.rounds)
        where = f", {self.path}" if self.path else ""
        return f"<Run: {words}{where}>"

    def _repr_html_(self) -> str:
        config = self.config
        title = f"{config.label} on {Path(config.data.name).name}"
        rounds = f"{rounds_done(self.records)} of {config.federation.rounds} rounds"
        return html(f"{title}, {len(self.counts)} clients, {rounds}", self.records, self.recall)

    @property
    def recall(self) -> dict[str, float]:
        """The recall of every class by the server's model, by name; empty without such a model."""
        table = self.tables.get("server/confusion")
        if table is None:
            return {}
        values = recalls(table).tolist()
        return {name: v for name, v in zip(self.names, values, strict=True) if not math.isnan(v)}

    @property
    def clients(self) -> "pd.DataFrame":
        """A row per client: its training images, and accuracies after the last round.

        ``server`` is the accuracy of the server's model on the client's own mix of classes, and
        ``own`` that of the client's own model. ``own_all`` is the plain accuracy of the client's
        own model on the complete test set. A method without such a model has no such column.
        """
        import pandas as pd

        columns = {
            "server": "server/clients",
            "own": "own/all/score",
            "own_all": "own/all/accuracy",
        }
        found = {"images": self.counts.sum(1).numpy()}
        for column, table in columns.items():
            if table in self.tables:
                found[column] = self.tables[table].numpy()
        titles = [client_title(self.client_names, client) for client in range(len(self.counts))]
        return pd.DataFrame(found, index=titles)

    # Matplotlib takes a second to import, and most processes draw nothing.
    def plot_curves(self) -> "NotebookFigure":
        """Draw accuracy, balanced accuracy and the mean of the clients' own models over rounds."""
        from cafedcl.federation import run_plots

        titles = {
            "server.accuracy": "accuracy",
            "server.balanced": "balanced accuracy",
            "own.client_mean": "clients' own models",
        }
        return run_plots.curves(self.records, titles)

    def plot_recall(self) -> "NotebookFigure":
        """Draw the recall of every class by the server's model."""
        from cafedcl.federation import run_plots

        table = self._table("server/confusion")
        return run_plots.recalls(self.names, recalls(table).numpy())

    def plot_confusion(self) -> "NotebookFigure":
        """Draw the confusion matrix of the server's model."""
        from cafedcl.federation import run_plots

        return run_plots.confusion(self.names, self._table("server/confusion").numpy())

    def plot_reliability(self) -> "NotebookFigure":
        """Draw how reliable the probabilities of the server's model are."""
        from cafedcl.federation import run_plots

        return run_plots.reliability(self._table("scores/server/bins").numpy())

    def plot_clients(self) -> "NotebookFigure":
        """Draw the accuracy of every client: of the server's model, or else of its own."""
        from cafedcl.federation import run_plots

        served = "server/clients" in self.tables
        values = self._table("server/clients" if served else "own/all/score").numpy()
        titles = [client_title(self.client_names, client) for client in range(len(values))]
        return run_plots.clients(titles, values)

    def _table(self, name: str) -> Tensor:
        if name not in self.tables:
            raise CafedclError(
                f"{self.path or 'this run'}: its last round has no '{name}' to draw; "
                "it is there after the last round of a method with a server model"
            )
        return self.tables[name]

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
        # With other weights than confidence, the same entry holds these.
        if getattr(self.config.method.options, "weights", "confidence") != "confidence":
            return None
        return self.state.get("server/confidence")

    @property
    def model(self) -> ServedModel:
        """The server's model as it is used: ``model(images)`` gives probabilities."""
        return self.served()

    def served(self, client: int | str | None = None) -> ServedModel:
        """Return a model that maps images to probabilities: the server's, or a client's own."""
        number = None if client is None else self.number_of(client)
        method, network = self._built(number)
        memory = {} if number is None else self.memories.get(number, {})
        anchors = under(OWN_MODEL + ANCHORS, memory) or under(ANCHORS, self.state)
        prefix = SERVER if number is None else OWN.format(number)
        calibration = under(CALIBRATION + prefix, self.tables)
        spread = calibration.get("features/spread")
        if spread is not None and len(spread) != method.dim:
            raise CafedclError(
                f"{self.path}: its last evaluation has {len(spread)} features, and its model "
                f"{method.dim}: the two do not belong together"
            )
        prior = calibration.get("prior")
        if prior is not None and len(prior) != len(self.names):
            raise CafedclError(
                f"{self.path}: its last evaluation has {len(prior)} classes, and its model "
                f"{len(self.names)}: the two do not belong together"
            )
        return ServedModel(
            method,
            network,
            anchors=anchors,
            memory=method_memory(memory),
            normalisation=(self.mean, self.std),
            calibration=calibration,
            names=self.names,
            shape=self.shape,
        )

    def calibrated(
        self, data: str | Path, client: int | str | None = None, *, all_images: bool = False
    ) -> "Run":
        """Return the run with a model that is calibrated on labelled images, such as your own.

        ``data`` is what ``cafedcl.run`` takes: the path of your images, for example. Its test
        images are used, because the others may have been trained on. If none were, use
        ``all_images=True``. What counts as unusual is fitted too if the run does not know it.
        """
        model = self.served(client)
        options = self.config.data
        images = load_labelled(data, options, self.shape, self.window, all_images=all_images)
        size = self.config.evaluate.batch
        found = calibration_on(model, images, data, size, all_images=all_images)
        part = SERVER if client is None else OWN.format(self.number_of(client))
        return replace(self, tables=recalibrated(self.tables, CALIBRATION + part, found))

    def network(self, client: int | str | None = None) -> Network:
        """Return the bare network of the server, or the one that is stored for a client.

        A client is given by its number or its name. With ``store.own`` it is the client's network
        after its last visit; otherwise the server's with the weights that the client keeps.
        """
        return self._built(None if client is None else self.number_of(client))[1]

    def number_of(self, client: int | str) -> int:
        """Return the number of a client that is given by its number or its name."""
        return client_number(self.client_names, len(self.counts), client)

    def _built(self, client: int | None) -> tuple[Method, Network]:
        config = self.config
        encoder = None if self.path is None else self.path / ENCODER_FOLDER
        if encoder is not None and encoder.is_dir():
            # The run stores the architecture itself, wherever the encoder came from.
            model = replace(config.model, name=f"hf:{encoder.resolve()}")
            config = replace(config, model=model)
        method, network, _ = build(config, self.shape, len(self.names), initial=False)
        weights = {**self.frozen, **under(MODEL, self.state)}
        if client is not None:
            who = client_title(self.client_names, client)
            memory = self.memories.get(client, {})
            if TICKET in memory:
                raise CafedclError(
                    f"{who}: its model is stored at its site; use it there, with --site"
                )
            own = {**under(OWN_MODEL + MODEL, memory), **under(MODEL, memory)}
            if not own:
                advice = "train with --set store.own=true"
                if config.store.own:
                    advice = "train longer, since it has not taken part"
                raise CafedclError(
                    f"{who}: this run stores no model of its own for it; leave the client out, or "
                    f"{advice}"
                )
            weights |= own
        if client is None and method.personal_is_optional:
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

    def require_learned(self) -> None:
        """Raise an error if no round was aggregated: the model is the initial one."""
        check_learned(self.records, self.path, self.client_names)

    @torch.no_grad()
    def predict(
        self,
        x: Pixels | Paths,
        client: int | str | None = None,
        decide_by: DecideBy = "score",
    ) -> Predictions:
        """Return the classes of images: files, folders of files, uint8, or floats in [0, 1].

        There may be one or many; channels may come first, last, or be missing for grey images.
        Of several files, those that cannot be read are left out and named in ``failed``.

        The class is that with the highest score, as in training and evaluation. For a method that
        weighs all classes the same, it may be a rare class although a common one is more probable.
        With ``decide_by="probability"`` it is the most probable class.
        """
        if decide_by not in get_args(DecideBy):
            raise CafedclError(f"decide_by = {decide_by!r}: it must be 'score' or 'probability'")
        self.require_learned()
        model = self.served(client)
        size = self.config.evaluate.batch
        paths = given_paths(x)
        if paths is None:
            pixels = as_images(x, self.shape)
            parts = map(ReadImages, pixels.split(size))
            return self._classified(model, parts, len(pixels), decide_by)
        files = find_images(paths)
        batches = (
            read_each(files[start : start + size], self.shape, self.window)
            for start in range(0, len(files), size)
        )
        found = self._classified(model, batches, len(files), decide_by)
        if not len(found) and found.failed:
            file, why = next(iter(found.failed.items()))
            raise CafedclError(f"{file}: {why}")
        return found

    def _classified(
        self,
        model: ServedModel,
        batches: Iterator[ReadImages],
        total: int,
        decide_by: DecideBy,
    ) -> Predictions:
        """Return a model's predictions for images that come in batches."""
        chances = [torch.zeros(0, len(self.names))]
        similarities = [torch.zeros(0)]
        labels = [torch.zeros(0, dtype=torch.int64)]
        strange = [torch.zeros(0)]
        files: list[Path] = []
        failed: dict[Path, str] = {}
        shallow: list[Path] = []
        with step("classifying", total, "images") as begun:
            for batch in batches:
                files += batch.files
                failed |= batch.failed
                shallow += batch.shallow
                begun.done += len(batch.pixels) + len(batch.failed)
                if not len(batch.pixels):
                    continue
                scores = model.scores(batch.pixels)
                if scores.isnan().any():
                    # NaN would read as the first class.
                    raise CafedclError(
                        f"{self.path or 'this run'}: its model has scores that are not numbers "
                        "(NaN), so it cannot classify these images"
                    )
                similarity = checked.similarity(model.method, scores)
                probabilities = model.probabilities(scores)
                label = (similarity if decide_by == "score" else probabilities).argmax(1)
                labels.append(label)
                similarities.append(similarity.gather(1, label[:, None])[:, 0])
                chances.append(probabilities)
                if model.knows_limits:
                    strange.append(model.strangeness(batch.pixels))
        found = torch.cat(labels)
        return Predictions(
            labels=found,
            names=[self.names[int(label)] for label in found],
            similarity=torch.cat(similarities),
            probabilities=torch.cat(chances),
            strangeness=torch.cat(strange) if model.knows_limits else None,
            classes=self.names,
            files=files,
            failed=failed,
            shallow=shallow,
        )
