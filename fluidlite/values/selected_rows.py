"""SelectedRows: some rows of a taller matrix, by id; ids may repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluidlite import kernels
from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError


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

    ``ids`` of any shape with n elements; a fast sort for int64, numpy's for other integers.
    """
    ids = np.ascontiguousarray(ids).reshape(-1)
    if ids.dtype != np.int64:
        unique, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
        return unique, first, inverse.reshape(-1)
    return kernels.unique_ids(ids)


def segment_sum(value: Array, segment: Array, count: int) -> Array:
    """Sum rows of ``value`` (n, ...) by ``segment`` (n,) into (count, ...), each sum in order of occurrence.

    The order is fixed, so results are the same bytes on every run and for every grouping of equal ids. A negative
    segment counts from the end; raises IndexError for one outside [-count, count).
    """
    if len(segment) != len(value):
        raise ShapeError(f"{len(value)} rows of values to sum by {len(segment)} segments")
    if not value.size:
        return np.zeros((count, *value.shape[1:]), value.dtype)
    if segment.min() < 0 or segment.max() >= count or segment.dtype != np.int64:
        out = np.zeros((count, *value.shape[1:]), value.dtype)
        np.add.at(out, segment, value)
        return out
    sums = kernels.sum_rows(value.reshape(len(value), -1), segment, count)
    return sums.reshape(count, *value.shape[1:])


def merge_rows(selected: SelectedRows, *, always_sort: bool = False) -> SelectedRows:
    """Sum duplicate ids, in order of occurrence (Fluid's MergeAdd).

    Without duplicates the order of rows is kept, unless ``always_sort``; with duplicates rows come out ascending.
    """
    if not always_sort and kernels.is_ascending(selected.rows):
        return SelectedRows(selected.rows, selected.value, selected.height)
    unique, inverse = first_occurrences(selected.rows)
    if len(unique) == len(selected.rows) and not always_sort:
        return SelectedRows(selected.rows, selected.value, selected.height)
    return SelectedRows(unique, segment_sum(selected.value, inverse, len(unique)), selected.height)


def to_dense(selected: SelectedRows, height: int | None = None) -> Array:
    """The matrix (height, width) with duplicates summed and zeros elsewhere."""
    return segment_sum(selected.value, selected.rows, selected.height if height is None else height)
