"""A method under test: small federations of it, its losses and its replies."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cafedcl.config.data_options import DataOptions
from cafedcl.config.options import to_toml
from cafedcl.config.sections import Config
from cafedcl.core.contract import Batch, Census, Down, Failure, Job, Part, Reply, Up, Visit, Weights
from cafedcl.core.tensors import ANCHORS, MODEL, Tensors, prefixed, under, without
from cafedcl.data import load_dataset
from cafedcl.data.dataset import Dataset
from cafedcl.engine.reference import ReferenceEngine
from cafedcl.federation.rounds import Federation
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.task.build import Setup, prepare
from cafedcl.task.resolve import resolve

TINY: dict[str, dict[str, Any]] = {
    "split": {"kind": "pathological", "classes": 2},
    "model": {"name": "mlp", "width": 0.25},
    "train": {"epochs": 1, "iterations": 2},
    "federation": {"clients": 5, "rounds": 2, "participation": 0.6},
    "engine": {"device": "cpu", "workers": 1, "name": "reference"},
    "evaluate": {"full": False},
}
"""Five clients with two classes each, three of them in a round."""
READERS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")
"""The ways to read a tensor's value."""
SHAPED_BY_VALUES = tuple(
    getattr(torch.ops.aten, name)
    for name in (
        "nonzero", "masked_select", "bincount", "repeat_interleave", "_unique", "_unique2",
        "unique_dim", "unique_consecutive", "unique_dim_consecutive",
    )
)  # fmt: skip
"""Operations whose result has a shape that depends on values."""
BY_INDEX = (
    torch.ops.aten.index,
    torch.ops.aten.index_put,
    torch.ops.aten.index_put_,
    torch.ops.aten._index_put_impl_,
)
"""Operations on rows that are selected by numbers or by a mask."""


class ConformanceError(AssertionError):
    """A requirement that a method does not meet."""


@dataclass(frozen=True)
class Case:
    """A method with its settings, and small federations of it.

    Checks share the federations that are kept here, and must not change them.
    """

    method: str
    settings: dict[str, Any]

    def config(self, **others: Any) -> Config:
        """Return the config of a small federation."""
        tables = {section: dict(options) for section, options in TINY.items()}
        tables["method"] = {"name": self.method}
        for path, value in {**self.settings, **others}.items():
            section, _, key = path.partition(".")
            tables.setdefault(section, {})[key] = value
        return resolve(tables)

    @cached_property
    def digits(self) -> Dataset:
        """The embedded data."""
        return load_dataset(DataOptions())

    def federation(self, **others: Any) -> Federation:
        """Return a small federation on the reference engine."""
        return of_setup(prepare(self.config(**others), self.digits))

    def untold(self) -> Federation:
        """Return a small federation whose clients learn nothing about each other."""
        setup = prepare(self.config(), self.digits)
        nothing = Census(*map(torch.zeros_like, setup.task.clients.census))
        return of_setup(replace(setup, task=setup.task.with_clients(census=nothing)))

    @cached_property
    def begun(self) -> Federation:
        """A federation before its first round."""
        return self.federation()

    @cached_property
    def after_one_round(self) -> Federation:
        """A federation after its first round."""
        federation = self.federation()
        federation.step()
        return federation

    @cached_property
    def finished(self) -> Federation:
        """A federation after its last round."""
        federation = self.federation()
        federation.run()
        return federation

    @cached_property
    def replies(self) -> list[Reply]:
        """The replies of all clients in the first round, on the reference engine."""
        return self.replies_of(self.begun)

    def replies_of(self, federation: Federation) -> list[Reply]:
        """Return the replies of all clients of a federation before its first round."""
        engine = ReferenceEngine(federation.task)
        down = Down(0, checked.broadcast(federation.method, federation.state))
        replies = []
        for client in range(len(federation.task.clients.shards)):
            result = engine.attempt(Job(client, down, {}, True))
            if isinstance(result, Failure):
                raise self.fail(f"a client fails: {result.reason}")
            replies.append(result)
        return replies

    def fail(self, reason: str) -> ConformanceError:
        """Return the error that says what is wrong."""
        options = ", ".join(f"{name} = {to_toml(value)}" for name, value in self.settings.items())
        given = f" with {options}" if options else ""
        return ConformanceError(f"method '{self.method}'{given}: {reason}")


def of_setup(setup: Setup) -> Federation:
    """Return a federation on the reference engine."""
    return Federation(setup, engine=ReferenceEngine(setup.task))


def result_of(federation: Federation) -> Tensors:
    """Run a federation to its end, and return its whole final state."""
    federation.run()
    tensors, _ = federation.snapshot()
    return tensors


def first_difference(one: Tensors, other: Tensors) -> str | None:
    """Return the name of the first tensor that differs in any bit, or None."""
    for name in sorted({**one, **other}):
        if name not in one or name not in other:
            return name
        if one[name].dtype != other[name].dtype or one[name].shape != other[name].shape:
            return name
        if not torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)):
            return name
    return None


def aggregated(method: Method, state: Tensors, ups: Iterable[Up]) -> Tensors:
    """Return the server's state after these replies."""
    aggregator = method.aggregator(state)
    for up in ups:
        aggregator.add(up)
    return aggregator.finish()


def batch_of(federation: Federation, size: int) -> Batch:
    """Return the first images of client 0 as a batch in float64."""
    rows = federation.task.clients.shards.train[0][:size]
    data = federation.task.clients.data
    x = data.images(data.train_x[rows]).double()
    return Batch(x, data.train_y[rows], torch.ones(len(rows), dtype=torch.float64))


def doubled(tensors: Mapping[str, Tensor]) -> Tensors:
    """Return tensors with their numbers in float64."""
    return {n: v.double() if v.is_floating_point() else v for n, v in tensors.items()}


def refuse_to_embed(_part: Part, _weights: Weights) -> tuple[Tensor, Tensor]:
    """Refuse to embed: a loss sees only its batch."""
    raise ConformanceError("its loss embeds the client's data; it must use its batch only")


def loss_and_gradient(federation: Federation, batch: Batch, seed: int = 0) -> Tensors:
    """Return the terms of client 0's loss, the gradient and the scratch tensors, in float64.

    ``seed`` is for random numbers that a loss draws although it should not. Double precision shows
    what rounding errors would hide.
    """
    task = federation.task
    method = federation.method
    sent = doubled(checked.broadcast(method, federation.state))
    kept = doubled(federation.memories.get(0, {}))
    client = task.clients.client(0)
    census = Census(*(value.double() for value in client.census))
    client = replace(client, counts=client.counts.double(), census=census)
    # The federation's own network stays as it is, for other checks.
    network = deepcopy(task.network).double().train()
    received = {**doubled(task.initial), **under(MODEL, sent), **under(MODEL, kept)}
    network.load_state_dict(received)
    network.zero_grad()
    visit = Visit(
        client=client,
        round=torch.tensor(1.0).double(),
        progress=torch.tensor(0.5).double(),
        received=received,
        anchors=under(ANCHORS, sent),
        memory=without(MODEL, kept),
        scratch=checked.scratch(method, client),
        embed=refuse_to_embed,
    )
    torch.manual_seed(seed)
    terms = checked.loss(method, network, batch, visit)
    torch.stack(list(terms.values())).sum().backward()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }
    return {
        **{name: term.detach() for name, term in terms.items()},
        **prefixed("gradient of ", gradients),
        **prefixed("scratch ", visit.scratch),
    }


class _FixedShapes(TorchDispatchMode):
    """Refuses every operation whose result has a shape that depends on values."""

    def __init__(self, refuse: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refuse = refuse

    def __torch_dispatch__(
        self,
        operation: Any,
        _types: object,
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        packet = operation.overloadpacket
        selects = packet in BY_INDEX and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in arguments[1]
        )
        # A single number is written through a mask without computing the positions.
        fills = packet is not torch.ops.aten.index and selects and arguments[2].numel() == 1
        # Reads of values are not refused here: on a CPU, one_hot reads its labels to check them.
        if (selects and not fills) or packet in SHAPED_BY_VALUES:
            self.refuse()
        return operation(*arguments, **(named or {}))


@contextmanager
def no_value_is_read(case: Case) -> Iterator[None]:
    """Run a block in which it is an error to read a tensor's value, or to make a tensor of a shape
    that depends on values.
    """

    def refuse(*_: object) -> None:
        raise case.fail(
            "its loss reads a tensor's value, so it cannot be replayed; "
            "keep it a tensor: no .item(), no `if`, but torch.where"
        )

    def refuse_shape() -> None:
        raise case.fail(
            "its loss makes a tensor whose shape depends on values, so it cannot be replayed; "
            "instead of selecting rows by x[mask], weight them: x * mask[:, None]"
        )

    with ExitStack() as stack:
        for reader in READERS:
            stack.enter_context(patch.object(torch.Tensor, reader, refuse))
        stack.enter_context(_FixedShapes(refuse_shape))
        yield
