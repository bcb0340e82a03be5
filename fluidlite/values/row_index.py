"""RowIndex: from any int64 id to the position of its row, many ids at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array

#: no row: what `find` answers for an unknown id, and what an empty cell holds. Not an id: every int64 is a legal id.
ABSENT: Final = -1
_MIN_BITS: Final = 6
#: at most this many of 3 cells are taken
_LOAD_OF_3: Final = 2
#: odd, near 2**64 / golden ratio: consecutive ids land far apart
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
#: cells are claimed for this many rows at a time, to keep temporaries in the cache
_BLOCK: Final = 1 << 15


class RowIndex:
    """Ids in order of insertion, and an open-addressing hash over them.

    A cell holds the position of an id in the append-only list of ids (4 bytes each; 8 above 2**31 cells), so no id
    is reserved to mean "empty". All ids of a call are probed together, round by round; round k moves on by k cells
    (triangular numbers visit every cell of a power of two), which keeps the number of rounds small. Not thread-safe:
    the table holds the lock.
    """

    __slots__ = ("_bits", "_cells", "_ids", "_size")

    def __init__(self) -> None:
        self._bits = _MIN_BITS
        self._size = 0
        self._ids: Array = np.empty(self._room(), np.int64)
        self._cells: Array = _empty_cells(self._bits)

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Array:
        """The ids in order of insertion, (len,) int64: a view, valid until the next `add`."""
        return self._ids[: self._size]

    @property
    def nbytes(self) -> int:
        """Bytes in use: 8 per id, and 4 per cell, of which there are 1.5 to 3 per id."""
        return self.ids.nbytes + self._cells.nbytes

    def find(self, ids: Array) -> Array:
        """Position of each id, (n,) int64, ABSENT where it is unknown. ``ids`` (n,) int64."""
        cell = self._home(ids)
        found = self._cells.take(cell)
        positions = found.astype(np.int64)
        open_ = np.flatnonzero(self._is_other(found, ids))
        wanted, cell, probe = ids[open_], cell[open_], 0
        while open_.size:
            probe += 1
            cell = (cell + probe) & self._mask
            found = self._cells.take(cell)
            positions[open_] = found
            still = np.flatnonzero(self._is_other(found, wanted))
            open_, wanted, cell = open_[still], wanted[still], cell[still]
        return positions

    def add(self, ids: Array) -> Array:
        """Append ids that are distinct and absent; their positions, (n,) int64 (consecutive)."""
        first, last = self._size, self._size + len(ids)
        if last > self._room():
            self._grow(last)
        self._ids[first:last] = ids
        self._size = last
        self._claim(first, last)
        return np.arange(first, last)

    @property
    def _mask(self) -> int:
        return (1 << self._bits) - 1

    def _room(self) -> int:
        """Rows that the cells can serve."""
        return (1 << self._bits) * _LOAD_OF_3 // 3

    def _home(self, ids: Array) -> Array:
        """First cell to look at: multiplicative hashing of both halves of the id."""
        bits = ids.view(np.uint64)
        hashed = (bits ^ (bits >> _HALF)) * _MULTIPLIER
        cell: Array = (hashed >> np.uint64(64 - self._bits)).view(np.int64)
        return cell

    def _is_other(self, found: Array, wanted: Array) -> Array:
        """Where a cell is taken by another id, so the search goes on."""
        other: Array = (found != ABSENT) & (self._ids.take(found, mode="clip") != wanted)
        return other

    def _grow(self, rows: int) -> None:
        while self._room() < rows:
            self._bits += 1
        ids = np.empty(self._room(), np.int64)
        ids[: self._size] = self.ids
        self._ids = ids
        self._cells = _empty_cells(self._bits)
        self._claim(0, self._size)

    def _claim(self, first: int, last: int) -> None:
        for start in range(first, last, _BLOCK):
            self._claim_block(np.arange(start, min(start + _BLOCK, last)))

    def _claim_block(self, positions: Array) -> None:
        """Give each position the first free cell of its id's probe sequence.

        Several may write one free cell: the last one keeps it and the others see it taken, and move on.
        """
        cell = self._home(self._ids[positions])
        probe = 0
        while positions.size:
            free = self._cells.take(cell) == ABSENT
            self._cells[cell[free]] = positions[free]
            lost = np.flatnonzero(self._cells.take(cell) != positions)
            probe += 1
            positions, cell = positions[lost], (cell[lost] + probe) & self._mask


def _empty_cells(bits: int) -> Array:
    dtype: type[np.signedinteger[Any]] = np.int32 if bits <= 31 else np.int64
    return np.full(1 << bits, ABSENT, dtype)
