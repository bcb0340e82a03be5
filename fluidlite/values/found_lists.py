"""Where the rows of the last lists of ids lie: a step's gradients mostly come with the very ids that it looked up."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from fluidlite.dtypes import Array

#: lists kept, and how long they must be to be worth it and may be at most
_KEPT: Final = 4
_LONG: Final = range(1024, 1 << 20)


class FoundLists:
    """Positions by list of ids. A list is known by its place in memory, so only those count that cannot change: views of
    received bytes. Not thread-safe."""

    def __init__(self) -> None:
        self._lists: deque[tuple[int, Array, Array]] = deque(maxlen=_KEPT)

    def put(self, ids: Array, positions: Array) -> None:
        """Remember the positions (n,) of ``ids`` (n,) int64, contiguous, where that is worth it."""
        if len(ids) in _LONG and _cannot_change(ids):
            positions.flags.writeable = False
            self._lists.append((ids.__array_interface__["data"][0], ids, positions))

    def get(self, ids: Array) -> Array | None:
        """The positions (n,) of the very list ``ids``, None when they are not known."""
        if not self._lists or len(ids) not in _LONG:
            return None
        address = ids.__array_interface__["data"][0]
        for known, held, positions in reversed(self._lists):
            if known == address and len(held) == len(ids):
                return positions
        return None

    def forget(self) -> None:
        """Rows moved."""
        self._lists.clear()


def _cannot_change(array: Array) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return isinstance(base, bytes) or (isinstance(base, memoryview) and base.readonly)
