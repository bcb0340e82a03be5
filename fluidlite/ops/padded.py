"""Sequences that an op takes in either of two forms: with LoD, or as a padded batch beside an input of lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError
from fluidlite.ops.context import KernelContext
from fluidlite.ops.ids import argument
from fluidlite.ops.segments import Sequences, array_of, level, offsets_of, ranges, sequences
from fluidlite.values.lod import LoDTensor


@dataclass(frozen=True, slots=True)
class Ragged:
    """``bags`` without padding, and the form that they came in."""

    bags: Sequences
    #: (batch, time) of a padded batch, None of a LoDTensor
    padded: tuple[int, int] | None

    def back(self, rows: Array) -> Array | LoDTensor:
        """Values of all rows (T, ...) in the form of the input: with its LoD, or padded with zeros."""
        if self.padded is None:
            return LoDTensor(rows, self.bags.lod)
        batch, time = self.padded
        out = np.zeros((batch * time, *rows.shape[1:]), rows.dtype)
        out[ranges(np.arange(batch) * time, self.bags.lengths)] = rows
        return out.reshape(batch, time, *rows.shape[1:])


def ragged(ctx: KernelContext, name: str, value: Any, lengths: Any) -> Ragged:
    """The sequences of an input: (T, ...) with LoD, or (batch, time, ...) when ``lengths`` (batch,) are given.

    Lengths that do not fit raise ShapeError.
    """
    if lengths is None:
        return Ragged(sequences(ctx, value, name), None)
    array, counts = array_of(value), array_of(lengths).reshape(-1).astype(np.int64)
    if array.ndim < 2 or len(counts) != len(array) or (counts < 0).any() or (counts > array.shape[1]).any():
        raise ShapeError(
            f"op {ctx.op.type!r}: lengths {counts.tolist()[:10]} do not fit {argument(ctx, name)!r} {list(array.shape)}"
        )
    batch, time = array.shape[:2]
    offsets = offsets_of(counts)
    rows = array.reshape(batch * time, *array.shape[2:])[ranges(np.arange(batch) * time, counts)]
    return Ragged(Sequences(rows, (level(offsets),), offsets), (batch, time))


def check_same_lengths(ctx: KernelContext, first: Ragged, second: Ragged, names: tuple[str, str]) -> None:
    """Refuse two inputs whose sequences have different lengths."""
    if not np.array_equal(first.bags.offsets, second.bags.offsets):
        left, right = (argument(ctx, name) for name in names)
        raise ShapeError(
            f"op {ctx.op.type!r}: the sequences of {left!r} and {right!r} have different lengths, "
            f"{first.bags.lengths.tolist()[:10]} and {second.bags.lengths.tolist()[:10]}"
        )
