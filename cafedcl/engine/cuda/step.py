"""A training step as two functions of tensors, which can be compiled: the objective, and the update
of the weights.

The encoder runs in a lower precision if asked; the weights themselves, the head and the losses are
in float32.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.config.sections import TrainOptions
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors, prefixed, under
from cafedcl.engine.cuda.im2col import use_im2col
from cafedcl.engine.flip_and_crop import augment
from cafedcl.engine.sgd import descend
from cafedcl.methods.base import Method
from cafedcl.models.base import Encoder, Network, Runner

ENCODER = "encoder."
Images = Callable[[Tensor, Tensors], tuple[Tensor, Tensor, Tensor | None]]
"""Gives images as the encoder sees them, their labels, and what is added to their features, if
anything.

It is asked for rows, and given the client's synthetic images.
"""
Summarize = Callable[[Network, Visit], tuple[Tensors, Tensors, Tensors]]
RECOMPILE_LIMIT = 256
"""How many shapes, methods and models may be compiled in one process."""
Made = TypeVar("Made", bound=Callable[..., Any])


class Body(Runner):
    """Runs a stand-in for the encoder that holds its weights in another precision; features come
    back in float32.
    """

    def __init__(self, body: nn.Module, dtype: torch.dtype) -> None:
        self.body = body
        self.dtype = dtype

    def features(self, _encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return self.body(x).float()  # type: ignore[no-any-return]

    def levels(self, _encoder: Encoder, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return all levels and the encoder's features."""
        assert isinstance(self.body, Encoder)
        levels, features = self.body.levels(x)
        return [level.float() for level in levels], features.float()

    def frozen(self, _encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features that other weights would give."""
        return functional_call(self.body, self.cast(weights), (x,)).float()  # type: ignore[no-any-return]

    def cast(self, weights: Tensors) -> Tensors:
        """Return weights in the body's precision."""
        return {
            name: w.to(self.dtype) if w.is_floating_point() else w for name, w in weights.items()
        }


@dataclass(frozen=True)
class Given:
    """The weights of a call: the network's own in float32, and its encoder's once more in the
    body's precision.

    The two are parted so that a loss may look at the weights themselves, and no step has to cast
    them.
    """

    network: Tensors
    body: Tensors


class Bound(Runner):
    """Runs an encoder with the weights of one lane."""

    def __init__(self, body: Body, weights: Tensors) -> None:
        self.body = body
        self.weights = weights

    def features(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return self.body.frozen(encoder, self.weights, x)

    def frozen(self, encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features that other weights would give."""
        return self.body.frozen(encoder, weights, x)


class FunctionalNetwork(nn.Module):
    """A network whose weights are given at every call. Its encoder's part is played by a body in
    another precision.
    """

    def __init__(self, network: Network, dtype: torch.dtype, *, patches: bool = False) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.body = copy.deepcopy(network.encoder)
        if patches:
            use_im2col(self.body)
        self.runner = Body(self.body, dtype)
        self.network.runner = self.runner

    def forward(self, act: Callable[[Network], Any], shift: Tensor | None) -> Any:
        """Let somebody act on the network with the weights of this call."""
        self.network.shift = shift
        return act(self.network)


class Program:
    """What is done at a step and in a pass over images, for one method, model and precision; all
    lanes share it.
    """

    def __init__(
        self,
        network: Network,
        method: Method,
        options: TrainOptions,
        dtype: torch.dtype,
        *,
        compiled: bool,
    ) -> None:
        self.method = method
        self.options = options
        self.dtype = dtype
        self.compiled = compiled
        if compiled:
            settings: Any = torch._dynamo.config
            settings.recompile_limit = max(settings.recompile_limit, RECOMPILE_LIMIT)
        self.play = FunctionalNetwork(network, dtype, patches=compiled and dtype.itemsize == 2)
        self.objective = self._made(self._objective)
        self.update = self._made(self._update)
        self.embed = self._made(self._embed)
        self.predict = self._made(self._predict)
        self.summary = self._made(self.summarize)

    def _made(self, function: Made) -> Made:
        return cast(Made, torch.compile(function, dynamic=False)) if self.compiled else function

    def _act(self, weights: Given, act: Callable[[Network], Any], shift: Tensor | None) -> Any:
        given = {**prefixed("network.", weights.network), **prefixed("body.", weights.body)}
        return functional_call(self.play, given, (act, shift))

    def names(
        self,
        weights: Given,
        images: Images,
        extra: Tensors,
        tables: Tensors,
        at: Tensor,
        visit: Visit,
    ) -> tuple[str, ...]:
        """Return the names of the terms of the loss."""
        return tuple(self._loss(weights, images, extra, tables, at, visit))

    def _objective(
        self,
        weights: Given,
        images: Images,
        extra: Tensors,
        tables: Tensors,
        at: Tensor,
        visit: Visit,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the batch that is next, and its terms: gather, augment, forward."""
        terms = torch.stack(list(self._loss(weights, images, extra, tables, at, visit).values()))
        return terms.sum(), terms.detach()

    def _loss(
        self,
        weights: Given,
        images: Images,
        extra: Tensors,
        tables: Tensors,
        at: Tensor,
        visit: Visit,
    ) -> Tensors:
        now = {name: table.index_select(0, at)[0] for name, table in tables.items()}
        x, y, shift = images(now["rows"], extra)
        batch = Batch(augment(x, under("draw/", now), self.options), y, now["weight"])
        for tensor in visit.scratch.values():
            tensor.masked_fill_(now["first"], 0)
        return self._act(weights, lambda network: self.method.loss(network, batch, visit), shift)  # type: ignore[no-any-return]

    def _update(
        self,
        weights: Tensor,
        half: Tensor | None,
        gradients: list[list[Tensor]],
        velocity: Tensor | None,
        tables: Tensors,
        at: Tensor,
        terms: Tensor,
        log: Tensor,
    ) -> None:
        """Clip the gradient's norm, decay, move the weights; log the terms and go on to the next
        step.

        ``weights`` are all that move, in one tensor, and ``half`` is the same in the body's
        precision. ``gradients`` are of every weight as it lies, one or several that are added;
        those of one type are joined, then cast.
        """
        alike: list[list[Tensor]] = []
        for part in (reduce(torch.add, each).flatten() for each in gradients):
            if not alike or alike[-1][0].dtype != part.dtype:
                alike.append([])
            alike[-1].append(part)
        gradient = torch.cat([torch.cat(parts).float() for parts in alike])
        descend(weights, gradient, velocity, tables["rate"].index_select(0, at), self.options)
        if half is not None:
            half.copy_(weights)
        log.index_copy_(0, at, terms[None])
        at.add_(1)

    def summarize(self, network: Network, visit: Visit) -> tuple[Tensors, Tensors, Tensors]:
        """Return what the method sends up, notes, and keeps after a visit."""
        return *self.method.summarize(network, visit), self.method.remember(network, visit)

    def _embed(self, weights: Given, images: Images, extra: Tensors, rows: Tensor) -> Tensor:
        """Return the embeddings of images."""
        x, _, shift = images(rows, extra)
        return self._act(weights, lambda network: self.method.embed(network, x), shift)  # type: ignore[no-any-return]

    def _predict(
        self,
        weights: Given,
        images: Images,
        asked: Tensor,
        at: Tensor,
        anchors: Tensors,
        memory: Tensors,
        held: Tensor,
        predicted: Tensor,
    ) -> None:
        """Note the predicted class of the images that are next, among all classes and among those
        held, and go on.
        """
        x, _, _ = images(asked.index_select(0, at)[0], {})
        scores = self._act(
            weights, lambda network: self.method.scores(network, x, anchors, memory), None
        )
        among = scores.masked_fill(~held, -torch.inf)
        predicted.index_copy_(
            0, at, torch.stack([scores.argmax(1), among.argmax(1)], 1).to(predicted.dtype)[None]
        )
        at.add_(1)
