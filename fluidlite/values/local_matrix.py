"""LocalMatrix: a parameter that a trainer holds whole and exchanges with its servers row by row."""

from __future__ import annotations

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import put_rows, take_rows
from fluidlite.values.selected_rows import SelectedRows


class LocalMatrix:
    """What the servers have of the rows of a trainer's matrix (height, width): their *exchanged* values.

    As `LocalRows` of a table, but every row is here from the start. The matrix itself is handed in by who changes it.
    """

    def __init__(self, matrix: Array) -> None:
        #: (rows, the servers' values before) of deltas that are counted as exchanged and may not have arrived
        self._under_way: list[tuple[Array, Array]] = []
        self.replace(matrix)

    @property
    def height(self) -> int:
        """Number of rows."""
        return len(self._touched)

    def touch(self, ids: Array) -> None:
        """Rows ``ids`` (n,), in range, will be used."""
        self._touched[ids] = True

    def begin(self, matrix: Array, everything: bool = False) -> Array:
        """The rows to exchange, (n,): those touched since the last `sent`; ``everything``: all that gained anything."""
        for rows, fresh in self._under_way:
            put_rows(self._exchanged, rows, fresh)
        self._under_way = []
        return np.flatnonzero((matrix != self._exchanged).any(axis=1) if everything else self._touched)

    def exchange(self, matrix: Array, rows: SelectedRows, share: float) -> SelectedRows:
        """As `LocalRows.exchange`; changes ``matrix``."""
        at, fresh = np.ascontiguousarray(rows.rows), np.ascontiguousarray(rows.value)
        local, before = take_rows(matrix, at), take_rows(self._exchanged, at)
        gained = local - before
        if share != 1:
            gained *= np.asarray(share, gained.dtype)
        others = np.subtract(fresh, before, out=before)
        if others.any():
            local += others
            put_rows(matrix, at, local)
        put_rows(self._exchanged, at, fresh + gained)
        self._under_way.append((at, fresh))
        return SelectedRows(rows.rows, gained, self.height)

    def sent(self) -> None:
        """What `exchange` returned has arrived."""
        self._under_way = []
        self._touched[:] = False

    def replace(self, matrix: Array) -> None:
        """The servers' rows were replaced by those of ``matrix``; what was not sent is dropped."""
        self._exchanged = matrix.copy()
        self._touched = np.zeros(len(matrix), bool)
        self._under_way = []
