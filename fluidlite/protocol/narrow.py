"""Rows at half their width: float16 and bfloat16 on the way between trainers and servers.

Rounded to nearest, ties to even. The relative error is at most 2^-11 in float16, from 2^-14 up (below, the absolute error is
at most 2^-25), and at most 2^-8 in bfloat16, from 2^-126 up (below, 2^-134). Infinities and NaN stay what they are. A number
too large, from 65520 in float16, is refused: it would travel as an infinity.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import RequestRefusedError

#: the bits of bfloat16, which numpy does not have; no arithmetic applies to such an array
BFLOAT16: Final[np.dtype[Any]] = np.dtype([("bfloat16", "<u2")])
NARROW: Final[dict[str, np.dtype[Any]]] = {"float16": np.dtype("<f2"), "bfloat16": BFLOAT16}
_INFINITY: Final = {"float16": 0x7C00, "bfloat16": 0x7F80}
_EXPONENT_BITS: Final = 0x7FFF


def narrow(rows: Array, wire_dtype: str, what: str) -> Array:
    """``rows`` (n, width) float32 or float64 in ``wire_dtype``. RequestRefusedError, naming ``what``, for a finite number
    that has no finite neighbour there."""
    with np.errstate(over="ignore"):
        narrowed = rows.astype("<f2") if wire_dtype == "float16" else _to_bfloat16(rows.astype(np.float32, copy=False))
        _check_finite(narrowed, rows, wire_dtype, what)
    return narrowed


def widen(rows: Array, dtype: str) -> Array:
    """What `narrow` made of rows, in the dtype that they had."""
    if rows.dtype != BFLOAT16:
        return rows.astype(dtype)
    bits = rows.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32).astype(dtype, copy=False)


def rounded(rows: Array, wire_dtype: str, what: str) -> Array:
    """``rows`` as they come out at the other end."""
    return widen(narrow(rows, wire_dtype, what), rows.dtype.name) if wire_dtype else rows


def _to_bfloat16(rows: Array) -> Array:
    """The upper half of the bits, plus one where the lower half is more than a half of it, or just a half and it is odd."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    if (lost := np.isnan(rows)).any():  # a NaN whose bits are all in the lower half, or that the sum carries away
        rounded[lost] = bits[lost] >> 16 | 0x40
    return rounded.astype("<u2").view(BFLOAT16)


def _check_finite(narrowed: Array, rows: Array, wire_dtype: str, what: str) -> None:
    magnitude = narrowed.view(np.uint16) & _EXPONENT_BITS
    infinite = magnitude == _INFINITY[wire_dtype]
    if not infinite.any():
        return
    wrong = np.argwhere(infinite & np.isfinite(rows))
    if len(wrong):
        at = tuple(wrong[0])
        raise RequestRefusedError(
            f"{what}: {rows[at]:g} at {list(map(int, at))} is too large for {wire_dtype}, in which it is to travel"
        )
