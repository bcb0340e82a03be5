"""The order in which Fluid's transpiler takes parameters that it does not cut."""

from __future__ import annotations

import numpy as np


def shuffled(count: int, seed: int) -> list[int]:
    """The positions 0 to ``count`` - 1 in the order of numpy's legacy shuffle, which Fluid seeds with the program's seed."""
    order = list(range(count))
    np.random.RandomState(seed).shuffle(order)
    return order
