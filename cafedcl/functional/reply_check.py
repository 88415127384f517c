"""What a reply must look like before it is aggregated. Nothing that a client sends is trusted."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from cafedcl.core.arrays import Array
from cafedcl.core.contract import SCALAR_NOTES, Claims, Field, Reply, Up
from cafedcl.core.flat import FlatModel, WeightSlices, storage_tensors
from cafedcl.core.tensors import MODEL, Tensors, prefixed
from cafedcl.functional.metrics import KINDS

Kind = tuple[tuple[int, ...], torch.dtype]

LARGEST_NORM = 1e6
"""The largest norm of a model's weights; no trained network comes near it."""
MOST_TESTED = 10**9
"""The most test images of a class that a client may claim: sums over clients must not overflow."""
TOLERANCE = 1e-4
"""How far, relatively, a number may exceed what enrolment allows: clients round differently."""
MOST_NAMES = 64
NAME = re.compile(r"[\w/.-]{1,80}", re.ASCII)
"""The names of notes and losses."""
STORED = {
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
"""The types of what a client keeps."""


def no_contradiction(_up: Up) -> None:
    """Accept every reply."""


@dataclass(frozen=True)
class ReplyValidator:
    """Checks replies against the weights' shapes, the method's fields and the enrolled counts."""

    weights: Tensors
    fields: Mapping[str, Field]
    counts: Tensor
    claims: Claims = field(default_factory=dict)
    """What each client may claim, from its enrolment."""
    sends_absent: bool = False
    """Whether clients also list classes that they do not have."""
    tested: Tensor | None = None
    """The most test images per client and class that a test result may count; None: no limit."""
    contradiction: Callable[[Up], str | None] = no_contradiction
    """Returns the method's reason why a reply contradicts its client's enrolment, or None."""

    def problem(self, reply: Reply) -> str | None:
        """Return why a reply is rejected, or None."""
        up = reply.up
        if not 0 <= up.client < len(self._enrolled):
            return f"unknown client {up.client}"
        enrolled = self._enrolled[up.client]
        if up.samples != enrolled:
            return f"reports {up.samples} samples, but enrolled with {enrolled}"
        problem = self._wrong_entries(up)
        if problem:
            return problem
        if not reply.valid_numbers:
            norm = model_norm(up.model)
            problem = (
                self._not_finite(reply, norm)
                or too_large(norm)
                or self._out_of_range(up)
                or self.contradiction(up)
            )
        return (
            problem
            or self._not_enrolled(up)
            or self._bad_counts(up.client, reply.correct)
            or bad_notes(up.notes, self.counts.shape[1])
            or bad_losses(up.losses)
        )

    @cached_property
    def _enrolled(self) -> Array:
        return self.counts.sum(1).numpy()

    @cached_property
    def _model(self) -> dict[str, Kind]:
        return {
            MODEL + name: (tuple(value.shape), value.dtype) for name, value in self.weights.items()
        }

    @cached_property
    def _accepted(self) -> list[tuple[WeightSlices, torch.dtype]]:
        """The layouts of accepted models; a model stored in the same way is not checked again."""
        return []

    @cached_property
    def _bounds(self) -> dict[str, tuple[float, float]]:
        """The ranges of fields, in the precision in which they are sent."""
        bounded = {name: entry for name, entry in self.fields.items() if entry.bounded}
        return {
            name: (float(np.float32(entry.low)), float(np.float32(entry.high)))
            for name, entry in bounded.items()
        }

    def _wrong_entries(self, up: Up) -> str | None:
        """Return what is wrong with names, shapes and types."""
        problem = self._wrong_weights(up.model)
        if problem:
            return problem
        expected: dict[str, Kind] = {}
        per_class = [entry for entry in self.fields.values() if entry.per_class]
        rows = 0
        if per_class:
            if "classes" not in up.tensors:
                return "'classes' is missing"
            listed = up.tensors["classes"]
            if listed.dim() != 1 or listed.dtype != torch.int64:
                return "'classes' is not a list of class numbers"
            most = max(entry.rows_per_class for entry in per_class)
            numbers = listed.tolist()
            inside = all(0 <= number < self.counts.shape[1] for number in numbers)
            if not inside or numbers != sorted(numbers):
                return "'classes' are not class numbers in order"
            if any(often > most for often in Counter(numbers).values()):
                how_often = "twice" if most == 1 else f"more than {most} times"
                return f"'classes' lists a class {how_often}"
            rows = len(numbers)
            expected["classes"] = ((rows,), torch.int64)
        for name, entry in self.fields.items():
            shape = (rows, *entry.shape) if entry.per_class else entry.shape
            expected[name] = (shape, torch.float32)
        problem = mismatch(up.tensors, expected)
        if problem and problem.endswith("was not asked for"):
            problem += "; a method declares what its `summarize` sends in `fields`"
        return problem

    def _wrong_weights(self, model: Mapping[str, Tensor]) -> str | None:
        """Return what is wrong with names, shapes and types of the model."""
        if not isinstance(model, FlatModel):
            return mismatch(prefixed(MODEL, model), self._model)
        stored = (model.slices, model.vector.dtype)
        if stored in self._accepted:
            return None
        problem = mismatch(prefixed(MODEL, model), self._model)
        if not problem:
            self._accepted.append(stored)
        return problem

    def _not_finite(self, reply: Reply, norm: float) -> str | None:
        """Return where there is NaN or infinity; a finite norm means that the model has none."""
        up = reply.up
        for name, value in reply.memory.items():
            if value.dtype not in STORED:
                return f"memory has '{name}' in {value.dtype}"
        unknown = [] if math.isfinite(norm) else storage_tensors(up.model).values()
        if all_finite([*unknown, *up.tensors.values(), *reply.memory.values()]):
            return None
        sent = {**prefixed(MODEL, up.model), **up.tensors}
        parts = (("reply", sent), ("memory", reply.memory))
        bad = (
            (where, name)
            for where, part in parts
            for name, value in part.items()
            if not all_finite([value])
        )
        where, name = next(bad)
        return f"{where} has NaN or Inf in '{name}'{_losses_not_finite(up.losses)}"

    def _not_enrolled(self, up: Up) -> str | None:
        """Return what a reply claims beyond the classes and counts that its client enrolled."""
        if "classes" not in up.tensors:
            return None
        listed = up.tensors["classes"].cpu()
        if not self.sends_absent:
            strange = listed[self.counts[up.client, listed] == 0]
            if len(strange):
                return f"it lists class {int(strange[0])}, of which it enrolled no image"
        for name, (low, high) in self.claims.items():
            value = up.tensors[name].cpu()
            least = low[up.client, listed] * (1 - TOLERANCE)
            most = high[up.client, listed] * (1 + TOLERANCE)
            outside = (value < least) | (value > most)
            if outside.any():
                row = int(outside.nonzero()[0])
                return (
                    f"'{name}' of class {int(listed[row])} is {float(value[row]):g}; by its "
                    f"enrolment it lies in [{float(least[row]):g}, {float(most[row]):g}]"
                )
        return None

    def _out_of_range(self, up: Up) -> str | None:
        for name, entry in self.fields.items():
            if math.isfinite(entry.norm) and up.tensors[name].numel():
                longest = float(up.tensors[name].flatten(0, -2).norm(dim=-1).max())
                if longest > entry.norm:
                    return f"'{name}' has a row of length {longest:g}, more than {entry.norm:g}"
        for name, (least, most) in self._bounds.items():
            value = up.tensors[name]
            if not value.numel():
                continue
            low, high = (float(bound) for bound in value.aminmax())
            if low < least or high > most:
                return f"'{name}' lies in [{low:g}, {high:g}], outside [{least:g}, {most:g}]"
        return None

    def _bad_counts(self, client: int, correct: Tensors) -> str | None:
        if not correct:
            return None
        shape = (self.counts.shape[1],)
        names = {"tested", *KINDS}
        missing = names - correct.keys()
        if missing:
            return f"its test result lacks '{min(missing)}'"
        unknown = correct.keys() - names
        if unknown:
            return f"its test result has '{min(unknown)}', which was not asked for"
        for name, value in correct.items():
            if tuple(value.shape) != shape or value.dtype != torch.int64:
                return f"its test result '{name}' is not a count per class"
            if (value < 0).any() or (value > correct["tested"]).any():
                return f"its test result '{name}' counts more images than were tested"
            if (value > MOST_TESTED).any():
                return f"its test result '{name}' counts more than {MOST_TESTED:,} images"
        if self.tested is not None and (correct["tested"] > self.tested[client]).any():
            return "its test result counts more images than it enrolled with"
        return None


def model_norm(model: Mapping[str, Tensor]) -> float:
    """Return the norm of all weights; it is NaN or infinite if one of them is."""
    flat = [value.flatten() for value in storage_tensors(model).values()]
    # A dot product is the fastest pass over the numbers on a CPU.
    return math.sqrt(sum(float(v.dot(v)) for v in flat if v.is_floating_point()))


def too_large(norm: float) -> str | None:
    """Return a problem if a model's weights are larger than any network's: they would overflow."""
    if norm > LARGEST_NORM:
        return f"its weights have a norm of {norm:.3g}, more than {LARGEST_NORM:g}"
    return None


def bad_notes(notes: Tensors, classes: int) -> str | None:
    """Return what is wrong with a client's notes: their number, names, types or shapes."""
    problem = _bad_names(notes, "notes")
    if problem:
        return problem
    for name, value in notes.items():
        expected = () if name in SCALAR_NOTES else (classes,)
        if tuple(value.shape) != expected or value.dtype != torch.float32:
            return f"its note '{name}' is not a number, or not one per class"
    return None


def bad_losses(losses: Mapping[str, float]) -> str | None:
    """Return what is wrong with a client's losses: their number, names or values."""
    problem = _bad_names(losses, "losses")
    if problem:
        return problem
    for name, value in losses.items():
        # JSON has integers of any size, which may not fit a float.
        if not isinstance(value, float) and not (isinstance(value, int) and abs(value) < 2**53):
            return f"its loss '{name}' is not a number"
    return None


def _losses_not_finite(losses: Mapping[str, float]) -> str:
    """Return which terms of the loss were not finite, where NaN often begins; else nothing."""
    # The names that a client gave its losses are not validated yet.
    terms = [
        f"'{name}' was {value:g}"
        for name, value in list(losses.items())[:MOST_NAMES]
        if isinstance(value, float) and not math.isfinite(value) and NAME.fullmatch(name)
    ]
    return f"; in its loss, {' and '.join(terms)}" if terms else ""


def _bad_names(named: Mapping[str, object], what: str) -> str | None:
    if len(named) > MOST_NAMES:
        return f"it has {len(named)} {what}, more than {MOST_NAMES}"
    for name in named:
        if not NAME.fullmatch(name):
            return f"the name of one of its {what} is not a plain word"
    return None


def mismatch(tensors: Mapping[str, Tensor], expected: Mapping[str, Kind]) -> str | None:
    """Return what is missing, has another shape or type, or was not asked for; None if all fits."""
    for name, (shape, dtype) in expected.items():
        if name not in tensors:
            return f"'{name}' is missing"
        value = tensors[name]
        if value.shape != shape:
            return f"'{name}' has shape {tuple(value.shape)}, expected {shape}"
        if value.dtype != dtype:
            return f"'{name}' is {value.dtype}, expected {dtype}"
    unexpected = tensors.keys() - expected.keys()
    if unexpected:
        return f"'{min(unexpected)}' was not asked for"
    return None


def all_finite(values: Iterable[Tensor]) -> bool:
    """Return whether no number is NaN or infinite."""
    floating = [value for value in values if value.is_floating_point() and value.numel()]
    # On a CPU a sum is the fastest test. It is not finite if one of its terms is not; a sum of
    # finite terms may overflow, so the terms are then tested themselves.
    on_cpu = all(value.is_cpu for value in floating)
    if on_cpu and all(math.isfinite(value.sum()) for value in floating):
        return True
    return bool(largest(floating).isfinite())


def largest(values: Sequence[Tensor]) -> Tensor:
    """Return the largest absolute value, NaN if any is, without waiting for the device."""
    if len(values) == 1:
        norm: Tensor = torch.linalg.vector_norm(values[0], torch.inf)
        return norm
    return get_total_norm(values, torch.inf)


def numbers_are_valid(
    numbers: Sequence[Tensor], sent: Tensors, fields: Mapping[str, Field]
) -> Tensor:
    """Return whether all numbers are finite, and those sent are in their ranges, as a tensor.

    It does not wait for the device.
    """
    bounded = [
        (sent[name], field) for name, field in fields.items() if field.bounded and name in sent
    ]
    within = [((value >= field.low) & (value <= field.high)).all() for value, field in bounded]
    return torch.stack([largest(numbers).isfinite(), *within]).all()
