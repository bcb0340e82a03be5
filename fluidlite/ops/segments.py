"""Sequences inside kernels: the rows of an input grouped by the last level of its LoD, and arithmetic on groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.values.lod import Lod, LoDTensor


@dataclass(frozen=True, slots=True)
class Sequences:
    """``rows`` (T, ...) cut into sequences at ``offsets`` (count + 1,), the last level of ``lod``."""

    rows: Array
    lod: Lod
    offsets: Array

    @property
    def count(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    @property
    def starts(self) -> Array:
        """First row of each sequence, (count,)."""
        return self.offsets[:-1]

    @property
    def lengths(self) -> Array:
        """Rows of each sequence, (count,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Array:
        """The sequence that each row belongs to, (T,)."""
        return np.repeat(np.arange(self.count), self.lengths)


def sequences(ctx: KernelContext, value: Any, input_name: str, index: int = 0) -> Sequences:
    """An input as sequences. No LoD, or one that does not end at the number of rows, raises ShapeError naming the
    variable."""
    if not isinstance(value, LoDTensor) or not value.lod:
        raise ShapeError(
            f"op {ctx.op.type!r}: {argument(ctx, input_name, index)!r} has no LoD (sequence lengths); declare it with "
            "lod_level=1 and feed it with fluid.create_lod_tensor"
        )
    offsets = np.asarray(value.lod[-1], np.int64)
    if offsets[-1] != len(value.array):
        raise ShapeError(
            f"op {ctx.op.type!r}: the LoD of {argument(ctx, input_name, index)!r} ends at {offsets[-1]} but there are "
            f"{len(value.array)} rows"
        )
    return Sequences(value.array, value.lod, offsets)


def array_of(value: Any) -> Array:
    """The array of a value that may or may not have LoD."""
    array: Array = value.array if isinstance(value, LoDTensor) else value
    return array


def offsets_of(lengths: Array) -> Array:
    """Offsets (n + 1,) of consecutive groups of ``lengths`` (n,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def level(offsets: Array) -> tuple[int, ...]:
    """Offsets as one level of a LoD."""
    return tuple(int(offset) for offset in offsets)


def ranges(starts: Array, lengths: Array) -> Array:
    """start, start + 1, ..., start + length - 1 for each pair, one after the other.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    offsets = offsets_of(lengths)
    shift: Array = np.repeat(starts - offsets[:-1], lengths)
    return np.arange(offsets[-1]) + shift


def reduce_segments(operation: np.ufunc, rows: Array, offsets: Array, empty: float) -> Array:
    """``operation`` (np.add, np.maximum, ...) over the rows of each group: (count, ...), ``empty`` for a group of none."""
    out = np.full((len(offsets) - 1, *rows.shape[1:]), empty, rows.dtype)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        # reduceat runs from one start to the next, so groups without rows must not be among the starts
        out[filled] = operation.reduceat(rows, offsets[filled], axis=0)
    return out


def per_row(values: Array, rows: Array) -> Array:
    """``values`` (T,) shaped so that they multiply rows (T, ...)."""
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))
