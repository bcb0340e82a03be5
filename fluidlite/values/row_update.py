"""RowUpdate: an optimizer's formula applied to some records of a matrix, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.values.row_kernels import put_rows, take_rows

#: ``step(value, gradient, *accumulators)`` changes value and accumulators, each (n, width), in place
RowStep = Callable[..., None]
#: (first element in the record, width) of the value or of an accumulator
Span = tuple[int, int]

#: rows updated at a time: their records stay in the cache
_BLOCK: Final = 2048


class RowUpdate:
    """Buffers for one block of records and of their parts, reused from step to step. Not thread-safe.

    ``spans`` are the parts of a record that ``step`` is given, the value first. Each is copied into a matrix of its own,
    on which formulas run faster than on columns of the records; a record that is all value needs no copy.
    """

    def __init__(self, record_width: int, dtype: np.dtype[Any], spans: Sequence[Span]) -> None:
        self.spans = tuple(spans)
        self._records = np.empty((_BLOCK, record_width), dtype)
        alone = self.spans == ((0, record_width),)
        self._parts = [self._records] if alone else [np.empty((_BLOCK, width), dtype) for _, width in self.spans]
        self._copied = () if alone else tuple(zip(self.spans, self._parts, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return self._records.nbytes + sum(part.nbytes for _, part in self._copied)

    def run(self, matrix: Array, rows: Array, gradient: Array, step: RowStep) -> None:
        """``step`` on the records of ``matrix`` at ``rows`` (n,), distinct, with ``gradient`` (n, width).

        When ``step`` raises, the blocks before it stay changed and the others as they were.
        """
        for first in range(0, len(rows), _BLOCK):
            block = rows[first : first + _BLOCK]
            n = len(block)
            records = take_rows(matrix, block, self._records[:n])
            for (start, width), part in self._copied:
                part[:n] = records[:, start : start + width]
            value, *state = [part[:n] for part in self._parts]
            step(value, gradient[first : first + n], *state)
            for (start, width), part in self._copied:
                records[:, start : start + width] = part[:n]
            put_rows(matrix, block, records)
