"""Fluid's seeded random numbers, bit for bit: the C++ standard library's `minstd_rand` and its distributions.

The generator is x <- 48271 x mod (2^31 - 1), started at the seed (0 counts as 1). Its n-th state is 48271^n times the
start, so a whole array of states comes from one table of powers. Distributions follow libstdc++, which is what
Fluid's wheels were built with. Uniform and normal numbers are the same bits; truncated normal ones agree to float32's
precision, because Fluid evaluates the inverse distribution function in float32 and we in float64.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.values.initial import normal_quantile

_MULTIPLIER: Final = 48271
_MODULUS: Final = 2**31 - 1
#: number of values that a state can take, as libstdc++ counts it
_RANGE: Final = _MODULUS - 1


class MinStd:
    """The generator. Each method draws the next numbers; two generators of one seed draw the same."""

    def __init__(self, seed: int) -> None:
        self._state = (seed & 0xFFFFFFFF) % _MODULUS or 1

    def states(self, count: int) -> Array:
        """The next ``count`` states, (count,) int64 between 1 and 2^31 - 2."""
        if count == 0:
            return np.empty(0, np.int64)
        found = _powers(count) * self._state % _MODULUS
        self._state = int(found[-1])
        return found

    def canonical(self, count: int, dtype: np.dtype[Any]) -> Array:
        """The next ``count`` numbers of [0, 1). A float64 takes two states, any other dtype one."""
        if dtype == np.float64:
            low, high = (self.states(2 * count).reshape(count, 2) - 1).T.astype(np.float64)
            unit: Array = (low + high * float(_RANGE)) / (float(_RANGE) * float(_RANGE))
        else:
            unit = (self.states(count) - 1).astype(np.float32) / np.float32(_RANGE)
        return np.minimum(unit, np.nextafter(np.ones((), unit.dtype), np.zeros((), unit.dtype)))

    def uniform(self, count: int, low: float, high: float, dtype: np.dtype[Any]) -> Array:
        """Uniform between ``low`` and ``high``, (count,)."""
        unit = self.canonical(count, dtype)
        start, end = unit.dtype.type(low), unit.dtype.type(high)
        return np.asarray(unit * (end - start) + start, dtype)

    def normal(self, count: int, mean: float, std: float, dtype: np.dtype[Any]) -> Array:
        """Normal, by Marsaglia's polar method: points of the unit disc, of each its y and then its x. (count,)."""
        pairs = math.ceil(count / 2)
        parts: list[Array] = []
        missing = pairs
        while missing > 0:
            points = self.canonical(2 * max(16, math.ceil(1.4 * missing)), dtype).reshape(-1, 2) * 2 - 1
            square = points[:, 0] * points[:, 0] + points[:, 1] * points[:, 1]
            inside = (square <= 1) & (square != 0)
            points, square = points[inside], square[inside]
            parts.append(points[:, ::-1] * np.sqrt(-2 * _log(square) / square)[:, None])
            missing -= len(points)
        values = np.concatenate(parts)[:pairs].reshape(-1)[:count] if parts else np.empty(0, dtype)
        return np.asarray(values * values.dtype.type(std) + values.dtype.type(mean), dtype)

    def truncated_normal(self, count: int, mean: float, std: float, dtype: np.dtype[Any]) -> Array:
        """Normal within two standard deviations of the mean, by the inverse distribution function, (count,)."""
        unit = self.uniform(count, float(np.finfo(np.float32).tiny), 1.0, dtype)
        low, high = (unit.dtype.type((1 + math.erf(x / math.sqrt(2.0))) / 2) for x in (-2.0, 2.0))
        centred = 2 * (low + (high - low) * unit) - 1
        return (normal_quantile((1 + centred.astype(np.float64)) / 2) * std + mean).astype(dtype)


def _log(x: Array) -> Array:
    """The logarithm rounded from float64, which is what C's `logf` gives (numpy's differs in the last bit)."""
    return np.log(x.astype(np.float64)).astype(x.dtype)


_table: Array = np.array([_MULTIPLIER], np.int64)


def _powers(count: int) -> Array:
    """48271^1 .. 48271^count modulo 2^31 - 1, kept from call to call."""
    global _table  # noqa: PLW0603  a cache: always a prefix of one fixed sequence
    table = _table
    while len(table) < count:
        table = np.concatenate([table, table * table[-1] % _MODULUS])
    if len(table) <= _CACHED:
        _table = table
    return table[:count]


#: how long the kept table of powers may grow
_CACHED: Final = 1 << 20
