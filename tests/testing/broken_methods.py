"""Methods that each break one rule, and what the check that finds it says."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cafedcl.extend import (
    Averages,
    Batch,
    ClassMeans,
    FedAvg,
    Field,
    Network,
    Tensors,
    Up,
    Visit,
    option,
)


class Nameless(FedAvg):
    name = ""


@dataclass(frozen=True)
class Undeclared:
    strength: float = 1.0


class UndeclaredOption(FedAvg):
    name = "undeclared"
    Options = Undeclared


class Raises(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        raise ArithmeticError("no loss today")


class WeighsTooFew(FedAvg):
    def weigh(self, ups: list[Up]) -> Tensor:
        return super().weigh(ups)[:1]


class GrowingState(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"anchors/table": torch.zeros(2, 2)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"anchors/other": torch.zeros(2)}


class WideningState(GrowingState):
    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"anchors/table": torch.zeros(2, 3)}


class NotFinite(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"server/sum": torch.ones(1)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"server/sum": state["server/sum"] / 0}


DRAWS = torch.Generator().manual_seed(0)


class DrawsItsOwn(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"server/noise": torch.zeros(3)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"server/noise": torch.randn(3, generator=DRAWS)}


class PlainMean(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        return {"ce": nn.functional.cross_entropy(model(batch.x), batch.y)}


class DividesByWeight(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        each = nn.functional.cross_entropy(model(batch.x), batch.y, reduction="none")
        return {"ce": (each * batch.weight).sum() / batch.weight.sum()}


class ReadsAValue(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        terms = super().loss(model, batch, visit)
        return {"ce": terms["ce"] * (2.0 if terms["ce"].item() > 100 else 1.0)}


class SendsSomethingElse(FedAvg):
    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        return {"mean": torch.zeros(3)}, {}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"mean": Field((2,), per_class=False)}


class SendsUndeclared(FedAvg):
    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        return {"extra": torch.zeros(3)}, {}


class FirstComeFirstServed(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"server/first": torch.zeros(1)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"server/first": torch.tensor([float(ups[0].client)])}


class UpdatesInPlace(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"server/rounds": torch.zeros(1)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"server/rounds": state["server/rounds"].add_(1)}


class Rolls(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        return {"ce": super().loss(model, batch, visit)["ce"] * torch.rand(())}


class KeepsTheOldModel(FedAvg):
    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {name: value for name, value in state.items() if name.startswith("model/")}


class ReadsModels(FedAvg):
    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {f"model/{name}": value for name, value in ups[0].model.items()}


class LooksAtOthers(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        share = visit.client.counts.sum() / visit.client.census.images.sum().clamp_min(1)
        return {"ce": super().loss(model, batch, visit)["ce"] * share}


class WeighsByShare(FedAvg):
    separable = True

    def weigh(self, ups: list[Up]) -> Tensor:
        return torch.softmax(super().weigh(ups), 0)


class WeighsMore(FedAvg):
    averages = Averages(most=1.0)


class CountsReplies(FedAvg):
    averages = Averages()

    def start(self, model: Network) -> Tensors:
        return {"anchors/replies": torch.zeros(1)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        return {"anchors/replies": torch.ones(1) * len(ups)}


class SendsMeans(FedAvg):
    """Sends a weighted mean per class, and the server adds them up."""

    averages = Averages(classes=ClassMeans("mean", "mass", most=float("inf")))

    def start(self, model: Network) -> Tensors:
        return {"anchors/mean": torch.zeros(self.classes, 1)}

    def fields(self, model: Network) -> dict[str, Field]:
        return {"mean": Field((1,)), "mass": Field(())}

    def summarize(self, model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
        held = visit.client.holds
        mass = visit.client.counts[held]
        return {"classes": held, "mean": mass[:, None] / 100, "mass": mass}, {}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        rows = [torch.zeros(self.classes, 1).index_add(0, *self.row(up)) for up in ups]
        return {"anchors/mean": torch.stack(rows).sum(0)}

    def row(self, up: Up) -> tuple[Tensor, Tensor]:
        return up.tensors["classes"], up.tensors["mean"]


class SendsHeavyMeans(SendsMeans):
    averages = Averages(classes=ClassMeans("mean", "mass"))


class SendsMeansAndMore(SendsMeans):
    averages = Averages(classes=ClassMeans("mean"))

    def row(self, up: Up) -> tuple[Tensor, Tensor]:
        return up.tensors["classes"], up.tensors["mean"] * up.tensors["mass"][:, None]


class LooksAtTheWholeBatch(FedAvg):
    per_image = True

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        z = self.embed(model, batch.x)
        mean = (z * batch.weight[:, None]).sum(0) / batch.weight.sum().clamp_min(1)
        return {**super().loss(model, batch, visit), "mean": mean.square().sum()}


class SendsMoreThanWeights(SendsMeans):
    per_image = True


class SelectsImages(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        counts = batch.weight > 0
        z = self.embed(model, batch.x)[counts]
        return {**super().loss(model, batch, visit), "size": z.square().sum() / batch.weight.sum()}


class WritesByAMask(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        z = self.embed(model, batch.x).clone()
        z[batch.weight > 0] = z.detach().mean(0)
        return {**super().loss(model, batch, visit), "size": (z * batch.weight[:, None]).sum()}


class CountsLabels(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        ce = super().loss(model, batch, visit)["ce"]
        return {"ce": ce, "labels": ce * torch.bincount(batch.y).sum().clamp(0, 1)}


class SlowsDown(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        return {"ce": super().loss(model, batch, visit)["ce"] * (1 - visit.progress)}


class BroadcastsAll(FedAvg):
    def start(self, model: Network) -> Tensors:
        return {"server/secret": torch.zeros(1)}

    def broadcast(self, state: Tensors) -> Tensors:
        return state


class ServesByAPersonalHead(FedAvg):
    personal = "head.*"
    personal_is_optional = True


class ReadsAPlainNumber(FedAvg):
    """A plain number of the client, which a captured step would not see change."""

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        terms = super().loss(model, batch, visit)
        number = getattr(visit.client, "samples", 0)
        return {"ce": terms["ce"] * (1 + number / 100)}


class ReadsSamples(FedAvg):
    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        return {"ce": super().loss(model, batch, visit)["ce"] / visit.client.samples}


class ScoresNothing(FedAvg):
    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        return super().scores(model, x, anchors, memory) * torch.nan


class ScoresTooMany(FedAvg):
    def scores(self, model: Network, x: Tensor, anchors: Tensors, memory: Tensors) -> Tensor:
        return super().scores(model, x, anchors, memory).repeat(1, 2)


class Forgets(FedAvg):
    """Keeps something outside of its state, so that a resumed run has lost it."""

    def __init__(self, options: Any, classes: int, dim: int, clients: int = 1) -> None:
        super().__init__(options, classes, dim, clients)
        self.rounds = 0

    def start(self, model: Network) -> Tensors:
        return {"server/rounds": torch.zeros(1)}

    def update(self, state: Tensors, ups: list[Up]) -> Tensors:
        self.rounds += 1
        return {"server/rounds": torch.tensor([float(self.rounds)])}


class CountsCalls(Forgets):
    """The same, as the server's step shows."""


@dataclass(frozen=True)
class PullOptions:
    mu: float = option(0.01, "weight of the pull towards the received model", low=0.0)


class Pull(FedAvg):
    """A method that keeps all rules."""

    name = "pull"
    Options = PullOptions

    def loss(self, model: Network, batch: Batch, visit: Visit) -> Tensors:
        parts = [(p - visit.received[n]).square().sum() for n, p in model.named_parameters()]
        away: Tensor = torch.stack(parts).sum()
        return {**super().loss(model, batch, visit), "pull": self.options.mu / 2 * away}


BROKEN: dict[type[FedAvg], tuple[str, str]] = {
    Nameless: ("description", "it has no name of its own"),
    UndeclaredOption: ("description", "its option 'strength' is not declared with `option`"),
    Raises: ("rounds", "no loss today"),
    WeighsTooFew: ("rounds", "its weigh returns a tensor of shape (1,); a tensor of shape (3,)"),
    SendsUndeclared: (
        "rounds",
        "'extra' was not asked for; a method declares what its `summarize`",
    ),
    GrowingState: ("rounds", "its update returns 'anchors/other'; an entry of `start` is expected"),
    WideningState: ("rounds", "a tensor of shape (2, 3) as 'anchors/table'; (2, 2) is expected"),
    NotFinite: ("rounds", "the server's step gave NaN or Inf in 'server/sum'"),
    DrawsItsOwn: ("seed", "two runs with the same seed differ in 'state/server/noise'"),
    PlainMean: ("padding", "padding changes 'ce'; weight every mean by batch.weight"),
    DividesByWeight: ("only padding", "a batch of padding alone makes 'ce' infinite or NaN"),
    ReadsAValue: ("no value is read", "its loss reads a tensor's value"),
    SendsSomethingElse: ("reply", "'mean' has shape (3,), expected (2,); see `fields`"),
    FirstComeFirstServed: ("order", "the order of replies changes 'server/first'"),
    WeighsByShare: ("weights", "depends on the replies beside one; set `separable = False`"),
    WeighsMore: ("averages", "more than `averages.most` = 1"),
    CountsReplies: ("averages", "'anchors/replies' of its state does not follow from the means"),
    SendsMeans: ("averages", "'anchors/mean' of its state does not follow from the means"),
    SendsHeavyMeans: ("averages", "more than `averages.classes.most` = 1"),
    SendsMeansAndMore: ("averages", "`update` fails with one reply that is the mean of all"),
    LooksAtTheWholeBatch: ("per image", "over several images is not the mean of those over one"),
    SendsMoreThanWeights: ("per image", "it sends 'classes' besides the weights"),
    SelectsImages: ("no value is read", "instead of selecting rows by x[mask], weight them"),
    WritesByAMask: ("no value is read", "makes a tensor whose shape depends on values"),
    CountsLabels: ("no value is read", "makes a tensor whose shape depends on values"),
    SlowsDown: ("rounds ahead", "of its state depends on the number of rounds"),
    UpdatesInPlace: ("order", "`update` changes 'server/rounds' in place"),
    Rolls: ("no chance", "'ce' differs when it is computed again"),
    KeepsTheOldModel: ("rounds", "its model is the same after every round"),
    ReadsModels: ("rounds", "its update reads `up.model`, but models are averaged in and freed"),
    LooksAtOthers: ("census", "of its state depends on `client.census`; set `uses_census = True`"),
    BroadcastsAll: ("broadcast", "it broadcasts 'server/secret'"),
    ScoresNothing: ("scores", "its scores are NaN for some images"),
    ScoresTooMany: ("scores", "its scores returns a tensor of shape (359, 20)"),
    ServesByAPersonalHead: ("server's model", "personal weights change the scores"),
    ReadsAPlainNumber: ("engines", "engine gives another 'model/"),
    ReadsSamples: (
        "engines",
        "a loss can read counts and census of visit.client, not",
    ),
    CountsCalls: ("order", "the same replies give another 'server/rounds' the second time"),
    Forgets: ("resume", "a resumed run differs in 'state/server/rounds'"),
}
