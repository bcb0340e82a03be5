"""PagesAhead: pages of growing arrays, touched before they are needed by one thread of the process.

The first touch of a page costs a fault, and on a virtual machine whose host gives memory late, several milliseconds. The
thread lets the system do that through ``madvise`` (MADV_POPULATE_WRITE, Linux 5.14), which never changes what a page
holds. Where it is refused, pages come when they are written, as ever.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from queue import Empty, PriorityQueue
from typing import Final

from fluidlite.dtypes import Array

HUGE_PAGE: Final = 1 << 21
#: Linux's value on every machine
_POPULATE_WRITE: Final = 23
#: seconds after which a thread without work ends
_IDLE: Final = 5.0


class PagesAhead:
    """Whole huge pages of ``array``, which grows through its bytes from ``used`` on. Not thread-safe, but `ready`.

    ``rare`` pages, each of which serves many pushes, come before others that were asked for earlier. The array is not kept alive by the pages that were asked for.
    """

    __slots__ = ("_address", "_array", "_next", "_rare", "ready")

    def __init__(self, array: Array, used: int, rare: bool = False) -> None:
        self._array = weakref.ref(array)
        self._address: int = array.ctypes.data
        self._next = _round_up(self._address + used)
        self._rare = rare
        #: bytes from the start of the array whose pages are there, as far as known
        self.ready = used

    @property
    def nbytes(self) -> int:
        """Bytes from the start of the array up to the last page that was asked for."""
        return self._next - self._address

    def lacks(self, used: int, stop: int) -> bool:
        """Whether who writes the bytes from ``used`` to ``stop`` is the first to touch one of their pages."""
        return max(self.ready, _round_up(self._address + used) - self._address) < stop

    def ask(self, used: int, stop: int) -> None:
        """Have the pages populated that lie wholly within the bytes from ``used`` to ``stop``, in order, some time later."""
        if _populator.refused:
            return
        self._next = max(self._next, _round_up(self._address + used))
        while self._next + HUGE_PAGE <= self._address + stop:
            _populator.put(self, self._next, self._rare)
            self._next += HUGE_PAGE

    def populate(self, page: int) -> bool:
        """Touch the page at the address ``page``, for as long as the array is there; False where the system refuses."""
        array = self._array()
        if array is not None and not _populate(page, HUGE_PAGE):
            return False
        self.ready = page + HUGE_PAGE - self._address
        return True


class _Populator:
    """One thread that populates rare pages first, else in the order in which they were asked for. It starts with the first of them and
    ends when none have come for some seconds."""

    def __init__(self) -> None:
        #: whether the system does not know how, or gives no thread
        self.refused = sys.platform != "linux"
        #: (whether others go first, a running number, whose page, its address)
        self._pages: PriorityQueue[tuple[bool, int, PagesAhead, int]] = PriorityQueue()
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        #: guards _thread, and that nothing is put to a thread that is about to end
        self._lock = threading.Lock()

    def put(self, pages: PagesAhead, page: int, rare: bool = False) -> None:
        with self._lock:
            self._pages.put((not rare, next(self._count), pages, page))
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="fluidlite pages", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.refused = True  # threads are counted, or the interpreter ends; a push does not fail of that
        else:
            self._thread = thread

    def after_fork(self) -> None:
        """The new process has no thread yet; pages that the old one was asked for come when they are written."""
        self._pages, self._thread, self._lock = PriorityQueue(), None, threading.Lock()

    def _run(self) -> None:
        while (asked := self._get()) is not None:
            _, _, pages, page = asked
            if not pages.populate(page):
                self.refused = True

    def _get(self) -> tuple[bool, int, PagesAhead, int] | None:
        """The next page, waited for; None when the thread is to end."""
        try:
            return self._pages.get(timeout=_IDLE)
        except Empty:
            with self._lock:
                if not self._pages.empty():
                    return self._pages.get()
                self._thread = None
                return None


_populator = _Populator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_populator.after_fork)


def _round_up(address: int) -> int:
    return -(-address // HUGE_PAGE) * HUGE_PAGE


def _populate(address: int, size: int) -> bool:
    """False where the system does not know how. Memory that is short is no matter here: who writes will hear of it."""
    return _madvise()(address, size, _POPULATE_WRITE) == 0 or ctypes.get_errno() != errno.EINVAL


@cache
def _madvise() -> Callable[[int, int, int], int]:
    """The system's call; the interpreter's lock is free meanwhile."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    found: Callable[[int, int, int], int] = madvise
    return found
