"""A pass of PyTorch's compiler: a normalisation reads both gradients of its result itself.

The result of a ResNet's block goes to the next convolution and to the next shortcut, so its
gradient is a sum. The compiler makes a separate kernel for that sum, which reads two tensors and
writes a third for the normalisation to read.
"""

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

GRADIENT = 2
"""The place of the gradient among the arguments of `fused_norm_gradient`; the other one follows."""


class SumsInNorms(CustomGraphPass):
    """Moves sums of two gradients into the fused normalisations that are their only users."""

    def __call__(self, graph: Graph) -> None:
        """Change the graph of a compiled step."""
        for node in graph.find_nodes(
            op="call_function", target=torch.ops.cafedcl.fused_norm_gradient.default
        ):
            total = node.args[GRADIENT]
            if node.args[GRADIENT + 1] is None and is_plain_sum(total):
                node.args = (
                    *node.args[:GRADIENT],
                    *total.args,
                    *node.args[GRADIENT + 2 :],
                )
                graph.erase_node(total)

    def uuid(self) -> Any:
        """Return what distinguishes this pass from others in the cache of compiled code."""
        return get_hash_for_files((__file__,))


def is_plain_sum(node: Any) -> bool:
    """Return whether a node adds two tensors of the same form and has only one user."""
    if not isinstance(node, Node) or node.target is not torch.ops.aten.add.Tensor:
        return False
    parts = [part.meta["val"] for part in node.args if isinstance(part, Node)]
    return (
        len(parts) == 2
        and not node.kwargs
        and len(node.users) == 1
        and parts[0].shape == parts[1].shape
        and parts[0].dtype == parts[1].dtype
    )
