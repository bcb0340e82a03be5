"""Lists of ids, in C: see the functions of the same name in `in_numpy`."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import _c
from fluidlite.kernels.in_c.arrays import plain


def unique_ids(ids: Array) -> tuple[Array, Array, Array]:
    n = len(ids)
    unique, first, inverse = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    count = _c.unique_ids(plain(ids), unique, first, inverse)
    return unique[:count], first[:count], inverse


def is_ascending(ids: Array) -> bool:
    return _c.ids_ascend(plain(ids))


def find_ids(known: Array, wanted: Array) -> Array:
    positions = np.empty(len(wanted), np.int64)
    _c.find_ids(plain(known), plain(wanted), positions)
    return positions


def group_ids(ids: Array, groups: int) -> tuple[Array, Array, Array]:
    order, place, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(groups, np.int64)
    _c.group_ids(plain(ids), order, place, counts)
    return order, place, counts
