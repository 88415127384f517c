"""The interface of a method: client objective, what clients send, server step and prediction."""

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
"""Number of replies weighed together before their models are averaged in and freed."""


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
    """Year of the paper; 0 if ``paper`` only describes the method."""
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

    If so, ``scores`` does not use the personal ones when the memory is empty, as it is when the
    server's model is scored.
    """
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options by the name of a preset, which is chosen as ``method:preset``.

    Options of other sections, with names such as ``train.lr``, are recommendations. The user's
    settings win, and a different optimizer discards all of the preset's options in its section.
    """
    separable: bool = True
    """Whether a client's weight follows from its own reply.

    If so, its model can be averaged in and freed before all replies have arrived. A subclass that
    overrides ``weigh`` has to declare this itself.
    """
    replayed: ClassVar[bool] = True
    """Whether ``summarize`` and ``remember`` can be captured once and replayed for every client.

    If so, they read only tensors, send entries of fixed shapes or one per class, and use ``holds``
    only to choose what is sent; embeddings may be padded with images whose label is −1. A subclass
    that overrides them has to declare this itself.
    """
    compiles_summary: ClassVar[bool] = True
    """Whether a captured summary is worth compiling; a long loop would take long to compile."""
    averages: Averages | None = Averages()
    """The weighted means that make up the server step; None if it does anything else.

    Only a step of weighted means can be made private. A subclass that overrides a part of the
    server step, or what is sent, has to declare this itself.
    """
    per_image: ClassVar[bool] = False
    """Whether the loss is a mean over images of terms that depend on one image each, and nothing
    but weights is sent. Only such a method can have record-level privacy. A subclass that overrides
    the loss or what is sent has to declare this itself.
    """
    uses_census: bool = False
    """Whether clients use the counts of all clients, which the server sends them (`Census`)."""
    sends_absent: bool = False
    """Whether clients also list classes that they do not have."""
    knows_prior: bool = False
    """Whether ``scores`` of a client's own model already include log π_k.

    Every client's own model is also scored with log π_k added; it must not be added twice.
    """
    uses_levels: bool = False
    """Whether it uses features of several depths, or those before the last ReLU (`Network.levels`).

    A frozen encoder then runs in every step instead of once before the first round.
    """
    reveals: ClassVar[str] = ""
    """What clients send that no limit in `[release]` covers, in a few words.

    It may reveal counts or single images, so sites refuse it unless they allow details.
    """
    needs_one_rate: ClassVar[bool] = False
    """Whether it assumes one learning rate for all weights, for example by ``visit.rates``."""
    server_trains: bool = False
    """Whether ``update`` trains or fits a model, which is faster on the device than on the host."""
    depends_on_rounds: ClassVar[bool] = False
    """Whether training depends on the number of rounds, for example by ``visit.progress``.

    If so, a run cannot be extended: its first rounds would have been different.
    """
    label_smoothing: float = 0.0
    """The share of the target that `cross_entropy` spreads over all classes; the config sets it."""
    epsilon: float = 0.0
    """Added to the denominator of the average of models, the sum of the clients' weights."""
    Options: ClassVar[type] = NoOptions
    """A frozen dataclass whose fields are declared with `option`."""

    def __init_subclass__(cls, **details: Any) -> None:
        super().__init_subclass__(**details)
        # What a class declares about its steps does not hold for a subclass that overrides them.
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
        """The method's name in messages."""
        return f"method {getattr(self, 'name', type(self).__name__)}"

    @classmethod
    def defines(cls, step: str) -> bool:
        """Return whether the class, or one that it derives from, overrides a step."""
        return getattr(cls, step) is not getattr(Method, step)

    def head(self) -> nn.Module:
        """Build the head, which takes the encoder's features."""
        return nn.Linear(self.dim, self.classes)

    def start(self, model: Network) -> Tensors:
        """Return the server's state besides the model; only ``anchors/…`` is broadcast."""
        return {}

    def effective_counts(self, counts: Tensor, synthetic: Tensor) -> Tensor:
        """Return n^eff_{k,c}, a client's effective number of images of every class.

        ``counts`` are its real images, and ``synthetic`` the new samples that its tail augmentation
        may add. ``most`` and ``total``, which clients receive at enrolment, are in these units.
        """
        return counts

    def scratch(self, client: Client) -> Tensors:
        """Return zeroed tensors that the loss may accumulate into over one epoch."""
        return {}

    def embed(self, model: Network, x: Tensor) -> Tensor:
        """Return the features that prototypes are computed from."""
        return model.features(x)

    def cross_entropy(self, logits: Tensor, batch: Batch, among: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy of a batch, with the run's label smoothing.

        A method whose loss excludes classes gives the mask ``among`` of the others: smoothing must
        not pull the logits of an excluded class up.
        """
        return cross_entropy(logits, batch.y, batch.weight, self.label_smoothing, among)

    def constants(self, model: Network, x: Tensor, visit: Visit) -> Tensors:
        """Return inputs of the loss that local training does not change, one row per image.

        An example is the images' features under ``visit.received``. The loss reads them from
        ``batch.constants``. If no random transform changes the images, they are computed once per
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
        """Return what each client may claim per class, given what the server knows about it.

        A reply with a number outside its range is rejected. Only entries with one number per class
        can have such a range.
        """
        return {}

    def contradiction(self, up: Up, enrolment: Enrolment) -> str | None:
        """Return why what a client sent cannot come from the images it enrolled with, or None.

        It is called after the checks by `fields`, for conditions that ranges cannot express. A
        reply with a contradiction is rejected.
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

        ``state`` is the one before the round, and the replies come without their models.
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
    """Stands in for a reply's model that is averaged in and freed; reading it raises an error."""

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

    It averages the models by the method's weights, then lets the method update the rest of the
    state. Models are freed as soon as they are averaged in, so that memory does not grow with the
    number of clients; a method that is not ``separable`` weighs all replies together, at the end.
    """

    def __init__(self, method: Method, state: Tensors) -> None:
        self.method = method
        self.state = state
        self.average = Average(method.epsilon)
        self.waiting: list[Up] = []
        """Replies whose models are not averaged in yet."""
        self.counted: list[Up] = []
        """Replies whose models have been averaged in, without these models."""
        self.weight = 0.0
        """The sum of their weights."""

    def add(self, up: Up) -> None:
        """Add a reply."""
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
