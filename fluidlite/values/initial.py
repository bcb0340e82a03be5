"""The first value of a table's row: a function of seed, table name, width and id alone.

So it is the same for any number of servers, any order of arrival, and after any restart. Random numbers are
counter-based: an integer hash of (key of the table, id, column) gives 52 bits, these a uniform number in (0, 1), and
the inverse of the normal distribution function turns that into a normal one. Values are computed in float64; a
float32 table holds them rounded.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import TableError
from fluidlite.kernels.in_numpy.mix import mix

#: rows made at a time, to keep temporaries in the cache
_BLOCK: Final = 2048


class RowInit(Protocol):
    """How rows of a table start."""

    def rows(self, ids: Array, stream: RowStream) -> Array:
        """First values of rows ``ids`` (n,) int64: (n, stream.width) float64."""
        ...


class RowStream:
    """The random numbers of one table. ``seed`` 0 stands for a constant derived from the name."""

    __slots__ = ("_columns", "_key", "width")

    def __init__(self, seed: int, table: str, width: int) -> None:
        self.width = width
        text = f"{seed or 'name'}/{width}/{table}".encode()
        digest = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), "<u8")
        self._key = digest[:1].astype(np.uint64)
        counters = np.arange(width, dtype=np.uint64) + digest[1:].astype(np.uint64)
        self._columns = mix(counters)

    def uniform(self, ids: Array) -> Array:
        """Uniform numbers in the open interval (0, 1), (n, width) float64, for rows ``ids`` (n,) int64."""
        row = mix(np.ascontiguousarray(ids, np.int64).view(np.uint64) + self._key)
        bits = mix(row[:, None] ^ self._columns) >> np.uint64(12)
        return (bits.astype(np.float64) + 0.5) * 2.0**-52


@dataclass(frozen=True)
class Constant:
    """Every element is ``value``."""

    value: float = 0.0

    def rows(self, ids: Array, stream: RowStream) -> Array:
        return np.full((len(ids), stream.width), self.value)


@dataclass(frozen=True)
class Uniform:
    """Uniform between ``low`` and ``high``."""

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise TableError(f"uniform initial values between {self.low} and {self.high}")

    def rows(self, ids: Array, stream: RowStream) -> Array:
        return self.low + (self.high - self.low) * stream.uniform(ids)


@dataclass(frozen=True)
class Normal:
    """Normal with mean ``mean`` and standard deviation ``std``."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_normal(self.mean, self.std)

    def rows(self, ids: Array, stream: RowStream) -> Array:
        return self.mean + self.std * normal_quantile(stream.uniform(ids))


@dataclass(frozen=True)
class TruncatedNormal:
    """Normal, conditioned on being within two standard deviations of the mean."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        _check_normal(self.mean, self.std)

    def rows(self, ids: Array, stream: RowStream) -> Array:
        tail = 0.5 * math.erfc(math.sqrt(2.0))
        z = normal_quantile(tail + (1.0 - 2.0 * tail) * stream.uniform(ids))
        return self.mean + self.std * np.clip(z, -2.0, 2.0)


@dataclass(frozen=True, eq=False)
class FromArray:
    """Row ``id`` starts as ``array[id]``; ids outside the array (negative ones too) start as zeros.

    ``array`` (rows, width); a width other than the table's is a TableError.
    """

    array: Array = field(repr=False)

    def rows(self, ids: Array, stream: RowStream) -> Array:
        if self.array.ndim != 2 or self.array.shape[1] != stream.width:
            raise TableError(
                f"initial values of shape {list(self.array.shape)} for a table of width {stream.width}; need [rows, {stream.width}]"
            )
        out = np.zeros((len(ids), stream.width))
        known = (ids >= 0) & (ids < len(self.array))
        out[known] = self.array[ids[known]]
        return out


def first_values(init: RowInit, stream: RowStream, ids: Array, dtype: np.dtype[np.floating]) -> Array:
    """First values of rows ``ids`` (n,) int64: (n, width) of ``dtype``, rounded from float64."""
    out = np.empty((len(ids), stream.width), dtype)
    for start in range(0, len(ids), _BLOCK):
        out[start : start + _BLOCK] = init.rows(ids[start : start + _BLOCK], stream)
    return out


def normal_quantile(p: Array) -> Array:
    """The inverse of the standard normal distribution function, elementwise; ``p`` float64 in (0, 1).

    Relative error about 1e-16. M. J. Wichura, "The percentage points of the normal distribution", Applied Statistics
    37 (1988), algorithm AS 241, routine PPND16.
    """
    q = p - 0.5
    centre = 0.180625 - q * q
    out: Array = q * _ratio(_CENTRE, centre)
    tail = np.abs(q) > 0.425
    p = p[tail]
    r = np.sqrt(-np.log(np.minimum(p, 1.0 - p)))
    out[tail] = np.copysign(np.where(r <= 5.0, _ratio(_NEAR, r - 1.6), _ratio(_FAR, r - 5.0)), p - 0.5)
    return out


_Rational = tuple[Sequence[float], Sequence[float]]
#: numerator and denominator of each region, highest power first
_CENTRE: Final[_Rational] = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_NEAR: Final[_Rational] = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR: Final[_Rational] = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)


def _ratio(coefficients: _Rational, x: Array) -> Array:
    """A rational function by Horner's rule."""
    numerator, denominator = (np.full_like(x, part[0]) for part in coefficients)
    for a, b in zip(coefficients[0][1:], coefficients[1][1:], strict=True):
        numerator = numerator * x + a
        denominator = denominator * x + b
    ratio: Array = numerator / denominator
    return ratio


def _check_normal(mean: float, std: float) -> None:
    if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
        raise TableError(f"normal initial values of mean {mean} and standard deviation {std}")
