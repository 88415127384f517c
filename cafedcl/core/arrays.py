"""The type of NumPy arrays in signatures, whatever their element type."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
