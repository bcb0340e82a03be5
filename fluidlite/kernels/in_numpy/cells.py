"""The cells of a hash index: 2**bits cells, int32 or int64, each ABSENT or the position of an id in a list of ids.

No id is reserved to mean "empty". All ids of a call are probed together, round by round; round k moves on by k cells
(triangular numbers visit every cell of a power of two), which keeps the number of rounds small.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels.in_numpy.ids import unique_ids

#: no position: what is answered for an unknown id, and what an empty cell holds. Not an id: every int64 is a legal id.
ABSENT: Final = -1
#: odd, near 2**64 / golden ratio: consecutive ids land far apart
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
#: cells are claimed for this many ids at a time, to keep temporaries in the cache
_BLOCK: Final = 1 << 15


def find_positions(cells: Array, ids: Array, wanted: Array) -> Array:
    """Position in ``ids`` (m,) of each of ``wanted`` (n,), or ABSENT: (n,) int64."""
    cell = home(cells, wanted)
    found = cells.take(cell, mode="clip")
    positions = found.astype(np.int64)
    open_ = np.flatnonzero(_is_other(found, wanted, ids))
    wanted, cell, probe = wanted[open_], cell[open_], 0
    while open_.size:
        probe += 1
        cell = (cell + probe) & (len(cells) - 1)
        found = cells.take(cell, mode="clip")
        positions[open_] = found
        still = np.flatnonzero(_is_other(found, wanted, ids))
        open_, wanted, cell = open_[still], wanted[still], cell[still]
    return positions


def find_or_number(cells: Array, ids: Array, wanted: Array) -> tuple[Array, Array]:
    """(positions as `find_positions`, but unknown ids numbered on from len(ids); these ids, each once, in the order in
    which they come first)."""
    positions = find_positions(cells, ids, wanted)
    missing = np.flatnonzero(positions == ABSENT)
    if not len(missing):
        return positions, wanted[:0]
    unknown = wanted[missing]
    _, first, inverse = unique_ids(unknown)
    leads = np.zeros(len(unknown), np.bool_)
    leads[first] = True
    number = np.cumsum(leads) - 1
    positions[missing] = len(ids) + number[first][inverse]
    return positions, unknown[leads]


def claim_cells(cells: Array, ids: Array, first: int, last: int) -> None:
    """Give cells to ``ids[first:last]``, which have none yet. There must be free ones."""
    for start in range(first, last, _BLOCK):
        stop = min(start + _BLOCK, last)
        _claim_block(cells, ids[start:stop], np.arange(start, stop))


def home(cells: Array, ids: Array) -> Array:
    """First cell to look at, (n,) int64: multiplicative hashing of both halves of the id."""
    bits = ids.view(np.uint64)
    hashed = (bits ^ (bits >> _HALF)) * _MULTIPLIER
    cell: Array = (hashed >> np.uint64(65 - len(cells).bit_length())).view(np.int64)
    return cell


def _claim_block(cells: Array, ids: Array, positions: Array) -> None:
    """Give each position the first free cell of its id's probe sequence.

    Several may write one free cell: the last one keeps it and the others see it taken, and move on.
    """
    cell = home(cells, ids)
    entry = positions.astype(cells.dtype)
    probe = 0
    while entry.size:
        free = cells.take(cell, mode="clip") == ABSENT
        cells[cell[free]] = entry[free]
        lost = np.flatnonzero(cells.take(cell, mode="clip") != entry)
        probe += 1
        entry, cell = entry[lost], (cell[lost] + probe) & (len(cells) - 1)


def _is_other(found: Array, wanted: Array, ids: Array) -> Array:
    """Where a cell is taken by another id, so the search goes on."""
    if not len(ids):
        return np.zeros(len(wanted), np.bool_)
    other: Array = (found != ABSENT) & (ids.take(found, mode="clip") != wanted)
    return other
