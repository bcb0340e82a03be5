"""Reading ahead: a thread that fills a bounded buffer."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")

#: seconds to wait for a thread that was told to stop; it may be inside the user's code, where nothing can stop it
_PATIENCE: Final = 1.0


class _Buffer(Generic[T]):
    """Up to ``capacity`` items between one thread that puts and one that takes; 0 or less: any number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None

    def put(self, item: T) -> bool:
        """Add an item when there is room; False when nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._capacity <= 0 or len(self._items) < self._capacity)
            if self._ended:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """No more items; ``error`` is raised behind the last."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def take(self) -> T:
        """The next item when it is there. Raises the error of `end` once, and StopIteration then."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._items)
            if self._items:
                self._changed.notify_all()
                return self._items.popleft()
            error, self._error = self._error, None
        raise StopIteration if error is None else error

    def __len__(self) -> int:
        return len(self._items)

    def peek(self) -> T | None:
        with self._changed:
            return self._items[0] if self._items else None

    def close(self) -> None:
        """Drop everything; whoever waits goes on."""
        with self._changed:
            self._ended, self._error = True, None
            self._items.clear()
            self._changed.notify_all()


class Background(Generic[T]):
    """An iterator over ``source`` that a thread runs ahead of by up to ``capacity`` items (0: without limit).

    What the source raises is raised here, behind the items before it, with the source's traceback. The thread ends when
    the source does, at `close`, when nobody holds the iterator any more, and at the end of the process; then a source
    that is a generator is closed in its thread. ``interrupt`` is called first: it may end what the source waits for.
    """

    def __init__(self, source: Iterable[T], capacity: int, interrupt: Callable[[], None] | None = None) -> None:
        self._buffer: _Buffer[T] = _Buffer(capacity)
        thread = threading.Thread(target=_fill, args=(self._buffer, source), name="fluidlite reader", daemon=True)
        self._finish = weakref.finalize(self, _finish, self._buffer, thread, interrupt)
        thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._buffer.take()

    def ready(self) -> int:
        """How many items are there already."""
        return len(self._buffer)

    def peek(self) -> T | None:
        """The item that `next` will return if it is there already, else None; waits for nothing."""
        return self._buffer.peek()

    def close(self) -> None:
        """Stop reading ahead. Idempotent; afterwards there are no more items."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def interleaved(sources: Sequence[Background[T]]) -> Iterator[T]:
    """An item of each source in turn, of those that have any left. Closes all of them at the end."""
    left = list(sources)
    try:
        while left:
            for source in tuple(left):
                try:
                    item = next(source)
                except StopIteration:
                    left.remove(source)
                else:
                    yield item
    finally:
        for source in sources:
            source.close()


def _fill(buffer: _Buffer[T], source: Iterable[T]) -> None:
    """The thread: it must not hold the `Background`, which stops it when it is dropped."""
    try:
        with _closed_after(iter(source)) as items:
            for item in items:
                if not buffer.put(item):
                    return
    except BaseException as error:
        buffer.end(error)
    else:
        buffer.end()


@contextmanager
def _closed_after(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Generators are closed at once, not when they are collected: they hold files and processes."""
    try:
        yield items
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _finish(buffer: _Buffer[T], thread: threading.Thread, interrupt: Callable[[], None] | None) -> None:
    buffer.close()
    if interrupt is not None:
        interrupt()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(_PATIENCE)
