"""Types of NumPy arrays in signatures."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array, whatever its element type."""

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
