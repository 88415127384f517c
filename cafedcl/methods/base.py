"""What a method is: a client objective, what goes up, a server step, and how it predicts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Averages, Batch, Claims, Client, Enrolment, Field, Up, Visit
from cafedcl.core.errors import CafedclError, place_of
from cafedcl.core.returned import wrong_result
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, prefixed
from cafedcl.functional.aggregation import Average, Entries
from cafedcl.functional.contrast import class_means, cross_entropy
from cafedcl.methods import checked
from cafedcl.models.base import Network

REPLIES_AT_A_TIME = 8
"""Replies that are weighed together; then their models are averaged in and freed."""


@dataclass(frozen=True)
class NoOptions:
    """A method without hyper-parameters."""


class Method:
    """A federated learning method. Subclass it in a file of its own; there is nothing to register.

    The defaults are FedAvg's: a linear head, count-weighted averaging, prediction by the head.
    An instance knows its ``options``, the numbers of ``classes`` and ``clients``, and the number of
    features, ``dim``.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    year: ClassVar[int]
    """Of the paper; 0 if ``paper`` only says what the method is."""
    sends: ClassVar[str] = "model"
    """What clients and server exchange, in a few words."""
    predicts: ClassVar[str] = "classifier head"
    """How a class is predicted, in a few words."""
    pooled: ClassVar[bool] = False
    """Whether one client has all data (`central`)."""
    personal: ClassVar[str] = ""
    """A regular expression: weights whose whole name matches stay with their client."""
    personal_is_optional: ClassVar[bool] = False
    """Whether the server's model can be scored although some weights are personal.

    Then ``scores`` with an empty memory, which is how the server's model is scored, does not use
    the personal ones.
    """
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options by the name of a preset, which is chosen as ``method:preset``.

    Options of other sections, with names such as ``train.lr``, are recommendations. What the user
    sets wins, and another optimizer than the preset's replaces all that it says in that section.
    """
    separable: bool = True
    """Whether a client's weight follows from its own reply.

    Then its model can be averaged in and freed before all replies are there. A subclass that
    overrides ``weigh`` has to say so itself.
    """
    replayed: ClassVar[bool] = True
    """Whether ``summarize`` and ``remember`` can be captured once and replayed for every client.

    Then they read tensors only, send entries of fixed shapes or one per class, and use ``holds``
    only to choose what is sent; embeddings may be padded with images whose label is −1. A subclass
    that overrides them has to say so itself.
    """
    compiles_summary: ClassVar[bool] = True
    """Whether a captured summary is worth compiling; a long loop in it would compile for long."""
    averages: Averages | None = Averages()
    """The weighted means that the server step is made of; None if it is made of anything else.

    Only such a step can be made private. A subclass that overrides a part of the server step, or
    what is sent, has to say so itself.
    """
    per_image: ClassVar[bool] = False
    """Whether the loss is a mean over images of terms that depend on one image each, and nothing
    but weights is sent. Only such a method can have record-level privacy. A subclass that overrides
    the loss or what is sent has to say so itself.
    """
    uses_census: bool = False
    """Whether clients use what they are told of all clients' counts (`Census`)."""
    sends_absent: bool = False
    """Whether clients also list classes that they do not have."""
    knows_prior: bool = False
    """Whether ``scores`` of a client's own model have log π_k in them already.

    Every client's own model is scored with it as well; it is not added twice.
    """
    uses_levels: bool = False
    """Whether it uses features of several depths, or those before the last ReLU (`Network.levels`).

    A frozen encoder then runs in every step, and not once before the first round.
    """
    reveals: ClassVar[str] = ""
    """What clients send that no limit of `[release]` reaches, in a few words.

    Counts or single images may follow from it, so sites refuse it unless they allow details.
    """
    needs_one_rate: ClassVar[bool] = False
    """Whether it takes all weights to have one learning rate, as through ``visit.rates``."""
    server_trains: bool = False
    """Whether ``update`` trains or fits a model, which is faster on the device than on the host."""
    depends_on_rounds: ClassVar[bool] = False
    """Whether training depends on the number of rounds, as through ``visit.progress``.

    Then a run cannot be extended: its first rounds would have been different.
    """
    label_smoothing: float = 0.0
    """The share of the target that `cross_entropy` spreads over all classes; the config sets it."""
    epsilon: float = 0.0
    """Added to the sum of the clients' weights, which the average of the models is divided by."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass whose fields are declared with `option`."""

    def __init_subclass__(cls, **details: Any) -> None:
        super().__init_subclass__(**details)
        # What a class says of its steps does not hold for a subclass that overrides them.
        if {"summarize", "remember"} & vars(cls).keys() and "replayed" not in vars(cls):
            cls.replayed = False
        if {"loss", "summarize"} & vars(cls).keys() and "per_image" not in vars(cls):
            cls.per_image = False
        if "weigh" in vars(cls) and "separable" not in vars(cls):
            cls.separable = False
        server_step = {"summarize", "weigh", "update", "aggregator"}
        if server_step & vars(cls).keys() and "averages" not in vars(cls):
            cls.averages = None

    def __init__(self, options: Any, classes: int, dim: int, clients: int = 1) -> None:
        self.options = options
        self.classes = classes
        self.dim = dim
        self.clients = clients

    @property
    def title(self) -> str:
        """What a message calls the method."""
        return f"method {getattr(self, 'name', type(self).__name__)}"

    @classmethod
    def defines(cls, step: str) -> bool:
        """Return whether the class, or one that it derives from, overrides a step."""
        return getattr(cls, step) is not getattr(Method, step)

    def head(self) -> nn.Module:
        """Build the head that the encoder's features go to."""
        return nn.Linear(self.dim, self.classes)

    def start(self, model: Network) -> Tensors:
        """Return the server's state besides the model; only ``anchors/…`` is broadcast."""
        return {}

    def effective_counts(self, counts: Tensor, synthetic: Tensor) -> Tensor:
        """Return how many images of every class a client counts for, n^eff_{k,c}.

        ``counts`` are its real images, and ``synthetic`` the new samples that its tail augmentation
        may add. ``most`` and ``total``, which clients are told at enrolment, are in these units.
        """
        return counts

    def scratch(self, client: Client) -> Tensors:
        """Return zeroed tensors that the loss may accumulate into over one epoch."""
        return {}

    def embed(self, model: Network, x: Tensor) -> Tensor:
        """Return the features that prototypes are made of."""
        return model.features(x)

    def cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch, with the run's label smoothing."""
        return cross_entropy(logits, batch.y, batch.weight, self.label_smoothing)

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        """Return what the loss needs of images that local training does not change, row by row.

        An example are their features under ``visit.received``. The loss has it as
        ``batch.constants``. If no random transform changes the images, it is computed once in a
        visit instead of in every step.
        """
        return {}

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        """Return the weighted terms of the client's objective by name; their sum is minimised."""
        raise NotImplementedError

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        """Return what the client sends besides the weights, and its notes for people to read."""
        return {}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        """Describe what ``summarize`` sends, so that bad replies are rejected."""
        return {}

    def claims(self, enrolment: Enrolment) -> Claims:
        """Return what each client may claim per class, from what the server knows of it.

        A reply with a number outside is rejected. Only entries that are one number per class can
        have such a range.
        """
        return {}

    def contradiction(self, up: Up, enrolment: Enrolment) -> str | None:
        """Return why what a client sent cannot come from the images it enrolled with, or None.

        It is asked after `fields`, for what single ranges cannot say. A reply with a contradiction
        is rejected.
        """
        return None

    def remember(self, model: Network, visit: Visit) -> Tensors:
        """Return what the client keeps for its next visit besides its personal weights."""
        return {}

    def weigh(self, ups: list[Up]) -> Tensor:
        """Return each client's weight in the average of models, n_k; they need not sum to 1."""
        return torch.tensor([up.samples for up in ups], dtype=torch.float64)

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        """Return the entries of the state that change besides the model, as new tensors.

        The state is that of before the round, and the replies come without their models.
        """
        return {}

    def aggregator(self, state: Tensors) -> "Aggregator":
        """Start the server step of a round."""
        return Aggregator(self, state)

    def centre(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the global prototypes that pooled images with these embeddings would give."""
        return class_means(z, y, self.classes)[0]

    def alphas(self, sent: Entries) -> Tensor | None:
        """Return the weights α_{k,c} of the clients' prototypes; None if they are not averaged."""
        return None

    def broadcast(self, state: Tensors) -> Tensors:
        """Return what the server sends to a client."""
        return {name: value for name, value in state.items() if name.startswith((MODEL, ANCHORS))}

    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        """Return a score per class, the largest of which is the prediction."""
        return model(x)  # type: ignore[no-any-return]

    def similarity(self, scores: Tensor) -> Tensor:
        """Return scores in a unit that people understand: here, probabilities."""
        return scores.softmax(-1)


def own_mark(client: Client) -> Tensors:
    """Return what a client remembers if nothing else tells ``scores`` that a model is its own.

    The server's model is scored with an empty memory.
    """
    return {"own": torch.ones_like(client.counts[:1])}


class AveragedModel(Mapping[str, Tensor]):
    """Stands for the model of a reply that is averaged in and freed: whoever reads it is told."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def __getitem__(self, name: str) -> Tensor:
        raise self._error()

    def __iter__(self) -> Iterator[str]:
        raise self._error()

    def __len__(self) -> int:
        raise self._error()

    def _error(self) -> CafedclError:
        return CafedclError(
            f"{self.method.title}: its update reads `up.model`, but models are averaged in and "
            "freed by then; to combine them in another way, override `aggregator`"
            f"{place_of(self.method.update)}"
        )


class Aggregator:
    """The server step of one round: replies are added as they arrive, then the step is finished.

    It averages the models by the method's weights, then lets the method update what it keeps
    besides. Models are freed as soon as they are averaged in, so that memory does not grow with
    the number of clients; a method that is not ``separable`` weighs all replies together, at the
    end.
    """

    def __init__(self, method: Method, state: Tensors) -> None:
        self.method = method
        self.state = state
        self.average = Average(method.epsilon)
        self.waiting: list[Up] = []
        """Replies whose models are not averaged in yet."""
        self.counted: list[Up] = []
        """The other replies, without their models."""
        self.weight = 0.0
        """The sum of their weights."""

    def add(self, up: Up) -> None:
        """Take in a reply."""
        self.waiting.append(up)
        if self.method.separable and len(self.waiting) == REPLIES_AT_A_TIME:
            self._average_waiting()

    def finish(self) -> Tensors:
        """Return the server's new state; the old one if there was no reply."""
        self._average_waiting()
        if not self.counted:
            return self.state
        if not self.weight:
            expected = "at least one reply must count"
            raise wrong_result(self.method, "weigh", "0 for every reply", expected)
        model = prefixed(MODEL, self.average.result())
        update = checked.update(self.method, self.state, self.counted)
        return {**self.state, **model, **update}

    def _average_waiting(self) -> None:
        if not self.waiting:
            return
        weights = checked.weigh(self.method, self.waiting).tolist()
        self.weight += sum(weights)
        for up, weight in zip(self.waiting, weights, strict=True):
            self.average.add(up.model, weight)
            self.counted.append(replace(up, model=AveragedModel(self.method)))
        self.waiting.clear()
