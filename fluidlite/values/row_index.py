"""RowIndex: from any int64 id to the position of its row, many ids at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.values.row_store import RowStore

#: no row: what `find` answers for an unknown id, and what an empty cell holds. Not an id: every int64 is a legal id.
ABSENT: Final = -1
_MIN_BITS: Final = 6
#: at most this many of 3 cells are taken
_LOAD_OF_3: Final = 2
#: cells up to this many are rebuilt at once, larger ones aside
_AT_ONCE_BITS: Final = 15
#: Cells aside are begun when this many of 32 present ones are taken. Each new id first empties a number of them, so that
#: their pages come a few at a time, then claims a number of them for earlier ids: they are all empty when half of the
#: present cells are taken, and complete when two thirds are.
_ASIDE_FROM_32: Final = 15
_EMPTIED_PER_NEW: Final = 64
_CLAIMED_PER_NEW: Final = 4
#: odd, near 2**64 / golden ratio: consecutive ids land far apart
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
#: cells are claimed for this many rows at a time, to keep temporaries in the cache
_BLOCK: Final = 1 << 15


class RowIndex:
    """Ids in order of insertion, and an open-addressing hash over them that grows without a pause.

    While its cells fill up, cells of twice the number are built aside from the append-only list of ids, a few with
    each `add`, so no `add` takes longer than in proportion to its own ids. Not thread-safe: the table holds the lock.
    """

    __slots__ = ("_aside", "_aside_size", "_cells", "_ids", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._ids = RowStore(1, np.dtype(np.int64))
        self._cells = Cells(_MIN_BITS)
        self._cells.empty(1 << _MIN_BITS)
        self._aside: Cells | None = None
        #: how many of the ids have a cell there
        self._aside_size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> Array:
        """The ids in order of insertion, (len,) int64: a view, valid until the next `add`."""
        ids: Array = self._ids.array.reshape(-1)[: self._size]
        return ids

    @property
    def nbytes(self) -> int:
        """Bytes in use: 8 per id, and 4 per cell, of which there are 1.5 to 3 per id, and up to 4 more aside."""
        aside = self._aside.nbytes if self._aside else 0
        return self._ids.nbytes(self._size) + self._cells.nbytes + aside

    def find(self, ids: Array) -> Array:
        """Position of each id, (n,) int64, ABSENT where it is unknown. ``ids`` (n,) int64."""
        return self._cells.find(ids, self.ids)

    def add(self, ids: Array) -> Array:
        """Append ids that are distinct and absent; their positions, (n,) int64 (consecutive)."""
        first, last = self._size, self._size + len(ids)
        self._ids.reserve(last, first)
        self._size = last
        self.ids[first:] = ids
        if last > self._cells.room:
            self._grow()
        else:
            self._cells.claim(self.ids, first, last)
            self._grow_aside(len(ids))
        return np.arange(first, last)

    def _grow(self) -> None:
        """Go over to larger cells now: to those aside, caught up, where they suffice."""
        if self._aside is None or self._aside.room < self._size:
            bits = self._cells.bits + 1
            while _room(bits) < self._size:
                bits += 1
            self._aside, self._aside_size = Cells(bits), 0
        self._aside.empty(1 << self._aside.bits)
        self._build_aside(self._aside, self._size)

    def _grow_aside(self, new: int) -> None:
        """Once it is time for larger cells, go on with them in proportion to the ``new`` ids."""
        bits = self._cells.bits
        if self._aside is None and bits > _AT_ONCE_BITS and 32 * self._size > _ASIDE_FROM_32 << bits:
            self._aside, self._aside_size = Cells(bits + 1), 0
        if self._aside is not None and self._aside.empty(_EMPTIED_PER_NEW * new):
            self._build_aside(self._aside, _CLAIMED_PER_NEW * new)

    def _build_aside(self, aside: Cells, ids: int) -> None:
        first, last = self._aside_size, min(self._aside_size + ids, self._size)
        aside.claim(self.ids, first, last)
        self._aside_size = last
        if last == self._size:
            self._cells, self._aside = aside, None


class Cells:
    """2**bits cells of an open-addressing hash, to be made empty before use. A cell holds the position of an id in a list.

    So no id is reserved to mean "empty" (4 bytes each; 8 above 2**31 cells). All ids of a call are probed together,
    round by round; round k moves on by k cells (triangular numbers visit every cell of a power of two), which keeps the
    number of rounds small.
    """

    __slots__ = ("_cells", "_emptied", "bits")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        dtype: type[np.signedinteger[Any]] = np.int32 if bits <= 31 else np.int64
        self._cells: Array = np.empty(1 << bits, dtype)
        self._emptied = 0

    @property
    def room(self) -> int:
        """Ids that the cells can serve."""
        return _room(self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells that were touched."""
        return self._emptied * self._cells.itemsize

    def empty(self, cells: int) -> bool:
        """Make up to ``cells`` more of the cells empty; whether all are."""
        first, self._emptied = self._emptied, min(self._emptied + cells, len(self._cells))
        self._cells[first : self._emptied] = ABSENT
        return self._emptied == len(self._cells)

    def home(self, ids: Array) -> Array:
        """First cell to look at, (n,) int64: multiplicative hashing of both halves of the id."""
        bits = ids.view(np.uint64)
        hashed = (bits ^ (bits >> _HALF)) * _MULTIPLIER
        cell: Array = (hashed >> np.uint64(64 - self.bits)).view(np.int64)
        return cell

    def find(self, wanted: Array, ids: Array) -> Array:
        """Position in ``ids`` (m,) of each of ``wanted`` (n,), or ABSENT."""
        cell = self.home(wanted)
        found = self._cells.take(cell, mode="clip")
        positions = found.astype(np.int64)
        open_ = np.flatnonzero(_is_other(found, wanted, ids))
        wanted, cell, probe = wanted[open_], cell[open_], 0
        while open_.size:
            probe += 1
            cell = (cell + probe) & self._mask
            found = self._cells.take(cell, mode="clip")
            positions[open_] = found
            still = np.flatnonzero(_is_other(found, wanted, ids))
            open_, wanted, cell = open_[still], wanted[still], cell[still]
        return positions

    def claim(self, ids: Array, first: int, last: int) -> None:
        """Give cells to ``ids[first:last]``, which have none yet."""
        for start in range(first, last, _BLOCK):
            stop = min(start + _BLOCK, last)
            self._claim_block(ids[start:stop], np.arange(start, stop))

    @property
    def _mask(self) -> int:
        return (1 << self.bits) - 1

    def _claim_block(self, ids: Array, positions: Array) -> None:
        """Give each position the first free cell of its id's probe sequence.

        Several may write one free cell: the last one keeps it and the others see it taken, and move on.
        """
        cell = self.home(ids)
        entry = positions.astype(self._cells.dtype)
        probe = 0
        while entry.size:
            free = self._cells.take(cell, mode="clip") == ABSENT
            self._cells[cell[free]] = entry[free]
            lost = np.flatnonzero(self._cells.take(cell, mode="clip") != entry)
            probe += 1
            entry, cell = entry[lost], (cell[lost] + probe) & self._mask


def _room(bits: int) -> int:
    return (1 << bits) * _LOAD_OF_3 // 3


def _is_other(found: Array, wanted: Array, ids: Array) -> Array:
    """Where a cell is taken by another id, so the search goes on."""
    if not len(ids):
        return np.zeros(len(wanted), np.bool_)
    other: Array = (found != ABSENT) & (ids.take(found, mode="clip") != wanted)
    return other
