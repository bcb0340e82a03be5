"""What the extension takes: C-contiguous, aligned arrays of native byte order."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array

FLOATS: Final[frozenset[np.dtype[Any]]] = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def plain(array: Array) -> Array:
    """The array itself where it is contiguous and aligned (one that was read out of a message may not be), or a copy."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else array.copy()


def is_taken(*arrays: Array) -> bool:
    """Whether the extension takes arrays of floats as they are: aligned, C-contiguous, of one dtype that it knows."""
    dtype = arrays[0].dtype
    return dtype in FLOATS and all(
        array.dtype == dtype and array.flags.c_contiguous and array.flags.aligned for array in arrays
    )
