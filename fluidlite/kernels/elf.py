"""Whether a shared library in ELF form is all there. The loader maps the segments that its header promises without a look
at the size of the file; what is behind the end of one that was cut off ends the process by SIGBUS."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple


class _Layout(NamedTuple):
    """Where a class of ELF files keeps its numbers; formats of `struct` without the byte order."""

    #: offsets of the tables of segments and of sections, size of a segment's entry, number of them, the same of sections
    header: str
    #: offset and size of a segment in the file
    segment: str


#: by EI_CLASS; "x" passes over what is not read
_LAYOUTS: Final = {b"\1": _Layout("28xII6xHHHH", "4xI8xI"), b"\2": _Layout("32xQQ6xHHHH", "8xQ16xQ")}
#: by EI_DATA
_ORDERS: Final = {b"\1": "<", b"\2": ">"}
_IDENT: Final = 16


def check_whole(path: Path) -> None:
    """Raise ImportError where an ELF file ends before its segments and tables do. Files of other formats pass."""
    with path.open("rb") as file:
        ident = file.read(_IDENT)
        layout, order = _LAYOUTS.get(ident[4:5]), _ORDERS.get(ident[5:6])
        if ident[:4] != b"\x7fELF" or layout is None or order is None:
            return  # whether it is a library at all, the loader says
        size = os.fstat(file.fileno()).st_size
        try:
            end = _end(file, size, layout, order)
        except struct.error:
            raise ImportError(f"{path} is cut off: it has {size} bytes, less than its header") from None
    if size < end:
        raise ImportError(f"{path} is cut off: it has {size} of {end} bytes; build or install it again")


def _end(file: BinaryIO, size: int, layout: _Layout, order: str) -> int:
    """Where the last segment or table ends; where the last table does if that is behind ``size``, the end of the file.

    Raises struct.error where not even the header is all there.
    """
    header, segment = struct.Struct(order + layout.header), struct.Struct(order + layout.segment)
    file.seek(0)
    segments, sections, entry, count, section, section_count = header.unpack(file.read(header.size))
    end: int = max(segments + entry * count, sections + section * section_count)
    if end > size:
        return end
    file.seek(segments)
    table = file.read(entry * count)
    for index in range(count):
        offset, length = segment.unpack_from(table, index * entry)
        end = max(end, offset + length)
    return end
