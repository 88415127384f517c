"""Several small tensors as one, so that one copy takes them to another device."""

from itertools import accumulate

import torch
from torch import Tensor

from cafedcl.pack import Tensors


class Parcel:
    """Where tensors of certain names, shapes and types lie in one vector of bytes."""

    def __init__(self, tensors: Tensors) -> None:
        self.names = sorted(tensors, key=lambda name: -tensors[name].element_size())
        self.kinds = [(tensors[name].shape, tensors[name].dtype) for name in self.names]
        self.sizes = [tensors[name].numel() * tensors[name].element_size() for name in self.names]
        self.starts = [0, *accumulate(self.sizes)]

    def wrap(self, tensors: Tensors) -> Tensor:
        """Return the tensors as bytes, those of the widest types first, so that each lies where it may be read."""
        return torch.cat([tensors[name].reshape(-1).view(torch.uint8) for name in self.names])

    def unwrap(self, data: Tensor) -> Tensors:
        """Return the tensors that lie in a vector, as views of it."""
        places = zip(self.names, self.kinds, self.starts, self.sizes, strict=False)
        return {
            name: data.narrow(0, start, size).view(dtype).view(shape) for name, (shape, dtype), start, size in places
        }
