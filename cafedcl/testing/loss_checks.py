"""The checks of a loss: the rules with which every engine can compute it."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from cafedcl.core.contract import Batch
from cafedcl.core.tensors import Tensors, under
from cafedcl.testing.case import (
    Case,
    batch_of,
    first_difference,
    loss_and_gradient,
    no_value_is_read,
)


def check_padding(case: Case) -> None:
    """Images of weight 0 change neither the loss, nor its gradient, nor the scratch tensors."""
    federation = case.after_one_round
    classes = federation.method.classes
    batch = batch_of(federation, 12)
    generator = torch.Generator().manual_seed(0)
    junk = 3 * torch.randn(classes, *batch.x.shape[1:], generator=generator, dtype=torch.float64)
    labels = torch.arange(classes)
    padded = Batch(
        torch.cat([batch.x, junk]),
        torch.cat([batch.y, labels]),
        torch.cat([batch.weight, torch.zeros(classes).double()]),
    )
    plain = loss_and_gradient(federation, batch)
    if not any(value.any() for value in under("gradient of ", plain).values()):
        raise case.fail("its loss has no gradient")
    for name, value in loss_and_gradient(federation, padded).items():
        if not torch.allclose(value, plain[name], atol=1e-10, rtol=1e-9, equal_nan=True):
            raise case.fail(f"padding changes '{name}'; weight every mean by batch.weight")


def check_no_chance(case: Case) -> None:
    """A loss draws no random numbers: two engines could not draw the same ones."""
    federation = case.after_one_round
    batch = batch_of(federation, 12)
    name = first_difference(
        loss_and_gradient(federation, batch), loss_and_gradient(federation, batch, seed=1)
    )
    if name is not None:
        raise case.fail(
            f"'{name}' differs when it is computed again; neither a loss nor a model may draw "
            "random numbers, as dropout does"
        )


def check_only_padding(case: Case) -> None:
    """A batch of padding alone gives finite losses and gradients."""
    federation = case.after_one_round
    batch = batch_of(federation, 6)
    empty = batch._replace(weight=torch.zeros_like(batch.weight))
    for name, value in loss_and_gradient(federation, empty).items():
        if not value.isfinite().all():
            raise case.fail(f"a batch of padding alone makes '{name}' infinite or NaN")


def check_no_value_is_read(case: Case) -> None:
    """A loss reads no tensor's value, so that it can be captured once and replayed."""
    federation = case.after_one_round
    method = federation.method

    def guarded(step: Callable[..., Tensors]) -> Callable[..., Tensors]:
        def call(*arguments: Any) -> Tensors:
            with no_value_is_read(case):
                return step(*arguments)

        return call

    with (
        patch.object(method, "loss", guarded(method.loss)),
        patch.object(method, "constants", guarded(method.constants)),
    ):
        loss_and_gradient(federation, batch_of(federation, 4))


def check_per_image(case: Case) -> None:
    """The loss is a mean over single images and nothing but weights is sent, if the method says so.

    Privacy of images limits what each image adds to a step, so an image must affect nothing else.
    """
    if not case.begun.method.per_image:
        return
    for reply in case.replies:
        if reply.up.tensors:
            raise case.fail(
                f"it sends '{min(reply.up.tensors)}' besides the weights; set `per_image = False`, "
                "so that privacy of images refuses it"
            )
    federation = case.after_one_round
    batch = batch_of(federation, 6)
    whole = under("gradient of ", loss_and_gradient(federation, batch))
    single = []
    for image in range(len(batch.y)):
        one = Batch(batch.x[image, None], batch.y[image, None], batch.weight[image, None])
        single.append(under("gradient of ", loss_and_gradient(federation, one)))
    for name, value in whole.items():
        mean = torch.stack([gradient[name] for gradient in single]).mean(0)
        if not torch.allclose(value, mean, atol=1e-10, rtol=1e-9):
            raise case.fail(
                f"the gradient of '{name}' over several images is not the mean of those over one; "
                "set `per_image = False`, so that privacy of images refuses it"
            )
