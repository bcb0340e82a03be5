"""LocalRows: the rows of servers' tables that a trainer trains by itself, between two exchanges with the servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import TableError
from fluidlite.kernels import put_rows, take_rows
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sparse_table import SparseTable

#: rows that are looked at together when all are
_CHUNK: Final = 1 << 16


class LocalRows:
    """Local copies of rows in ``table``, and what of each the servers have: its *exchanged* value.

    What a row differs from its exchanged value is this trainer's work that no server has yet. A row goes through `touch`
    (it is about to be used), `insert` (it came from its server, once), any number of updates of ``table``, and then, as
    often as it is used, `begin`, `exchange` and `sent`. Rows of ``table`` must come by `touch` only, and ``table`` must not
    be replaced. Not for two threads at a time.
    """

    def __init__(self, table: SparseTable) -> None:
        self.table = table
        #: by position in the table: the exchanged value, whether there is one, whether `touch` named it since `sent`
        self._exchanged = np.empty((0, table.width), table.dtype)
        self._known = np.zeros(0, bool)
        self._touched = np.zeros(0, bool)
        #: by position: where `touch` saw the row first
        self._first = np.empty(0, np.int64)
        #: (positions, the servers' values before) of deltas that are counted as exchanged and may not have arrived
        self._under_way: list[tuple[Array, Array]] = []

    def __len__(self) -> int:
        """Rows with a value of the servers."""
        return int(np.count_nonzero(self._known))

    def touch(self, ids: Array) -> Array:
        """Rows ``ids`` (n,) int64 will be used: those that must be fetched first, (m,), each once."""
        positions = self.table.positions(ids, create=True)
        self._reserve(len(self.table))
        self._touched[positions] = True
        unknown = np.flatnonzero(~self._known[positions])
        missing = positions[unknown]
        self._first[missing[::-1]] = unknown[::-1]
        missing_ids: Array = ids[unknown[self._first[missing] == unknown]]
        return missing_ids

    def insert(self, rows: SelectedRows) -> None:
        """Rows that were missing, distinct, as the servers have them."""
        positions = self._find(rows.rows)
        fresh = np.ascontiguousarray(rows.value)
        self.table.write(positions, fresh)
        put_rows(self._exchanged, positions, fresh)
        self._known[positions] = True

    def begin(self, everything: bool = False) -> Array:
        """The rows to exchange, (n,) ids: those touched since the last `sent`; ``everything``: all that gained anything."""
        for positions, fresh in self._under_way:
            put_rows(self._exchanged, positions, fresh)
        self._under_way = []
        positions = self._changed() if everything else np.flatnonzero(self._touched & self._known)
        return self.table.ids[positions]

    def exchange(self, rows: SelectedRows, share: float) -> SelectedRows:
        """Give and take. ``rows``: distinct rows as the servers have them. What others did to these since the last exchange
        is added to the local ones. What these gained meanwhile, times ``share``, is returned, to be sent; it counts as
        exchanged, unless `begin` comes before `sent`."""
        positions = self._find(rows.rows)
        fresh = np.ascontiguousarray(rows.value)
        local, before = self.table.read(positions), take_rows(self._exchanged, positions)
        gained = local - before
        if share != 1:
            gained *= np.asarray(share, gained.dtype)
        others = np.subtract(fresh, before, out=before)
        if others.any():
            local += others
            self.table.write(positions, local)
        put_rows(self._exchanged, positions, fresh + gained)
        self._under_way.append((positions, fresh))
        return SelectedRows(rows.rows, gained, self.table.height)

    def sent(self) -> None:
        """What `exchange` returned has arrived."""
        self._under_way = []
        self._touched[:] = False

    def forget(self) -> None:
        """The servers' rows were replaced: each is fetched again before it is used, and what was not sent is dropped."""
        self._known[:] = False
        self._touched[:] = False
        self._under_way = []

    def _changed(self) -> Array:
        """Positions of the rows that are not what the servers have."""
        return np.concatenate([np.empty(0, np.int64), *self._changed_parts()])

    def _changed_parts(self) -> Iterator[Array]:
        for start in range(0, len(self.table), _CHUNK):
            part = np.arange(start, min(start + _CHUNK, len(self.table)))
            part = part[self._known[part]]
            yield part[(self.table.read(part) != self._exchanged[part]).any(axis=1)]

    def _find(self, ids: Array) -> Array:
        positions = self.table.positions(ids, create=False)
        if len(positions) and positions.min() < 0:
            raise TableError(f"row {ids[positions.argmin()]} of {self.table.name!r} was not asked for")
        return positions

    def _reserve(self, rows: int) -> None:
        """Room for so many rows; twice what there is, so that growing costs little."""
        have = len(self._known)
        if rows <= have:
            return
        more = max(rows - have, have, 1024)
        self._known = np.concatenate([self._known, np.zeros(more, bool)])
        self._touched = np.concatenate([self._touched, np.zeros(more, bool)])
        self._first = np.empty(have + more, np.int64)
        grown = np.empty((have + more, self.table.width), self.table.dtype)
        grown[:have] = self._exchanged
        self._exchanged = grown
