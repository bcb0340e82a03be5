"""SparseTable: rows by id, made on first touch; TableColumn: an accumulator that lives in the table's rows."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array, numpy_dtype
from fluidlite.errors import TableError
from fluidlite.kernels import ABSENT, put_parts, take_parts
from fluidlite.values.found_lists import FoundLists
from fluidlite.values.initial import RowInit, RowStream, first_values
from fluidlite.values.lazy_rows import LazyRows
from fluidlite.values.row_decay import Decay
from fluidlite.values.row_index import RowIndex
from fluidlite.values.row_snapshot import ColumnPlace, RowSnapshot, RowWatch, TableFacts
from fluidlite.values.row_store import RowStore
from fluidlite.values.row_update import RowStep, RowUpdate, Span
from fluidlite.values.selected_rows import SelectedRows, merge_rows, unique_ids

__all__ = ["RowStep", "SparseTable", "TableColumn"]

#: of a row: far above any real one, low enough that one row cannot exhaust a machine
_MOST_WIDTH: Final = 1 << 20


class SparseTable:
    """Rows of ``width`` floats by id, auto-grown: a row is made by ``init`` when its id is first used.

    An id is any int64. A row and its accumulators form one record, records lie in one array in the order in which ids
    came, and `RowIndex` finds them. ``height`` is only what the program declared: it goes into exported SelectedRows,
    nothing is ever allocated by it and ids may exceed it.

    Every method may be called from any thread. There is one lock, and each method is one critical section under it, so
    what threads do equals what they would do one after the other in some order; what a method returns is a copy, never a
    view. An optimizer's ``step`` runs under the lock: it must not wait for a thread that uses the table. Positions are
    found in one critical section and used in another: `replace` in between makes them wrong.

    Raises TableError for ``width`` < 1, a dtype other than float32 and float64, and an ``init`` that does not fit.
    """

    def __init__(self, name: str, width: int, dtype: object, init: RowInit, seed: int = 0, height: int = 0) -> None:
        self.name = name
        self.width = _checked_width(name, width)
        self.dtype = _checked_dtype(name, dtype)
        self.height = height
        self.init = init
        self.seed = seed
        self._lock = threading.RLock()
        self._index = RowIndex()
        self._found = FoundLists()
        self._stream = RowStream(seed, name, width)
        self._columns: list[TableColumn] = []
        self._store = RowStore(width, self.dtype)
        self._updater: RowUpdate | None = None
        self._watch = RowWatch(self._lock)
        #: where rows are regularised lazily: the bookkeeping, and its place in the records
        self._lazy: LazyRows | None = None
        self._marks: TableColumn | None = None
        init.rows(np.empty(0, np.int64), self._stream)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._index)

    def __repr__(self) -> str:
        return f"SparseTable({self.name!r}, width={self.width}, dtype={self.dtype}, rows={len(self)})"

    @property
    def ids(self) -> Array:
        """A copy of the ids, (len,) int64, in the order in which their rows were made."""
        with self._lock:
            return self._index.ids.copy()

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The accumulators, in the order in which they were attached."""
        return tuple(column for column in self._columns if column is not self._marks)

    @property
    def nbytes(self) -> int:
        """Bytes in use for rows, accumulators, index and buffers. Room beyond the last row is address space, not memory."""
        with self._lock:
            buffers = self._updater.nbytes if self._updater else 0
            return self._store.nbytes(len(self._index)) + self._index.nbytes + buffers

    def lookup(self, ids: Array, read_only: bool = False) -> Array:
        """Copies of rows, (n, width); ``ids`` of any shape with n elements.

        Missing rows are made, or with ``read_only`` answered by the default, zeros, without making anything.
        """
        wanted = self._as_ids(ids)
        with self._lock:
            positions = self.positions(wanted, create=not read_only)
            if not read_only or (known := positions != ABSENT).all():
                return self._part(positions, None)
            out = np.zeros((len(wanted), self.width), self.dtype)
            out[known] = self._part(positions[known], None)
            return out

    def positions(self, ids: Array, create: bool) -> Array:
        """Position of each row, (n,) int64; missing rows are made (``create``) or answered by -1.

        Positions are 0, 1, 2, ... in the order in which rows are made and stay valid until `replace`.
        """
        wanted = self._as_ids(ids)
        with self._lock:
            return self._find_or_make(wanted) if create else self._index.find(wanted)

    def read(self, positions: Array, column: TableColumn | None = None) -> Array:
        """Copies of the values, or of one accumulator, of the rows at ``positions`` (n,): (n, width)."""
        with self._lock:
            return self._part(self._checked_positions(positions), column)

    def write(self, positions: Array, values: Array, column: TableColumn | None = None) -> None:
        """Overwrite the values, or one accumulator, of the rows at ``positions`` (n,) with ``values`` (n, width)."""
        with self._lock:
            start, width = self._span(column)
            self._check_values(values, len(positions), width, column.name if column else self.name)
            self._settle(self._checked_positions(positions))
            self._watch.before_write(self._records, positions, repeated=True)
            put_parts(self._records, positions, start, values)

    def update(self, gradient: SelectedRows, columns: Sequence[TableColumn], step: RowStep) -> None:
        """One optimizer step on the rows of ``gradient``: read, ``step``, write, in one critical section.

        Duplicate ids are summed first; missing rows are made; ``columns`` are attached when they are new. ``step`` is
        called for blocks of rows.
        """
        if len(gradient.rows):
            self._check_values(gradient.value, len(gradient.rows), self.width, f"the gradient of {self.name}")
            gradient = merge_rows(SelectedRows(self._as_ids(gradient.rows), gradient.value, gradient.height))
        with self._lock:
            for column in columns:
                self.attach(column)
            if len(gradient.rows):
                positions = self._find_or_make(gradient.rows)
                self._settle(positions)
                updater = self._updater_of([self._span(None), *(self._span(column) for column in columns)])
                self._watch.before_write(self._records, positions)
                updater.run(self._records, positions, gradient.value, step)

    def tick(self, decay: Decay, columns: Sequence[TableColumn], rate: float, done: Array | None = None) -> None:
        """One step of lazy regularisation: every row takes the step of ``decay`` at a learning rate, when it is next used.

        ``columns`` are the accumulators that the rule moves. ``done``: ids of rows whose share of the step the optimizer
        has taken. Another rule than before takes over from here. Raises TableError for a rate below 0, NaN or infinite.
        """
        if not 0.0 <= rate < float("inf"):
            raise TableError(
                f"table {self.name!r} cannot decay at the learning rate {rate}: it must be finite, 0 or more"
            )
        with self._lock:
            for column in columns:
                self.attach(column)
            if self._lazy is None or self._lazy.decay != decay:
                self._lazy = self._begin_lazy(decay, columns)
            self._lazy.tick(self._records, len(self._index), rate, self._known(done) if done is not None else None)

    def settle(self) -> None:
        """Bring every row up to date where rows are regularised lazily, and begin the bookkeeping anew: nothing but the
        rows and their accumulators has then to be kept."""
        with self._lock:
            if self._lazy is not None:
                self._lazy.settle_all(self._records, len(self._index))

    def attach(self, column: TableColumn) -> None:
        """Give every record room for an accumulator; rows that exist get its fill. Attaching again does nothing.

        A new column of a known name stands for the accumulator initialised anew, and replaces it.
        """
        with self._lock:
            if column.table is self:
                return
            if column.table is not None:
                raise TableError(
                    f"accumulator {column.name!r} belongs to table {column.table.name!r}, not to {self.name!r}"
                )
            if column.dtype != self.dtype:
                raise TableError(
                    f"accumulator {column.name!r} is {column.dtype}, its table {self.name!r} is {self.dtype}"
                )
            self._place(column)
            column.bind(self)

    def export(self) -> SelectedRows:
        """Every id and row, in the order in which rows were made; copies."""
        return self.export_column(None)

    def export_column(self, column: TableColumn | None) -> SelectedRows:
        """Every id with its value, or with one accumulator."""
        with self._lock:
            self.settle()
            start, width = self._span(column)
            values = self._records[: len(self._index), start : start + width].copy()
            return SelectedRows(self._index.ids.copy(), values, self.height)

    def replace(self, rows: SelectedRows) -> None:
        """Forget every row and take those of ``rows``; the accumulators of ids that were there before stay, as those of a
        dense parameter would. Positions found before are no longer valid."""
        with self._lock:
            self._check_values(rows.value, len(rows.rows), self.width, self.name)
            before = [(column, column.export()) for column in self.columns]
            self._watch.forget_changes()
            self._index = RowIndex()
            self._found.forget()
            self._store = RowStore(self._record_width, self.dtype)
            self.load(rows)
            for column, state in before:
                stay = np.isin(state.rows, rows.rows)
                column.load(SelectedRows(state.rows[stay], state.value[stay], state.height))

    def load(self, rows: SelectedRows) -> None:
        """Overwrite the rows of ``rows`` (made when missing); others stay. Of an id given twice the later row counts."""
        self.load_column(rows, None)

    def load_column(self, rows: SelectedRows, column: TableColumn | None) -> None:
        """Overwrite values, or one accumulator, of the rows of ``rows``; missing rows are made."""
        with self._lock:
            _, width = self._span(column)
            self._check_values(rows.value, len(rows.rows), width, column.name if column else self.name)
            self.write(self.positions(rows.rows, create=True), rows.value, column)

    def load_records(self, ids: Array, parts: Mapping[TableColumn | None, Array]) -> None:
        """Overwrite rows ``ids`` (n,), distinct, made when missing, with their values (None) and accumulators, (n, width)
        each, in one critical section. Other accumulators stay."""
        with self._lock:
            for column, values in parts.items():
                self._check_values(values, len(ids), self._span(column)[1], column.name if column else self.name)
            positions, new = self._index.find_or_number(ids)
            if len(new):
                self._make(new, np.zeros((1, self.width), self.dtype))
            for column, values in parts.items():
                self.write(positions, values, column)

    def snapshot(self, since: str | None = None, name: str | None = None) -> RowSnapshot:
        """The rows as they are now, to be read while updates go on. See `row_snapshot.RowWatch.cut`."""
        with self._lock:
            self.settle()
            places = tuple(ColumnPlace(c.name, c.start, c.width, c.fill) for c in self.columns)
            facts = TableFacts(self.name, self.width, self.dtype, self.height, self.seed, self.init, places)
            return self._watch.cut(facts, self._index.ids, self._records, since, name)

    @property
    def _records(self) -> Array:
        return self._store.array

    @property
    def _record_width(self) -> int:
        width: int = self._store.array.shape[1]
        return width

    def _part(self, positions: Array, column: TableColumn | None) -> Array:
        """Copies of the values, or of one accumulator, of the rows at ``positions``, up to date."""
        span = self._span(column)
        if self._lazy is not None:
            return self._lazy.read(self._records, positions, span)
        return take_parts(self._records, positions, *span)

    def _settle(self, positions: Array) -> None:
        """Bring the rows at ``positions`` up to date."""
        if self._lazy is not None:
            self._lazy.settle(self._records, positions)

    def _begin_lazy(self, decay: Decay, columns: Sequence[TableColumn]) -> LazyRows:
        """Bookkeeping for a rule, all rows up to date."""
        self.settle()
        width = decay.numbers * np.dtype(np.float64).itemsize // self.dtype.itemsize
        self._marks = TableColumn(f"{self.name}@MARKS{width}", width, 0.0, self.dtype)
        self.attach(self._marks)
        spans = [self._span(column) for column in columns]
        return LazyRows(decay, self._span(self._marks), self._span(None), spans, self._watch.before_write)

    def _known(self, ids: Array) -> Array:
        """Positions, each once, of the rows of ``ids`` that there are."""
        positions = self._index.find(unique_ids(self._as_ids(ids))[0])
        known: Array = positions[positions != ABSENT]
        return known

    def _find_or_make(self, ids: Array) -> Array:
        """Position of each row; missing ones are made in the order in which their ids come first."""
        found = self._found.get(ids)
        if found is not None:
            return found
        positions, new = self._index.find_or_number(ids)
        if len(new):
            self._make(new)
        self._found.put(ids, positions)
        return positions

    def _make(self, ids: Array, values: Array | None = None) -> None:
        """Rows for absent, distinct ids, with ``values`` in the place of first ones where they are given."""
        start, end = len(self._index), len(self._index) + len(ids)
        if values is None:
            values = first_values(self.init, self._stream, ids, self.dtype)
        waits = self._store.reserve(end, used=start)
        self._records[start:end, : self.width] = values
        for column in self._columns:
            at, width = self._span(column)
            self._records[start:end, at : at + width] = column.fill
        if self._lazy is not None:
            self._lazy.mark(self._records, slice(start, end))
        self._index.add(ids, in_haste=waits)

    def _widen(self, record_width: int) -> None:
        """Lay the records out anew; the columns known so far keep their place in the record."""
        used, old = len(self._index), self._records
        self._updater = None
        self._watch.forget_changes()
        self._store = RowStore(record_width, self.dtype)
        self._store.reserve(used, used=0)
        self._records[:used, : old.shape[1]] = old[:used]

    def _updater_of(self, spans: list[Span]) -> RowUpdate:
        """The buffers of the last update where this one has the same parts, as those of a table mostly do."""
        if self._updater is None or self._updater.spans != tuple(spans):
            self._updater = RowUpdate(self._record_width, self.dtype, spans)
        return self._updater

    def _place(self, column: TableColumn) -> None:
        """A place in the record, that of its predecessor of the same name or a new one, filled."""
        old = next((known for known in self._columns if known.name == column.name), None)
        if old is None:
            column.start = self._record_width
            self._widen(column.start + column.width)
            self._columns.append(column)
        elif old.width != column.width:
            raise TableError(
                f"accumulator {column.name!r} of table {self.name!r} has width {old.width}, not {column.width}"
            )
        else:
            column.start = old.start
            old.bind(None)
            self._columns[self._columns.index(old)] = column
        self._watch.before_write(self._records, slice(len(self._index)))
        self._records[: len(self._index), column.start : column.start + column.width] = column.fill

    def _span(self, column: TableColumn | None) -> Span:
        """(first element of a record, width) of the value, or of an accumulator."""
        if column is None:
            return 0, self.width
        if column.table is not self:
            raise TableError(f"accumulator {column.name!r} is not attached to table {self.name!r}")
        return column.start, column.width

    def _as_ids(self, ids: Array) -> Array:
        """Ids as contiguous (n,) int64; uint64 ones by their bits."""
        flat = np.asarray(ids).reshape(-1)
        if flat.dtype == np.uint64:
            return np.ascontiguousarray(flat).view(np.int64)
        if flat.dtype.kind not in "iu" and flat.size:
            raise TableError(f"ids of table {self.name!r} are {flat.dtype}, not integers")
        return np.ascontiguousarray(flat, np.int64)

    def _checked_positions(self, positions: Array) -> Array:
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self._index)):
            raise TableError(f"position outside the {len(self._index)} rows of table {self.name!r}")
        return positions

    def _check_values(self, values: Array, rows: int, width: int, what: str) -> None:
        if values.shape != (rows, width) or values.dtype != self.dtype:
            raise TableError(
                f"{what!r} needs values of shape [{rows}, {width}] and dtype {self.dtype}, got {list(values.shape)} {values.dtype}"
            )


class TableColumn:
    """An accumulator of a table: ``width`` floats in each record, ``fill`` in a new row.

    It knows its table once an optimizer op (or a load on the server) attached it. Rows loaded before are kept and
    applied then. Every method may be called from any thread.
    """

    def __init__(self, name: str, width: int, fill: float, dtype: object) -> None:
        self.name = name
        self.width = _checked_width(name, width)
        self.dtype = _checked_dtype(name, dtype)
        self.fill = float(fill)
        #: first element in the record; set by the table
        self.start = 0
        self.table: SparseTable | None = None
        self._waiting: list[SelectedRows] = []
        #: guards table and _waiting together; taken inside a table's lock, never around it
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        table = self.table.name if self.table is not None else None
        return f"TableColumn({self.name!r}, width={self.width}, fill={self.fill}, table={table!r})"

    def bind(self, table: SparseTable | None) -> None:
        """Called by the table: this column is (no longer) part of its records."""
        with self._lock:
            self.table = table
            waiting = self._waiting if table is not None else []
            self._waiting = self._waiting[len(waiting) :]
        for rows in waiting:
            self.load(rows)

    def export(self) -> SelectedRows:
        """Every id of the table with its accumulator; before the column is attached, the rows that were loaded."""
        if self.table is not None:
            return self.table.export_column(self)
        waiting = tuple(self._waiting)
        rows = np.concatenate([np.empty(0, np.int64), *(loaded.rows for loaded in waiting)])
        values = np.concatenate([np.empty((0, self.width), self.dtype), *(loaded.value for loaded in waiting)])
        return SelectedRows(rows, values, max((loaded.height for loaded in waiting), default=0))

    def load(self, rows: SelectedRows) -> None:
        """Overwrite the accumulator of the rows of ``rows``, which are made when missing."""
        with self._lock:
            table = self.table
            if table is None:
                self._waiting.append(rows)
        if table is not None:
            table.load_column(rows, self)


def _checked_width(name: str, width: int) -> int:
    if not 0 < width <= _MOST_WIDTH:
        raise TableError(f"{name!r} has width {width}; a table has 1 to {_MOST_WIDTH} columns")
    return width


def _checked_dtype(name: str, dtype: object) -> np.dtype[Any]:
    found = numpy_dtype(dtype)
    if found not in (np.float32, np.float64):
        raise TableError(f"{name!r} is {found}; tables hold float32 or float64")
    return found
