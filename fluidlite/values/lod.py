"""LoDTensor: an array whose rows are grouped into sequences (level of detail, "LoD")."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import ShapeError

#: one level: absolute offsets, first 0, last = number of units grouped; levels go from coarse to fine
Lod = tuple[tuple[int, ...], ...]


class LoDTensor:
    """An array with LoD.

    ``lod`` holds absolute offsets per level, as in Fluid's files: sequences of lengths [2, 0, 1] are (0, 2, 2, 3).
    """

    __slots__ = ("array", "lod")

    def __init__(self, array: Array | None = None, lod: Lod = ()) -> None:
        self.array: Array = np.empty((0,), np.float32) if array is None else array
        self.lod: Lod = lod

    # Fluid's method names, used by scripts.
    def set(self, array: Any, place: object = None) -> None:
        """Take over a copy of ``array``; ``place`` is accepted and ignored (there is only the CPU)."""
        self.array = np.array(array)

    def shape(self) -> list[int]:
        """The shape as a list."""
        return list(self.array.shape)

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """The lengths per level: offsets (0, 2, 2, 3) are lengths [2, 0, 1]."""
        return [np.diff(level).tolist() for level in self.lod]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Set the LoD from lengths, coarse level first."""
        self.lod = lod_from_lengths(lengths)

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Set the LoD from absolute offsets."""
        self.lod = _whole(lod, "LoD offsets")

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the LoD is monotone and ends at the number of rows."""
        try:
            check_lod(self.lod, len(self.array))
        except ShapeError:
            return False
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array, dtype=dtype) if not copy else np.array(self.array, dtype=dtype)

    def __repr__(self) -> str:
        return f"LoDTensor(shape={self.array.shape}, dtype={self.array.dtype}, lod={self.lod})"


def lod_from_lengths(lengths: Sequence[Sequence[int]]) -> Lod:
    """Offsets from lengths; each level counts units of the next finer one."""
    levels = _whole(lengths, "sequence lengths")
    for level in levels:
        if any(length < 0 for length in level):
            raise ShapeError(f"sequence lengths {list(level)} hold a negative length")
    return tuple((0, *itertools.accumulate(level)) for level in levels)


def _whole(levels: Any, what: str) -> Lod:
    """Levels of whole numbers as such; ShapeError for anything else."""
    try:
        return tuple(tuple(map(operator.index, level)) for level in levels)
    except TypeError:
        raise ShapeError(f"{what} must be whole numbers in a list per level, not {levels!r}") from None


def check_lod(lod: Lod, rows: int, what: str = "the tensor") -> None:
    """Raise ShapeError unless every level holds whole numbers, starts at 0, is monotone, and ends where the next level
    (or rows) does."""
    for index, level in enumerate(_whole(lod, f"LoD offsets of {what}")):
        units = len(lod[index + 1]) - 1 if index + 1 < len(lod) else rows
        if not level or level[0] != 0:
            raise ShapeError(f"LoD level {index} of {what} must start at 0: {list(level)}")
        if any(a > b for a, b in itertools.pairwise(level)):
            raise ShapeError(f"LoD level {index} of {what} must not decrease: {list(level)}")
        if level[-1] != units:
            raise ShapeError(f"LoD level {index} of {what} ends at {level[-1]} but there are {units} units")
