"""A header with arrays behind it: how values are laid out, whether they go over a wire or into a log.

The header (serialized protobuf) describes each array as ``pb.Array(dtype, shape)``; their bytes follow in the same
order, little-endian, row-major, each padded with zeros to a multiple of `ALIGN`, back to back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from fluidlite.dtypes import DTYPE_NAMES, Array, dtype_number
from fluidlite.errors import RequestRefusedError
from fluidlite.proto_gen import pserver_pb2 as pb
from fluidlite.protocol.messages import Value
from fluidlite.values.selected_rows import SelectedRows

#: every array starts at a multiple of this, so that the views made on receipt are aligned
ALIGN: Final = 8
_ZEROS: Final = bytes(ALIGN)
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    number: np.dtype(name).newbyteorder("<") for number, name in DTYPE_NAMES.items() if name != "bfloat16"
}


class Packet(NamedTuple):
    """A serialized header and the arrays that it describes, in order."""

    header: bytes
    arrays: list[Array]


def describe(array: Array) -> pb.Array:
    """Dtype and shape of an array. DtypeError for a dtype that programs do not have."""
    return pb.Array(dtype=dtype_number(array.dtype), shape=array.shape)


def put_value(value: Value, arrays: list[Array]) -> pb.Value:
    """Describe a value and append its arrays; the ids of SelectedRows go first."""
    if isinstance(value, SelectedRows):
        arrays += (value.rows, value.value)
        return pb.Value(array=describe(value.value), rows=describe(value.rows), height=value.height)
    arrays.append(value)
    return pb.Value(array=describe(value))


def pieces_of(arrays: Iterable[Array]) -> Iterator[memoryview | bytes]:
    """The payload of some arrays as pieces without copies (but for arrays that are not row-major little-endian)."""
    for array in arrays:
        if not array.size:
            continue
        plain = np.ascontiguousarray(array, _DTYPES[dtype_number(array.dtype)])
        yield plain.reshape(-1).view(np.uint8).data
        if surplus := plain.nbytes % ALIGN:
            yield _ZEROS[surplus:]


class Payload:
    """The bytes behind a header, handed out as arrays in the order in which the header describes them.

    The arrays are read-only views where the buffer is. A description that does not fit the bytes raises
    RequestRefusedError; nothing is allocated for it.
    """

    def __init__(self, buffer: bytes | memoryview) -> None:
        self._buffer = memoryview(buffer)
        self._offset = 0

    def take(self, described: pb.Array) -> Array:
        """The next array."""
        dtype = _DTYPES.get(described.dtype)
        shape = tuple(described.shape)
        if dtype is None or any(dim < 0 for dim in shape):
            raise RequestRefusedError(f"malformed array: dtype number {described.dtype}, shape {list(shape)}")
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size > len(self._buffer) - self._offset:
            raise RequestRefusedError(
                f"malformed array: {dtype.name} {list(shape)} needs {size} bytes, "
                f"{len(self._buffer) - self._offset} of {len(self._buffer)} are left"
            )
        return self._view(dtype, shape, count, size)

    def take_value(self, described: pb.Value) -> Value:
        """The next array, or the next two as SelectedRows."""
        if not described.HasField("rows"):
            return self.take(described.array)
        rows, value = self.take(described.rows), self.take(described.array)
        check_rows(rows, value)
        return SelectedRows(rows, value, described.height)

    def finish(self) -> None:
        """Refuse bytes that no array claims."""
        if self._offset < len(self._buffer):
            raise RequestRefusedError(f"malformed message: {len(self._buffer) - self._offset} bytes belong to no array")

    def _view(self, dtype: np.dtype[Any], shape: tuple[int, ...], count: int, size: int) -> Array:
        start = self._offset
        self._offset = min(len(self._buffer), start + size + -size % ALIGN)
        try:
            if not count:
                return np.empty(shape, dtype)
            return np.frombuffer(self._buffer, dtype, count, start).reshape(shape)
        except ValueError as error:  # more dimensions or larger ones than numpy can name
            raise RequestRefusedError(f"malformed array of shape {list(shape)}: {error}") from None


def check_rows(rows: Array, value: Array) -> None:
    """Refuse rows whose ids are not (n,) int64 or whose values are not (n, ...)."""
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise RequestRefusedError(f"ids must be [n] int64, not {list(rows.shape)} {rows.dtype}")
    if value.ndim < 1 or len(rows) != len(value):
        raise RequestRefusedError(f"{len(rows)} ids come with values of shape {list(value.shape)}")
