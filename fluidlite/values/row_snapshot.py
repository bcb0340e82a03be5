"""The rows of a table as they were at one moment, read chunk by chunk while updates go on; and which rows changed since.

A snapshot copies nothing when it is made. Records that an update is about to change and that were not read yet are put
aside first, so a snapshot holds one chunk and what was put aside, never a copy of the table.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import take_rows
from fluidlite.values.initial import RowInit

log: Final = logging.getLogger("fluidlite")
#: bytes put aside that stay in memory: this many, or one in so many of the table's; more go to a temporary file
_LEAST_ASIDE: Final = 1 << 22
_ASIDE_OF: Final = 32


class RowChunk(NamedTuple):
    """Rows with all that belongs to them: ``ids`` (n,) int64, ``records`` (n, record width) of the table's dtype."""

    ids: Array
    records: Array


class ColumnPlace(NamedTuple):
    """Where an accumulator lies in a record, and what a new row gets."""

    name: str
    start: int
    width: int
    fill: float


class TableFacts(NamedTuple):
    """What a table was declared to be."""

    name: str
    width: int
    dtype: np.dtype[Any]
    height: int
    seed: int
    init: RowInit
    columns: tuple[ColumnPlace, ...]


class ChangedRows:
    """Which of the first ``rows`` records were written since the cut called ``since``; later ones all are new."""

    def __init__(self, since: str, rows: int) -> None:
        self.since = since
        #: the last one stands for all rows made later
        self._flags: Array = np.zeros(rows + 1, np.bool_)

    def mark(self, positions: Array) -> None:
        """The records at ``positions`` (n,) int64 change."""
        self._flags[np.minimum(positions, len(self._flags) - 1)] = True

    def unchanged(self, rows: int) -> Array:
        """(rows,) bool: the records that stayed as they were."""
        known = len(self._flags) - 1
        same = np.zeros(rows, np.bool_)
        np.logical_not(self._flags[:known], out=same[:known])
        return same


class RowSnapshot:
    """Records of ``array`` (capacity, record width), the first ``rows`` of them or those not in ``given``, as they are now.

    Once the table writes to another array the old one no longer changes, and the snapshot simply goes on reading it.
    ``count`` rows come. Thread-safe by the table's ``lock``; `close` ends it early.
    """

    def __init__(
        self, facts: TableFacts, ids: Array, array: Array, given: Array, since: str | None, watch: RowWatch
    ) -> None:
        self.facts = facts
        #: the cut since which these rows changed; None where all rows come
        self.since = since
        self.rows = len(given)
        self.count = self.rows - int(np.count_nonzero(given))
        self.record_width: int = array.shape[1]
        self._ids = ids
        self._array = array
        #: which records were read or put aside; the last one stands for all rows made later
        self._given = np.append(given, True)
        self._next = 0
        record = self.record_width * array.itemsize
        self._aside = _Aside(self.record_width, array.dtype, max(_LEAST_ASIDE, self.rows * record // _ASIDE_OF))
        self._watch = watch

    def keep(self, array: Array, positions: Array) -> None:
        """Called by the table, under its lock, before the records of ``array`` at ``positions`` (n,), distinct, change."""
        if array is not self._array:
            return
        mine = positions[~self._given[np.minimum(positions, self.rows)]]
        if len(mine):
            self._given[mine] = True
            self._aside.put(mine, take_rows(array, mine))

    def take(self, most: int) -> RowChunk | None:
        """The next at most ``most`` rows, in no particular order; None when all were given."""
        with self._watch.lock:
            chunk = self._from_aside(most) if self._aside.rows >= most else self._from_array(most)
            chunk = chunk or self._from_aside(most)
            if chunk is None:
                self._end()
            return chunk

    def close(self) -> None:
        """Give nothing more. Idempotent."""
        with self._watch.lock:
            self._next = self.rows
            self._end()

    def _end(self) -> None:
        self._watch.remove(self)
        self._aside.close()
        self._array = self._ids = self._given = np.empty(0)

    def _from_aside(self, most: int) -> RowChunk | None:
        if not self._aside.rows:
            return None
        positions, records = self._aside.take(most)
        return RowChunk(self._ids[positions], records)

    def _from_array(self, most: int) -> RowChunk | None:
        parts: list[Array] = []
        room = most
        while self._next < self.rows and room:
            first, last = self._next, min(self._next + room, self.rows)
            self._next = last
            fresh = ~self._given[first:last]
            self._given[first:last] = True
            if room == most and fresh.all():
                return RowChunk(self._ids[first:last].copy(), self._array[first:last].copy())
            parts.append(np.flatnonzero(fresh) + first)
            room -= len(parts[-1])
        positions = np.concatenate([np.empty(0, np.int64), *parts])
        return RowChunk(self._ids[positions], self._array[positions]) if len(positions) else None


class RowWatch:
    """Who must hear of records before they change: snapshots that are still read, and the marks of changed rows.

    ``lock`` is the table's.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self._snapshots: list[RowSnapshot] = []
        self._changed: ChangedRows | None = None

    def before_write(self, array: Array, positions: Array | slice, *, repeated: bool = False) -> None:
        """The records of ``array`` at ``positions`` are about to change; a position may come again where ``repeated``."""
        if self._changed is None and not self._snapshots:
            return
        if isinstance(positions, slice):
            positions = np.arange(positions.stop)
        elif repeated:
            positions = np.unique(positions)
        if self._changed is not None:
            self._changed.mark(positions)
        for snapshot in self._snapshots:
            snapshot.keep(array, positions)

    def forget_changes(self) -> None:
        """Records are laid out anew, or rows go: what changes cannot be told apart until the next cut."""
        self._changed = None

    def cut(self, facts: TableFacts, ids: Array, array: Array, since: str | None, name: str | None) -> RowSnapshot:
        """A snapshot of the rows ``ids`` (n,), the first ones of ``array``: of those that changed since the cut ``since``
        where that is known, else of all. From now on changes since this cut, ``name``, are marked (None: they are not).
        """
        rows, changed = len(ids), self._changed
        known = changed is not None and changed.since == since
        given = changed.unchanged(rows) if changed is not None and known else np.zeros(rows, np.bool_)
        snapshot = RowSnapshot(facts, ids, array, given, since if known else None, self)
        self._changed = None if name is None else ChangedRows(name, rows)
        self._snapshots.append(snapshot)
        return snapshot

    def remove(self, snapshot: RowSnapshot) -> None:
        """The snapshot needs nothing more."""
        with suppress(ValueError):
            self._snapshots.remove(snapshot)


class _Aside:
    """A queue of records with their positions; ``most_bytes`` of records stay in memory, others go to a temporary file."""

    def __init__(self, record_width: int, dtype: np.dtype[Any], most_bytes: int) -> None:
        self.rows = 0
        self._record_width = record_width
        self._dtype = dtype
        self._room = most_bytes
        self._blocks: deque[tuple[Array, Array | int]] = deque()
        self._file: IO[bytes] | None = None

    def put(self, positions: Array, records: Array) -> None:
        self.rows += len(positions)
        where: Array | int = records
        if records.nbytes > self._room:
            where = self._spilled(records)
        if where is records:
            self._room -= records.nbytes
        self._blocks.append((positions, where))

    def take(self, most: int) -> tuple[Array, Array]:
        """At most ``most`` records, one at least; first in, first out."""
        positions: list[Array] = []
        records: list[Array] = []
        count = 0
        while self._blocks and (not count or count + len(self._blocks[0][0]) <= most):
            found, where = self._blocks.popleft()
            values = self._read(where, len(found)) if isinstance(where, int) else where
            if len(found) > most:
                self._blocks.appendleft((found[most:], values[most:]))
                found, values = found[:most], values[:most]
            self._room += values.nbytes
            count += len(found)
            positions.append(found)
            records.append(values)
        self.rows -= count
        return _joined(positions), _joined(records)

    def close(self) -> None:
        self.rows = 0
        self._blocks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spilled(self, records: Array) -> Array | int:
        """Where the records are in the file; themselves where no file can be had, for an update must not fail of that."""
        try:
            self._file = self._file or tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (until the snapshot ends)
            offset = self._file.seek(0, 2)
            if self._file.write(records.data) == records.nbytes:
                return offset
        except OSError as error:
            log.warning("a snapshot keeps changed rows in memory, for it gets no file: %s", error)
        return records

    def _read(self, offset: int, rows: int) -> Array:
        assert self._file is not None
        records = np.empty((rows, self._record_width), self._dtype)
        self._room -= records.nbytes
        self._file.seek(offset)
        view = records.data.cast("B")
        while view:
            got = self._file.readinto(view)  # type: ignore[attr-defined]
            if not got:
                raise OSError("a temporary file lost records of a snapshot")
            view = view[got:]
        return records


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
