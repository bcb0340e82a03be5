"""SelectedRows: some rows of a taller matrix, by id; ids may repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.values.row_kernels import add_rows, first_positions, put_rows, take_rows


@dataclass(slots=True)
class SelectedRows:
    """``rows`` (n,) int64 ids, ``value`` (n, width), ``height`` the rows of the whole matrix (0: unbounded).

    ``value`` may go on behind the last id: the free rows of a table that Fluid's `lookup_sparse_table` fills.
    """

    rows: Array
    value: Array
    height: int

    def __post_init__(self) -> None:
        if len(self.rows) > len(self.value):
            raise ShapeError(f"SelectedRows with {len(self.rows)} ids but {len(self.value)} rows of values")


def first_occurrences(ids: Array) -> tuple[Array, Array]:
    """(unique ascending ids, position of each input id among them)."""
    unique, _, inverse = unique_ids(ids)
    return unique, inverse


def unique_ids(ids: Array) -> tuple[Array, Array, Array]:
    """(unique ascending ids, where each stands first in ``ids``, position of each input id among them).

    ``ids`` of any shape with n elements. One sort does all, a fast one for int64; ids that ascend already need none.
    """
    ids = np.ascontiguousarray(ids).reshape(-1)
    if ids.dtype != np.int64:
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        return unique, first, inverse.reshape(-1)
    if is_ascending(ids):
        return ids.copy(), np.arange(len(ids)), np.arange(len(ids))
    order = _stable_order(ids)
    ordered = ids[order]
    new = np.empty(len(ids), np.bool_)
    new[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    inverse = np.empty(len(ids), np.int64)
    inverse[order] = np.cumsum(new) - 1
    return ordered[starts], order[starts], inverse


def is_ascending(ids: Array) -> bool:
    """Whether each of ``ids`` (n,) is greater than the one before it; then there are no duplicates."""
    return bool((ids[1:] > ids[:-1]).all())


def segment_sum(value: Array, segment: Array, count: int) -> Array:
    """Sum rows of ``value`` (n, ...) by ``segment`` (n,) into (count, ...), each sum in order of occurrence.

    The order is fixed, so results are the same bytes on every run and for every grouping of equal ids. A negative
    segment counts from the end; raises IndexError for one outside [-count, count).
    """
    if len(segment) != len(value):
        raise ShapeError(f"{len(value)} rows of values to sum by {len(segment)} segments")
    out = np.zeros((count, *value.shape[1:]), value.dtype)
    if not value.size:
        return out
    if segment.min() < 0 or segment.max() >= count or segment.dtype != np.int64:
        np.add.at(out, segment, value)
        return out
    matrix, rows = out.reshape(count, -1), value.reshape(len(value), -1)
    first = first_positions(segment, count)
    once = np.flatnonzero(first)
    # The sum begins with zero, as a loop would: it makes 0.0 of -0.0.
    put_rows(matrix, segment[once], take_rows(rows, once) + matrix.dtype.type(0))
    if len(once) < len(segment):
        again = np.flatnonzero(~first)
        add_rows(matrix, segment[again], take_rows(rows, again))
    return out


def merge_rows(selected: SelectedRows, *, always_sort: bool = False) -> SelectedRows:
    """Sum duplicate ids, in order of occurrence (Fluid's MergeAdd).

    Without duplicates the order of rows is kept, unless ``always_sort``; with duplicates rows come out ascending.
    """
    if not always_sort and is_ascending(selected.rows):
        return SelectedRows(selected.rows, selected.value, selected.height)
    unique, inverse = first_occurrences(selected.rows)
    if len(unique) == len(selected.rows) and not always_sort:
        return SelectedRows(selected.rows, selected.value, selected.height)
    return SelectedRows(unique, segment_sum(selected.value, inverse, len(unique)), selected.height)


def to_dense(selected: SelectedRows, height: int | None = None) -> Array:
    """The matrix (height, width) with duplicates summed and zeros elsewhere."""
    return segment_sum(selected.value, selected.rows, selected.height if height is None else height)


def _stable_order(ids: Array) -> Array:
    """``np.argsort(ids, kind="stable")`` of int64 ``ids`` (n,), n > 0, in a half to a third of its time.

    numpy sorts 16-bit integers by radix: from the lowest 16 bits that differ to the highest, each keeping the order of
    the one before among equals.
    """
    low = ids.min()
    offset = (ids - low).view(np.uint64)
    order: Array = np.argsort(offset.astype(np.uint16), kind="stable")
    for shift in range(16, (int(ids.max()) - int(low)).bit_length(), 16):
        digit = (offset >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order
