"""A training step as functions of tensors, which can be compiled: the objective, and the update.

The encoder runs in a lower precision if asked; the weights, the head and the losses are in float32.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cafedcl.augment.transforms import TransformChain
from cafedcl.config.train_options import TrainOptions
from cafedcl.core.contract import Batch, Visit
from cafedcl.core.tensors import Tensors, prefixed, under
from cafedcl.engine.cuda import fused_norm
from cafedcl.engine.cuda.constants import ConstantsTables
from cafedcl.engine.cuda.im2col import use_im2col
from cafedcl.engine.optimizer import descend
from cafedcl.functional.metrics import predictions
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.models.base import Encoder, Network, Runner

Images = Callable[[Tensor, Tensors], tuple[Tensor, Tensor, Tensor | None]]
"""Returns the images of given rows, their labels, and what is added to their features, if anything.

Its second argument contains the client's synthetic images.
"""
Summarize = Callable[[Network, Visit], tuple[Tensors, Tensors, Tensors]]
RECOMPILE_LIMIT = 1024
"""How many shapes, methods and models may be compiled in one process."""
Function = TypeVar("Function", bound=Callable[..., Any])


class CastEncoder(Runner):
    """Runs a copy of the encoder that computes in another precision; features are float32 again."""

    def __init__(self, encoder: nn.Module, dtype: torch.dtype) -> None:
        self.encoder = encoder
        self.dtype = dtype

    def features(self, _encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return self.encoder(x).float()  # type: ignore[no-any-return]

    def levels(self, _encoder: Encoder, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return all levels and the encoder's features."""
        assert isinstance(self.encoder, Encoder)
        levels, features = self.encoder.levels(x)
        return [level.float() for level in levels], features.float()

    def frozen(self, _encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features that other weights would give."""
        return functional_call(self.encoder, self.cast(weights), (x,)).float()  # type: ignore[no-any-return]

    def cast(self, weights: Tensors) -> Tensors:
        """Return weights in the encoder's precision."""
        return {
            name: value.to(self.dtype) if value.is_floating_point() else value
            for name, value in weights.items()
        }


@dataclass(frozen=True)
class StepWeights:
    """The weights of a call: the network's in float32, and the encoder's in its own precision.

    With both, a loss can read the weights themselves, and no step has to cast them.
    """

    network: Tensors
    encoder: Tensors


class BoundEncoder(Runner):
    """Runs an encoder with the weights of one lane."""

    def __init__(self, runner: CastEncoder, weights: Tensors) -> None:
        self.runner = runner
        self.weights = weights

    def features(self, encoder: nn.Module, x: Tensor) -> Tensor:
        """Return the encoder's features."""
        return self.runner.frozen(encoder, self.weights, x)

    def frozen(self, encoder: nn.Module, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features that other weights would give."""
        return self.runner.frozen(encoder, weights, x)


class FunctionalNetwork(nn.Module):
    """A network whose weights are given at every call, with its encoder in another precision."""

    def __init__(self, network: Network, dtype: torch.dtype, *, fast: bool = False) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.body = copy.deepcopy(network.encoder)
        if fast:
            use_im2col(self.body)
            fused_norm.use_fused_norm(self.body)
        self.runner = CastEncoder(self.body, dtype)
        self.network.runner = self.runner

    def forward(self, act: Callable[[Network], Any], shift: Tensor | None) -> Any:
        """Call a function on the network with the weights of this call."""
        self.network.shift = shift
        return act(self.network)


class Program:
    """The work of a step and of a pass over images, for one method, model and precision.

    All lanes share it, so that everything is compiled once.
    """

    def __init__(
        self,
        network: Network,
        method: Method,
        options: TrainOptions,
        transforms: TransformChain,
        dtype: torch.dtype,
        *,
        compiled: bool,
    ) -> None:
        self.method = method
        self.options = options
        self.transforms = transforms
        self.dtype = dtype
        self.compiled = compiled
        if compiled:
            settings: Any = torch._dynamo.config
            for limit in ("recompile_limit", "accumulated_recompile_limit"):
                setattr(settings, limit, max(getattr(settings, limit), RECOMPILE_LIMIT))
        fast = compiled and dtype.itemsize == 2
        self.functional = FunctionalNetwork(network, dtype, fast=fast)
        self.compile_options = fused_norm.compile_options() if fast else {}
        self.objective = self._compiled(self._objective)
        self.constants = self._compiled(self._constants)
        self.update = self._compiled(self._update)
        self.embed = self._compiled(self._embed)
        self.predict = self._compiled(self._predict)
        self.compiled_summary = self._compiled(self.summarize)

    def _compiled(self, function: Function) -> Function:
        if not self.compiled:
            return function
        compiled = torch.compile(function, dynamic=False, options=self.compile_options)
        return cast(Function, compiled)

    def _call(
        self, weights: StepWeights, act: Callable[[Network], Any], shift: Tensor | None
    ) -> Any:
        given = {**prefixed("network.", weights.network), **prefixed("body.", weights.encoder)}
        return functional_call(self.functional, given, (act, shift))

    def loss_names(
        self,
        weights: StepWeights,
        images: Images,
        synthetic: Tensors,
        tables: Tensors,
        cursor: Tensor,
        visit: Visit,
        constants: ConstantsTables,
    ) -> tuple[str, ...]:
        """Return the names of the terms of the loss."""
        return tuple(self._loss(weights, images, synthetic, tables, cursor, visit, constants))

    def _objective(
        self,
        weights: StepWeights,
        images: Images,
        synthetic: Tensors,
        tables: Tensors,
        cursor: Tensor,
        visit: Visit,
        constants: ConstantsTables,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the next batch, and its terms: gather, augment, forward."""
        named = self._loss(weights, images, synthetic, tables, cursor, visit, constants)
        terms = torch.stack(list(named.values()))
        return terms.sum(), terms.detach()

    def _loss(
        self,
        weights: StepWeights,
        images: Images,
        synthetic: Tensors,
        tables: Tensors,
        cursor: Tensor,
        visit: Visit,
        constants: ConstantsTables,
    ) -> Tensors:
        now = {name: table.index_select(0, cursor)[0] for name, table in tables.items()}
        x, y, shift = images(now["rows"], synthetic)
        x = self.transforms.apply(x, under("draw/", now))
        batch = Batch(x, y, now["weight"], constants.of(now["rows"]))
        for tensor in visit.scratch.values():
            tensor.masked_fill_(now["first"], 0)

        def act(network: Network) -> Tensors:
            return checked.loss(self.method, network, batch, visit)

        return self._call(weights, act, shift)  # type: ignore[no-any-return]

    def _constants(
        self, weights: StepWeights, images: Images, synthetic: Tensors, rows: Tensor, visit: Visit
    ) -> Tensors:
        """Return the method's constants of images."""
        x, _, shift = images(rows, synthetic)

        def act(network: Network) -> Tensors:
            return checked.constants(self.method, network, x, visit)

        return self._call(weights, act, shift)  # type: ignore[no-any-return]

    def _update(
        self,
        weights: Tensor,
        half: Tensor | None,
        gradients: list[list[Tensor]],
        state: Tensors,
        factors: Tensor | None,
        tables: Tensors,
        cursor: Tensor,
        terms: Tensor,
        log: Tensor,
    ) -> None:
        """Clip the gradient's norm, decay, move the weights; log the terms, advance the step.

        ``weights`` are all trained weights in one vector, and ``half`` is their copy in the
        encoder's precision. ``gradients`` are those of every weight in memory order, to be summed.
        """
        # Gradients of one type are joined before the cast: one kernel instead of one per weight.
        by_type: list[list[Tensor]] = []
        for parts in gradients:
            gradient = reduce(torch.add, parts).flatten()
            if not by_type or by_type[-1][0].dtype != gradient.dtype:
                by_type.append([])
            by_type[-1].append(gradient)
        flat_gradient = torch.cat([torch.cat(parts).float() for parts in by_type])
        rate = tables["rate"].index_select(0, cursor)
        descend(weights, flat_gradient, state, rate, self.options, factors)
        if half is not None:
            half.copy_(weights)
        log.index_copy_(0, cursor, terms[None])
        cursor.add_(1)

    def summarize(self, network: Network, visit: Visit) -> tuple[Tensors, Tensors, Tensors]:
        """Return what the method sends, its notes, and what the client keeps."""
        sent, notes = checked.summarize(self.method, network, visit)
        return sent, notes, checked.remember(self.method, network, visit)

    def _embed(
        self, weights: StepWeights, images: Images, synthetic: Tensors, rows: Tensor
    ) -> Tensor:
        """Return the embeddings of images."""
        x, _, shift = images(rows, synthetic)

        def act(network: Network) -> Tensor:
            return checked.embed(self.method, network, x)

        return self._call(weights, act, shift)  # type: ignore[no-any-return]

    def _predict(
        self,
        weights: StepWeights,
        images: Images,
        rows: Tensor,
        batch: Tensor,
        anchors: Tensors,
        memory: Tensors,
        prior: Tensor,
        predicted: Tensor,
    ) -> None:
        """Write the predictions for the next batch, for a client with this prior; advance it."""
        x, _, _ = images(rows.index_select(0, batch)[0], {})

        def act(network: Network) -> Tensor:
            return checked.scores(self.method, network, x, anchors, memory)

        scores = self._call(weights, act, None)
        by_kind = predictions(scores, prior)
        predicted.index_copy_(0, batch, by_kind.to(predicted.dtype)[None])
        batch.add_(1)
