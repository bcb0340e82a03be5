"""Values for the examples of op records."""

from __future__ import annotations

from math import prod

import numpy as np

from fluidlite.dtypes import Array

#: the golden angle, in radians: its multiples spread over the circle without repeating
_ANGLE = 2.399963


def varied(*shape: int, start: int = 1) -> Array:
    """float64 values between -1.5 and 1.5, of both signs, no two equal. ``start`` gives others.

    Not of `numpy.random`, whose import alone takes a tenth of that of the whole package.
    """
    return np.asarray(1.5 * np.sin(_ANGLE * np.arange(start, start + prod(shape))).reshape(shape))
