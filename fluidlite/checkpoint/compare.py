"""What differs between two checkpoints, and what one holds of a row; tables of any size, a part of their ids at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from fluidlite.checkpoint.manifest import TableInfo
from fluidlite.checkpoint.source import Source
from fluidlite.dtypes import Array
from fluidlite.errors import MissingFileError
from fluidlite.values.initial import Constant
from fluidlite.values.lod import LoDTensor
from fluidlite.values.selected_rows import SelectedRows
from fluidlite.values.sharding import shard_of
from fluidlite.values.sparse_table import SparseTable

#: bytes of a table's rows that are in memory at a time, of each of two checkpoints
_MOST_BYTES: Final = 1 << 28
#: what the values are called beside the accumulators
VALUE: Final = "value"


@dataclass(frozen=True)
class Difference:
    """How one part, an array or an accumulator of a table, differs: elements, rows of tables. ``largest`` is the largest
    absolute difference of two numbers; NaNs are equal. ``only``: which of the two checkpoints has it alone."""

    name: str
    part: str = VALUE
    same: int = 0
    changed: int = 0
    only_first: int = 0
    only_second: int = 0
    largest: float = 0.0
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not (self.changed or self.only_first or self.only_second or self.note)


class RowParts(NamedTuple):
    """A row as it was saved: which server had it, the checkpoint of the chain that wrote it last, and its parts by name."""

    server: int
    number: int
    parts: Mapping[str, Array]


def differences(first: Source, second: Source) -> Iterator[Difference]:
    """How every array and every part of every table differs, by name."""
    tables, others = first.tables, second.tables
    for name in sorted(tables.keys() | others.keys()):
        if name in tables and name in others:
            yield from _of_tables(name, first, second)
        else:
            yield Difference(name, note=f"only in checkpoint {(first if name in tables else second).number}")
    shapes, other_shapes = first.dense, second.dense
    for name in sorted(shapes.keys() | other_shapes.keys()):
        if name in shapes and name in other_shapes:
            yield _of_arrays(name, first, second)
        else:
            yield Difference(name, note=f"only in checkpoint {(first if name in shapes else second).number}")


def find_row(source: Source, table: str, id: int) -> RowParts | None:
    """The row of an id, None where the table has none. Raises MissingFileError for a table that is not there."""
    if table not in source.tables:
        raise MissingFileError(
            f"checkpoint {source.number} has no table {table!r}; it has {', '.join(source.tables) or 'none'}"
        )
    server = int(shard_of(np.array([id], np.int64), source.servers)[0])
    found = None
    for layout, chunk in source.rows(table, server, source.servers):
        for at in np.flatnonzero(chunk.ids == id):
            found = RowParts(server, source.number_of(layout, server), _parts(layout, chunk.records[at : at + 1]))
    return found


def _of_tables(name: str, first: Source, second: Source) -> Iterator[Difference]:
    infos = [source.tables[name] for source in (first, second)]
    if infos[0].width != infos[1].width:
        yield Difference(name, note=f"width {infos[0].width} and {infos[1].width}")
        return
    size = sum(source.stored_bytes(name) for source in (first, second))
    passes = -(-size // _MOST_BYTES)
    totals: dict[str, Difference] = {}
    for one in range(passes):
        sides = [_table_of(source, name, one, passes) for source in (first, second)]
        for found in _of_sides(name, *sides):
            totals[found.part] = _sum(totals.get(found.part), found)
    yield from totals.values()


def _table_of(source: Source, name: str, one: int, of: int) -> dict[str, SelectedRows]:
    """Part -> ids and numbers, of the ids that leave the remainder ``one``."""
    tables: dict[str, SparseTable] = {}
    for layout, chunk in source.rows(name, one, of):
        for part, values in _parts(layout, chunk.records).items():
            table = tables.get(part)
            if table is None:
                table = tables[part] = SparseTable(name, values.shape[1], values.dtype, Constant())
            table.load_records(chunk.ids, {None: np.ascontiguousarray(values)})
    return {part: table.export() for part, table in tables.items()}


def _parts(layout: TableInfo, records: Array) -> dict[str, Array]:
    columns = {place.name: records[:, place.start : place.start + place.width] for place in layout.columns}
    return {VALUE: records[:, : layout.width], **columns}


def _of_sides(name: str, first: Mapping[str, SelectedRows], second: Mapping[str, SelectedRows]) -> Iterator[Difference]:
    for part in dict.fromkeys([*first, *second]):
        if part not in first or part not in second:
            alone = [len(side[part].rows) if part in side else 0 for side in (first, second)]
            yield Difference(name, part, only_first=alone[0], only_second=alone[1])
            continue
        here, there = first[part], second[part]
        if here.value.shape[1] != there.value.shape[1]:
            yield Difference(name, part, note=f"width {here.value.shape[1]} and {there.value.shape[1]}")
            continue
        _, a, b = np.intersect1d(here.rows, there.rows, assume_unique=True, return_indices=True)
        differ, largest = _compare(here.value[a], there.value[b])
        changed = int(np.count_nonzero(differ.any(axis=1))) if len(a) else 0
        only = len(here.rows) - len(a), len(there.rows) - len(a)
        yield Difference(name, part, len(a) - changed, changed, *only, largest)


def _of_arrays(name: str, first: Source, second: Source) -> Difference:
    a, b = (_plain(source.array(name, 0)) for source in (first, second))
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return Difference(name, note=f"{list(a.shape)} {a.dtype} and {list(b.shape)} {b.dtype}")
    differ, largest = _compare(a, b)
    changed = int(np.count_nonzero(differ))
    return Difference(name, same=a.size - changed, changed=changed, largest=largest)


def _compare(a: Array, b: Array) -> tuple[Array, float]:
    """(which elements differ, the largest difference of two numbers)."""
    differ = np.asarray((a != b) & ~((a != a) & (b != b)))  # noqa: PLR0124 (NaN)
    if not differ.any():
        return differ, 0.0
    with np.errstate(invalid="ignore"):
        gaps = np.abs(a[differ].astype(np.float64) - b[differ].astype(np.float64))
    return differ, float(np.nan_to_num(gaps, nan=np.inf).max())


def _sum(total: Difference | None, more: Difference) -> Difference:
    if total is None:
        return more
    counts = (total.same + more.same, total.changed + more.changed)
    only = (total.only_first + more.only_first, total.only_second + more.only_second)
    return Difference(more.name, more.part, *counts, *only, max(total.largest, more.largest))


def _plain(value: Array | LoDTensor | None) -> Array:
    return value.array if isinstance(value, LoDTensor) else np.asarray(value)
