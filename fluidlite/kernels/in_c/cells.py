"""The cells of a hash index, in C: see the functions of the same name in `in_numpy`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import _c
from fluidlite.kernels.in_c.arrays import plain


def find_positions(cells: Array, ids: Array, wanted: Array) -> Array:
    positions = np.empty(len(wanted), np.int64)
    _c.index_find(cells, ids, plain(wanted), positions)
    return positions


def find_or_number(cells: Array, ids: Array, wanted: Array) -> tuple[Array, Array]:
    positions, new = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
    count = _c.index_find_or_number(cells, ids, plain(wanted), positions, new)
    return positions, new[:count]


def claim_cells(cells: Array, ids: Array, first: int, last: int) -> None:
    _c.index_claim(cells, ids, first, last)
