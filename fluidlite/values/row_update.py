"""RowUpdate: an optimizer's formula applied to some records of a matrix, in one pass or a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import put_rows, take_rows
from fluidlite.kernels.updates import RowStep, update_records

__all__ = ["RowStep", "RowUpdate", "Span"]

#: (first element in the record, width) of the value or of an accumulator
Span = tuple[int, int]

#: rows updated at a time: their records stay in the cache
_BLOCK: Final = 2048


class RowUpdate:
    """Updates of the parts ``spans``, the value first, of records of ``record_width`` elements. Not thread-safe.

    Where there is a kernel for the step it runs in one pass. Else each part of a block of records is copied into a
    matrix of its own, on which formulas run faster than on columns of the records; a record that is all value needs no
    copy. The buffers for that are made when they are first needed and reused from step to step.
    """

    def __init__(self, record_width: int, dtype: np.dtype[Any], spans: Sequence[Span]) -> None:
        self.spans = tuple(spans)
        self._record_width = record_width
        self._dtype = dtype
        self._starts = tuple(start for start, _ in self.spans)
        self._alike = len({width for _, width in self.spans}) == 1
        self._buffers: tuple[Array, list[Array]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        if self._buffers is None:
            return 0
        records, parts = self._buffers
        return records.nbytes + sum(part.nbytes for part in parts if part is not records)

    def run(self, matrix: Array, rows: Array, gradient: Array, step: RowStep) -> None:
        """``step`` on the records of ``matrix`` at ``rows`` (n,), distinct, with ``gradient`` (n, width).

        When ``step`` raises, the blocks before it stay changed and the others as they were.
        """
        if not self._alike or not update_records(step, matrix, rows, gradient, self._starts):
            self._run_blocks(matrix, rows, gradient, step)

    def _run_blocks(self, matrix: Array, rows: Array, gradient: Array, step: RowStep) -> None:
        if self._buffers is None:
            self._buffers = self._make_buffers()
        all_records, parts = self._buffers
        copied = [(span, part) for span, part in zip(self.spans, parts, strict=True) if part is not all_records]
        for first in range(0, len(rows), _BLOCK):
            block = rows[first : first + _BLOCK]
            n = len(block)
            records = take_rows(matrix, block, all_records[:n])
            for (start, width), part in copied:
                part[:n] = records[:, start : start + width]
            value, *state = [part[:n] for part in parts]
            step(value, gradient[first : first + n], *state)
            for (start, width), part in copied:
                records[:, start : start + width] = part[:n]
            put_rows(matrix, block, records)

    def _make_buffers(self) -> tuple[Array, list[Array]]:
        """A block of records, and of each part: the records themselves where they are all value."""
        records = np.empty((_BLOCK, self._record_width), self._dtype)
        if self.spans == ((0, self._record_width),):
            return records, [records]
        return records, [np.empty((_BLOCK, width), self._dtype) for _, width in self.spans]
