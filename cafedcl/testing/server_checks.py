"""The checks of a server's step: what it may depend on."""

import torch
from torch import Tensor

from cafedcl.core.contract import Averages, Up
from cafedcl.core.errors import in_words
from cafedcl.core.rng import torch_stream
from cafedcl.core.tensors import MODEL, Tensors, prefixed
from cafedcl.methods import checked
from cafedcl.methods.base import Method
from cafedcl.testing.case import Case, aggregated, first_difference

TOLERANCE = 1e-4
"""The largest relative difference between a step and one from means, in float32."""
CLASSES = 4
"""Classes per client where several clients must share a class."""


def check_order(case: Case) -> None:
    """The order in which replies arrive changes the new state only by rounding errors."""
    federation = case.begun
    ups = [reply.up for reply in case.replies]

    def after(replies: list[Up]) -> Tensors:
        # A server that draws random numbers has the same ones in all cases, as in a round.
        with torch_stream(0, "server", 0):
            return aggregated(federation.method, federation.state, replies)

    before = {name: value.clone() for name, value in federation.state.items()}
    one = after(ups)
    name = first_difference(before, federation.state)
    if name is not None:
        raise case.fail(f"`update` changes '{name}' in place; it must return a new tensor")
    name = first_difference(one, after(ups))
    if name is not None:
        raise case.fail(
            f"the same replies give another '{name}' the second time; what is kept must be in the "
            "state, and not on `self`"
        )
    other = after(ups[::-1])
    for name, value in one.items():
        if not torch.allclose(value.double(), other[name].double(), atol=1e-6, rtol=1e-6):
            raise case.fail(f"the order of replies changes '{name}' of its state")


def check_weights(case: Case) -> None:
    """A reply has the same weight whatever other replies there are, if the method says so."""
    federation = case.begun
    method = federation.method
    if not method.separable:
        return
    ups = [reply.up for reply in case.replies]
    together = checked.weigh(method, ups).double()
    apart = torch.cat([checked.weigh(method, [up]) for up in ups]).double()
    if not torch.allclose(together, apart, atol=1e-6, rtol=1e-6):
        raise case.fail("`weigh` depends on the replies beside one; set `separable = False`")


def check_averages(case: Case) -> None:
    """The server's step follows from the means that the method names, if it names any.

    Privacy of clients computes it from these means alone, with noise.
    """
    method = case.begun.method
    means = method.averages
    if means is None or not method.separable:
        return
    # The mean of one reply is also its sum, so several clients have every class here.
    federation = case.federation(**{"split.classes": CLASSES})
    state = federation.state
    ups = [reply.up for reply in case.replies_of(federation)]
    weights = checked.weigh(method, ups).double()
    if float(weights.max()) > means.most:
        raise case.fail(
            f"`weigh` gives {float(weights.max()):.4g}, more than `averages.most` = {means.most:g}"
        )
    if means.classes and means.classes.weights:
        heaviest = max(float(up.tensors[means.classes.weights].max()) for up in ups)
        if heaviest > means.classes.most:
            raise case.fail(
                f"'{means.classes.weights}' of a reply is {heaviest:.4g}, more than "
                f"`averages.classes.most` = {means.classes.most:g}"
            )
    with torch_stream(0, "server", 0):
        expected = aggregated(method, state, ups)
    mean = {**state, **prefixed(MODEL, mean_model(ups, weights))}
    if means.classes:
        try:
            with torch_stream(0, "server", 0):
                mean |= checked.update(method, state, [mean_reply(method, means, ups)])
        except Exception as error:
            raise case.fail(
                "`update` fails with one reply that is the mean of all, as `averages` says it is "
                f"called: {in_words(error)}"
            ) from error
    sent = checked.broadcast(method, expected)
    for name, value in checked.broadcast(method, mean).items():
        if not torch.allclose(value.double(), sent[name].double(), atol=TOLERANCE, rtol=TOLERANCE):
            raise case.fail(
                f"'{name}' of its state does not follow from the means that `averages` names; set "
                "`averages = None`, so that privacy of clients refuses it"
            )


def mean_model(ups: list[Up], weights: Tensor) -> Tensors:
    """Return the weighted mean of the replies' models."""
    share = weights / weights.sum()
    return {
        name: sum(
            (part * up.model[name].double() for part, up in zip(share, ups, strict=True)),
            start=torch.zeros(value.shape, dtype=torch.float64),
        ).to(value.dtype)
        for name, value in ups[0].model.items()
    }


def mean_reply(method: Method, means: Averages, ups: list[Up]) -> Up:
    """Return one reply that is the mean of all, by class."""
    assert means.classes is not None
    values, weights = means.classes.values, means.classes.weights
    row = ups[0].tensors[values].shape[1:]
    sums = torch.zeros(method.classes, *row, dtype=torch.float64)
    total = torch.zeros(method.classes, dtype=torch.float64)
    for up in ups:
        classes = up.tensors["classes"]
        listed = up.tensors[weights].double() if weights else torch.ones(len(classes)).double()
        sums.index_add_(0, classes, up.tensors[values].double() * listed.view(-1, *[1] * len(row)))
        total.index_add_(0, classes, listed)
    known = (total > 0).nonzero().flatten()
    rows = sums[known] / total[known].view(-1, *[1] * len(row))
    sent = {"classes": known, values: rows.float()}
    if weights:
        sent[weights] = (total[known] / len(ups)).float()
    return Up(-1, 1, sent)
