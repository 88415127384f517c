"""The steps of a method, each with a check of its result: the author may have made a mistake.

`loss(method, …)` is ``method.loss(…)``, and so on for every step. A wrong result raises
CafedclError with the step, its file and its line; an error found later could name none of them.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cafedcl.core.contract import Batch, Claims, Client, Enrolment, Field, Up, Visit
from cafedcl.core.errors import place_of
from cafedcl.core.imports import explained_failure
from cafedcl.core.returned import kind_of, named_tensors, wrong_result
from cafedcl.core.tensors import MODEL, Tensors, cloned, under
from cafedcl.functional.aggregation import Entries
from cafedcl.models.base import Network

if TYPE_CHECKING:
    from cafedcl.methods.base import Aggregator, Method


def head(method: "Method") -> nn.Module:
    """Return the method's head: a module that maps features to a score per class."""
    found: object = method.head()
    if not isinstance(found, nn.Module):
        raise wrong_result(method, "head", type(found).__name__, "a module is expected")
    if method.defines("scores"):
        # The method's own scores may use only parts of the head, or use it for something else.
        return found
    training = found.training
    what = f"{method.title}: its head fails on rows of {method.dim} features"
    with torch.no_grad(), explained_failure(what, place_of(method.head)):
        scored: object = found.eval()(torch.zeros(2, method.dim))
    found.train(training)
    if not isinstance(scored, Tensor) or scored.shape != (2, method.classes):
        returned = f"a module that turns 2 rows of features into {kind_of(scored)}"
        expected = f"{(2, method.classes)} is expected (images, classes)"
        raise wrong_result(method, "head", returned, expected)
    return found


def start(method: "Method", model: Network) -> Tensors:
    """Return the server's state besides the model: tensors by name."""
    found = named_tensors(method, "start", method.start(model))
    weights = under(MODEL, found)
    if weights:
        expected = f"names that begin with {MODEL} are those of the model's weights"
        raise wrong_result(method, "start", f"'{MODEL}{min(weights)}'", expected)
    # A method may return the model's own weights, which training overwrites.
    return cloned(found)


def fields(method: "Method", model: Network) -> dict[str, Field]:
    """Return the description of each entry that a client sends."""
    found: object = method.fields(model)
    if not isinstance(found, dict):
        raise wrong_result(method, "fields", type(found).__name__, "a dict of Field is expected")
    for name, entry in found.items():
        if not isinstance(entry, Field):
            what = f"{type(entry).__name__} as '{name}'"
            raise wrong_result(method, "fields", what, "Field(shape) is expected")
    return found


def claims(method: "Method", enrolment: Enrolment, sent: dict[str, Field]) -> Claims:
    """Return what each client may claim: two tables, (clients, classes), per entry that is sent."""
    found: object = method.claims(enrolment)
    if not isinstance(found, dict):
        raise wrong_result(method, "claims", type(found).__name__, "a dict is expected")
    shape = tuple(enrolment.counts.shape)
    for name, limits in found.items():
        entry = sent.get(name)
        if entry is None or not entry.per_class or entry.shape:
            expected = "only entries of `fields` that are one number per class can be claimed"
            raise wrong_result(method, "claims", f"'{name}'", expected)
        two = isinstance(limits, tuple) and len(limits) == 2
        if not two or any(not is_tensor_of(limit, shape) for limit in limits):
            kinds = " and ".join(map(kind_of, limits)) if two else kind_of(limits)
            expected = f"two tensors of shape {shape} are expected, the least and the most"
            raise wrong_result(method, "claims", f"{kinds} as '{name}'", expected)
    return found


def contradiction(method: "Method", up: Up, enrolment: Enrolment) -> str | None:
    """Return why a reply is impossible, or None."""
    found: object = method.contradiction(up, enrolment)
    if found is None or isinstance(found, str):
        return found
    raise wrong_result(method, "contradiction", kind_of(found), "a reason or None is expected")


def effective_counts(method: "Method", counts: Tensor, synthetic: Tensor) -> Tensor:
    """Return each client's effective number of images of every class."""
    found: object = method.effective_counts(counts, synthetic)
    return of_shape(method, "effective_counts", found, tuple(counts.shape))


def broadcast(method: "Method", state: Tensors) -> Tensors:
    """Return what the server sends to a client: tensors by name."""
    return named_tensors(method, "broadcast", method.broadcast(state))


def scratch(method: "Method", client: Client) -> Tensors:
    """Return what the loss may accumulate into: tensors by name."""
    return named_tensors(method, "scratch", method.scratch(client))


@torch.no_grad()
def constants(method: "Method", model: Network, x: Tensor, visit: Visit) -> Tensors:
    """Return inputs of the loss that local training does not change, one row per image."""
    found = named_tensors(method, "constants", method.constants(model, x, visit))
    for name, value in found.items():
        if not value.dim() or len(value) != len(x):
            what = f"{kind_of(value)} as '{name}'"
            expected = f"{len(x)} rows are expected, one per image"
            raise wrong_result(method, "constants", what, expected)
    return found


def loss(method: "Method", model: Network, batch: Batch, visit: Visit) -> Tensors:
    """Return the terms of the client's objective: one number each, by name.

    Constants that the batch lacks are computed first.
    """
    if method.defines("constants") and not batch.constants:
        batch = batch._replace(constants=constants(method, model, batch.x, visit))
    terms: object = method.loss(model, batch, visit)
    if not isinstance(terms, dict) or not terms:
        expected = "terms by name are expected, such as {'ce': term}"
        returned = "no term" if isinstance(terms, dict) else type(terms).__name__
        raise wrong_result(method, "loss", returned, expected)
    one_number = "a tensor with one number"
    for name, term in named_tensors(method, "loss", terms, one_number).items():
        if term.dim():
            what = f"{kind_of(term)} as '{name}'"
            raise wrong_result(method, "loss", what, f"{one_number} is expected")
    return terms


def check_gradient(method: "Method", total: Tensor) -> None:
    """Raise CafedclError if the sum of the terms of the loss depends on no weight."""
    if not total.requires_grad:
        expected = "one must, and without .item() or .detach() on the way"
        raise wrong_result(method, "loss", "no term that depends on a weight", expected)


def embed(method: "Method", model: Network, x: Tensor) -> Tensor:
    """Return the embeddings of images, a row per image."""
    found: object = method.embed(model, x)
    if isinstance(found, Tensor) and found.dim() == 2 and len(found) == len(x):
        return found
    expected = f"a tensor of shape ({len(x)}, features) is expected"
    raise wrong_result(method, "embed", kind_of(found), expected)


def summarize(method: "Method", model: Network, visit: Visit) -> tuple[Tensors, Tensors]:
    """Return what the client sends besides the weights, and its notes: tensors by name."""
    found: object = method.summarize(model, visit)
    if not isinstance(found, tuple) or [type(part) for part in found] != [dict, dict]:
        expected = "two dicts of tensors are expected: what is sent, and notes"
        raise wrong_result(method, "summarize", type(found).__name__, expected)
    sent, notes = found
    return named_tensors(method, "summarize", sent), named_tensors(method, "summarize", notes)


def remember(method: "Method", model: Network, visit: Visit) -> Tensors:
    """Return what the client keeps: tensors by name."""
    return named_tensors(method, "remember", method.remember(model, visit))


def weigh(method: "Method", ups: list[Up]) -> Tensor:
    """Return one weight per reply, none of them negative."""
    weights = of_shape(method, "weigh", method.weigh(ups), (len(ups),), ", one weight per reply")
    # NaN and infinity make the new state useless, so the round is skipped.
    if (weights < 0).any():
        expected = "numbers from 0 on are expected"
        raise wrong_result(method, "weigh", f"{float(weights.min()):g}", expected)
    return weights


def update(method: "Method", state: Tensors, ups: list[Up]) -> Tensors:
    """Return the entries of the state that change, with their previous shapes and types.

    Entries that are not weights may change their length. An empty entry is a placeholder.
    """
    changed = named_tensors(method, "update", method.update(state, ups))
    added = changed.keys() - state.keys()
    if added:
        # A checkpoint with an entry that a fresh state lacks could not be resumed.
        raise wrong_result(method, "update", f"'{min(added)}'", "an entry of `start` is expected")
    for name in changed.keys() & state.keys():
        value, before = changed[name], state[name]
        if not before.numel():
            continue
        grows = not name.startswith(MODEL) and value.dim() and before.dim()
        fits = value.shape[1:] == before.shape[1:] if grows else value.shape == before.shape
        if not fits:
            expected = f"{tuple(before.shape)} is expected, as before"
            raise wrong_result(method, "update", f"{kind_of(value)} as '{name}'", expected)
        if value.dtype != before.dtype:
            expected = f"{before.dtype} is expected, as before"
            raise wrong_result(method, "update", f"{value.dtype} as '{name}'", expected)
    return changed


def aggregator(method: "Method", state: Tensors) -> "Aggregator":
    """Return the server step of a round."""
    found = method.aggregator(state)
    if not (hasattr(found, "add") and hasattr(found, "finish")):
        raise wrong_result(method, "aggregator", kind_of(found), "an Aggregator is expected")
    return found


def centre(method: "Method", z: Tensor, y: Tensor) -> Tensor:
    """Return the global prototypes of pooled images, a row per class."""
    return of_shape(method, "centre", method.centre(z, y), (method.classes, z.shape[1]))


def alphas(method: "Method", sent: Entries) -> Tensor | None:
    """Return the weights of the clients' prototypes, (clients, classes); None if there are none."""
    found: object = method.alphas(sent)
    if found is None:
        return None
    weights = of_shape(method, "alphas", found, tuple(sent.held.shape))
    sums = weights.sum(0)[sent.held.any(0)]
    # With an ε in the denominator, the sum is less than 1.
    if not (sums <= 1 + 1e-3).all():
        most = float(sums.max())
        expected = "they must sum to 1 over the clients that have the class; see `normalise`"
        raise wrong_result(method, "alphas", f"weights of a class that sum to {most:g}", expected)
    return weights


def scores(
    method: "Method", model: Network, x: Tensor, anchors: Tensors, memory: Tensors
) -> Tensor:
    """Return one number per image and class."""
    found: object = method.scores(model, x, anchors, memory)
    return of_shape(method, "scores", found, (len(x), method.classes), " (images, classes)")


def similarity(method: "Method", values: Tensor) -> Tensor:
    """Return scores in a unit that people understand."""
    return of_shape(method, "similarity", method.similarity(values), tuple(values.shape))


def is_tensor_of(value: object, shape: tuple[int, ...]) -> bool:
    """Return whether a value is a tensor of this shape."""
    return isinstance(value, Tensor) and value.shape == shape


def of_shape(
    method: "Method", step: str, found: object, shape: tuple[int, ...], meaning: str = ""
) -> Tensor:
    """Return what a step returned if it is a tensor of this shape."""
    if not isinstance(found, Tensor) or found.shape != shape:
        expected = f"a tensor of shape {shape} is expected{meaning}"
        raise wrong_result(method, step, kind_of(found), expected)
    return found
