"""Lines of data by slot, and the batches and feeds that are cut from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DataError
from fluidlite.values.lod import LoDTensor

#: what an executor is fed
Feed: TypeAlias = "dict[str, Array | LoDTensor]"


class Slot(NamedTuple):
    """What a variable says about its slot of the data. ``dims`` are those after the batch."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    is_sequence: bool

    @property
    def width(self) -> int:
        """Values of one unit: of an example, or of a step of a sequence."""
        return math.prod(self.dims)

    @property
    def is_float(self) -> bool:
        return self.dtype == "float32"


def slot_of(name: str, dtype: str, shape: Sequence[int], lod_level: int) -> Slot:
    """The slot of a variable. Raises DataError for what text cannot fill."""
    dims = tuple(shape[1:])
    if dtype not in ("int64", "float32"):
        raise DataError(f"slot {name!r} is {dtype}; text fills int64 and float32 only")
    if any(dim <= 0 for dim in dims):
        raise DataError(f"slot {name!r} of shape {list(shape)}: only the first dimension may be unknown")
    if lod_level > 1:
        raise DataError(f"slot {name!r} has lod_level {lod_level}; text gives one level")
    return Slot(name, dtype, dims, lod_level > 0)


class Columns:
    """n lines. ``values[slot]`` holds a slot's values of all lines, ``ends`` (n + 1, slots) int64 where each line's end.

    ``ends[0]`` need not be 0: columns may be a part of longer ones.
    """

    __slots__ = ("ends", "values")

    def __init__(self, values: Sequence[Array], ends: Array) -> None:
        self.values = values
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends) - 1

    def part(self, start: int, stop: int) -> Columns:
        """Lines from ``start`` to ``stop``, not copied."""
        return Columns(self.values, self.ends[start : stop + 1])

    def slot(self, slot: int) -> tuple[Array, Array]:
        """The values of a slot, and the offsets (n + 1,) of the lines in them."""
        ends = self.ends[:, slot]
        return self.values[slot][ends[0] : ends[-1]], ends - ends[0]

    def with_slot(self, slot: int, other: Columns) -> Columns:
        """The same lines, but for one slot, whose values are those of as many ``other`` lines."""
        mine = self.take(np.arange(len(self)))
        values = [other.values[at] if at == slot else column for at, column in enumerate(mine.values)]
        ends = mine.ends.copy()
        ends[:, slot] = other.ends[:, slot]
        return Columns(values, ends)

    def take(self, lines: Array) -> Columns:
        """The lines (m,) int64 of these numbers, copied."""
        starts = self.ends[lines]
        lengths = self.ends[lines + 1] - starts
        ends = np.concatenate((np.zeros((1, lengths.shape[1]), np.int64), np.cumsum(lengths, axis=0)))
        values = [
            column[np.arange(ends[-1, slot]) + np.repeat(starts[:, slot] - ends[:-1, slot], lengths[:, slot])]
            for slot, column in enumerate(self.values)
        ]
        return Columns(values, ends)


def columns_of(values: Sequence[Array], lengths: Array) -> Columns:
    """Columns from how many values each line has in each slot, ``lengths`` (n, slots) int64."""
    ends = np.zeros((len(lengths) + 1, lengths.shape[1]), np.int64)
    np.cumsum(lengths, axis=0, out=ends[1:])
    return Columns(values, ends)


def joined(parts: Sequence[Columns]) -> Columns:
    """All lines of one or more parts, one part after the other."""
    pieces = [[part.slot(slot)[0] for part in parts] for slot in range(len(parts[0].values))]
    lengths = np.concatenate([np.diff(part.ends, axis=0) for part in parts])
    return columns_of([np.concatenate(piece) for piece in pieces], lengths)


def feed_of(batch: Columns, slots: Sequence[Slot]) -> Feed:
    """A batch by variable name: an array where each line fills the declared shape once, else a LoDTensor."""
    return {slot.name: _tensor(*batch.slot(place), slot) for place, slot in enumerate(slots)}


def _tensor(values: Array, ends: Array, slot: Slot) -> Array | LoDTensor:
    shaped = values.reshape(-1, *slot.dims)
    if not slot.is_sequence and bool((np.diff(ends) == slot.width).all()):
        return shaped
    return LoDTensor(shaped, (tuple((ends // slot.width).tolist()),))
