"""RowStore: a matrix that grows at its end without moving."""

from __future__ import annotations

import mmap
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.values.pages_ahead import HUGE_PAGE, PagesAhead

_MIN_ROWS: Final = 16
_PAGE: Final = mmap.PAGESIZE
#: from here on pages are huge: one that is used in part is then little beside the rest
_SMALL: Final = 16 * HUGE_PAGE
#: Of a large store, pages for one in so many of the bytes in use, and at most so many bytes, are populated ahead.
_AHEAD_OF: Final = 20
_MOST_AHEAD: Final = 1 << 26
#: bytes of a row, an id for instance, of which a page holds so many that few pages come
_SMALL_ROW: Final = 8
#: below, rows are left to numpy
_LEAST: Final = 1 << 20
#: Linux's value on these machines; the name is in `mmap` from Python 3.13 on
_NORESERVE: Final[int] = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0)


class RowStore:
    """Rows of ``width`` elements of ``dtype`` in one C-contiguous ``array`` (capacity, width).

    Above 1 MB it takes address space for as many rows as the machine has memory for, without memory behind it; pages
    come when rows are written, so growing never copies again. Below, and where the system refuses (limits on address
    space or overcommit, systems other than Linux), room is doubled and rows are copied. The elements behind the rows in
    use are undefined. Not thread-safe.
    """

    __slots__ = ("_ahead", "_small_pages", "array")

    def __init__(self, width: int, dtype: np.dtype[Any]) -> None:
        self.array: Array = np.empty((0, width), dtype)
        #: pages of a reserved array, as long as it is too small for huge ones
        self._small_pages: mmap.mmap | None = None
        #: of a reserved array, once its pages are huge
        self._ahead: PagesAhead | None = None

    def reserve(self, rows: int, used: int) -> bool:
        """Room for ``rows`` rows; the first ``used`` stay. Views of ``array`` taken before are no longer part of it.

        Answers whether writing them will wait for a huge page that should be there already and is not.
        """
        if rows > len(self.array):
            old = self.array
            self._make_room(rows)
            self.array[:used] = old[:used]
        if self._small_pages is not None and self._bytes(used) > _SMALL:
            # The first pages hold the ids that come most often; the system joins them into huge ones by and by.
            _ask_for_huge_pages(self._small_pages, 0)
            self._small_pages = None
            self._ahead = PagesAhead(self.array, self._bytes(used), rare=self._bytes(1) <= _SMALL_ROW)
        if self._ahead is None:
            return False
        size = self._bytes(rows)
        self._ahead.ask(size, min(size + min(size // _AHEAD_OF, _MOST_AHEAD), self.array.nbytes))
        return self._ahead.lacks(self._bytes(used), size)

    def nbytes(self, used: int) -> int:
        """Bytes of the pages that ``used`` rows take, and of those ahead; the rest is address space, not memory."""
        size = self._bytes(used)
        if size <= _SMALL:
            return -(-size // _PAGE) * _PAGE
        return max(-(-size // HUGE_PAGE) * HUGE_PAGE, self._ahead.nbytes if self._ahead else 0)

    def _bytes(self, rows: int) -> int:
        size: int = rows * self.array.shape[1] * self.array.itemsize
        return size

    def _make_room(self, rows: int) -> None:
        """A larger array with undefined rows."""
        old, dtype = self.array, self.array.dtype
        row_bytes = old.shape[1] * dtype.itemsize
        most = _reservable() // row_bytes
        self._ahead = None
        self._small_pages = _reserved(most * row_bytes) if _LEAST // row_bytes < rows <= most else None
        if self._small_pages is None:
            self.array = np.empty((max(rows, 2 * len(old), _MIN_ROWS), old.shape[1]), dtype)
        else:
            self.array = np.ndarray((most, old.shape[1]), dtype, buffer=self._small_pages)


def _reserved(size: int) -> mmap.mmap | None:
    """Private pages that take no memory until they are written; None where the system refuses."""
    if sys.platform != "linux":
        return None
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except (OSError, ValueError, OverflowError):
        return None
    _ask_for_huge_pages(pages, _SMALL)
    return pages


def _ask_for_huge_pages(pages: mmap.mmap, start: int) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE") and start < len(pages):
        try:
            pages.madvise(mmap.MADV_HUGEPAGE, start)
        except OSError:
            return  # a kernel without them; small pages do as well


@cache
def _reservable() -> int:
    """Bytes of address space that a store may take for nothing: those of the memory, or 0 where space is counted."""
    if sys.platform != "linux" or not _NORESERVE:
        return 0
    import resource

    counted = Path("/proc/sys/vm/overcommit_memory")
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY or not counted.exists():
        return 0
    if counted.read_text().strip() == "2":
        return 0
    return os.sysconf("SC_PHYS_PAGES") * _PAGE
