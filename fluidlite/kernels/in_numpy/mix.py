"""Spreads the bits of integers, so that neighbours look unrelated."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array


def mix(x: Array) -> Array:
    """A bijection of uint64 that leaves 0 alone (finaliser of splitmix64, D. Stafford's variant 13)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> np.uint64(31))
    return mixed
