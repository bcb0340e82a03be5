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


class Offsets(tuple[tuple[int, ...], ...]):
    """The offsets of a `LoDTensor`, per level. Scripts for Fluid call them: ``tensor.lod()`` is a list of lists."""

    __slots__ = ()

    def __call__(self) -> list[list[int]]:
        return [list(level) for level in self]


_NO_LOD = Offsets()
#: dtype -> what Fluid prints for it
_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "int64_t",
    "int32": "int",
    "uint8": "uint8_t",
    "int8": "int8_t",
}


class LoDTensor:
    """An array with LoD.

    ``lod`` holds absolute offsets per level, as in Fluid's files: sequences of lengths [2, 0, 1] are (0, 2, 2, 3).
    """

    __slots__ = ("array", "lod")

    def __init__(self, array: Array | None = None, lod: Lod = ()) -> None:
        self.array: Array = np.empty((0,), np.float32) if array is None else array
        self.lod: Lod = _offsets(lod) if lod else _NO_LOD

    # Fluid's method names, used by scripts.
    def set(self, array: Any, place: object = None) -> None:
        """Take over a copy of ``array``; ``place`` is accepted and ignored (there is only the CPU)."""
        self.array = np.array(array)

    def shape(self) -> list[int]:
        """The shape as a list."""
        return list(self.array.shape)

    def _get_dims(self) -> list[int]:
        """The same: scripts that reset the state of a metric ask for it by this name."""
        return self.shape()

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """The lengths per level: offsets (0, 2, 2, 3) are lengths [2, 0, 1]."""
        return [np.diff(level).tolist() for level in self.lod]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Set the LoD from lengths, coarse level first."""
        self.lod = _offsets(lod_from_lengths(lengths))

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Set the LoD from absolute offsets."""
        self.lod = _offsets(_whole(lod, "LoD offsets"))

    def _dtype(self) -> str:
        """The dtype's name."""
        return self.array.dtype.name

    def _get_float_element(self, offset: int) -> float:
        """An element by its row-major position, as old scripts read a metric: ``acc._get_float_element(0)``."""
        return float(self.array.flat[offset])

    def _is_initialized(self) -> bool:
        """Whether it holds anything."""
        return self.array.size > 0

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the LoD is monotone and ends at the number of rows."""
        try:
            check_lod(self.lod, len(self.array))
        except ShapeError:
            return False
        return True

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array, dtype=dtype) if not copy else np.array(self.array, dtype=dtype)

    def __getitem__(self, item: Any) -> LoDTensor:
        """Some elements, without LoD. Every axis stays: ``tensor[0, 1]`` of a matrix has the shape [1, 1]."""
        position = item if isinstance(item, tuple) else (item,)
        sizes = self.array.shape
        parts = [_slice(index, sizes[axis]) if axis < len(sizes) else index for axis, index in enumerate(position)]
        return LoDTensor(self.array[tuple(parts)])

    def __str__(self) -> str:
        """As Fluid prints it."""
        levels = "".join(f"{{{', '.join(map(str, level))}}}" for level in self.lod)
        numbers = " ".join(f"{item:g}" if self.array.dtype.kind == "f" else str(int(item)) for item in self.array.flat)
        dims = ", ".join(map(str, self.array.shape))
        name = _TYPES.get(self.array.dtype.name, self.array.dtype.name)
        return f"\tlod: {{{levels}}}\n\tdim: {dims}\n\tlayout: NCHW\n\tdtype: {name}\n\tdata: [{numbers}]\n"

    def __repr__(self) -> str:
        return f"LoDTensor(shape={self.array.shape}, dtype={self.array.dtype}, lod={self.lod})"


def _slice(index: Any, size: int) -> Any:
    """A position on an axis as a part of it."""
    if not isinstance(index, (int, np.integer)):
        return index
    first = range(size)[index]
    return slice(first, first + 1)


def _offsets(lod: Lod) -> Lod:
    """As what a tensor holds; what is no tuple stays, and is refused where it is checked."""
    return Offsets(lod) if isinstance(lod, tuple) else lod


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
