"""What a reply must look like before it is aggregated. Nothing a client sends is trusted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from cafedcl.contract import SCALAR_NOTES, Field, Reply, Up
from cafedcl.metrics import KINDS
from cafedcl.pack import MODEL, Tensors


@dataclass(frozen=True)
class Inspector:
    """Knows what a good reply is: the weights' shapes, the method's fields, and what each client enrolled with."""

    weights: Tensors
    fields: Mapping[str, Field]
    counts: Tensor

    def problem(self, reply: Reply) -> str | None:
        """Return why a reply is rejected, or None."""
        up = reply.up
        if not 0 <= up.client < len(self.counts):
            return f"unknown client {up.client}"
        enrolled = int(self.counts[up.client].sum())
        if up.samples != enrolled:
            return f"reports {up.samples} samples, but enrolled with {enrolled}"
        problem = self._entries(up)
        if problem:
            return problem
        for where, tensors in (("reply", up.tensors), ("memory", reply.memory)):
            if not all_finite(tensors.values()):
                name = next(name for name, value in tensors.items() if not all_finite([value]))
                return f"{where} has NaN or Inf in '{name}'"
        return self._ranges(up) or self._hits(reply.hits) or self._notes(up.notes)

    def _entries(self, up: Up) -> str | None:
        """Names, shapes and types."""
        expected = {MODEL + name: (tuple(value.shape), value.dtype) for name, value in self.weights.items()}
        per_class = [field for field in self.fields.values() if field.per_class]
        listed = torch.zeros(0)
        if per_class:
            if "classes" not in up.tensors:
                return "'classes' is missing"
            listed = up.tensors["classes"]
            if listed.dim() != 1 or listed.dtype != torch.int64:
                return "'classes' is not a list of class numbers"
            step = 0 if any(field.repeated for field in per_class) else 1
            if len(listed) and (
                listed.min() < 0 or listed.max() >= self.counts.shape[1] or (listed.diff() < step).any()
            ):
                return "'classes' are not distinct class numbers in order"
            expected["classes"] = (tuple(listed.shape), torch.int64)
        for name, field in self.fields.items():
            rows = (len(listed),) if field.per_class else ()
            expected[name] = ((*rows, *field.shape), torch.float32)
        for name, (shape, dtype) in expected.items():
            if name not in up.tensors:
                return f"'{name}' is missing"
            value = up.tensors[name]
            if tuple(value.shape) != shape:
                return f"'{name}' has shape {tuple(value.shape)}, expected {shape}"
            if value.dtype != dtype:
                return f"'{name}' is {value.dtype}, expected {dtype}"
        unexpected = up.tensors.keys() - expected.keys()
        return f"'{min(unexpected)}' was not asked for" if unexpected else None

    def _ranges(self, up: Up) -> str | None:
        for name, field in self.fields.items():
            value = up.tensors[name]
            if value.numel() and (value.min() < field.low or value.max() > field.high):
                low, high = float(value.min()), float(value.max())
                return f"'{name}' lies in [{low:g}, {high:g}], outside [{field.low:g}, {field.high:g}]"
        return None

    def _hits(self, hits: Tensors) -> str | None:
        if not hits:
            return None
        shape, missing = (self.counts.shape[1],), {"tested", *KINDS} - hits.keys()
        if missing:
            return f"its test result lacks '{min(missing)}'"
        for name, value in hits.items():
            if tuple(value.shape) != shape or value.dtype != torch.int64:
                return f"its test result '{name}' is not a count per class"
            if (value < 0).any() or (value > hits["tested"]).any():
                return f"its test result '{name}' counts more images than were tested"
        return None

    def _notes(self, notes: Tensors) -> str | None:
        for name, value in notes.items():
            if tuple(value.shape) != (() if name in SCALAR_NOTES else (self.counts.shape[1],)):
                return f"its note '{name}' is not a number, or not one per class"
        return None


def all_finite(values: Iterable[Tensor]) -> bool:
    """Return whether no number is NaN or infinite, by one look at the largest of all.

    On a CPU a sum is faster to find, and it is never finite if one of its terms is not.
    """
    floating = [value for value in values if value.is_floating_point() and value.numel()]
    if all(value.is_cpu for value in floating) and all(bool(value.sum().isfinite()) for value in floating):
        return True
    return not floating or bool(get_total_norm(floating, torch.inf).isfinite())
