"""The server step of a method on replies made by hand."""

from collections.abc import Iterable

from cafedcl.core.contract import Up
from cafedcl.core.tensors import Tensors
from cafedcl.methods.base import Method


def aggregated(method: Method, state: Tensors, ups: Iterable[Up]) -> Tensors:
    aggregator = method.aggregator(state)
    for up in ups:
        aggregator.add(up)
    return aggregator.finish()
