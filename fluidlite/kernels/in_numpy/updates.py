"""Optimizer steps on whole arrays and on some of their rows, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fluidlite.dtypes import Array

#: ``step(value, gradient, *accumulators)`` changes value and accumulators, all of one shape, in place
RowStep: TypeAlias = Callable[..., None]


def update_arrays(step: RowStep, rows: Array | None, gradient: Array, arrays: Sequence[Array]) -> None:
    """``step`` on ``arrays``, the value and its accumulators, all of one shape and dtype, or on some of their rows.

    ``rows`` (n,) int64 are distinct, and ``gradient`` has a row for each; None: all, and ``gradient`` is like the arrays.
    """
    value, *state = arrays
    if rows is None:
        step(value, gradient, *state)
    elif len(rows):
        parts = [array[rows] for array in arrays]
        step(parts[0], gradient, *parts[1:])
        for array, part in zip(arrays, parts, strict=True):
            array[rows] = part


def update_records(step: RowStep, matrix: Array, rows: Array, gradient: Array, starts: tuple[int, ...]) -> bool:
    """False: numpy is faster on blocks of records, for which `RowUpdate` has the buffers."""
    return False
