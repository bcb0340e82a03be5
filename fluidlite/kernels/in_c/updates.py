"""Optimizer steps in C, for those that are a `Rule`; others, and arrays that the extension does not take, go to numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import _c
from fluidlite.kernels.in_c.arrays import is_taken, plain
from fluidlite.kernels.in_numpy import updates as in_numpy
from fluidlite.kernels.in_numpy.updates import RowStep
from fluidlite.kernels.rules import Rule


def update_arrays(step: RowStep, rows: Array | None, gradient: Array, arrays: Sequence[Array]) -> None:
    """As in numpy. Raises ShapeError, DtypeError or OutOfRangeError, before anything is changed."""
    if isinstance(step, Rule) and arrays[0].ndim and is_taken(*arrays):
        at = None if rows is None else plain(np.asarray(rows, np.int64))
        if _c.update(step.name, step.scalars, at, plain(gradient), tuple(arrays), None):
            return
    in_numpy.update_arrays(step, rows, gradient, arrays)


def update_records(step: RowStep, matrix: Array, rows: Array, gradient: Array, starts: tuple[int, ...]) -> bool:
    """``step`` on the records of ``matrix`` (m, record width) at ``rows`` (n,) int64, distinct, in one pass.

    ``gradient`` is (n, width); ``starts``: where in a record the value and each accumulator, all of that width, begin.
    False, and nothing is done, when the step is no `Rule` or the arrays share memory or are not C-contiguous. Raises
    ShapeError, DtypeError or OutOfRangeError, before anything is changed.
    """
    if not isinstance(step, Rule) or not is_taken(matrix):
        return False
    at = plain(np.asarray(rows, np.int64))
    return _c.update(step.name, step.scalars, at, plain(gradient), (matrix,), starts)
