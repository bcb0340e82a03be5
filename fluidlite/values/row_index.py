"""RowIndex: from any int64 id to the position of its row, many ids at a time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import ABSENT, claim_cells, find_or_number, find_positions
from fluidlite.values.pages_ahead import PagesAhead
from fluidlite.values.row_store import RowStore

_MIN_BITS: Final = 6
#: at most this many of 3 cells are taken
_LOAD_OF_3: Final = 2
#: cells up to this many are rebuilt at once, larger ones aside
_AT_ONCE_BITS: Final = 15
#: Cells aside are begun when this many of 32 present ones are taken. Their pages come a few at a time: with each new id a
#: number of cells is made empty, the larger number as long as their pages are there already. Then each new id claims some
#: for earlier ids. They are all empty when half of the present cells are taken, and complete when two thirds are.
_ASIDE_FROM_32: Final = 11
_EMPTIED_PER_NEW: Final = (13, 15)
_CLAIMED_PER_NEW: Final = 4
#: cells from this many on have their pages populated ahead, one in so many of them
_AHEAD_BITS: Final = 22
_AHEAD_OF: Final = 16


class RowIndex:
    """Ids in order of insertion, and an open-addressing hash over them that grows without a pause.

    While its cells fill up, cells of twice the number are built aside from the append-only list of ids, a few with
    each `add`, so no `add` takes longer than in proportion to its own ids. Not thread-safe: the table holds the lock.
    """

    __slots__ = ("_aside", "_aside_from", "_aside_size", "_cells", "_ids", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._ids = RowStore(1, np.dtype(np.int64))
        self._cells = Cells(_MIN_BITS)
        self._cells.empty(1 << _MIN_BITS)
        self._aside: Cells | None = None
        #: how many ids there were when it was begun, and how many of them have a cell there
        self._aside_from = self._aside_size = 0

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

    def find_or_number(self, ids: Array) -> tuple[Array, Array]:
        """(position of each id, (n,) int64, where unknown ids get the positions that they will have; the unknown ids).

        The unknown ids (k,) come each once, in the order of their first occurrence: the index knows them after `add`.
        """
        return self._cells.find_or_number(ids, self.ids)

    def add(self, ids: Array, in_haste: bool = False) -> None:
        """Append ids that are distinct and absent; their positions are consecutive.

        ``in_haste`` leaves work that can wait to the next call.
        """
        first, last = self._size, self._size + len(ids)
        in_haste = self._ids.reserve(last, first) or in_haste
        self._size = last
        self.ids[first:] = ids
        if last > self._cells.room:
            self._grow()
        else:
            self._cells.claim(self.ids, first, last)
            self._grow_aside(len(ids), in_haste)

    def _grow(self) -> None:
        """Go over to larger cells now: to those aside, caught up, where they suffice."""
        if self._aside is None or self._aside.room < self._size:
            bits = self._cells.bits + 1
            while _room(bits) < self._size:
                bits += 1
            self._aside, self._aside_size = Cells(bits), 0
        self._aside.empty(1 << self._aside.bits)
        self._build_aside(self._aside, self._size)

    def _grow_aside(self, new: int, in_haste: bool) -> None:
        """Once it is time for larger cells, go on with them in proportion to the ``new`` ids."""
        bits = self._cells.bits
        if self._aside is None and bits > _AT_ONCE_BITS and 32 * self._size > _ASIDE_FROM_32 << bits:
            self._aside, self._aside_from, self._aside_size = Cells(bits + 1), self._size - new, 0
        if self._aside is not None:
            since = self._size - self._aside_from
            least, most = _EMPTIED_PER_NEW[0] * (since - new * in_haste), _EMPTIED_PER_NEW[1] * since
            if self._aside.empty(least, most):
                self._build_aside(self._aside, _CLAIMED_PER_NEW * new)

    def _build_aside(self, aside: Cells, ids: int) -> None:
        first, last = self._aside_size, min(self._aside_size + ids, self._size)
        aside.claim(self.ids, first, last)
        self._aside_size = last
        if last == self._size:
            self._cells, self._aside = aside, None


class Cells:
    """2**bits cells of the hash of `kernels`, to be made empty before use (4 bytes each; 8 above 2**31 cells)."""

    __slots__ = ("_ahead", "_cells", "_emptied", "bits")

    def __init__(self, bits: int) -> None:
        self.bits = bits
        dtype: type[np.signedinteger[Any]] = np.int32 if bits <= 31 else np.int64
        self._cells: Array = np.empty(1 << bits, dtype)
        self._emptied = 0
        self._ahead = PagesAhead(self._cells, 0) if bits >= _AHEAD_BITS else None

    @property
    def room(self) -> int:
        """Ids that the cells can serve."""
        return _room(self.bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells that were touched, and of the pages ahead of them."""
        touched = self._emptied * self._cells.itemsize
        return max(touched, self._ahead.nbytes if self._ahead else 0)

    def empty(self, least: int, most: int = 0) -> bool:
        """Make the first ``least`` cells empty, up to ``most`` as long as their pages are there already; whether all are."""
        first, item = self._emptied, self._cells.itemsize
        if self._ahead is not None:
            least = max(least, min(most, self._ahead.ready // item))
        self._emptied = max(first, min(least, len(self._cells)))
        self._cells[first : self._emptied] = ABSENT
        if self._ahead is not None:
            stop = max(most, least) * item + self._cells.nbytes // _AHEAD_OF
            self._ahead.ask(self._emptied * item, min(stop, self._cells.nbytes))
        return self._emptied == len(self._cells)

    def find(self, wanted: Array, ids: Array) -> Array:
        """Position in ``ids`` (m,) of each of ``wanted`` (n,), or ABSENT."""
        return find_positions(self._cells, ids, wanted)

    def find_or_number(self, wanted: Array, ids: Array) -> tuple[Array, Array]:
        """The same with unknown ids numbered on from len(ids), and these ids in the order in which they come first."""
        return find_or_number(self._cells, ids, wanted)

    def claim(self, ids: Array, first: int, last: int) -> None:
        """Give cells to ``ids[first:last]``, which have none yet."""
        claim_cells(self._cells, ids, first, last)


def _room(bits: int) -> int:
    return (1 << bits) * _LOAD_OF_3 // 3
