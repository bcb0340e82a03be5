"""Gather, scatter and scattered sum of rows, in C: see the functions of the same name in `in_numpy`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.kernels import _c
from fluidlite.kernels.in_c.arrays import FLOATS, plain
from fluidlite.kernels.in_numpy import rows as in_numpy


def take_rows(matrix: Array, rows: Array, out: Array | None = None) -> Array:
    if out is not None and out.shape[1:] != matrix.shape[1:]:
        raise ShapeError(f"rows of shape {list(matrix.shape[1:])} do not fit an out of shape {list(out.shape)}")
    taken = np.empty((len(rows), matrix.shape[1]), matrix.dtype) if out is None else out
    _c.take_rows(plain(matrix), plain(rows), 0, taken)
    return taken


def take_parts(matrix: Array, rows: Array, start: int, width: int) -> Array:
    taken = np.empty((len(rows), width), matrix.dtype)
    _c.take_rows(matrix, plain(rows), start, taken)
    return taken


def put_rows(matrix: Array, rows: Array, values: Array) -> None:
    put_parts(matrix, rows, 0, values)


def put_parts(matrix: Array, rows: Array, start: int, values: Array) -> None:
    _c.put_rows(matrix, plain(rows), start, np.ascontiguousarray(values, matrix.dtype))


def sum_rows(values: Array, rows: Array, count: int) -> Array:
    if values.dtype not in FLOATS:
        return in_numpy.sum_rows(values, rows, count)
    out = np.zeros((count, values.shape[1]), values.dtype)
    _c.add_rows(out, plain(rows), plain(values))
    return out
