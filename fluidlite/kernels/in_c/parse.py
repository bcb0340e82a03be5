"""Numbers out of lines of text, in C: see the functions of the same name in `in_numpy`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.kernels import _c
from fluidlite.kernels.in_numpy.parse import Criteo, Slots


def parse_slots(text: bytes, floats: Sequence[bool]) -> Slots | None:
    kinds = np.array(floats, np.bool_)
    values = np.empty(len(text) // 2 + 1, np.int64)
    lengths = np.empty((text.count(b"\n") + 1, len(floats)), np.int64)
    found = _c.parse_slots(text, kinds, values, lengths)
    if found is None:
        return None
    lines, used = found
    return _by_slot(values[:used], lengths[:lines].copy(), kinds)


def _by_slot(values: Array, lengths: Array, kinds: Array) -> Slots:
    totals = lengths.sum(axis=0)
    in_kind = [np.where(kinds == kind, totals, 0) for kind in (False, True)]
    integers = np.empty(int(in_kind[0].sum()), np.int64)
    floating = np.empty(int(in_kind[1].sum()), np.float32)
    starts = np.where(kinds, np.cumsum(in_kind[1]), np.cumsum(in_kind[0])) - totals
    ends = starts.copy()
    _c.split_slots(values, lengths, kinds, ends, integers, floating)
    parts = [
        (floating if kind else integers)[start:end]
        for kind, start, end in zip(kinds.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    return Slots(parts, lengths)


def parse_criteo(
    text: bytes, number_count: int, id_count: int, *, labelled: bool, separator: bytes, missing: float
) -> Criteo | None:
    most = text.count(b"\n") + 1
    labels = np.empty(most, np.float32) if labelled else None
    numbers, ids = np.empty((most, number_count), np.float32), np.empty((most, id_count), np.int64)
    lines = _c.parse_criteo(text, ord(separator), missing, labels, numbers, ids)
    if lines is None:
        return None
    return Criteo(None if labels is None else labels[:lines], numbers[:lines], ids[:lines])
