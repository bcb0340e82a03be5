"""Criteo's text: a label, 13 integers and 26 hexadecimal strings a line, each of which but the label may be empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from fluidlite.dtypes import Array
from fluidlite.errors import DataError
from fluidlite.kernels.parse import Criteo, parse_criteo
from fluidlite.reader.batching import batches
from fluidlite.reader.faults import criteo_fault, first_fault
from fluidlite.reader.lines import Block, read_blocks


@dataclass(frozen=True)
class _Format:
    number_count: int
    id_count: int
    labelled: bool
    separator: bytes
    missing: float

    def field(self, place: int) -> str:
        """The name of a field: label, I1, I2, ..., C1, C2, ..."""
        place -= self.labelled
        if place < 0:
            return "label"
        return f"I{place + 1}" if place < self.number_count else f"C{place - self.number_count + 1}"


def criteo_reader(
    paths: Sequence[str | Path],
    batch_size: int,
    number_count: int = 13,
    id_count: int = 26,
    *,
    labelled: bool = True,
    separator: str = "\t",
    missing: float = 0.0,
    buckets: int | None = None,
    header: bool = False,
    drop_last: bool = False,
) -> Callable[[], Iterator[tuple[Array, ...]]]:
    """A reader of batches (label [b, 1] float32, numbers [b, n] float32, ids [b, m] int64) out of files.

    The label is left out with ``labelled`` False. An empty number is ``missing``. An empty string is id 0; any other one
    is a 64-bit id that is a function of its field and its digits alone, the same in every process and release, and
    different for different ones; with ``buckets`` it is folded to 1 .. buckets - 1. ``separator`` is a tab or a comma;
    ``header`` leaves out the first line of each file. Raises DataError naming file, line and field, and MissingFileError.
    """
    if separator not in ("\t", ","):
        raise DataError(f"the separator of Criteo text is a tab or a comma, not {separator!r}")
    if batch_size <= 0 or number_count < 0 or id_count < 0 or (buckets is not None and buckets < 2):
        raise DataError(f"batches of {batch_size}, {number_count} numbers, {id_count} ids, {buckets} buckets")
    form = _Format(number_count, id_count, labelled, separator.encode(), missing)

    def read() -> Iterator[tuple[Array, ...]]:
        for lines in batches(_parsed(paths, form, header, buckets), batch_size, _joined):
            if len(lines) == batch_size or not drop_last:
                yield lines.arrays

    return read


class _Lines:
    """n lines as arrays of n rows."""

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[-1])

    def part(self, start: int, stop: int) -> _Lines:
        return _Lines(tuple(array[start:stop] for array in self.arrays))


def _joined(parts: Sequence[_Lines]) -> _Lines:
    return _Lines(tuple(np.concatenate(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)))


def _parsed(paths: Sequence[str | Path], form: _Format, header: bool, buckets: int | None) -> Iterator[_Lines]:
    for path in paths:
        for block in read_blocks(path):
            parsed = _parse(_without_header(block) if header and block.first_line == 1 else block, form)
            ids = parsed.ids if buckets is None else _folded(parsed.ids, buckets)
            labels = () if parsed.labels is None else (parsed.labels[:, None],)
            yield _Lines((*labels, parsed.numbers, ids))


def _without_header(block: Block) -> Block:
    _, _, rest = block.text.partition(b"\n")
    return Block(rest, block.source, 2)


def _parse(block: Block, form: _Format) -> Criteo:
    parsed = parse_criteo(
        block.text,
        form.number_count,
        form.id_count,
        labelled=form.labelled,
        separator=form.separator,
        missing=form.missing,
    )
    return _refuse(block, form) if parsed is None else parsed


def _refuse(block: Block, form: _Format) -> NoReturn:
    found = first_fault(
        block.text, lambda line: criteo_fault(line, form.labelled, form.number_count, form.id_count, form.separator)
    )
    assert found is not None, "the kernel refused a line without fault"
    number, (place, what) = found
    where = "" if place is None else f", field {form.field(place)}"
    raise DataError(f"{block.source}, line {block.first_line + number}{where}: {what}")


def _folded(ids: Array, buckets: int) -> Array:
    folded = (ids.view(np.uint64) % np.uint64(buckets - 1) + np.uint64(1)).view(np.int64)
    return np.where(ids == 0, 0, folded)
