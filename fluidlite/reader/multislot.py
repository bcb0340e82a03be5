"""MultiSlot text: a line is an example, and of each slot in order ``<n> v1 ... vn``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from fluidlite.errors import DataError
from fluidlite.kernels.parse import parse_slots
from fluidlite.reader.background import Background, interleaved
from fluidlite.reader.columns import Columns, Slot, columns_of
from fluidlite.reader.faults import first_fault, slot_fault
from fluidlite.reader.lines import PLAIN, Block, read_blocks


def parse(block: Block, slots: Sequence[Slot]) -> Columns:
    """The lines of a block, blank ones left out. Raises DataError naming file, line and slot."""
    parsed = parse_slots(block.text, [slot.is_float for slot in slots])
    if parsed is None or any(
        (parsed.lengths[:, at] % slot.width).any() for at, slot in enumerate(slots) if slot.width > 1
    ):
        _refuse(block, slots)
    return columns_of(parsed.values, parsed.lengths)


def read_columns(
    paths: Sequence[str | Path], slots: Sequence[Slot], command: str = PLAIN, threads: int = 1
) -> Iterator[Columns]:
    """The lines of all files, each through the pipe command, in the order of the files.

    With n > 1 ``threads`` n files are read at once, each by a thread, and their blocks come in turn: again an order that
    time has no part in.
    """
    streams = min(threads, len(paths))
    if streams < 2:
        return _read(paths, slots, command)
    return interleaved([Background(_read(paths[at::streams], slots, command), 2) for at in range(streams)])


def _read(paths: Sequence[str | Path], slots: Sequence[Slot], command: str) -> Iterator[Columns]:
    for path in paths:
        for block in read_blocks(path, command):
            yield parse(block, slots)


def _refuse(block: Block, slots: Sequence[Slot]) -> NoReturn:
    found = first_fault(block.text, lambda line: slot_fault(line, slots))
    assert found is not None, "the kernel refused a line without fault"
    number, (place, what) = found
    where = "" if place is None else f", slot {slots[place].name!r}"
    raise DataError(f"{block.source}, line {block.first_line + number}{where}: {what}")
