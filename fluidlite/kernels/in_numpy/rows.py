"""Gather, scatter and scattered sum of whole rows of one contiguous matrix."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array

#: from this many elements on a row is summed as a row; below, element by element is faster
_WIDE: Final = 64
#: elements added at a time, to keep their indices in the cache
_BLOCK: Final = 1 << 15


def take_rows(matrix: Array, rows: Array, out: Array | None = None) -> Array:
    """Copies of rows ``rows`` (n,) of a C-contiguous ``matrix`` (m, width): (n, width). Every row must be in [0, m).

    ``out`` (n, width), C-contiguous and of the same dtype, takes them when given. ``mode="clip"`` is not for
    out-of-range rows: it is the only mode of ``take`` that writes without a second buffer.
    """
    return matrix.take(rows, axis=0, out=out, mode="clip")


def take_parts(matrix: Array, rows: Array, start: int, width: int) -> Array:
    """Copies of ``matrix[rows, start : start + width]``, (n, width), as `take_rows`.

    Where a row is a whole number of such parts, the array is also a matrix of parts, and only these are read.
    """
    whole = matrix.shape[1]
    if whole % width or start % width:
        return take_rows(matrix, rows)[:, start : start + width].copy()
    return take_rows(matrix.reshape(-1, width), rows * (whole // width) + start // width)


def put_rows(matrix: Array, rows: Array, values: Array) -> None:
    """``matrix[rows] = values`` for a C-contiguous ``matrix`` (m, width), ``rows`` (n,) in [0, m), ``values`` (n, width).

    Of a row given twice the later values stay. A row is moved as one opaque item, which numpy does four times faster
    than one element after the other.
    """
    _items(matrix)[rows] = _items(np.ascontiguousarray(values, matrix.dtype))


def put_parts(matrix: Array, rows: Array, start: int, values: Array) -> None:
    """``matrix[rows, start : start + width] = values``, as `put_rows`; ``values`` (n, width)."""
    whole, width = matrix.shape[1], values.shape[1]
    if whole % width or start % width:
        matrix[rows, start : start + width] = values
    else:
        put_rows(matrix.reshape(-1, width), rows * (whole // width) + start // width, values)


def add_rows(matrix: Array, rows: Array, values: Array) -> None:
    """``matrix[r] += v`` for each row r of ``rows`` (n,), one after the other; rows may repeat and must be in [0, m).

    ``matrix`` (m, width) is C-contiguous, ``values`` (n, width). The sums are those of a loop, bit for bit: wide rows are
    added by rounds, each of which takes the next occurrence of every row, as long as that makes rounds of many rows.
    """
    waiting = np.arange(len(rows))
    while len(waiting) and matrix.shape[1] >= _WIDE:
        lead = first_positions(rows[waiting], len(matrix))
        if 4 * np.count_nonzero(lead) < len(waiting):
            break
        now = waiting[lead]
        total = take_rows(matrix, rows[now])
        total += take_rows(values, now)
        put_rows(matrix, rows[now], total)
        waiting = waiting[~lead]
    _add_elements(matrix, rows, values, waiting)


def sum_rows(values: Array, rows: Array, count: int) -> Array:
    """A matrix (count, width) of zeros to which each of ``values`` (n, width) was added at its row of ``rows`` (n,), one
    after the other. Every row must be in [0, count)."""
    out = np.zeros((count, values.shape[1]), values.dtype)
    first = first_positions(rows, count)
    once = np.flatnonzero(first)
    # The sum begins with zero, as a loop would: it makes 0.0 of -0.0.
    put_rows(out, rows[once], take_rows(values, once) + out.dtype.type(0))
    if len(once) < len(rows):
        again = np.flatnonzero(~first)
        add_rows(out, rows[again], take_rows(values, again))
    return out


def first_positions(rows: Array, count: int) -> Array:
    """Where each of ``rows`` (n,), all in [0, count), stands for the first time: (n,) bool."""
    position = np.arange(len(rows))
    first = np.empty(count, np.int64)
    first[rows[::-1]] = position[::-1]
    leads: Array = first[rows] == position
    return leads


def _add_elements(matrix: Array, rows: Array, values: Array, which: Array) -> None:
    """The rest of `add_rows`. Only a flat array with a flat index gets numpy's fast loop for repeated indices."""
    width = matrix.shape[1]
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, len(which), step):
        part = which[start : start + step]
        element = rows[part, None] * width + np.arange(width)
        np.add.at(matrix.reshape(-1), element.reshape(-1), values[part].reshape(-1))


def _items(matrix: Array) -> Array:
    """The rows of a C-contiguous matrix as opaque items, (m,)."""
    item = np.dtype((np.void, matrix.shape[1] * matrix.itemsize))
    return matrix.view(item).reshape(-1)
