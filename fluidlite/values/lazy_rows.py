"""LazyRows: rows of a table that are brought up to date when they are used, and not in the steps that skip them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import put_rows, take_rows
from fluidlite.values.row_decay import Decay
from fluidlite.values.row_update import Span

#: rows brought up at a time: their float64 copies stay in the cache
_BLOCK: Final = 4096


class LazyRows:
    """The bookkeeping of one table and one rule: a clock, and in each record the mark at which it was up to date.

    ``marks``, ``value`` and ``state`` are the parts of a record that hold the mark, its float64 numbers stored by their
    bits, the value, and the accumulators that the rule moves. A table uses it under its lock, and passes its records;
    ``before_write(records, positions)`` is called before some change.
    """

    def __init__(
        self,
        decay: Decay,
        marks: Span,
        value: Span,
        state: Sequence[Span],
        before_write: Callable[[Array, Array], None],
    ) -> None:
        self.decay = decay
        self._before_write = before_write
        self._clock = decay.clock()
        self._marks = marks
        self._parts = (value, *state)

    def mark(self, records: Array, rows: slice) -> None:
        """The records at positions ``rows`` are up to date."""
        start, width = self._marks
        records[rows, start : start + width] = self._clock.now.view(records.dtype)

    def tick(self, records: Array, used: int, rate: float, done: Array | None) -> None:
        """One step of the first ``used`` records at a learning rate, 0 or more. ``done`` (n,): positions of rows that the
        optimizer has updated in this step already."""
        if not self._clock.tick(rate):
            self.settle_all(records, used)
            others = np.ones(used, np.bool_)
            if done is not None:
                others[done] = False
            self._change(records, np.flatnonzero(others), lambda _, *parts: self.decay.step(rate, *parts))
        if done is not None:
            self._change(records, done, lambda _, value, *_state: self.decay.finish(rate, value))
        if self._clock.is_full:
            self.settle_all(records, used)

    def settle(self, records: Array, positions: Array) -> None:
        """Bring the records at ``positions`` (n,) to now."""
        self._change(records, positions, self._clock.carry, behind=True)

    def settle_all(self, records: Array, used: int) -> None:
        """The border: bring the first ``used`` records to now and begin a new clock."""
        self.settle(records, np.arange(used))
        self._clock = self.decay.clock()
        self.mark(records, slice(used))

    def read(self, records: Array, positions: Array, span: Span) -> Array:
        """Copies of part ``span`` of the records at ``positions`` (n,), up to date: (n, width)."""
        found = take_rows(records, positions)
        values = found[:, span[0] : sum(span)].copy()
        marks = self._marks_of(found)
        late = self._late(marks)
        if span in self._parts and len(late):
            parts = self._read(found[late])
            self._clock.carry(marks[late], *parts)
            values[late] = parts[self._parts.index(span)]
        return values

    def _change(self, records: Array, positions: Array, change: Callable[..., None], *, behind: bool = False) -> None:
        """``change(marks, value, *state)`` in float64 on the records at ``positions``, or those of them that are
        ``behind``, which then have the mark of now."""
        for first in range(0, len(positions), _BLOCK):
            block = positions[first : first + _BLOCK]
            found = take_rows(records, block)
            marks = self._marks_of(found)
            if behind and len(late := self._late(marks)) < len(block):
                block, found, marks = block[late], found[late], marks[late]
            if not len(block):
                continue
            self._before_write(records, block)
            parts = self._read(found)
            change(marks, *parts)
            for (start, width), part in zip(self._parts, parts, strict=True):
                found[:, start : start + width] = part
            self.mark(found, slice(len(found)))
            put_rows(records, block, found)

    def _late(self, marks: Array) -> Array:
        """Which of marks (n, numbers) are not those of now: their places."""
        columns = [column != now for column, now in zip(marks.T, self._clock.now, strict=True)]
        return np.flatnonzero(np.logical_or.reduce(columns))

    def _read(self, found: Array) -> list[Array]:
        """Copies of value and accumulators of records (n, record width), each (n, width) float64."""
        return [found[:, start : start + width].astype(np.float64) for start, width in self._parts]

    def _marks_of(self, found: Array) -> Array:
        """The marks of records (n, record width): (n, numbers) float64."""
        start, width = self._marks
        return found[:, start : start + width].copy().view(np.float64)
